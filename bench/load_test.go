package bench

import (
	"context"
	"errors"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// A mock does what its fields say; a step without one takes no time.
type mock struct {
	step   func(ctx context.Context, caller int) error
	verify error
}

func (m *mock) Step(ctx context.Context, caller int) error { return m.step(ctx, caller) }
func (m *mock) Verify(context.Context) (Audit, error)      { return Audit{Sessions: 7}, m.verify }
func (m *mock) Close() error                               { return nil }

func takes(d time.Duration) func(context.Context, int) error {
	return func(context.Context, int) error {
		time.Sleep(d) // of virtual time
		return nil
	}
}

// One stall of a second delays what was due meanwhile. A schedule sees that, the
// time from sending does not.
func TestOpenLoopSeesWhatWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		m := &mock{step: func(context.Context, int) error {
			if n++; n == 2500 {
				time.Sleep(time.Second) // of virtual time
			}
			time.Sleep(time.Millisecond)
			return nil
		}}
		run, err := Drive(t.Context(), m, Load{Callers: 1, Rate: 500, Duration: 10 * time.Second}, nil)
		require.NoError(t, err)
		require.EqualValues(t, 5000, run.Ops)
		require.Greater(t, run.Latency.P90, int64(400_000), "the half second that the median of the late ones waited")
		require.Less(t, run.Uncorrected.P90, int64(2_000))
		require.Equal(t, run.Latency.Max, run.Uncorrected.Max)
	})
}

// What is due while everything hangs is neither lost nor taken for fast.
func TestOpenLoopCountsWhatIsNeverBegun(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		run, err := Drive(t.Context(), &mock{step: takes(time.Minute)}, Load{Callers: 2, Rate: 100, Warmup: time.Second, Duration: 4 * time.Second}, nil)
		require.NoError(t, err)
		require.Zero(t, run.Ops)
		require.EqualValues(t, 400, run.Missed)
		require.InDelta(t, 2_000_000, run.Latency.P50, 40_000)
	})
}

// The schedules of the callers are evenly spread.
func TestSchedule(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		start := time.Now()
		var mu sync.Mutex
		var begun []time.Duration
		m := &mock{step: func(context.Context, int) error {
			mu.Lock()
			defer mu.Unlock()
			begun = append(begun, time.Since(start))
			return nil
		}}
		_, err := Drive(t.Context(), m, Load{Callers: 5, Rate: 10, Duration: time.Second}, nil)
		require.NoError(t, err)
		require.Len(t, begun, 10)
		for i, at := range begun {
			require.Equal(t, time.Duration(i)*100*time.Millisecond, at)
		}
	})
}

func TestClosedLoop(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var seconds []Second
		m := &mock{step: takes(10 * time.Millisecond)}
		run, err := Drive(t.Context(), m, Load{Callers: 4, Warmup: 1005 * time.Millisecond, Duration: 3 * time.Second}, func(s Second) { seconds = append(seconds, s) })
		require.NoError(t, err)
		require.InDelta(t, 400, run.Throughput, 2)
		require.InDelta(t, 10_000, run.Latency.P50, 10)
		require.Nil(t, run.Uncorrected)
		require.Len(t, seconds, 4)
		require.True(t, seconds[0].Warming)
		require.False(t, seconds[2].Warming)
		require.InDelta(t, 400, seconds[2].Ops, 4)
	})
}

// Refusals are operations; errors are not, and none is left out.
func TestOutcomesAreCountedApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := 0
		m := &mock{step: func(context.Context, int) error {
			time.Sleep(10 * time.Millisecond) // of virtual time
			n++
			switch n % 4 {
			case 1:
				return ErrRefused
			case 2:
				return errors.New("broken")
			}
			return nil
		}}
		run, err := Drive(t.Context(), m, Load{Callers: 1, Warmup: 400 * time.Millisecond, Duration: 405 * time.Millisecond}, nil)
		require.NoError(t, err)
		require.EqualValues(t, 31, run.Ops)
		require.EqualValues(t, 10, run.Refused)
		require.EqualValues(t, 20, run.Errors, "those of the warm-up too")
		require.Equal(t, "broken", run.FirstError)
	})
}

func TestDriveEndsWithItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := Drive(ctx, &mock{step: takes(time.Millisecond)}, Load{Callers: 3, Duration: time.Hour}, nil)
		require.ErrorIs(t, err, context.Canceled)
	})
}

// A caller that is done lets go of what others wait for.
func TestCallersSettle(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var settled [3]int
		m := settler{&mock{step: takes(time.Millisecond)}, func(caller int) { settled[caller]++ }}
		_, err := Drive(t.Context(), m, Load{Callers: 3, Duration: time.Second}, nil)
		require.NoError(t, err)
		require.Equal(t, [3]int{1, 1, 1}, settled)
	})
}

type settler struct {
	*mock
	settle func(caller int)
}

func (s settler) Settle(_ context.Context, caller int) { s.settle(caller) }

func TestLoadIsChecked(t *testing.T) {
	good := Load{Callers: 1, Duration: time.Second}
	for field, change := range map[string]func(*Load){
		"callers":  func(l *Load) { l.Callers = 0 },
		"rate":     func(l *Load) { l.Rate = -1 },
		"duration": func(l *Load) { l.Duration = 0 },
		"warmup":   func(l *Load) { l.Warmup = -1 },
	} {
		l := good
		change(&l)
		_, err := Drive(t.Context(), nil, l, nil)
		require.ErrorContains(t, err, field+":")
	}
}

// A driver in another process gives the same answers as one in this.
func TestRemote(t *testing.T) {
	var steps atomic.Int64
	m := &mock{step: func(context.Context, int) error {
		steps.Add(1)
		time.Sleep(time.Millisecond) // the work
		return nil
	}}
	open := func(_ context.Context, addresses []string, p Plan) (Target, error) {
		if len(addresses) == 0 {
			return nil, errors.New("addresses: empty")
		}
		return m, nil
	}
	start := func(addresses ...string) (*Remote, io.Closer, chan error, error) {
		inRead, in := io.Pipe()
		out, outWrite := io.Pipe()
		served := make(chan error, 1)
		go func() {
			served <- Serve(t.Context(), inRead, outWrite, open)
			_ = outWrite.Close()
		}()
		r, err := NewRemote(in, out, addresses, Plan{Scenario: Apart, Name: "r", Callers: 2})
		return r, in, served, err
	}
	_, in, served, err := start()
	require.ErrorContains(t, err, "addresses: empty")
	require.NoError(t, in.Close())
	require.NoError(t, <-served)

	r, in, served, err := start("a:1")
	require.NoError(t, err)
	run, err := r.Drive(Load{Callers: 2, Duration: 50 * time.Millisecond}, nil)
	require.NoError(t, err)
	require.Positive(t, run.Ops)
	require.LessOrEqual(t, run.Ops, steps.Load())
	_, err = r.Drive(Load{Callers: 0, Duration: time.Second}, nil)
	require.ErrorContains(t, err, "callers:")
	a, err := r.Verify()
	require.NoError(t, err)
	require.Equal(t, 7, a.Sessions)
	m.verify = errors.New("ledgers: wrong")
	_, err = r.Verify()
	require.ErrorContains(t, err, "ledgers: wrong")
	require.NoError(t, in.Close())
	require.NoError(t, <-served)
	_, err = r.Verify()
	require.Error(t, err)
}
