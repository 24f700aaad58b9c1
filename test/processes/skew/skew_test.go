package skew

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestMain lets this binary be a process whose clocks are moved: for every line
// that it reads it says what they show.
func TestMain(m *testing.M) {
	if os.Getenv("GOVNODE_SKEWED") == "" {
		os.Exit(m.Run())
	}
	start := time.Now()
	for range 8 { // which ask all the time
		go func() {
			for {
				_ = time.Now()
			}
		}()
	}
	for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
		fmt.Println(time.Now().UnixNano(), int64(time.Since(start)))
	}
}

// A shown is what a process shows beside what is so.
type shown struct{ wall, monotonic time.Duration }

// minus is how far clocks have got since.
func (s shown) minus(before shown) shown {
	return shown{s.wall - before.wall, s.monotonic - before.monotonic}
}

func TestSkew(t *testing.T) {
	if os.Getenv("GOVNODE_L2") == "" && os.Getenv("GOVNODE_L3") == "" {
		t.Skip("GOVNODE_L3=1 runs it")
	}
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), "GOVNODE_SKEWED=1", "GOMAXPROCS=2")
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	start := time.Now()
	lines := bufio.NewReader(out)
	look := func() shown {
		_, err := io.WriteString(in, "\n")
		require.NoError(t, err)
		var wall, monotonic int64
		_, err = fmt.Fscanln(lines, &wall, &monotonic)
		require.NoError(t, err)
		return shown{time.Duration(wall - time.Now().UnixNano()), time.Duration(monotonic) - time.Since(start)}
	}
	// Less than what is moved, and more than a busy machine takes.
	near := func(want, got time.Duration) {
		t.Helper()
		require.InDelta(t, want.Seconds(), got.Seconds(), 5)
	}
	before := look()
	c, err := Of(cmd.Process.Pid)
	if os.IsPermission(err) {
		t.Skip(err)
	}
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	_, err = Of(cmd.Process.Pid)
	require.ErrorContains(t, err, "are taken")
	now := look().minus(before)
	near(0, now.wall)
	near(0, now.monotonic)

	require.NoError(t, c.Jump(Wall, time.Hour))
	now = look().minus(before)
	near(time.Hour, now.wall)
	near(0, now.monotonic)

	require.NoError(t, c.Jump(Monotonic, 30*time.Second))
	require.NoError(t, c.Jump(Wall, -2*time.Hour))
	now = look().minus(before)
	near(-time.Hour, now.wall)
	near(30*time.Second, now.monotonic)

	// A thousand times as fast for at least 20 ms of it.
	require.NoError(t, c.Rate(Monotonic, 1000))
	for began := look(); look().minus(began).monotonic < 20*time.Second; {
	}
	require.NoError(t, c.Rate(Monotonic, 1))
	ahead := look()
	for range 100 {
		near(0, look().minus(ahead).monotonic)
	}
	near(-time.Hour, look().minus(before).wall)
}
