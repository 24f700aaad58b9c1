package session_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

const year2027 = 1_800_000_000_000

func timed(ms uint64, n int) string {
	id := ulid.ULID{15: byte(n), 14: byte(n >> 8)}
	if err := id.SetTime(ms); err != nil {
		panic(err)
	}
	return id.String()
}

// No id with a time in it is executed twice, however late it comes again, and
// whoever was dropped and made anew in between. A client that is there all the
// time has none of its new ids refused, whatever others sent.
func TestIDsWithATimeAreExecutedOnce(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 5))
		s := session.NewPartial()
		s.ApplyAll(0, sessiontest.Setup())
		executed := map[string]bool{}
		var sent []session.Command
		var now time.Duration
		stale := 0
		for i := range 400 {
			now += time.Duration(r.IntN(20)) * time.Minute
			s.ApplyAll(now, nil)
			if r.IntN(2) == 0 {
				keys, _ := s.DueKeys(100)
				s.ApplyAll(now, []session.Command{&session.Tick{Keys: keys}})
			}
			ms := year2027 + uint64(now/time.Millisecond)
			live := s.ApplyAll(now, []session.Command{&session.Increment{NS: ns, Key: "k", Amount: 1, By: session.Maker{Client: "live", Request: timed(ms, i)}}})[0]
			require.Equal(t, session.Done, live.Code, "seed %d", seed)
			if r.IntN(50) == 0 {
				ms += uint64(r.IntN(1 << 30)) // a fast clock, by up to 12 days
			}
			client := fmt.Sprint("w", r.IntN(4))
			if r.IntN(2) == 0 {
				sent = append(sent, &session.Increment{NS: ns, Key: "k", Amount: 1, By: session.Maker{Client: client, Request: timed(ms, i)}})
			} else {
				sent = append(sent, &session.Acquire{NS: ns, Client: client, Slot: timed(ms, i), Pool: "c", Weight: 1, TTL: time.Second})
			}
			for _, c := range []session.Command{sent[len(sent)-1], sent[r.IntN(len(sent))]} {
				res := s.ApplyAll(now, []session.Command{c})[0]
				if res.Code == session.StaleID {
					stale++
					continue
				}
				if id := fmt.Sprintf("%+v", c); !res.Repeat {
					require.False(t, executed[id], "seed %d: %s: %+v", seed, id, res)
					executed[id] = true
				}
			}
		}
		require.NotZero(t, stale)
	}
}

// A client that is there is not closed by what absent ones forgot; a client
// made while the namespace was closed is repaired with it.
func TestAFutureIDClosesAbsentClientsAlone(t *testing.T) {
	s := session.NewPartial()
	s.ApplyAll(0, sessiontest.Setup())
	do := func(at time.Duration, c session.Command) session.Result {
		require.NoError(t, session.Validate(c))
		return s.ApplyAll(at, []session.Command{c})[0]
	}
	by := func(client, request string) session.Maker { return session.Maker{Client: client, Request: request} }
	count := func(at time.Duration, client, request string) session.Code {
		return do(at, &session.Increment{NS: ns, By: by(client, request), Key: "k", Amount: 1}).Code
	}
	slot := func(at time.Duration, client, id string) session.Code {
		return do(at, &session.Acquire{NS: ns, Client: client, Slot: id, Pool: "c", Weight: 1, TTL: time.Second}).Code
	}
	const future = "20260101123456789012345678"
	open := func(at time.Duration, id string) session.Result {
		return do(at, &session.Open{NS: ns, Session: id, Agent: "a", Digest: sessiontest.Digest(1), IdleTTL: 2 * time.Hour})
	}
	require.Equal(t, session.Done, open(0, future).Code)
	require.Equal(t, session.Done, count(0, "bad", future))
	require.Equal(t, session.Done, count(0, "live", timed(year2027, 1)))
	require.Equal(t, session.Done, count(50*time.Minute, "live", timed(year2027, 2)))
	tick := func(at time.Duration) {
		for range 3 {
			s.ApplyAll(at, nil)
			keys, _ := s.DueKeys(100)
			s.ApplyAll(at, []session.Command{&session.Tick{Keys: keys}})
		}
	}
	at := 61 * time.Minute
	tick(at)
	require.Equal(t, session.Done, count(at, "live", timed(year2027, 3)))
	require.Equal(t, session.Admitted, slot(at, "live", timed(year2027, 4)))
	require.Equal(t, session.StaleID, count(at, "new", timed(year2027, 5)))
	require.Equal(t, session.StaleID, slot(at, "new", timed(year2027, 5)))
	require.Equal(t, session.Done, count(at, "new", "plain"))
	require.Equal(t, session.StaleID, count(at, "new", timed(year2027, 5)), "it may have been among those that were forgotten")
	require.True(t, open(at, future).Repeat, "a session that is there decides for itself")
	require.Equal(t, session.Done, open(at, timed(year2027, 6)).Code)
	at += 4 * time.Hour
	tick(at)
	require.Equal(t, session.StaleID, open(at, timed(year2027, 7)).Code)
	require.Equal(t, session.Done, count(at, "new", "plain-again"))
	require.Equal(t, session.StaleID, count(at, "new", timed(year2027+2, 5)))

	repair := &session.Repair{NS: ns, By: by("op", timed(year2027+9, 8)), NewerThan: year2027 + 1}
	first := do(at, repair)
	require.Equal(t, session.Result{Value: 1}, first)
	require.Equal(t, session.Result{Value: 1, Repeat: true}, do(at, repair))
	require.Equal(t, session.StaleID, open(at, timed(year2027, 7)).Code)
	require.Equal(t, session.StaleID, open(at, timed(year2027+1, 7)).Code, "what the repair names is still forgotten")
	require.Equal(t, session.Done, open(at, timed(year2027+2, 7)).Code)
	require.Equal(t, session.Done, count(at, "new", timed(year2027+2, 5)))
	require.Equal(t, session.StaleID, count(at, "new", timed(year2027, 5)))
	require.Equal(t, session.StaleID, count(at, "other", timed(year2027+1, 5)))
	higher := *repair
	higher.By.Request, higher.NewerThan = "higher", year2027+1000
	require.Equal(t, session.Result{}, do(at, &higher), "nothing is raised")
	require.Equal(t, session.Done, open(at, timed(year2027+3, 7)).Code)
}

