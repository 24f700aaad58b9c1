package redis

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// What the stamps say of an attempt whose answer was lost: every combination of
// two records, of what the attempt does with each and of how it is found, held
// against a Redis on which all that can have happened does happen.
func TestResolve(t *testing.T) {
	t.Parallel()
	const mine, fence = wire.Stamp("mine"), wire.Stamp("fence")
	type kind struct {
		before wire.Stamp
		wrote  bool
		after  wire.Stamp
	}
	kinds := []kind{
		{"old", false, "old"}, // compared alone
		{"", false, ""},       // compared to be absent
		{"old", true, mine},   // changed
		{"", true, mine},      // made
		{"old", true, ""},     // removed
	}
	// What may happen, in any order: the attempt arrives, once at most; others write
	// a record, remove it; the fence is put up.
	type world struct {
		stamps  [2]wire.Stamp
		applied bool
		gone    bool // it has arrived, and was refused or applied
		fenced  bool
		steps   int
	}
	for _, x := range kinds {
		for _, y := range kinds {
			pair := [2]kind{x, y}
			a := &attempt{e: &epoch{text: "epoch"}, was: make([]wire.Entry, 2), next: make([]wire.Entry, 2), wrote: make([]bool, 2)}
			first := world{}
			writes, fenceable := false, -1
			for i, k := range pair {
				a.was[i].Stamp, a.next[i].Stamp, a.wrote[i] = k.before, k.after, k.wrote
				first.stamps[i] = k.before
				writes = writes || k.wrote
				if k.wrote && k.before != "" {
					fenceable = i
				}
			}
			if !writes {
				require.Equal(t, neverApplied, resolve(a, sight{"epoch", []wire.Stamp{x.before, y.before}}), "it writes nothing")
				continue
			}
			arrives := func(w world) world {
				if w.applied || w.gone {
					return w
				}
				w.gone = true
				for i, k := range pair {
					if w.stamps[i] != k.before {
						return w
					}
				}
				w.applied = true
				for i, k := range pair {
					if k.wrote {
						w.stamps[i] = k.after
					}
				}
				return w
			}
			// canApply tells whether the attempt would still be applied, at once or
			// after others have done what they can do.
			seen := map[string]map[verdict]bool{} // by what is found: what it may be
			found := map[string]sight{}
			var walk func(w world)
			walk = func(w world) {
				key := fmt.Sprint(w.stamps)
				if seen[key] == nil {
					seen[key] = map[verdict]bool{}
				}
				found[key] = sight{"epoch", []wire.Stamp{w.stamps[0], w.stamps[1]}}
				if w.applied {
					seen[key][wasApplied] = true
				} else {
					open := !w.gone
					for i, k := range pair {
						// An absent record may be absent again, so it refuses nothing for good.
						open = open && (w.stamps[i] == k.before || k.before == "")
					}
					if open {
						seen[key][stillOpen] = true
					} else {
						seen[key][neverApplied] = true
					}
				}
				if w.steps == 4 {
					return
				}
				w.steps++
				if !w.gone {
					walk(arrives(w))
				}
				for i := range pair {
					other := w
					other.stamps[i] = "other"
					walk(other)
					other.stamps[i] = ""
					walk(other)
				}
				if fenceable >= 0 && !w.fenced && w.stamps[fenceable] == pair[fenceable].before {
					w.fenced = true
					w.stamps[fenceable] = fence
					walk(w)
				}
			}
			walk(first)
			a.fences = []wire.Stamp{fence}
			for key, at := range found {
				may := seen[key]
				switch v := resolve(a, at); v {
				case wasApplied:
					require.Equal(t, map[verdict]bool{wasApplied: true}, may, "%v found %v", pair, at.stamps)
				case neverApplied:
					require.False(t, may[wasApplied] || may[stillOpen], "%v found %v: it may be %v", pair, at.stamps, may)
				case stillOpen:
					require.False(t, may[wasApplied], "%v found %v: it may have been applied", pair, at.stamps)
					require.GreaterOrEqual(t, fenceable, 0, "%v found %v: there is nothing to fence it off by", pair, at.stamps)
				case cannotTell:
					require.True(t, may[wasApplied], "%v found %v: it says that it cannot tell, and it is %v", pair, at.stamps, may)
				}
				// Under another epoch Redis refuses it, whatever stands there.
				at.epoch = "next"
				switch v := resolve(a, at); v {
				case stillOpen:
					t.Fatalf("%v found %v under another epoch: still open", pair, at.stamps)
				case neverApplied:
					require.False(t, may[wasApplied], "%v found %v under another epoch", pair, at.stamps)
				}
			}
		}
	}
}

