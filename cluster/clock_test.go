package cluster

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func TestClockCountsIdleTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		c := newClock(time.Hour, systemClocks())
		go c.run(ctx)
		time.Sleep(90 * time.Second)
		require.Equal(t, time.Hour+90*time.Second, c.Now())
		cancel()
	})
}

func TestClockTakesOneStepOfAPause(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClock(0, systemClocks()) // nobody samples it: the process stands still
		time.Sleep(time.Hour)
		require.Equal(t, maxStep, c.Now())
		time.Sleep(100 * time.Millisecond)
		require.Equal(t, maxStep+100*time.Millisecond, c.Now())
	})
}

// Either clock may jump, and adds what the other one says; backward, nothing.
func TestClockIgnoresJumps(t *testing.T) {
	for name, jumps := range map[string][2]time.Duration{"monotonic": {time.Hour, 0}, "wall": {0, time.Hour}} {
		monotonic, wall := 5*time.Hour, 900*time.Hour
		pass := func(d time.Duration) { monotonic, wall = monotonic+d, wall+d }
		c := newClock(time.Minute, func() (time.Duration, time.Duration) { return monotonic, wall })
		pass(10 * time.Millisecond)
		monotonic, wall = monotonic+jumps[0], wall+jumps[1]
		require.Equal(t, time.Minute+10*time.Millisecond, c.Now(), "%s forward", name)
		pass(10 * time.Millisecond)
		monotonic, wall = monotonic-2*jumps[0], wall-2*jumps[1]
		require.Equal(t, time.Minute+10*time.Millisecond, c.Now(), "%s backward", name)
		pass(200 * time.Millisecond)
		require.Equal(t, time.Minute+210*time.Millisecond, c.Now(), "and on from there")
	}
	var both time.Duration
	c := newClock(0, func() (time.Duration, time.Duration) { return both, both })
	both = time.Hour
	require.Equal(t, maxStep, c.Now(), "a jump of both is one step")
}

// A clock that begins anew counts from there, by both clocks, whatever was before.
func TestAClockBeginsAnew(t *testing.T) {
	for _, jump := range [][2]time.Duration{{0, 0}, {time.Hour, 0}, {0, time.Hour}} {
		monotonic, wall := 5*time.Hour, 900*time.Hour
		c := newClock(time.Minute, func() (time.Duration, time.Duration) { return monotonic, wall })
		monotonic, wall = monotonic+200*time.Millisecond, wall+200*time.Millisecond
		c.restart()
		require.Zero(t, c.Now())
		monotonic, wall = monotonic+200*time.Millisecond, wall+200*time.Millisecond
		c.restart()
		monotonic, wall = monotonic+10*time.Millisecond+jump[0], wall+10*time.Millisecond+jump[1]
		require.Equal(t, 10*time.Millisecond, c.Now(), "%v", jump)
	}
}

// What elections take is three seconds with the timeouts that nodes have by default, and
// longer where those are.
func TestHowLongElectionsTake(t *testing.T) {
	for _, x := range []struct{ heartbeat, election, want time.Duration }{
		{20 * time.Millisecond, 20 * time.Millisecond, 3 * time.Second},
		{500 * time.Millisecond, 500 * time.Millisecond, 3 * time.Second},
		{time.Second, 500 * time.Millisecond, 6 * time.Second},
		{500 * time.Millisecond, 2 * time.Second, 12 * time.Second},
	} {
		require.Equal(t, x.want, electionsTake(x.heartbeat, x.election), "%v", x)
	}
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
	f.clock = newClock(f.fsm.begin(), systemClocks())
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
	f.fsm.since.restart()
	return r
}

func newFleet(t *testing.T) *fleet {
	f := &fleet{T: t, fsm: newFSM(func(err error) { t.Error(err) }, newMetrics())}
	ctx, cancel := context.WithCancel(context.Background())
	t.Cleanup(cancel)
	go f.fsm.since.run(ctx)
	return f
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

// Of the time in which nobody leads no more counts than an election takes: a
// holder that could not renew in an outage keeps nearly what it had.
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
		time.Sleep(6*time.Second - betweenMost - time.Millisecond)
		require.Equal(t, 1, f.leases(), "6 s were left")
		time.Sleep(2 * leaseTick)
		require.Zero(t, f.leases(), "it does not begin anew with each leader")
		f.fail()
	})
}