// The record of a client that finished such an id is repaired where the client
// is named: while it is there, and when it is over and not dropped yet.
func TestRepairOfAClient(t *testing.T) {
	const future = "20260101123456789012345678"
	for _, tt := range []struct {
		name string
		at   time.Duration
		by   string
		n    int // ids that it finishes after that one
	}{
		{"there", time.Minute, "op", 0},
		{"there, the id forgotten", time.Minute, "op", 1100},
		{"over", 2 * time.Hour, "op", 0},
		{"by itself", time.Minute, "w", 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, _, do := beside(t)
			count := func(at time.Duration, request string) session.Code {
				return do(at, &session.Increment{NS: ns, By: session.Maker{Client: "w", Request: request}, Key: "k", Amount: 1}).Code
			}
			require.Equal(t, session.Done, count(0, future))
			for i := range tt.n {
				require.Equal(t, session.Done, count(0, fmt.Sprint("plain", i)))
			}
			repair := &session.Repair{NS: ns, By: session.Maker{Client: tt.by, Request: "r"}, Client: "w", NewerThan: year2027}
			require.Equal(t, session.Result{Value: 1}, do(tt.at, repair))
			require.Equal(t, session.Result{Value: 1, Repeat: true}, do(tt.at, repair))
			for i := range 64 { // in all parts
				require.Equal(t, session.StaleID, count(tt.at, timed(year2027, i)))
				require.Equal(t, session.Done, count(tt.at, timed(year2027+1, i)))
			}
			// Dropped, it raises nothing beyond.
			at := tt.at + 2*time.Hour
			tick := &session.Tick{Keys: []session.Key{session.ClientKey(ns, "w"), session.NamespaceKey(ns)}}
			do(at, tick)
			require.Equal(t, session.StaleID, count(at, timed(year2027+1, 1)))
			require.Equal(t, session.Done, count(at, timed(year2027+2, 1)))
		})
	}
}

// A repair never closes what was open: one for a time beyond all that was
// forgotten changes nothing of what is refused.
func TestARepairRaisesNothing(t *testing.T) {
	s := session.NewPartial()
	count := func(request string) session.Code {
		return s.ApplyAll(0, []session.Command{&session.Increment{NS: ns, By: session.Maker{Client: "w", Request: request}, Key: "k", Amount: 1}})[0].Code
	}
	require.Equal(t, session.Done, count(timed(year2027, 0)))
	s.ApplyAll(0, []session.Command{&session.Repair{NS: ns, By: session.Maker{Client: "op", Request: "r"}, Client: "w", NewerThan: year2027 + 1000}})
	require.Equal(t, session.StaleID, count(timed(year2027, 0)), "it was executed")
	require.Equal(t, session.Done, count(timed(year2027+1, 0)))
}

