package approval_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	. "example.com/govnode/session/approval"
)

func asked(required, denials uint32, allow bool) *Approval {
	return &Approval{
		Clock:   Clock{AllowOnTimeout: allow, Timeout: 10 * time.Second, Deadline: 10 * time.Second},
		ForCall: true, Required: required, Denials: denials,
	}
}

// What is reached first in the order of votes decides, and later ones are not cast.
func TestVotes(t *testing.T) {
	for _, tt := range []struct {
		required, denials uint32
		votes             string // one a letter: y or n
		want              State
	}{
		{1, 1, "", Pending},
		{1, 1, "y", Approved},
		{1, 1, "n", Denied},
		{2, 1, "y", Pending},
		{2, 1, "yn", Denied},
		{2, 1, "yy", Approved},
		{2, 2, "nyn", Denied},
		{2, 2, "nyy", Approved},
		{8, 8, "ynynynynynynyn", Pending},
		{8, 8, "ynynynynynynyny", Approved},
	} {
		a := asked(tt.required, tt.denials, false)
		for i, v := range tt.votes {
			require.Equal(t, Pending, a.State(), tt.votes)
			a.Cast(Vote{Approver: string(rune('a' + i)), Approve: v == 'y', At: time.Duration(i) * time.Millisecond})
		}
		require.Equal(t, tt.want, a.State(), tt.votes)
		require.Equal(t, tt.want == Pending || tt.want == Approved, a.Open())
		require.False(t, a.ByTimeout())
		if tt.want == Pending {
			require.Nil(t, a.Decisive())
		} else {
			require.Equal(t, string(rune('a'+len(tt.votes)-1)), a.Decisive().Approver)
		}
	}
}

// A version that was there before a vote does not show it.
func TestVotesAreNotWrittenInto(t *testing.T) {
	a := asked(3, 3, false)
	a.Cast(Vote{Approver: "amy"})
	before := *a
	a.Cast(Vote{Approver: "bob", Approve: true})
	c := before
	c.Cast(Vote{Approver: "carl", Approve: true})
	require.Len(t, before.Votes, 1)
	require.NotNil(t, a.Of("bob"))
	require.Nil(t, a.Of("carl"))
	require.Nil(t, c.Of("bob"))
}

// A yes gives the call as much time again; a deadline is the first instant at which
// it is over.
func TestTime(t *testing.T) {
	at := func(a *Approval, now time.Duration) *Approval { b := *a; b.Settle(now); return &b }

	a := asked(1, 1, false)
	require.Equal(t, Pending, at(a, 10*time.Second-1).State())
	require.Equal(t, Expired, at(a, 10*time.Second).State())
	require.Equal(t, 10*time.Second, at(a, time.Hour).Ended, "when it was over, not when that was seen")
	a.Cast(Vote{Approver: "amy", Approve: true, At: 4 * time.Second})
	require.Equal(t, Approved, at(a, 14*time.Second-1).State())
	require.Equal(t, Expired, at(a, 14*time.Second).State())

	a = asked(1, 2, true)
	require.Equal(t, Approved, at(a, 10*time.Second).State())
	require.True(t, at(a, 10*time.Second).ByTimeout())
	require.Nil(t, at(a, 10*time.Second).Decisive())
	require.Equal(t, Approved, at(a, 20*time.Second-1).State())
	require.Equal(t, Expired, at(a, 20*time.Second).State())
	require.Equal(t, 20*time.Second, at(a, time.Hour).Ended)
	a.Cast(Vote{Approver: "amy", At: time.Second})
	require.Equal(t, Expired, at(a, 10*time.Second).State(), "one who says no is enough against time")
}

// Without a call that comes back for it, it has ended with the yes.
func TestWithoutACall(t *testing.T) {
	a := asked(1, 1, true)
	a.ForCall = false
	b := *a
	b.Cast(Vote{Approver: "amy", Approve: true, At: time.Second})
	require.Equal(t, Approved, b.State())
	require.False(t, b.Open())
	require.Equal(t, time.Second, b.Ended)
	b.Settle(time.Hour)
	require.Equal(t, Approved, b.State())
	a.Settle(time.Hour)
	require.Equal(t, Approved, a.State())
	require.True(t, a.ByTimeout())
	require.Equal(t, 10*time.Second, a.Ended)
}

// The clock alone comes to what the approval comes to.
func TestClockIsTheApprovals(t *testing.T) {
	for _, allow := range []bool{false, true} {
		for now := time.Duration(0); now < 30*time.Second; now += time.Second {
			a := asked(1, 1, allow)
			clock := a.Clock
			a.Settle(now)
			runs := clock.Pass(now)
			require.Equal(t, a.Open(), runs, now)
			require.Equal(t, a.Clock, clock, now)
		}
	}
}