// Elections without end lengthen no lease by more than an entry is on its way,
// however short each leadership and however long each election is.
func TestLeasesEndUnderEndlessElections(t *testing.T) {
	for _, leads := range []time.Duration{time.Millisecond, 200 * time.Millisecond, leaseTick + time.Millisecond, 2 * time.Second} {
		for _, between := range []time.Duration{0, 100 * time.Millisecond, betweenMost, 20 * time.Second} {
			synctest.Test(t, func(t *testing.T) {
				f := newFleet(t)
				f.fsm.between = electionsTake(500*time.Millisecond, between/5) // as such elections would have been set
				f.lead()
				require.Equal(t, session.Admitted, f.acquire("one", 10*time.Second))
				start := time.Now()
				for time.Since(start) < 10*time.Second {
					require.Equal(t, 1, f.leases())
					time.Sleep(leads)
					f.fail()
					time.Sleep(between)
					f.lead()
				}
				time.Sleep(2 * leaseTick)
				require.Zero(t, f.leases(), "%v, %v between", leads, between)
				f.fail()
			})
		}
	}
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
		require.InDelta(t, 60, len(f.ticked()), 1, "every 10 s for what is not urgent")

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
		time.Sleep(time.Minute + leaseTick/2)
		settled := 0
		for _, n := range f.ticked() {
			require.LessOrEqual(t, n, session.MaxTick)
			settled += n
		}
		require.GreaterOrEqual(t, settled, clients)
		f.fail()
		require.Zero(t, f.fsm.state.Len())
	})
}

// Ticks follow each other until nothing is overdue. One that names nothing moves time alone,
// and shows what has run out by then; one that could not be put in order is the last.
func TestTicksFollowUntilNothingIsOverdue(t *testing.T) {
	lost := errors.New("lost")
	type step struct {
		keys int
		more bool
		due  cadence // behind it
		err  error
	}
	for name, steps := range map[string][]step{
		"nothing is":             {{due: never}},
		"a lease lasts":          {{due: often}},
		"something has run out":  {{due: atOnce}, {keys: 1, due: never}},
		"it was named":           {{keys: 1, due: atOnce}},
		"more than go together":  {{keys: 2, more: true, due: often}, {keys: 2, more: true, due: atOnce}, {keys: 1, due: often}},
		"more, of which none is": {{more: true, due: often}, {due: seldom}},
		"the leadership ended":   {{keys: 2, more: true, due: atOnce}, {keys: 2, more: true, due: atOnce, err: lost}},
	} {
		made := 0
		h := &housekeeper{
			now: func() time.Duration { return 7 },
			due: func(now time.Duration) cadence {
				require.EqualValues(t, 7, now)
				return steps[made-1].due
			},
			overdue: func(limit int) ([]session.Key, bool) {
				return make([]session.Key, min(limit, steps[made].keys)), steps[made].more
			},
			propose: func(_ context.Context, tick *session.Tick) error {
				require.Len(t, tick.Keys, steps[made].keys, name)
				made++
				return steps[made-1].err
			},
		}
		require.Equal(t, steps[len(steps)-1].err, h.tick(t.Context()), name)
		require.Len(t, steps, made, name)
	}
}

// A world is nodes with clocks of their own, under one real time.
type world struct {
	random  *rand.Rand
	real    time.Duration
	nodes   []*timekeeper
	leader  *timekeeper
	entries []stamped
}

type stamped struct{ real, at time.Duration }

type timekeeper struct {
	monotonic, wall time.Duration
	paused          time.Duration // until then nobody looks at a clock
	applied         int
	fsm             *fsm // for the time of the last entry applied
	leads           *clock
}

func newWorld(seed uint64) *world {
	w := &world{random: rand.New(rand.NewPCG(seed, 0))}
	for range 3 {
		k := &timekeeper{fsm: newFSM(nil, newMetrics())}
		k.fsm.since = newClock(0, k.read)
		w.nodes = append(w.nodes, k)
	}
	return w
}

func (k *timekeeper) read() (monotonic, wall time.Duration) { return k.monotonic, k.wall }

// pass lets time go by in small steps, in which clocks are looked at as often as
// clock.run does, and entries arrive within late.
func (w *world) pass(d, late time.Duration) {
	const step = 5 * time.Millisecond
	for end := w.real + d; w.real < end; {
		w.real += step
		for _, k := range w.nodes {
			k.monotonic, k.wall = k.monotonic+step, k.wall+step
			if w.real < k.paused {
				continue
			}
			if w.real%sampleEvery == 0 {
				k.fsm.since.Now()
				if k.leads != nil {
					k.leads.Now()
				}
			}
			for k.applied < len(w.entries) && w.entries[k.applied].real+late <= w.real {
				w.apply(k)
			}
		}
	}
}