// unsent decides a round of some batches and does not send it.
func unsent(t *testing.T, r *Store, batches ...*batch) (*round, *attempt) {
	l := newLane(r, r.place(testNS)) // that nobody runs
	x := l.round(batches)
	e, err := l.p.d.serving(t.Context())
	require.NoError(t, err)
	a, err := x.read(e)
	require.NoError(t, err)
	x.decide(a)
	return x, a
}

func until(t *testing.T, r *Store, limit time.Duration, cmds ...session.Command) *batch {
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	t.Cleanup(cancel)
	b := r.newBatch(ctx, cmds)
	b.state.Store(batchTaken)
	return b
}

func add(key, client string) *session.Increment {
	return &session.Increment{NS: testNS, Key: key, Amount: 1, By: session.Maker{Client: client}}
}

func valueOf(t *testing.T, r *Store, key string) int64 {
	f, err := r.Get(t.Context(), session.CounterKey(testNS, key), storage.Latest)
	require.NoError(t, err)
	return f.Record.(*session.Counter).Value.N
}

// delivery returns what carries an attempt out whose connection had swallowed it,
// as often as it is called: it arrives.
func delivery(t *testing.T, a *attempt) (arrive func() (status string)) {
	swap := a.s.Clone()
	return func() string {
		a.s.Swap = swap.Clone()
		_, status, err := a.s.p.d.r.send(t.Context(), a.s, a.was, a.now, a.mono)
		require.NoError(t, err)
		return status
	}
}

// Two callers share an attempt whose answer is lost. The deadline of one passes,
// and others write the record of the other: the record of the first still tells.
func TestRedisAttemptKeepsItsRecords(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			r, other := s.open("one"), s.open("two")
			for _, k := range []string{"k", "other"} {
				one(t, r, add(k, "w"))
			}
			late, waits := until(t, r, time.Minute, add("other", "late")), until(t, r, time.Minute, add("k", "waits"))
			x, a := unsent(t, r, late, waits)
			arrive := delivery(t, a)
			if applied {
				require.Equal(t, wire.ReplyOK, arrive())
			}
			x.lostSight(a, context.DeadlineExceeded)
			late.until = time.Now().Add(-time.Second)
			for range 3 {
				one(t, other, add("k", "w"))
			}
			require.NoError(t, x.run())
			require.Equal(t, storage.Unknown, late.answers[0].Outcome, "it may have been applied when its caller left")
			require.Equal(t, storage.Applied, waits.answers[0].Outcome, "%v", waits.answers[0].Err)
			require.EqualValues(t, 5, valueOf(t, other, "k"), "each had its effect once")
			if applied {
				require.EqualValues(t, 2, waits.answers[0].Result.Value)
				require.EqualValues(t, 2, valueOf(t, other, "other"))
			} else {
				require.EqualValues(t, 5, waits.answers[0].Result.Value)
				require.EqualValues(t, 1, valueOf(t, other, "other"), "what was late was not sent again")
			}
		})
	}
}

// An attempt that was not applied so far may still arrive. It is fenced off before
// what must not be repeated is sent again.
func TestRedisAttemptThatArrivesLate(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	one(t, r, add("k", "w"))
	b := until(t, r, time.Minute, add("k", "w"))
	x, a := unsent(t, r, b)
	arrive := delivery(t, a)
	x.lostSight(a, context.DeadlineExceeded)
	for x.open != nil {
		_, err := x.try()
		require.NoError(t, err)
	}
	require.Len(t, a.fences, 1)
	require.False(t, b.open)
	require.Equal(t, wire.ReplyLost, arrive(), "it arrives, before it was sent again")
	require.NoError(t, x.run())
	require.Equal(t, storage.Applied, b.answers[0].Outcome)
	require.EqualValues(t, 2, valueOf(t, r, "k"))
	require.Equal(t, wire.ReplyLost, arrive(), "it arrives again, after it")
	require.EqualValues(t, 2, valueOf(t, r, "k"))
}

