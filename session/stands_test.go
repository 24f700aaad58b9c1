package session_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// by has a command carry who asks for it; 0 is nobody.
func by[C interface{ Authorize(*session.Authority) }](who byte, c C) C {
	if who != 0 {
		c.Authorize(&session.Authority{Principal: session.Principal{who}})
	}
	return c
}

// asking is a call of a tool that people are asked about.
func asking(who byte, call string) *session.Begin {
	c := waiter(call)
	c.CallKind, c.Tool, c.Verdict.Allow = session.Tool, "ls", false
	c.Asking = &session.Asking{Agent: "a", Required: 2, Denials: 2, Timeout: time.Minute, MaxPending: 9, Request: session.Digest{1}}
	return by(who, c)
}

func standing(who byte, scope session.Scope, name string, uses uint32) *session.PutStanding {
	of := session.StandingOf{Scope: scope, Name: name, Tool: "ls"}
	return by(who, &session.PutStanding{NS: ns, By: session.Maker{Client: "op"}, Of: of, Uses: uses, TTL: time.Hour})
}

// What somebody has made to stand lets no call of his own pass, neither at once nor when
// people were asked about it before. Those of others pass, and his by what others have made
// to stand, also where that is for more calls than his own; and so do all where nobody is
// asked who he is.
func TestNobodyStandsForHimself(t *testing.T) {
	for _, tt := range []struct {
		made, calls byte // principals
		code        session.Code
	}{
		{1, 1, session.ApprovalRequired}, {1, 2, session.Admitted}, {1, 0, session.Admitted}, {0, 0, session.Admitted}, {0, 1, session.Admitted},
	} {
		_, do := waiting(t)
		require.Equal(t, session.ApprovalRequired, do(0, asking(tt.calls, "before")).Code)
		require.Equal(t, session.Done, do(0, standing(tt.made, session.OfAgent, "a", 2)).Code)
		for _, call := range []string{"before", "after"} {
			r := do(0, asking(tt.calls, call))
			require.Equal(t, tt.code, r.Code, "%+v", tt)
			do(0, &session.End{NS: ns, Session: "s", Call: call, Status: session.Succeeded, Tokens: -1, Pools: []string{"policy/p2"}})
		}
		require.Equal(t, session.Done, do(0, standing(3, session.OfPolicy, "p2", 0)).Code)
		require.Equal(t, session.Admitted, do(0, asking(tt.calls, "last")).Code, "%+v", tt)
	}
}

// A call that stood in a queue by what stood then, and is asked about once more, is still
// the question of who asked first: it keeps the votes, and he has none now either.
func TestWhoAskedFirstIsKeptWithTheVotes(t *testing.T) {
	_, do := waiting(t)
	do(0, &session.Acquire{NS: ns, Client: "w", Slot: "l", Pool: "a", Weight: 1, TTL: time.Hour})
	queued := func(who byte) *session.Begin {
		c := asking(who, "c")
		c.Pools = append(c.Pools, session.Want{Pool: "a", Weight: 1})
		return c
	}
	id := session.ApprovalID(ns, "s", "c")
	vote := func(who byte, approver string) session.Result {
		return do(0, by(who, &session.Decide{NS: ns, By: session.Maker{Client: "op"}, ID: id, Session: "s", Call: "c", Approver: approver, Approve: true}))
	}
	require.Equal(t, session.ApprovalRequired, do(0, queued(1)).Code)
	require.Equal(t, session.SelfApproval, vote(1, "token:1").Code)
	require.Equal(t, session.Done, vote(2, "token:2").Code)
	stands := standing(3, session.OfAgent, "a", 0)
	require.Equal(t, session.Done, do(0, stands).Code)
	require.Equal(t, session.Queued, do(0, queued(1)).Code)
	require.Equal(t, session.Done, do(0, &session.DeleteStanding{NS: ns, By: session.Maker{Client: "op"}, ID: stands.Of.ID()}).Code)
	do(0, &session.Release{NS: ns, Client: "w", Slot: "l", Pool: "a", Token: 1})

	r := do(0, queued(2))
	require.Equal(t, session.ApprovalRequired, r.Code)
	require.EqualValues(t, 1, r.Approval.For)
	require.Equal(t, session.SelfApproval, vote(1, "token:1").Code)
	require.Equal(t, session.Done, vote(3, "token:3").Code)
	require.Equal(t, session.Admitted, do(0, queued(2)).Code)
}