func (w *world) apply(k *timekeeper) {
	k.fsm.state.SetClock(w.entries[k.applied].at, 0)
	k.applied++
	k.fsm.since.restart()
}

// lead begins a leadership, as Node.lead does.
func (w *world) lead(k *timekeeper) {
	for k.applied < len(w.entries) {
		w.apply(k)
	}
	if w.leader != nil {
		w.leader.leads = nil
	}
	w.leader, k.leads = k, newClock(k.fsm.begin(), k.read)
}

func (w *world) stamp() stamped {
	e := stamped{w.real, w.leader.leads.Now()}
	w.entries = append(w.entries, e)
	return e
}

// Whatever clocks, processes and elections do, between two entries passes at
// least as much as their stamps say: no lease ends before its time.
func TestLogTimeIsNeverAhead(t *testing.T) {
	for seed := range uint64(30) {
		w := newWorld(seed)
		w.lead(w.nodes[0])
		last := w.stamp()
		for range 200 {
			w.pass(time.Duration(w.random.IntN(400))*time.Millisecond, time.Duration(w.random.IntN(100))*time.Millisecond)
			k := w.nodes[w.random.IntN(3)]
			switch w.random.IntN(12) {
			case 0:
				k.paused = w.real + time.Duration(w.random.IntN(20_000))*time.Millisecond
			case 1, 2:
				// A node has one clock that jumps: see clock for both at once.
				jumps := &k.monotonic
				if k == w.nodes[seed%3] {
					jumps = &k.wall
				}
				*jumps += time.Duration(w.random.IntN(7200)-3600) * time.Second
			case 3, 4, 5:
				if w.real >= k.paused {
					w.lead(k)
				}
			default:
				if w.real >= w.leader.paused {
					e := w.stamp()
					require.LessOrEqual(t, e.at-last.at, e.real-last.real, "seed %d, at %v", seed, w.real)
					last = e
				}
			}
		}
	}
}

// And with a leader every 200 ms, after elections of up to a second, it is behind
// by what the entries were on their way.
func TestLogTimeIsNotFarBehind(t *testing.T) {
	for seed := range uint64(3) {
		w := newWorld(seed)
		const late = 10 * time.Millisecond
		for i := range 200 {
			w.lead(w.nodes[w.random.IntN(3)])
			e := w.stamp()
			require.GreaterOrEqual(t, e.at-w.entries[0].at, e.real-w.entries[0].real-time.Duration(i)*late, "seed %d, leader %d", seed, i)
			w.pass(200*time.Millisecond+time.Duration(w.random.IntN(1000))*time.Millisecond, late)
		}
	}
}

// A slot whose holder is dead is free soon after its time, with another leader
// every 0.2 s: for some rounds, or as long as GOVNODE_FLAPS says.
func TestSlotsAreFreedWhileLeadershipFlaps(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	ctx, stop := context.WithCancel(t.Context())
	var flaps sync.WaitGroup
	flaps.Go(func() {
		for ; ctx.Err() == nil; time.Sleep(200 * time.Millisecond) {
			_ = c.nodes[0].TransferLeadership(ctx, "") // often a transfer is under way
		}
	})
	defer flaps.Wait()
	defer stop()
	lasts := 3 * time.Second
	if s := os.Getenv("GOVNODE_FLAPS"); s != "" {
		var err error
		lasts, err = time.ParseDuration(s)
		require.NoError(t, err)
	}
	_, _, err := storage.One(within(t, 10*time.Second), c.nodes[1], &session.PutPool{NS: "n", By: session.Maker{Client: "c", Request: "pool"}, Pool: "p", Slots: 1})
	require.NoError(t, err)
	held, longest, asked := time.Time{}, time.Duration(0), 0
	for i, begin := 0, time.Now(); time.Since(begin) < lasts; i++ {
		require.Eventually(t, func() bool {
			asked++ // under another id each time: a refusal is remembered
			r, _, err := storage.One(within(t, 10*time.Second), c.nodes[1], &session.Acquire{NS: "n", Client: "c", Slot: fmt.Sprint(asked), Pool: "p", Weight: 1, TTL: time.Second})
			return err == nil && r.Code == session.Admitted
		}, 6*time.Second, 10*time.Millisecond)
		if i > 0 {
			longest = max(longest, time.Since(held))
		}
		held = time.Now()
	}
	t.Logf("%d leaderships; a slot with a TTL of 1 s was held for %v at most", int(counted(c.nodes[0].metrics.leaderships)+counted(c.nodes[1].metrics.leaderships)+counted(c.nodes[2].metrics.leaderships)), longest)
}
