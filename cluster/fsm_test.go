package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/limiter"
	"example.com/govnode/session"
	"example.com/govnode/session/wire"
)

func logEntry(index, term uint64, at time.Duration, cmds ...session.Command) *raft.Log {
	return &raft.Log{Index: index, Term: term, Data: session.EncodeEntry(at, cmds), Extensions: termOf(term)}
}

func counterOf(f *fsm) int64 {
	c, ok := f.get(session.CounterKey("default", "k")).Record.(*session.Counter)
	if !ok {
		return 0
	}
	return c.Value.N / 1_000_000
}

// noFatal is the end of a test whose state machine must not stop.
func noFatal(t *testing.T) func(error) {
	return func(err error) { t.Errorf("stopped: %v", err) }
}

func TestAnEntryOfAnEarlierLeadershipChangesNothing(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	late := logEntry(1, 7, time.Hour, increment("r"))
	late.Extensions = termOf(6) // gathered and stamped when its node led in term 6
	require.Equal(t, errVoid, f.Apply(late))
	require.Zero(t, counterOf(f))
	require.Zero(t, f.now(), "nor does its time count")
	require.EqualValues(t, 1, f.applied(), "but it has its place")
	require.Len(t, f.Apply(logEntry(2, 7, time.Second, increment("r"))), 1)
	require.EqualValues(t, 1, counterOf(f))
}

// Results are made anew while an entry of this node's own is under way, whose proposer
// reads them when later ones may have been applied; of all others there are none.
func TestResultsThatNobodyReads(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.own = new(atomic.Int64)
	many := []session.Command{increment("a"), increment("b"), increment("c")}
	require.Nil(t, f.Apply(logEntry(1, 7, 0, many...)))
	f.own.Add(1)
	read, ok := f.Apply(logEntry(2, 7, 0, increment("d"))).([]session.Result)
	require.True(t, ok)
	f.own.Add(-1)
	require.Nil(t, f.Apply(logEntry(3, 7, 0, increment("e"), increment("f"))))
	require.Len(t, read, 1)
	require.EqualValues(t, 4_000_000, read[0].Value)
	require.EqualValues(t, 6, counterOf(f))
	late := logEntry(4, 7, 0, increment("g"))
	late.Extensions = termOf(6)
	require.Equal(t, errVoid, f.Apply(late))
}

// A node that meets what it does not know stops, and stays stopped.
func TestUnknownCommandsStopTheNode(t *testing.T) {
	known := session.EncodeEntry(0, []session.Command{increment("r")})
	more, err := wire.Entry.Open(bytes.Clone(known))
	require.NoError(t, err)
	unknown := wire.Command.Seal([]byte{0xc2, 0x3e, 0}, 0) // kind 1000
	more = append(append(more, 3<<3|2, byte(len(unknown))), unknown...)
	for name, l := range map[string]*raft.Log{
		"kind":    {Index: 3, Term: 1, Extensions: termOf(1), Data: wire.Entry.Seal(more, 0)},
		"rubbish": {Index: 3, Term: 1, Extensions: termOf(1), Data: []byte("rubbish")},
		"no term": {Index: 3, Term: 1, Data: known},
	} {
		t.Run(name, func(t *testing.T) {
			var stopped []error
			f := newFSM(func(err error) { stopped = append(stopped, err) }, newMetrics())
			require.Equal(t, errStopped, f.Apply(l))
			require.Len(t, stopped, 1)
			require.Contains(t, stopped[0].Error(), "log entry 3")
			require.Equal(t, name == "kind", errors.Is(stopped[0], session.ErrUnknownKind))
			require.Equal(t, name == "rubbish", strings.Contains(stopped[0].Error(), "--replace"), "what is damaged here is whole elsewhere")
			require.Equal(t, errStopped, f.Apply(logEntry(4, 1, 0, increment("r"))), "and applies nothing after it")
			require.Zero(t, counterOf(f))
			require.Zero(t, f.applied())
		})
	}
}

