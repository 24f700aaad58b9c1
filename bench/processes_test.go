package bench

import (
	"bytes"
	"errors"
	"os"
	"runtime"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// What processes use during the warm-up and behind the end does not count; one
// that ends meanwhile is not taken for one that did nothing.
func TestProcessMeter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		read := func(pid int) (usage, error) {
			seconds := time.Since(start).Seconds()
			if pid == 3 && seconds > 2 {
				return usage{}, errors.New("gone")
			}
			return usage{user: seconds * float64(pid), system: seconds / 2, memory: int64(seconds)}, nil
		}
		all := []Process{{"client", 1}, {"node1", 2}, {"node2", 3}}
		l := Load{Warmup: time.Second, Duration: 4 * time.Second}
		m := watchProcesses(all, l, read)
		time.Sleep(7 * time.Second) // of virtual time
		require.Equal(t, []ProcessUse{
			{Name: "client", User: 4, System: 2, Memory: 5}, {Name: "node1", User: 8, System: 2, Memory: 5}, {Name: "node2", Ended: true},
		}, m.Stop())

		early := watchProcesses(all[:1], l, func(int) (usage, error) { return usage{user: time.Since(start).Seconds()}, nil })
		time.Sleep(3 * time.Second) // of virtual time
		require.Equal(t, []ProcessUse{{Name: "client", User: 2}}, early.Stop(), "the callers may be done before the timer is")

		broken := watchProcesses(all, l, read)
		require.Nil(t, broken.Stop(), "nothing was measured yet")
		synctest.Wait()
		time.Sleep(time.Hour) // of virtual time
		require.Nil(t, broken.from, "its timers are stopped")
	})
}

func TestReadProcess(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("the CPU of other processes is known on Linux alone")
	}
	before, err := readProcess(os.Getpid())
	require.NoError(t, err)
	require.Greater(t, before.memory, int64(1<<20))
	n := 0
	require.Eventually(t, func() bool {
		for range 1_000_000 {
			n++
		}
		now, err := readProcess(os.Getpid())
		return err == nil && now.user+now.system > before.user+before.system
	}, 10*time.Second, time.Millisecond)
	_, err = readProcess(1 << 30)
	require.Error(t, err)
}

func TestTextHasCPU(t *testing.T) {
	r := NewResult(Apart, time.Unix(0, 0))
	run := runAt(8, 100, 10)
	run.Ops, run.Duration = 1000, 2*time.Second
	run.Processes = []ProcessUse{
		{Name: "client", User: 0.003, System: 0.002, Memory: 50 << 20}, {Name: "node1", User: 0.030, System: 0.005}, {Name: "node2", Ended: true},
	}
	r.Of("govnode, 1 node").Add(0, run)
	require.InDelta(t, 40, run.CPUPerOp(), 1e-9)
	var b bytes.Buffer
	require.NoError(t, r.WriteText(&b))
	for _, want := range []string{"0.02        40.0", "client 3.0 + 2.0, 50 MB", "node1 30.0 + 5.0", "node2: ended"} {
		require.Contains(t, b.String(), want)
	}
}
