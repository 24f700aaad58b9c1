package demo

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// How many slots are held is not known while nobody leads, and that is not 0.
func TestSlotsInUseAreUnknownWithoutALeader(t *testing.T) {
	for _, tt := range []struct {
		leader    string
		inUse     int
		who, used string
	}{{"node2", 0, "node2", "0"}, {"node2", 5, "node2", "5"}, {"", 0, "nobody", "?"}} {
		who, used := inLine(tt.leader, tt.inUse)
		require.Equal(t, []string{tt.who, tt.used}, []string{who, used})
	}
}

func told(at int, what, session, id string, more ...func(*entry)) entry {
	e := entry{At: time.Duration(at), What: what, Session: session, ID: id}
	for _, m := range more {
		m(&e)
	}
	return e
}

func outcome(o string) func(*entry) { return func(e *entry) { e.Outcome = o } }
func granted(token uint64, until int) func(*entry) {
	return func(e *entry) { e.Token, e.Until = token, time.Duration(until) }
}
func withFailure(e *entry) { e.Failed = true }

// What the service must have counted follows from the ledgers, for every way a
// call can go.
func TestBooks(t *testing.T) {
	b := newBooks(2)
	b.add(0, []entry{
		told(1, wroteSession, "s", ""),
		// Admitted, and ended well.
		told(2, wroteIntent, "s", "a"), told(3, wroteAnswer, "s", "a", outcome(admitted), granted(1, 0)),
		told(4, wroteEnter, "s", "a", granted(1, 50)), told(8, wroteLeave, "s", "a"),
		told(9, wroteFinish, "s", "a"), told(10, wroteDone, "s", "a", outcome("ENDED")),
		// Admitted, and failed.
		told(11, wroteIntent, "s", "b"), told(12, wroteUnknown, "s", "b"), told(13, wroteAnswer, "s", "b", outcome(admitted), granted(2, 0)),
		told(14, wroteEnter, "s", "b", granted(2, 60)), told(18, wroteLeave, "s", "b"),
		told(19, wroteFinish, "s", "b", withFailure), told(20, wroteDone, "s", "b", outcome("ENDED"), withFailure),
		// Refused.
		told(21, wroteIntent, "s", "c"), told(22, wroteAnswer, "s", "c", outcome("CALL_LIMIT")),
		told(23, wroteIntent, "s", "d"), told(24, wroteAnswer, "s", "d", outcome("WAIT_TIMEOUT")),
		// Not even counted as an attempt.
		told(25, wroteIntent, "s", "e"), told(26, wroteAnswer, "s", "e", outcome("ATTEMPT_LIMIT")),
		// Reported as failed when it had lapsed already.
		told(27, wroteIntent, "s", "f"), told(28, wroteAnswer, "s", "f", outcome(admitted), granted(3, 0)),
		told(29, wroteEnter, "s", "f", granted(3, 70)), told(75, wroteLost, "s", "f"), told(76, wroteLeave, "s", "f"),
		told(77, wroteFinish, "s", "f", withFailure), told(78, wroteDone, "s", "f", outcome("LEASE_LOST"), withFailure),
		// A slot without a call.
		told(79, wroteIntent, "", "x"), told(80, wroteAnswer, "", "x", outcome(admitted), granted(4, 0)),
		told(81, wroteEnter, "", "x", granted(4, 99)), told(82, wroteLeave, "", "x"),
		told(83, wroteFinish, "", "x"), told(84, wroteDone, "", "x", outcome("RELEASED")),
	})
	b.add(1, []entry{
		told(1, wroteSession, "k", ""),
		// Killed while it held a slot that it had renewed.
		told(2, wroteIntent, "k", "a"), told(3, wroteAnswer, "k", "a", outcome(admitted), granted(5, 0)),
		told(4, wroteEnter, "k", "a", granted(5, 40)), told(5, wroteHolding, "k", "a"), told(6, wroteRenewed, "k", "a", granted(5, 90)),
	})
	b.count()
	require.Equal(t, &sessionBook{worker: 0, attempts: 5, calls: 3, executions: 3, failures: 1}, b.sessions["s"])
	require.Equal(t, &sessionBook{worker: 1, attempts: 1, calls: 1, executions: 1}, b.sessions["k"])
	require.Equal(t, []use{{4, 8, 1}, {14, 18, 2}, {29, 70, 3}, {81, 82, 4}, {4, 90, 5}}, b.uses())
	took, refused := b.outcomes()
	require.Equal(t, 5, took)
	require.Equal(t, map[string]int{"CALL_LIMIT": 1, "WAIT_TIMEOUT": 1, "ATTEMPT_LIMIT": 1}, refused)
	require.Equal(t, 1, b.workers[0].lost)
	require.True(t, b.workers[1].holding)
	require.Empty(t, b.workers[0].unresolved())
	require.Empty(t, b.workers[1].unresolved(), "a lease that nobody ends is settled by the service")
	require.Equal(t, 1, b.overCalls(2))
	require.Zero(t, b.overCalls(3))

	longest, at := b.silence(0, 84)
	require.EqualValues(t, 50, longest) // from 28 to 78
	require.EqualValues(t, 78, at)
	longest, at = b.silence(0, 200)
	require.EqualValues(t, 116, longest)
	require.EqualValues(t, 200, at)

	inUse, waiting := b.present(30, nil)
	require.Equal(t, 1, inUse, "the lease of the dead one covers it")
	require.Zero(t, waiting)
}

