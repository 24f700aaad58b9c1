package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// Records that a node has seen at different times may not belong together: a call
// that was approved at another node, of whose approval this one knows no vote. An
// attempt that is decided on them would be lost; until then nothing may come of
// it, whatever the state machine makes of them.
func TestRedisRecordsOfDifferentTimes(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	here, there := s.open("here"), s.open("there")
	setup(t, here)
	require.Equal(t, session.Done, one(t, here, &session.Open{NS: testNS, Session: "s", Agent: "bob", Policy: "p1", Digest: sessiontest.Digest(1), IdleTTL: time.Hour}).Code)
	begin := func(call string, asks bool) *session.Begin {
		c := &session.Begin{NS: testNS, Session: "s", Call: call, Digest: sessiontest.Digest(1), Verdict: session.Verdict{Allow: !asks},
			Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, TTL: time.Minute, Tool: "t"}
		if asks {
			c.Asking = &session.Asking{Agent: "bob", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 9}
		}
		return c
	}
	require.Equal(t, session.ApprovalRequired, one(t, here, begin("c", true)).Code)
	approve := &session.Decide{NS: testNS, By: session.Maker{Client: "amy", Request: "1"}, ID: session.ApprovalID(testNS, "s", "c"),
		Session: "s", Call: "c", Approver: "amy", Approve: true}
	require.Equal(t, session.Done, one(t, there, approve).Code)

	one(t, here, begin("other", false)) // this one has to read the session anew, and not the approval
	again := one(t, here, begin("c", true))
	require.Equal(t, session.Admitted, again.Code)
	require.EqualValues(t, 1, again.Approval.For)
	require.Equal(t, "amy", again.Approval.By)
}
