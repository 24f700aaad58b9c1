package gate

import (
	"bytes"
	"io"
	"log/slog"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"example.com/govnode/internal/server/fault"
)

// shedder is a guard with a limit of 1,000 bytes, and what it logs.
func shedder(t *testing.T) (*Memory, *bytes.Buffer) {
	t.Helper()
	var out bytes.Buffer
	g, err := NewMemory(prometheus.NewRegistry(), slog.New(slog.NewTextHandler(&out, nil)))
	require.NoError(t, err)
	t.Cleanup(g.Close)
	g.limit = 1000
	return g, &out
}

// New work is refused from 70 % of the limit on, and taken again below 60 %, so
// that a node at the edge does not change its mind with each look.
func TestWorkIsRefusedNearTheLimit(t *testing.T) {
	g, out := shedder(t)
	for _, step := range []struct {
		bytes uint64
		sheds bool
	}{{0, false}, {699, false}, {700, true}, {650, true}, {600, true}, {599, false}, {699, false}, {5000, true}, {1, false}} {
		g.look(memoryUse{bytes: step.bytes})
		err := g.Admit()
		require.Equal(t, step.sheds, err != nil, "%d bytes", step.bytes)
	}
	require.Equal(t, 2, strings.Count(out.String(), "level=WARN"), "once each time it begins: %s", out)
	require.Equal(t, 2, strings.Count(out.String(), "level=INFO"), "and once when it ends: %s", out)
	require.Contains(t, out.String(), "GOMEMLIMIT")
}

func TestARefusalForMemorySaysWhatToDo(t *testing.T) {
	g, _ := shedder(t)
	g.look(memoryUse{bytes: 900})
	err := g.Admit()
	require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err))
	info := fault.InfoOf(err)
	require.Equal(t, "OVERLOADED", info.GetReason())
	require.Equal(t, map[string]string{"retryAfter": "1s", "limit": "1000"}, info.GetMetadata())
	require.ErrorContains(t, err, "send it again with the same id in 1s")
	var ce *connect.Error
	require.ErrorAs(t, err, &ce)
	var retry *errdetails.RetryInfo
	for _, d := range ce.Details() {
		m, err := d.Value()
		require.NoError(t, err)
		if r, ok := m.(*errdetails.RetryInfo); ok {
			retry = r
		}
	}
	require.Equal(t, time.Second, retry.GetRetryDelay().AsDuration())
}

// A node that sheds learns by itself that what it held is gone, and collects
// garbage for that only when nobody else does.
func TestAGuardRecoversByItself(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g, _ := shedder(t)
		var live, cycles, collected atomic.Uint64
		g.inUse = func() memoryUse { return memoryUse{bytes: live.Load(), collections: cycles.Load()} }
		g.collect = func() {
			collected.Add(1)
			cycles.Add(1)
			live.Store(100)
		}
		g.ended.Go(g.watch)
		defer g.Close()

		live.Store(500)
		time.Sleep(time.Minute)
		synctest.Wait()
		require.Zero(t, collected.Load(), "a node that takes work is left alone")
		live.Store(800)
		for range 20 { // the runtime collects by itself
			time.Sleep(collectAfter / 2)
			cycles.Add(1)
		}
		synctest.Wait()
		require.Zero(t, collected.Load())
		require.Error(t, g.Admit())
		time.Sleep(collectAfter + 2*memoryCheck)
		synctest.Wait()
		require.EqualValues(t, 1, collected.Load())
		require.NoError(t, g.Admit())
	})
}

// What the runtime says is understood: what is kept counts, what could be freed
// does not.
func TestMemoryInUse(t *testing.T) {
	kept := make([]byte, 64<<20)
	runtime.GC()
	with := readMemory()
	require.Greater(t, with.bytes, uint64(64<<20))
	runtime.KeepAlive(kept)
	kept = nil
	runtime.GC()
	without := readMemory()
	require.Less(t, without.bytes+32<<20, with.bytes)
	require.Greater(t, without.collections, with.collections)
	require.Positive(t, without.bytes)
}

// A snapshot that does not fit beside the present state is refused while it is
// read, and changes nothing; one that fits is restored.
func TestARestoreHasToFit(t *testing.T) {
	g, _ := shedder(t)
	read := func(used, snapshot int) ([]byte, error) {
		g.used.Store(uint64(used))
		return io.ReadAll(g.Restoring(strings.NewReader(strings.Repeat("x", snapshot))))
	}
	for _, fits := range [][2]int{{0, 667}, {700, 200}, {1000, 0}} {
		got, err := read(fits[0], fits[1])
		require.NoError(t, err, "%v", fits)
		require.Len(t, got, fits[1])
	}
	for _, not := range [][2]int{{0, 668}, {700, 201}, {1001, 0}} {
		_, err := read(not[0], not[1])
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%v", not)
		require.ErrorContains(t, err, "nothing was changed")
	}
	g.limit = 0
	_, err := read(0, 10_000)
	require.NoError(t, err, "without a limit everything fits")
}
