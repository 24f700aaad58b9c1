package session_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/session/sessiontest"
)

// Every command that has the id of a request is carried out once: sent again it
// says what it said, with other content it is refused, and neither changes
// anything, also where the state has moved on. So it is where it comes so late
// that its id is forgotten, if that has a time.
func TestRequestsAreCarriedOutOnce(t *testing.T) {
	d := sessiontest.Digest(9)
	limits := sessiontest.Limits(1)
	slot := &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Minute}
	undo := func(c session.Command) []session.Command { return []session.Command{c} }
	for _, tt := range []struct {
		name  string
		setup []session.Command
		c     func(session.Maker) session.Command
		undo  []session.Command // so that a second effect would show
	}{
		{"ForceRelease", undo(slot), func(m session.Maker) session.Command {
			return &session.ForceRelease{NS: ns, By: m, Holder: "w", ID: "l", Pools: []string{"a"}}
		}, nil},
		{"PutPool", nil, func(m session.Maker) session.Command { return &session.PutPool{NS: ns, By: m, Pool: "a", Slots: 7} },
			undo(&session.PutPool{NS: ns, By: session.Maker{Client: "x"}, Pool: "a", Slots: 3})},
		{"DeletePool", nil, func(m session.Maker) session.Command { return &session.DeletePool{NS: ns, By: m, Pool: "a"} },
			undo(&session.PutPool{NS: ns, By: session.Maker{Client: "x"}, Pool: "a", Slots: 3})},
		{"PutPolicy", nil, func(m session.Maker) session.Command {
			return &session.PutPolicy{NS: ns, By: m, Name: "q", Digest: d, Tree: []byte{9}, Limits: limits}
		}, undo(&session.PutPolicy{NS: ns, By: session.Maker{Client: "x"}, Name: "q", Digest: sessiontest.Digest(1), Tree: []byte{1}, Limits: limits})},
		{"DeletePolicy", nil, func(m session.Maker) session.Command {
			return &session.DeletePolicy{NS: ns, By: m, Name: "p1", Digest: sessiontest.Digest(1), Names: []string{"p1"}}
		}, undo(sessiontest.Setup()[0])},
		{"Set", nil, func(m session.Maker) session.Command {
			return &session.Set{NS: ns, By: m, Key: "k", Value: session.Value{Text: "one"}}
		}, undo(&session.Set{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Value: session.Value{Text: "two"}})},
		{"Delete", undo(&session.Set{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Value: session.Value{Text: "one"}}),
			func(m session.Maker) session.Command { return &session.Delete{NS: ns, By: m, Key: "k"} },
			undo(&session.Set{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Value: session.Value{Text: "two"}})},
		{"Increment", nil, func(m session.Maker) session.Command {
			return &session.Increment{NS: ns, By: m, Key: "n", Amount: 5}
		}, undo(&session.Increment{NS: ns, By: session.Maker{Client: "x"}, Key: "n", Amount: 1})},
		{"PutHash", nil, func(m session.Maker) session.Command { return &session.PutHash{NS: ns, By: m, Tool: "t", Hash: "one"} },
			undo(&session.PutHash{NS: ns, By: session.Maker{Client: "x"}, Tool: "t", Hash: "two"})},
		{"Set where it was absent", nil, func(m session.Maker) session.Command {
			return &session.Set{NS: ns, By: m, Key: "k", Value: session.Value{Text: "one"}, IfVersion: session.Absent}
		}, undo(&session.Set{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Value: session.Value{Text: "two"}})},
		{"Append", nil, func(m session.Maker) session.Command {
			return &session.Append{NS: ns, By: m, Key: "k", Items: []string{"one"}, TTL: time.Hour, Exact: true}
		}, undo(&session.Append{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Items: []string{"two"}, TTL: time.Hour, From: 1})},
		{"PutToken", nil, func(m session.Maker) session.Command {
			return &session.PutToken{NS: ns, By: m, Token: session.Token{ID: "t", Hash: session.Digest{1}, Roles: 2}}
		}, undo(&session.RevokeToken{NS: ns, By: session.Maker{Client: "x"}, ID: "t"})},
		{"RevokeToken", undo(&session.PutToken{NS: ns, By: session.Maker{Client: "x"}, Token: session.Token{ID: "t", Hash: session.Digest{1}, Roles: 2}}),
			func(m session.Maker) session.Command { return &session.RevokeToken{NS: ns, By: m, ID: "t"} },
			undo(&session.PutToken{NS: ns, By: session.Maker{Client: "x"}, Token: session.Token{ID: "t", Hash: session.Digest{2}, Roles: 2}})},
		{"Deny", nil, func(m session.Maker) session.Command {
			return &session.Deny{NS: ns, By: m, Denied: session.DeniedSubject{Subject: "cert:a"}}
		}, undo(&session.Allow{NS: ns, By: session.Maker{Client: "x"}, Subject: "cert:a"})},
		{"Allow", undo(&session.Deny{NS: ns, By: session.Maker{Client: "x"}, Denied: session.DeniedSubject{Subject: "cert:a"}}),
			func(m session.Maker) session.Command { return &session.Allow{NS: ns, By: m, Subject: "cert:a"} },
			undo(&session.Deny{NS: ns, By: session.Maker{Client: "x"}, Denied: session.DeniedSubject{Subject: "cert:a"}})},
		{"KeepKey", nil, func(m session.Maker) session.Command {
			return &session.KeepKey{NS: ns, By: m, Key: session.Digest{1}}
		}, nil},
		{"UseToken", undo(&session.PutToken{NS: ns, By: session.Maker{Client: "x"}, Token: session.Token{ID: "t", Hash: session.Digest{1}, Roles: 2}}),
			func(m session.Maker) session.Command {
				return &session.UseToken{NS: ns, By: m, ID: "t", Node: "n4", At: 1}
			}, undo(&session.RevokeToken{NS: ns, By: session.Maker{Client: "x"}, ID: "t"})},
		{"PutQuotas", nil, func(m session.Maker) session.Command {
			return &session.PutQuotas{NS: ns, By: m, Quotas: session.Quotas{Sessions: 1}}
		}, undo(&session.PutQuotas{NS: ns, By: session.Maker{Client: "x"}, Quotas: session.Quotas{Sessions: 2}})},
		{"DeleteList", undo(&session.Append{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Items: []string{"one"}, TTL: time.Hour}),
			func(m session.Maker) session.Command { return &session.DeleteList{NS: ns, By: m, Key: "k"} },
			undo(&session.Append{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Items: []string{"two"}, TTL: time.Hour})},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := session.NewPartial()
			s.ApplyAll(0, sessiontest.Setup())
			s.ApplyAll(0, tt.setup)
			do := func(at time.Duration, c session.Command) session.Result {
				require.NoError(t, session.Validate(c))
				return s.ApplyAll(at, []session.Command{c})[0]
			}
			by := session.Maker{Client: "op", Request: timed(year2027, 1), Content: session.Fingerprint{1}}
			first := do(0, tt.c(by))
			require.False(t, first.Repeat)
			require.False(t, first.Code.Failure(), "%+v", first)
			for _, c := range tt.undo {
				u := do(0, c)
				require.False(t, u.Repeat && tt.name != "DeletePolicy", "%+v", u)
			}
			before := sessiontest.Dump(s)
			again := do(0, tt.c(by))
			require.True(t, again.Repeat)
			require.Equal(t, first.Code, again.Code)
			require.Equal(t, first.Value, again.Value)
			other := by
			other.Content[0] = 2
			require.Equal(t, session.IDReused, do(0, tt.c(other)).Code)
			require.Equal(t, before, sessiontest.Dump(s))

			for i := range ids.MaxRemembered + 128 {
				do(0, &session.Increment{NS: ns, Key: "other", Amount: 1, By: session.Maker{Client: "op", Request: fmt.Sprint("x", i)}})
			}
			before = sessiontest.Dump(s)
			require.Equal(t, session.StaleID, do(0, tt.c(by)).Code, "forgotten one by one")
			require.Equal(t, before, sessiontest.Dump(s))
			at := 2 * time.Hour
			require.Equal(t, session.StaleID, do(at, tt.c(by)).Code, "forgotten with its client")
		})
	}
}