// sink is a raft.SnapshotSink in memory.
type sink struct {
	bytes.Buffer
	fail, failLate error // to be written, and to be closed
	closed         bool
}

func (s *sink) Write(b []byte) (int, error) {
	if s.fail != nil {
		return 0, s.fail
	}
	return s.Buffer.Write(b)
}
func (*sink) ID() string    { return "sink" }
func (*sink) Cancel() error { return nil }
func (s *sink) Close() error {
	s.closed = true
	return s.failLate
}

// TestSnapshotBesideApply writes a snapshot while entries go on being applied:
// it must be of the instant at which it was taken.
func TestSnapshotBesideApply(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	for i := range 50 {
		f.Apply(logEntry(uint64(i+1), 1, time.Duration(i)*time.Second, increment(fmt.Sprint("r", i))))
	}
	taken, err := f.Snapshot()
	require.NoError(t, err)
	written := make(chan error)
	var to sink
	go func() { written <- taken.Persist(&to) }()
	var since int64
	for i := 50; i < 100; i++ {
		l := logEntry(uint64(i+1), 1, time.Duration(i)*time.Second, increment(fmt.Sprint("r", i)))
		since += int64(len(l.Data))
		f.Apply(l)
	}
	require.NoError(t, <-written)
	require.Equal(t, since, f.logged.since(), "what the snapshot does not stand for is still to be counted")

	g := newFSM(noFatal(t), newMetrics())
	require.NoError(t, g.Restore(io.NopCloser(&to.Buffer)))
	require.EqualValues(t, 50, counterOf(g))
	require.EqualValues(t, 50, g.applied())
	require.Equal(t, 49*time.Second, g.now())
	for i := 50; i < 100; i++ {
		g.Apply(logEntry(uint64(i+1), 1, time.Duration(i)*time.Second, increment(fmt.Sprint("r", i))))
	}
	require.Equal(t, f.get(session.ClientKey("default", "c")).Index, g.get(session.ClientKey("default", "c")).Index)
	require.Equal(t, session.EncodeRecord(f.state.Get(session.ClientKey("default", "c"))), session.EncodeRecord(g.state.Get(session.ClientKey("default", "c"))))
}

func TestASnapshotThatFailsIsTakenAgain(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.Apply(logEntry(1, 1, 0, increment("r")))
	taken, err := f.Snapshot()
	require.NoError(t, err)
	before := f.logged.since()
	for _, full := range []*sink{{fail: errors.New("disk full")}, {failLate: errors.New("disk full")}} {
		require.ErrorContains(t, taken.Persist(full), "disk full")
		taken.Release()
		require.Equal(t, before, f.logged.since())
	}
	require.NoError(t, taken.Persist(new(sink)))
	require.Zero(t, f.logged.since())
}

// A snapshot that is written while the state is replaced is given up: Raft would take it
// for the latest. It counts for nothing, and does not put off the next one.
func TestASnapshotThatALaterOneHasOvertaken(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.Apply(logEntry(1, 1, 0, increment("1")))
	late, err := f.Snapshot()
	require.NoError(t, err)
	other, err := f.Snapshot()
	require.NoError(t, err)
	var to sink
	require.NoError(t, other.Persist(&to))
	other.Release()
	require.NoError(t, f.Restore(io.NopCloser(&to.Buffer)))
	l := logEntry(2, 1, 0, increment("2"))
	f.Apply(l)
	var given sink
	require.ErrorIs(t, late.Persist(&given), errReplaced)
	late.Release()
	require.False(t, given.closed)
	require.EqualValues(t, len(l.Data), f.logged.since())
	next, err := f.Snapshot()
	require.NoError(t, err)
	require.NoError(t, next.Persist(&given))
	next.Release()
	require.True(t, given.closed)
}