// Others have written over all that would tell: what may be repeated is, and the
// rest is answered as unknown. A counter that was made tells nothing once it is
// gone again.
func TestRedisAttemptOfWhichNothingTells(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		made    bool
		command session.Command
		others  []session.Command
		then    storage.Outcome
	}{
		"without an id":            {true, add("k", "w"), []session.Command{add("k", "o")}, storage.Unknown},
		"with an id":               {true, count("w", "id"), []session.Command{add("k", "o"), count("w", "other-id")}, storage.Applied},
		"made, and removed":        {false, add("k", "w"), []session.Command{&session.Delete{NS: testNS, Key: "k", By: session.Maker{Client: "o"}}}, storage.Unknown},
		"made, and made by others": {false, add("k", "w"), []session.Command{&session.Delete{NS: testNS, Key: "k", By: session.Maker{Client: "o"}}, add("k", "o")}, storage.Unknown},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			r, other := s.open("one"), s.open("two")
			setup(t, r)
			if c.made {
				one(t, r, add("k", "w"))
			}
			b := until(t, r, time.Minute, c.command)
			x, a := unsent(t, r, b)
			arrive := delivery(t, a)
			require.Equal(t, wire.ReplyOK, arrive())
			x.lostSight(a, context.DeadlineExceeded)
			for _, o := range c.others {
				one(t, other, o)
			}
			require.NoError(t, x.run())
			require.Equal(t, c.then, b.answers[0].Outcome)
			if c.then == storage.Applied {
				require.True(t, b.answers[0].Result.Repeat)
				require.EqualValues(t, 4, valueOf(t, other, "k"), "each had its effect once")
			}
		})
	}
}

// What became of one attempt says nothing of another before it.
func TestRedisAttemptAfterOneOfWhichNothingTells(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r, other := s.open("one"), s.open("two")
	setup(t, r)
	one(t, r, add("k", "w"))
	b := until(t, r, time.Minute, count("w", "id"))
	x, first := unsent(t, r, b)
	require.Equal(t, wire.ReplyOK, delivery(t, first)())
	x.lostSight(first, context.DeadlineExceeded)
	one(t, other, count("w", "other-id"))
	for x.open != nil {
		_, err := x.try()
		require.NoError(t, err)
	}
	e, err := x.p.d.serving(t.Context())
	require.NoError(t, err)
	second, err := x.read(e)
	require.NoError(t, err)
	x.decide(second)
	x.lostSight(second, context.DeadlineExceeded)
	for x.open != nil {
		_, err := x.try()
		require.NoError(t, err)
	}
	b.until = time.Now().Add(-time.Second)
	require.NoError(t, x.run())
	require.Equal(t, storage.Unknown, b.answers[0].Outcome, "the first was applied")
}

// Of two commands of one caller nothing tells whether they were applied, and then a
// record is damaged that one of them needs: that one stays unknown, and the other is
// found by its id.
func TestRedisDamageAfterAnAttemptOfWhichNothingTells(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r, other := s.open("one"), s.open("two")
	bad := func(client, request string) *session.Increment {
		return &session.Increment{NS: testNS, Key: "bad", Amount: 1, By: session.Maker{Client: client, Request: request}}
	}
	for _, c := range []session.Command{count("w", "first"), bad("v", "first")} {
		one(t, r, c)
	}
	b := until(t, r, time.Minute, count("w", "id"), bad("v", "id"))
	x, a := unsent(t, r, b)
	require.Equal(t, wire.ReplyOK, delivery(t, a)())
	x.lostSight(a, context.DeadlineExceeded)
	for _, c := range []session.Command{count("w", "later"), bad("v", "later")} {
		one(t, other, c)
	}
	for x.open != nil {
		_, err := x.try()
		require.NoError(t, err)
	}
	ruin["cut off"](s, "{gov:test}:r:ktest/bad")
	require.NoError(t, x.run())
	<-b.done
	require.Equal(t, storage.Applied, b.answers[0].Outcome, "%v", b.answers[0].Err)
	require.True(t, b.answers[0].Result.Repeat)
	require.Equal(t, storage.Unknown, b.answers[1].Outcome, "it was applied: %v", b.answers[1].Err)
	require.EqualValues(t, 3, counted(t, other), "each had its effect once")
}

// A command that was in an attempt of which nobody will ever know is answered as one that
// may have been applied where only who may do what was looked at: that is looked at before
// its id is.
func TestWhatIsInDoubtIsNotDenied(t *testing.T) {
	for _, doubtful := range []bool{false, true} {
		for _, code := range []session.Code{session.Done, session.StaleAccess} {
			b := &batch{doubtful: doubtful, answers: make([]storage.Answer, 1), done: make(chan struct{})}
			b.finish([]session.Result{{Code: code}})
			a := b.answers[0]
			require.Equal(t, doubtful && code == session.StaleAccess, a.Outcome == storage.Unknown, "%v %v", doubtful, code)
			if a.Outcome == storage.Applied {
				require.Equal(t, doubtful, a.Again, "its audit has to say so")
			}
		}
	}
}