// The last that fits passes, the next is refused, and changes nothing.
func TestCapsOfTheState(t *testing.T) {
	d := session.Digest{0: 8}
	limits := sessiontest.Limits(1)
	limits.MaxAttempts, limits.MaxToolCalls, limits.MaxConcurrent, limits.PerTool = 4000, 4000, session.MaxSlots, nil
	setup := append(sessiontest.Setup(),
		&session.PutPolicy{NS: ns, Name: "big", Digest: d, Tree: []byte{8}, Limits: limits},
		&session.PutPool{NS: ns, By: session.Maker{Client: "x"}, Pool: "big", Slots: session.MaxSlots, Queue: 2},
		&session.PutRate{NS: ns, By: session.Maker{Client: "x"}, Rate: "big", Limit: 1, Per: time.Hour, Queue: session.MaxQueue},
		&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "big", Digest: d, IdleTTL: time.Hour})
	begin := func(call, tool string) *session.Begin {
		return &session.Begin{NS: ns, Session: "s", Call: call, Tool: tool, Digest: d, Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/big", Weight: 1}}, TTL: time.Minute}
	}
	for _, tt := range []struct {
		name string
		most int
		c    func(i int) session.Command
		full session.Code
	}{
		{"open calls", session.MaxOpen, func(i int) session.Command { return begin(fmt.Sprint("c", i), "t") }, session.TooManyOpen},
		{"open slots", session.MaxOpen, func(i int) session.Command {
			return &session.Acquire{NS: ns, Client: "w", Slot: fmt.Sprint("l", i), Pool: "big", Weight: 1, TTL: time.Minute}
		}, session.TooManyOpen},
		{"tools", session.MaxTools, func(i int) session.Command { return begin(fmt.Sprint("c", i), fmt.Sprint("t", i)) }, session.TooManyTools},
		{"names of a tree", session.MaxNames - 1, func(i int) session.Command {
			return &session.PutPolicy{NS: ns, By: session.Maker{Client: "x"}, Name: fmt.Sprint("n", i), Digest: d, Tree: []byte{8}, Limits: limits}
		}, session.TooManyNames},
		// 4 MiB, as the documentation has it.
		{"a list of large items", 64, func(i int) session.Command {
			return &session.Append{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Items: []string{strings.Repeat("x", 64<<10)}, TTL: time.Hour, From: int64(i)}
		}, session.Overflow},
		{"a list of small items", 256, func(i int) session.Command {
			return &session.Append{NS: ns, By: session.Maker{Client: "x"}, Key: "k", Items: make([]string, 256), TTL: time.Hour, From: int64(i * 256)}
		}, session.Overflow},
		{"what waits at rates", session.MaxOpen + 1, func(i int) session.Command { // the first does not
			return &session.TakeRate{NS: ns, Client: "w", ID: fmt.Sprint("t", i), Rate: "big", Cost: 1, Wait: time.Minute}
		}, session.TooManyOpen},
		{"signals", session.MaxSignals, func(i int) session.Command {
			return &session.Signal{NS: ns, By: session.Maker{Client: "x"}, Target: session.Target{Scope: session.OfAgent, Name: fmt.Sprint("a", i)}, Signal: session.Stop}
		}, session.TooManySignals},
		{"the queue of a pool", 3, func(i int) session.Command { // the first has the slots
			return &session.Acquire{NS: ns, Client: fmt.Sprint("w", i), Slot: "l", Pool: "big", Weight: session.MaxSlots, TTL: time.Minute, Wait: time.Minute}
		}, session.QueueFull},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := session.NewPartial()
			s.ApplyAll(0, setup)
			for i := range tt.most {
				r := s.ApplyAll(0, []session.Command{tt.c(i)})[0]
				require.Contains(t, []session.Code{session.Admitted, session.Queued, session.Done}, r.Code, "%d", i)
			}
			before := sessiontest.Dump(s)
			require.Equal(t, tt.full, s.ApplyAll(0, []session.Command{tt.c(tt.most)})[0].Code)
			if tt.full.Failure() {
				require.Equal(t, before, sessiontest.Dump(s))
			}
			switch tt.name {
			case "tools":
				require.Equal(t, session.Admitted, s.ApplyAll(0, []session.Command{begin("known", "t0")})[0].Code)
			case "signals":
				stands := tt.c(0).(*session.Signal)
				stands.Signal = session.Kill
				require.EqualValues(t, 1, s.ApplyAll(0, []session.Command{stands})[0].Value, "one that stands may be made stronger")
			}
		})
	}
}