// A snapshot replaces the state when Raft is done with one that ended before.
func TestASnapshotWaitsForOneThatEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFSM(noFatal(t), newMetrics())
		f.Apply(logEntry(1, 1, 0, increment("1")))
		taken, err := f.Snapshot()
		require.NoError(t, err)
		var to sink
		require.NoError(t, taken.Persist(&to))
		restored := make(chan error, 1)
		go func() { restored <- f.Restore(io.NopCloser(&to.Buffer)) }()
		synctest.Wait()
		require.Empty(t, restored)
		taken.Release()
		require.NoError(t, <-restored)
		taken.Release() // it has nothing to give back
	})
}

func TestABadSnapshotStopsTheNodeAndChangesNothing(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.Apply(logEntry(1, 1, 0, increment("r")))
	taken, err := f.Snapshot()
	require.NoError(t, err)
	var whole sink
	require.NoError(t, taken.Persist(&whole))
	for name, b := range map[string][]byte{
		"empty": nil, "header": whole.Bytes()[:10], "truncated": whole.Bytes()[:whole.Len()-1], "other": bytes.Repeat([]byte("x"), 100),
	} {
		t.Run(name, func(t *testing.T) {
			var stopped error
			f := newFSM(func(err error) { stopped = err }, newMetrics())
			f.Apply(logEntry(1, 1, 0, increment("r")))
			require.Error(t, f.Restore(io.NopCloser(bytes.NewReader(b))))
			require.Error(t, stopped)
			require.EqualValues(t, 1, counterOf(f))
		})
	}
}

func TestThoseWhoWaitForAnIndex(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	first, second, gone := f.reached(1), f.reached(2), f.reached(2)
	f.leave(gone)
	f.Apply(logEntry(1, 1, 0, increment("r")))
	<-first
	select {
	case <-second:
		t.Fatal("told too early")
	default:
	}
	f.StoreConfiguration(2, raft.Configuration{})
	<-second
	<-f.reached(1)
	require.Empty(t, f.waiting)
	select {
	case <-gone:
		t.Fatal("was told after it left")
	default:
	}
}

// A leadership begins at the time of the last entry and what has passed since
// this node applied that, and no other moment.
func TestWhatHasPassedSinceAnEntry(t *testing.T) {
	f := newFSM(func(err error) { t.Error(err) }, newMetrics())
	passed := time.Duration(0)
	f.since = newClock(0, func() (time.Duration, time.Duration) { return passed, passed })
	pass := func(d time.Duration) {
		passed += d
		f.since.Now() // as clock.run does
	}
	apply := func(index uint64, at time.Duration, stamped uint64) {
		f.Apply(&raft.Log{Index: index, Term: 2, Data: session.EncodeEntry(at, []session.Command{&session.Tick{}}), Extensions: termOf(stamped)})
	}
	pass(300 * time.Millisecond)
	apply(1, 10*time.Second, 2)
	require.Equal(t, 10*time.Second, f.begin(), "what was before the entry does not count")
	pass(200 * time.Millisecond)
	require.Equal(t, 10*time.Second+200*time.Millisecond, f.begin())
	apply(2, 20*time.Second, 1)
	require.Equal(t, 10*time.Second+200*time.Millisecond, f.begin(), "one of an earlier leadership has no time")
	var b bytes.Buffer
	s, index := f.snapshot()
	require.NoError(t, writeSnapshot(&b, index, s))
	require.NoError(t, f.Restore(io.NopCloser(&b)))
	require.Equal(t, 10*time.Second, f.begin(), "nor what was before a snapshot")
	for range 20 {
		pass(250 * time.Millisecond)
	}
	require.Equal(t, 10*time.Second+betweenMost, f.begin())
}

