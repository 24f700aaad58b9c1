package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a policy limits by kind is shown with its session, and nothing where it
// limits nothing.
func TestSessionsShowWhatIsLimitedByKind(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("max_model_calls: 3", "max_sampling_requests: 2", "max_consecutive_failures: 1", "breaker_reset: 1h")...)
	n.session("s")
	n.begin("s", "a", func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_MODEL, "" })
	n.begin("s", "b", func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_SAMPLING, "files" })
	n.begin("s", "c", func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_HANDOFF, "" })
	s := n.getSession("s")
	require.EqualValues(t, 1, s.Calls, "sampling is no call")
	require.EqualValues(t, 1, s.KindCounters.ModelCalls)
	require.Zero(t, s.KindCounters.Handoffs, "which the policy does not limit")
	require.Equal(t, map[string]int32{"files": 1}, s.KindCounters.SamplingRequests)
	require.Nil(t, s.Breaker)

	_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "a", Status: v1.Status_STATUS_FAILED})
	require.NoError(t, err)
	s = n.getSession("s")
	require.EqualValues(t, 1, s.Breaker.Failures)
	require.Greater(t, s.Breaker.RetryAfter.AsDuration(), 50*time.Minute)
	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	require.NoError(t, err)
	require.Equal(t, "max_consecutive_failures", judged.Decision.Category)

	n.putPolicy(policy("version: '2'")...)
	n.session("plain")
	require.Nil(t, n.getSession("plain").KindCounters)
}

// A server's label is no tool: what the policy says of tools is not held
// against it, and it has to be there.
func TestSamplingNamesAServer(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("allowed_tools: [t]")...)
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", func(r *v1.BeginCallRequest) { r.Kind, r.Tool = v1.Kind_KIND_SAMPLING, "files" }).Outcome)
	_, err := n.calls.BeginCall(n.ctx(), &v1.BeginCallRequest{SessionId: "s", CallId: "b", Kind: v1.Kind_KIND_SAMPLING})
	require.ErrorContains(t, err, "tool")
}