// An id with other content is refused while it is open, while it waits and when
// it was finished, and nothing changes.
func TestAnIDOfOtherContentIsRefused(t *testing.T) {
	s, do := waiting(t)
	slot := func(id string, weight int32) *session.Acquire {
		return &session.Acquire{NS: ns, Client: "w", Slot: id, Pool: "b", Weight: weight, TTL: time.Minute, Wait: time.Minute}
	}
	require.Equal(t, session.Admitted, do(0, waiter("ended")).Code)
	require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "s", Call: "ended", Pools: []string{"policy/p2"}, Status: session.Succeeded}).Code)
	denied := waiter("denied")
	denied.Verdict = session.Verdict{Rule: 7}
	require.Equal(t, session.Denied, do(0, denied).Code)
	require.Equal(t, session.Admitted, do(0, waiter("runs")).Code)
	require.Equal(t, session.Admitted, do(0, waiter("more")).Code)
	require.Equal(t, session.Queued, do(0, waiter("waits")).Code)
	token := do(0, slot("released", 2)).Grants[0].Token
	require.Equal(t, session.Released, do(0, &session.Release{NS: ns, Client: "w", Slot: "released", Pool: "b", Token: token}).Code)
	require.Equal(t, session.Admitted, do(0, slot("held", 2)).Code)
	require.Equal(t, session.Queued, do(0, slot("queued", 1)).Code)
	before := sessiontest.Dump(s)
	for _, id := range []string{"ended", "denied", "runs", "waits"} {
		c := waiter(id)
		c.Content[3] = 1
		require.Equal(t, session.IDReused, do(0, c).Code, id)
	}
	for _, id := range []string{"released", "held", "queued"} {
		c := slot(id, 1)
		c.Content[3] = 1
		require.Equal(t, session.IDReused, do(0, c).Code, id)
	}
	other := &session.Open{NS: ns, Session: "s", Content: session.Fingerprint{1}, Agent: "a", Digest: sessiontest.Digest(2), IdleTTL: time.Hour}
	require.Equal(t, session.IDReused, do(0, other).Code)
	require.Equal(t, session.IDReused, do(0, &session.End{NS: ns, Session: "s", Call: "ended", Pools: []string{"policy/p2"}, Status: session.Failed}).Code)
	require.Equal(t, before, sessiontest.Dump(s))
	again := do(0, denied)
	require.Equal(t, session.Denied, again.Code)
	require.EqualValues(t, 7, again.Rule, "the rule is remembered")
}