// As long as a lease or a wait may last, time is written to the log often, whatever
// kind it is of, and in a node as well that has a snapshot alone.
func TestTimeIsWrittenWhileSomethingLasts(t *testing.T) {
	const ns = "default"
	setup := []session.Command{
		&session.PutPool{NS: ns, By: session.Maker{Client: "c"}, Pool: "p", Slots: 1, Queue: 1},
		&session.PutRate{NS: ns, By: session.Maker{Client: "c"}, Rate: "r", Limit: 1, Per: time.Hour, Queue: 1},
		&session.Acquire{NS: ns, Client: "c", Slot: "held", Pool: "p", Weight: 1, TTL: 10 * time.Second},
	}
	for name, x := range map[string]struct {
		command session.Command
		lasts   time.Duration
	}{
		"a call":                 {&session.Begin{NS: ns, Session: "s", Call: "x", TTL: time.Minute}, time.Minute},
		"a call that waits":      {&session.Begin{NS: ns, Session: "s", Call: "x", TTL: time.Second, Wait: time.Minute}, time.Minute + limiter.ClaimTTL},
		"a slot":                 {&session.Acquire{NS: ns, Client: "c", Slot: "x", Pool: "p", Weight: 1, TTL: time.Minute}, time.Minute},
		"who waits for a slot":   {&session.Acquire{NS: ns, Client: "c", Slot: "x", Pool: "p", Weight: 1, TTL: time.Second, Wait: time.Minute}, time.Minute + limiter.ClaimTTL},
		"who waits for a rate":   {&session.TakeRate{NS: ns, Client: "c", ID: "x", Rate: "r", Cost: 1, Wait: time.Minute}, time.Minute + limiter.ClaimTTL},
		"what is renewed":        {&session.Renew{NS: ns, Client: "c", ID: "held", TTL: time.Minute}, time.Minute},
		"who says that he waits": {&session.Renew{NS: ns, Client: "c", ID: "held", TTL: time.Second}, limiter.TicketTTL + limiter.ClaimTTL},
	} {
		f := newFSM(noFatal(t), newMetrics())
		f.Apply(logEntry(1, 1, 0, setup...))
		require.Equal(t, often, f.due(0), name)
		require.Equal(t, 10*time.Second, f.leased, name)
		f.Apply(logEntry(2, 1, time.Second, x.command))
		require.Equal(t, time.Second+x.lasts, f.leased, name)

		taken, err := f.Snapshot()
		require.NoError(t, err)
		var to sink
		require.NoError(t, taken.Persist(&to))
		g := newFSM(noFatal(t), newMetrics())
		require.NoError(t, g.Restore(io.NopCloser(&to.Buffer)))
		require.Equal(t, often, g.due(10*time.Second-1), name)
	}
	f := newFSM(noFatal(t), newMetrics())
	require.Equal(t, never, f.due(0))
	f.Apply(logEntry(1, 1, 0, &session.Set{NS: ns, By: session.Maker{Client: "c"}, Key: "k", TTL: time.Minute}))
	require.Equal(t, seldom, f.due(time.Minute-1), "a value that lapses is no lease")
	require.Equal(t, atOnce, f.due(time.Minute))
}

// A node that is sent what is damaged stops, and says what to do: what it was sent is its
// newest snapshot by then.
func TestADamagedSnapshotStopsTheNode(t *testing.T) {
	good := newFSM(noFatal(t), newMetrics())
	good.Apply(logEntry(1, 1, 0, increment("r")))
	taken, err := good.Snapshot()
	require.NoError(t, err)
	var to sink
	require.NoError(t, taken.Persist(&to))
	b := to.Bytes()
	b[len(b)/2] ^= 1
	var stopped []error
	f := newFSM(func(err error) { stopped = append(stopped, err) }, newMetrics())
	require.Equal(t, errStopped, f.Restore(io.NopCloser(bytes.NewReader(b))))
	require.Len(t, stopped, 1)
	require.ErrorIs(t, stopped[0], session.ErrDamaged)
	require.ErrorContains(t, stopped[0], "--replace")
}

