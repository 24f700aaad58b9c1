package session_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
	"example.com/govnode/session/sessiontest"
)

// asker is a state with a session of a policy that allows much, and what asks for a call
// in those pools, decides about it, and asks for one that needs no approval.
func asker(t *testing.T) (s *session.State, do func(time.Duration, session.Command) session.Result, ask func(call string, pools ...string) *session.Begin, approve func(call string) *session.Decide) {
	s, do = waiting(t)
	d := sessiontest.Digest(9)
	limits := session.Limits{MaxConcurrent: 4096, MaxToolCalls: 5000, MaxAttempts: 5000, Timeout: 24 * time.Hour}
	do(0, &session.PutPolicy{NS: ns, By: session.Maker{Client: "op"}, Name: "wide", Digest: d, Tree: []byte{9}, Limits: limits})
	do(0, &session.Open{NS: ns, Session: "t", Agent: "bob", Policy: "wide", Digest: d, IdleTTL: time.Hour})
	ask = func(call string, pools ...string) *session.Begin {
		c := &session.Begin{NS: ns, Session: "t", Call: call, CallKind: session.Model, Digest: d, TTL: time.Hour, Pools: []session.Want{{Pool: "policy/wide", Weight: 1}},
			Asking: &session.Asking{Agent: "bob", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 9, Request: session.Digest{1}}}
		for _, p := range pools {
			c.Pools = append(c.Pools, session.Want{Pool: p, Weight: 1})
		}
		return c
	}
	approve = func(call string) *session.Decide {
		return &session.Decide{NS: ns, By: session.Maker{Client: "op"}, ID: session.ApprovalID(ns, "t", call), Session: "t", Call: call, Approver: "amy", Approve: true}
	}
	return s, do, ask, approve
}

// A call that was asked about comes back to a session that has as many open calls as it
// may have: it is one of them. A new one does not come in.
func TestAnApprovedCallComesBackToAFullSession(t *testing.T) {
	s, do, ask, approve := asker(t)
	require.Equal(t, session.ApprovalRequired, do(0, ask("asked")).Code)
	for i := range session.MaxOpen - 1 {
		c := ask(fmt.Sprint("runs", i))
		c.Asking, c.Verdict.Allow = nil, true
		require.Equal(t, session.Admitted, do(0, c).Code)
	}
	require.Len(t, s.Get(session.SessionKey(ns, "t")).(*session.Session).Open, 1024)
	require.Equal(t, session.TooManyOpen, do(0, ask("new")).Code)
	require.Equal(t, session.Done, do(0, approve("asked")).Code)
	require.Equal(t, session.Admitted, do(0, ask("asked")).Code)
	require.Equal(t, session.TooManyOpen, do(0, ask("new")).Code)
}

// One that comes back has room for as many pools as a call may name.
func TestAnApprovedCallOfManyPools(t *testing.T) {
	s, do, ask, approve := asker(t)
	var pools []string
	for i := range session.MaxPools {
		pools = append(pools, fmt.Sprint("pool", i))
		do(0, &session.PutPool{NS: ns, By: session.Maker{Client: "op"}, Pool: pools[i], Slots: 1})
	}
	c := ask("asked", pools...)
	require.Equal(t, session.ApprovalRequired, do(0, c).Code)
	do(0, approve("asked"))
	require.Equal(t, session.Admitted, do(0, c).Code)
	require.Equal(t, append([]string{"policy/wide"}, pools...), s.Get(session.SessionKey(ns, "t")).(*session.Session).OpenPools())
}

// Where the approval of a call was lost, nobody can have agreed: the call is refused, and
// says so when it is asked for again.
func TestAnApprovalThatWasLost(t *testing.T) {
	s, do, ask, _ := asker(t)
	require.Equal(t, session.ApprovalRequired, do(0, ask("asked")).Code)
	id := session.ApprovalID(ns, "t", "asked")
	s.Put(session.ApprovalKey(ns, id), nil)
	for range 2 {
		r := do(0, ask("asked"))
		require.Equal(t, session.ApprovalDenied, r.Code)
		require.True(t, r.Repeat)
		require.Equal(t, &session.ApprovalCount{ID: id, State: approval.Cancelled, Why: session.RefusedCancelled}, r.Approval)
	}
	require.Empty(t, s.Get(session.SessionKey(ns, "t")).(*session.Session).Open)
}

// What becomes of a call that was asked about keeps its session as any call does: it is
// idle from then on.
func TestWhatBecomesOfAnAskedCallKeepsItsSession(t *testing.T) {
	for name, c := range map[string]func(ask *session.Begin, approve *session.Decide) session.Command{
		"approved": func(_ *session.Begin, approve *session.Decide) session.Command { return approve },
		"denied": func(_ *session.Begin, approve *session.Decide) session.Command {
			approve.Approve = false
			return approve
		},
		"cancelled": func(_ *session.Begin, approve *session.Decide) session.Command {
			return &session.CancelApproval{NS: ns, By: approve.By, ID: approve.ID, Session: approve.Session, Call: approve.Call}
		},
		"comes back denied": func(ask *session.Begin, _ *session.Decide) session.Command {
			ask.Asking, ask.Asked = nil, true
			return ask
		},
		"comes back admitted": func(ask *session.Begin, _ *session.Decide) session.Command {
			ask.Asking, ask.Asked, ask.Verdict.Allow = nil, true, true
			return ask
		},
		"comes back as something else": func(ask *session.Begin, _ *session.Decide) session.Command {
			ask.Asking.Request = session.Digest{2}
			return ask
		},
	} {
		t.Run(name, func(t *testing.T) {
			s, do, ask, approve := asker(t)
			require.Equal(t, session.ApprovalRequired, do(0, ask("asked")).Code)
			require.False(t, do(20*time.Second, c(ask("asked"), approve("asked"))).Code.Failure())
			require.Equal(t, 20*time.Second, s.Get(session.SessionKey(ns, "t")).(*session.Session).Used)
		})
	}
}