// What was finished and is forgotten is not said to have never been there: who
// ends it, gives it back or gives it up is told that its id is too old, and
// nothing changes. An id without a time, and one that is newer, are not found.
func TestWhatIsForgottenIsNotSaidToBeUnknown(t *testing.T) {
	s, do := waiting(t)
	limits := sessiontest.Limits(2)
	limits.MaxToolCalls, limits.MaxAttempts = 1e6, 1e6
	d := sessiontest.Digest(9)
	do(0, &session.PutPolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "wide", Digest: d, Tree: []byte{9}, Limits: limits})
	do(0, &session.Open{NS: ns, Session: "t", Agent: "a", Digest: d, IdleTTL: time.Hour})
	const n = ids.MaxRemembered + 200
	for i := range n {
		id := timed(year2027+uint64(i), i)
		call := waiter(id)
		call.Session, call.Digest, call.Pools[0].Pool = "t", d, "policy/wide"
		require.Equal(t, session.Admitted, do(0, call).Code)
		require.Equal(t, session.Ended, do(0, &session.End{NS: ns, Session: "t", Call: id, Pools: []string{"policy/wide"}, Status: session.Succeeded}).Code)
		got := do(0, &session.Acquire{NS: ns, Client: "w", Slot: id, Pool: "a", Weight: 1, TTL: time.Minute})
		require.Equal(t, session.Admitted, got.Code)
		require.Equal(t, session.Released, do(0, &session.Release{NS: ns, Client: "w", Slot: id, Pool: "a", Token: got.Grants[0].Token}).Code)
	}
	check := func(at time.Duration, id string, code session.Code, ask ...session.Command) {
		s.ApplyAll(at, nil)
		before := sessiontest.Dump(s)
		for _, c := range ask {
			r := do(at, c)
			require.Equal(t, code, r.Code, "%T of %s", c, id)
			require.Equal(t, code == session.StaleID, r.NewerThan > 0)
			require.False(t, r.Repeat)
		}
		require.Equal(t, before, sessiontest.Dump(s))
	}
	want := map[string]session.Code{
		timed(year2027, 0): session.StaleID, timed(year2027+n, 0): session.NotFound, "untimed": session.NotFound,
	}
	for id, code := range want {
		check(0, id, code,
			&session.End{NS: ns, Session: "t", Call: id, Pools: []string{"policy/wide"}, Status: session.Succeeded},
			&session.Cancel{NS: ns, Session: "t", Call: id, Pools: []string{"policy/wide"}})
	}
	for _, at := range []time.Duration{0, 2 * time.Hour} { // the client is there, and is over
		for id, code := range want {
			check(at, id, code,
				&session.Release{NS: ns, Client: "w", Slot: id, Pool: "a", Token: 1},
				&session.Cancel{NS: ns, Client: "w", Call: id, Pools: []string{"a"}})
		}
	}
}