// An entry without commands orders a check of the state as it stands there, and no other
// entry does; of two that have not begun the later one counts.
func TestAnEntryWithoutCommandsOrdersACheck(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.checked = time.Time{}
	void := logEntry(1, 2, 0)
	void.Extensions = termOf(1)
	f.Apply(void)
	f.Apply(logEntry(2, 2, 0, increment("a")))
	f.Apply(logEntry(3, 2, 0, increment("b"), increment("c")))
	require.Empty(t, f.checks)
	require.Zero(t, f.lastCheck())
	f.Apply(logEntry(4, 2, 0))
	f.Apply(logEntry(5, 3, 0))
	require.Len(t, f.checks, 1)
	c := <-f.checks
	require.EqualValues(t, 5, c.index)
	require.EqualValues(t, 3, c.term)
	require.NotZero(t, f.lastCheck())
}

// A snapshot stands for all that its node had applied before it, and for the changes of
// members among it: of those nothing is known any more.
func TestWhatASnapshotStandsFor(t *testing.T) {
	first := newFSM(noFatal(t), newMetrics())
	first.Apply(logEntry(9, 1, 0, increment("r")))
	taken, err := first.Snapshot()
	require.NoError(t, err)
	var to sink
	require.NoError(t, taken.Persist(&to))
	whole := bytes.Clone(to.Bytes())

	f := newFSM(noFatal(t), newMetrics())
	require.Zero(t, f.memberIndex())
	f.StoreConfiguration(3, raft.Configuration{})
	f.Apply(logEntry(4, 1, 0, increment("r")))
	require.EqualValues(t, 3, f.memberIndex())
	require.Positive(t, f.logged.since())
	require.NoError(t, f.Restore(io.NopCloser(bytes.NewReader(whole))))
	require.Zero(t, f.memberIndex())
	require.Zero(t, f.logged.since())
	require.EqualValues(t, 9, f.applied())
	f.Apply(logEntry(10, 1, 0, increment("s")))
	require.NoError(t, f.Restore(io.NopCloser(bytes.NewReader(whole))))
	require.EqualValues(t, 9, f.applied(), "and for nothing behind it")
	require.EqualValues(t, 1, counterOf(f))
}

// Time is written often until the last lease may end, and no longer. Of a snapshot it is
// not known what is a lease: whatever may be one counts as one, and what was known of the
// state before it does not.
func TestTimeIsWrittenSeldomWhereNoLeaseLasts(t *testing.T) {
	const ns = "default"
	lapses := func(ttl time.Duration) session.Command {
		return &session.Set{NS: ns, By: session.Maker{Client: "c"}, Key: "k", TTL: ttl}
	}
	leased := newFSM(noFatal(t), newMetrics())
	leased.Apply(logEntry(1, 1, 0, lapses(2*session.MaxTTL), &session.Begin{NS: ns, Session: "s", Call: "x", TTL: time.Minute}))
	require.Equal(t, often, leased.due(time.Minute-1))
	require.Equal(t, seldom, leased.due(time.Minute))

	for ttl, want := range map[time.Duration]cadence{session.MaxTTL: often, session.MaxTTL + 1: seldom} {
		of := newFSM(noFatal(t), newMetrics())
		of.Apply(logEntry(1, 1, 0, lapses(ttl)))
		taken, err := of.Snapshot()
		require.NoError(t, err)
		var to sink
		require.NoError(t, taken.Persist(&to))
		f := newFSM(noFatal(t), newMetrics())
		f.Apply(logEntry(1, 1, 0, lapses(time.Hour), &session.Begin{NS: ns, Session: "s", Call: "x", TTL: time.Minute}))
		require.Equal(t, often, f.due(0))
		require.NoError(t, f.Restore(io.NopCloser(&to.Buffer)))
		require.Equal(t, want, f.due(0), ttl)
	}
}

// Who listens late is told once of all that has changed; and a node that has applied
// nothing begins at the beginning of time.
func TestTheBeginningOfAState(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFSM(noFatal(t), newMetrics())
		require.Zero(t, f.begin())
		for i := range 3 {
			f.Apply(logEntry(uint64(i+1), 1, 0, increment("r")))
		}
		<-f.changed
		require.Empty(t, f.changed)
	})
}