// What was asked for without an answer, or ended without one, is unresolved
// until both are known.
func TestUnresolved(t *testing.T) {
	b := newBooks(1)
	b.add(0, []entry{
		told(1, wroteSession, "s", ""),
		told(2, wroteIntent, "s", "a"),
		told(3, wroteIntent, "s", "b"), told(4, wroteAnswer, "s", "b", outcome(admitted)), told(5, wroteFinish, "s", "b", withFailure),
	})
	open := b.workers[0].unresolved()
	require.Len(t, open, 2)
	_, waiting := b.present(6, nil)
	require.Equal(t, 1, waiting)
	_, waiting = b.present(6, map[int]bool{0: true})
	require.Zero(t, waiting)
	b.add(0, []entry{
		told(7, wroteAnswer, "s", "a", outcome("LEASE_LOST")), // it was admitted, and lapsed
		told(8, wroteDone, "s", "b", outcome("ALREADY_ENDED")),
	})
	require.Empty(t, b.workers[0].unresolved())
	b.count()
	require.Equal(t, &sessionBook{attempts: 2, calls: 2, executions: 2, failures: 1}, b.sessions["s"])
}

// A fleet that has not come to a limit has not shown that it holds.
func TestUnmet(t *testing.T) {
	b := newBooks(1)
	require.Len(t, b.unmet(), 3)
	for i, o := range []string{"WAIT_TIMEOUT", "CALL_LIMIT", "DENIED_BY_POLICY"} {
		id := strconv.Itoa(i)
		b.add(0, []entry{told(1, wroteIntent, "s", id), told(2, wroteAnswer, "s", id, outcome(o))})
	}
	require.Len(t, b.unmet(), 1, "the pool was not full")
	for i := range demoSlots {
		id := "x" + strconv.Itoa(i)
		b.add(0, []entry{
			told(1, wroteIntent, "", id), told(2, wroteAnswer, "", id, outcome(admitted), granted(uint64(i+1), 0)),
			told(3, wroteEnter, "", id, granted(uint64(i+1), 9)),
		})
	}
	require.Empty(t, b.unmet())
}

// A ledger can be read while it grows, and a line that is not whole yet waits.
func TestLedger(t *testing.T) {
	path := filepath.Join(t.TempDir(), "l.jsonl")
	r := ledgerReader{path: path}
	entries, err := r.next()
	require.NoError(t, err)
	require.Empty(t, entries, "there is no file yet")

	l, err := openLedger(path)
	require.NoError(t, err)
	before := machineTime()
	require.NoError(t, l.write(entry{What: wroteIntent, ID: "a"}))
	entries, err = r.next()
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, "a", entries[0].ID)
	require.GreaterOrEqual(t, entries[0].At, before)
	require.LessOrEqual(t, entries[0].At, machineTime())

	_, err = l.file.WriteString(`{"what":"ans`)
	require.NoError(t, err)
	entries, err = r.next()
	require.NoError(t, err)
	require.Empty(t, entries)
	_, err = l.file.WriteString("wer\",\"id\":\"a\"}\n")
	require.NoError(t, err)
	require.NoError(t, l.write(entry{What: wroteLeave, ID: "a"}))
	entries, err = r.next()
	require.NoError(t, err)
	require.Len(t, entries, 2)
	require.Equal(t, wroteAnswer, entries[0].What)
	require.NoError(t, l.close())
	require.Error(t, l.write(entry{What: wroteLeave}))

	require.NoError(t, os.WriteFile(path, []byte("rubbish\n"), 0o600))
	_, err = (&ledgerReader{path: path}).next()
	require.ErrorContains(t, err, path)
}

// The demo fails if one of what must be 0 is not, or if it did not show it.
func TestDemoVerdict(t *testing.T) {
	require.NoError(t, (&demoReport{OK: true}).verdict())
	for want, r := range map[string]demoReport{
		"over-limit events: 1":            {OverLimit: 1},
		"slots leaked: 2":                 {Leaked: 2},
		"counts lost or doubled: 3":       {LostOrDoubled: 3},
		"calls admitted while stopped: 4": {Stop: gate{Violations: 4}},
		"calls over their rate: 5":        {Rate: gate{Violations: 5}},
		"calls over their budget: 6":      {Budget: gate{Violations: 6}},
		"calls without their approval: 7": {Approval: gate{Violations: 7}},
		"node1 did not come back":         {Problems: []string{"node1 did not come back"}},
		"slots leaked: 1":                 {Leaked: 1, Problems: []string{"x"}},
	} {
		require.ErrorContains(t, r.verdict(), want)
	}
}

func TestDemoOptions(t *testing.T) {
	good := demoOptions{duration: 30 * time.Second, workers: 8, logStore: "wal", output: "text"}
	require.NoError(t, good.check())
	require.Equal(t, 5*time.Second, good.ttl())
	for want, change := range map[string]func(*demoOptions){
		"duration":  func(o *demoOptions) { o.duration = 10*time.Second - 1 },
		"workers":   func(o *demoOptions) { o.workers = 7 },
		"log-store": func(o *demoOptions) { o.logStore = "paper" },
		"output":    func(o *demoOptions) { o.output = "xml" },
	} {
		o := good
		change(&o)
		require.ErrorContains(t, o.check(), want)
	}
}
