package cluster

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// sinceStart is the monotonic clock of the bubble.
func sinceStart() func() time.Duration {
	start := time.Now()
	return func() time.Duration { return time.Since(start) }
}

func TestClockCountsIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newClock(time.Hour, sinceStart())
		go c.run(ctx)
		time.Sleep(90 * time.Second)
		require.Equal(t, time.Hour+90*time.Second, c.Now())
		cancel()
	})
}

func TestClockTakesOneStepOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(0, sinceStart()) // nobody samples it: the process stands still
		time.Sleep(time.Hour)
		require.Equal(t, maxStep, c.Now())
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, maxStep+100*time.Millisecond, c.Now())
	})
}

func TestClockIgnoresJumps(t *testing.T) {
	at := time.Duration(0)
	c := newClock(time.Minute, func() time.Duration { return at })
	at = 10 * time.Hour
	require.Equal(t, time.Minute+maxStep, c.Now(), "forward: one step")
	at = -10 * time.Hour
	require.Equal(t, time.Minute+maxStep, c.Now(), "backward: none")
	at += 200 * time.Millisecond
	require.Equal(t, time.Minute+maxStep+200*time.Millisecond, c.Now(), "and on from there")
}

// A fleet is the part of a cluster that has to do with time: a state, and
// whoever leads stamping what it is given. Entries are applied at once.
type fleet struct {
	*testing.T
	fsm    *fsm
	clock  *clock
	cancel context.CancelFunc

	mu    sync.Mutex
	ticks []int // how many keys each Tick named
}

// ticked returns how many keys each Tick has named since it was last called.
func (f *fleet) ticked() []int {
	f.mu.Lock()
	defer f.mu.Unlock()
	t := f.ticks
	f.ticks = nil
	return t
}

// lead begins a leadership, as Node.lead does.
func (f *fleet) lead() {
	ctx, cancel := context.WithCancel(f.Context())
	f.cancel = cancel
	f.clock = newClock(f.fsm.now(), sinceStart())
	go f.clock.run(ctx)
	go (&housekeeper{now: f.clock.Now, due: f.fsm.due, overdue: f.fsm.overdue, propose: func(_ context.Context, c *session.Tick) error {
		f.mu.Lock()
		f.ticks = append(f.ticks, len(c.Keys))
		f.mu.Unlock()
		f.apply(c)
		return nil
	}}).run(ctx)
	synctest.Wait()
}

func (f *fleet) fail() {
	f.cancel()
	synctest.Wait()
}

func (f *fleet) apply(cmds ...session.Command) []session.Result {
	f.fsm.mu.Lock()
	defer f.fsm.mu.Unlock()
	r := f.fsm.state.ApplyAll(f.clock.Now(), cmds)
	f.fsm.noteLeases(cmds)
	return r
}

func newFleet(t *testing.T) *fleet {
	return &fleet{T: t, fsm: newFSM(func(err error) { t.Error(err) }, newMetrics())}
}

func (f *fleet) acquire(slot string, ttl time.Duration) session.Code {
	return f.apply(&session.PutPool{NS: "n", Pool: "p", Slots: 1}, &session.Acquire{NS: "n", Client: "c", Slot: slot, Pool: "p", Weight: 1, TTL: ttl})[1].Code
}

func (f *fleet) leases() int {
	return len(f.fsm.get(session.PoolKey("n", "p")).Record.(*session.Pool).Leases)
}

func TestALeaseEndsInTimeWithoutAnybodyAsking(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		f.lead()
		require.Equal(t, session.Admitted, f.acquire("one", 5*time.Second))
		time.Sleep(5*time.Second - time.Millisecond)
		require.Equal(t, 1, f.leases(), "never before its time")
		time.Sleep(leaseTick + time.Millisecond)
		require.Zero(t, f.leases(), "and soon after it")
		f.fail()
	})
}

// While nobody leads, no time passes: a holder that could not renew keeps what
// it has.
func TestAnElectionLengthensLeases(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		f.lead()
		require.Equal(t, session.Admitted, f.acquire("one", 10*time.Second))
		time.Sleep(4 * time.Second)
		f.fail()
		time.Sleep(time.Hour)
		f.lead()
		require.Equal(t, 1, f.leases())
		require.Equal(t, session.ConcurrencyLimit, f.acquire("two", time.Minute))
		time.Sleep(5 * time.Second)
		require.Equal(t, 1, f.leases(), "6 s were left, and what the log had not been told of the first leader's time")
		time.Sleep(1*time.Second + 2*leaseTick)
		require.Zero(t, f.leases(), "it does not begin anew with each leader")
		f.fail()
	})
}

// Elections without end do not keep a lease alive for ever: each leader writes
// its time, beginning with where the last one's was written.
func TestLeasesEndUnderEndlessElections(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		f.lead()
		require.Equal(t, session.Admitted, f.acquire("one", 10*time.Second))
		for range 25 {
			f.fail()
			f.lead()
			time.Sleep(leaseTick + time.Millisecond)
		}
		require.Zero(t, f.leases())
		f.fail()
	})
}

func TestTimeIsWrittenAsOftenAsItMatters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		f.lead()
		require.Len(t, f.ticked(), 1, "directly after the barrier")
		time.Sleep(time.Hour)
		require.Empty(t, f.ticked(), "never while nothing can run out")

		f.apply(&session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: "k", Value: session.Value{Text: "v"}, TTL: 24 * time.Hour})
		f.ticked()
		time.Sleep(10 * time.Minute)
		require.InDelta(t, 60, len(f.ticked()), 3, "every 10 s for what is not urgent")

		f.acquire("one", time.Minute)
		time.Sleep(30 * time.Second)
		require.InDelta(t, 60, len(f.ticked()), 3, "every 500 ms while there are leases")
		f.fail()
	})
}

// What runs out at once is settled in as many Ticks as it takes, none of them
// larger than a Tick may be.
func TestManyDeadlinesAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet(t)
		f.lead()
		const clients = 3 * session.MaxTick
		for i := range clients {
			f.apply(&session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: string(rune('a'+i%26)) + time.Duration(i).String(), Value: session.Value{Text: "v"}, TTL: time.Minute})
		}
		f.ticked()
		time.Sleep(2 * time.Minute)
		settled := 0
		for _, n := range f.ticked() {
			require.LessOrEqual(t, n, session.MaxTick)
			settled += n
		}
		require.GreaterOrEqual(t, settled, clients)
		require.Zero(t, f.fsm.state.Len())
		f.fail()
	})
}