// A repair of a client opens nothing up to the time that it names: also not what
// the client was given before it was dropped and made anew, of which its record
// knows when it was made and nothing else.
func TestARepairOpensNothingThatWasForgottenBefore(t *testing.T) {
	for name, tt := range map[string]struct{ newerThan, stale uint64 }{
		"above what was forgotten": {year2027 + 1000, year2027 + 5},
		"below it":                 {year2027 + 2, year2027 + 2},
	} {
		t.Run(name, func(t *testing.T) {
			_, _, do := beside(t)
			count := func(at time.Duration, request string) session.Code {
				return do(at, &session.Increment{NS: ns, By: session.Maker{Client: "w", Request: request}, Key: "k", Amount: 1}).Code
			}
			require.Equal(t, session.Done, count(0, timed(tt.stale, 1)))
			require.Equal(t, session.Done, count(0, timed(year2027+5, 0)))
			at := 2 * time.Hour
			do(at, &session.Tick{Keys: []session.Key{session.ClientKey(ns, "w"), session.NamespaceKey(ns)}})
			require.Equal(t, session.Done, count(at, "plain"))
			require.Equal(t, session.StaleID, count(at, timed(tt.stale, 1)), "made anew, it knows nothing of the id")
			do(at, &session.Repair{NS: ns, By: session.Maker{Client: "op", Request: "r"}, Client: "w", NewerThan: tt.newerThan})
			require.Equal(t, session.StaleID, count(at, timed(tt.stale, 1)), "it was executed")
			require.Equal(t, session.Done, count(at, timed(tt.stale+1, 2)))
		})
	}
}

// A client that was made while a namespace was closed is repaired with it for
// good, if it has done something since: what others close later does not close
// it again.
func TestARepairedClientIsNotClosedAgain(t *testing.T) {
	s := session.NewPartial()
	s.ApplyAll(0, sessiontest.Setup())
	count := func(at time.Duration, client, request string) session.Code {
		return s.ApplyAll(at, []session.Command{&session.Increment{NS: ns, By: session.Maker{Client: client, Request: request}, Key: "k", Amount: 1}})[0].Code
	}
	slot := func(at time.Duration, client, id string) session.Code {
		return s.ApplyAll(at, []session.Command{&session.Acquire{NS: ns, Client: client, Slot: id, Pool: "c", Weight: 1, TTL: time.Second}})[0].Code
	}
	drop := func(at time.Duration, client string) {
		s.ApplyAll(at, []session.Command{&session.Tick{Keys: []session.Key{session.ClientKey(ns, client), session.NamespaceKey(ns)}}})
	}
	const future = "20260101123456789012345678"
	require.Equal(t, session.Done, count(0, "bad", future))
	at := 2 * time.Hour
	drop(at, "bad")
	require.Equal(t, session.Done, count(at, "a", "plain"))
	require.Equal(t, session.Done, count(at, "b", "plain"))
	require.Equal(t, session.StaleID, count(at, "a", timed(year2027, 1)), "made while it was closed")
	s.ApplyAll(at, []session.Command{&session.Repair{NS: ns, By: session.Maker{Client: "op", Request: "r"}, NewerThan: year2027}})
	require.Equal(t, session.Done, count(at, "a", timed(year2027+1, 1)))
	require.Equal(t, session.Admitted, slot(at, "b", timed(year2027+1, 1)))

	require.Equal(t, session.Done, count(at, "bad", future))
	at += 50 * time.Minute
	require.Equal(t, session.Done, count(at, "a", timed(year2027+2, 1)))
	require.Equal(t, session.Admitted, slot(at, "b", timed(year2027+2, 1)))
	at += 11 * time.Minute
	drop(at, "bad")
	require.Equal(t, session.StaleID, count(at, "c", timed(year2027+3, 1)), "the namespace is closed again")
	require.Equal(t, session.Done, count(at, "a", timed(year2027+3, 1)))
	require.Equal(t, session.Admitted, slot(at, "b", timed(year2027+3, 1)))
	require.Equal(t, session.StaleID, count(at, "a", timed(year2027, 2)), "what the repair left forgotten stays so")
}

// A client that was named in a repair is not closed again either, if it has done
// nothing since.
func TestANamedClientIsNotClosedAgain(t *testing.T) {
	s := session.NewPartial()
	count := func(at time.Duration, client, request string) session.Code {
		return s.ApplyAll(at, []session.Command{&session.Increment{NS: ns, By: session.Maker{Client: client, Request: request}, Key: "k", Amount: 1}})[0].Code
	}
	drop := func(at time.Duration, client string) {
		s.ApplyAll(at, []session.Command{&session.Tick{Keys: []session.Key{session.ClientKey(ns, client), session.NamespaceKey(ns)}}})
	}
	const future = "20260101123456789012345678"
	require.Equal(t, session.Done, count(0, "bad", future))
	require.Equal(t, session.Done, count(30*time.Minute, "worse", future))
	at := time.Hour
	drop(at, "bad")
	require.Equal(t, session.Done, count(at, "named", "plain"))
	require.Equal(t, session.StaleID, count(at, "named", timed(year2027+1, 1)), "made while it was closed")
	s.ApplyAll(at, []session.Command{&session.Repair{NS: ns, By: session.Maker{Client: "op", Request: "r"}, Client: "named", NewerThan: year2027}})
	at = 90 * time.Minute
	drop(at, "worse")
	require.Equal(t, session.StaleID, count(at, "new", timed(year2027+1, 1)), "the namespace is closed again")
	require.Equal(t, session.Done, count(at, "named", timed(year2027+1, 1)))
}
