package server_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a policy limits by kind is shown with its session, and nothing where it
// limits nothing.
func TestSessionsShowWhatIsLimitedByKind(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("max_model_calls: 3", "max_sampling_requests: 2", "max_consecutive_failures: 1", "breaker_reset: 1h")...)
	require.NotNil(t, n.session("s").KindCounters, "as soon as it is made")
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

// Whoever puts, adjusts or deletes a limit stands in the audit log, once however
// often the request is sent.
func TestChangesOfLimitsAreAudited(t *testing.T) {
	n := start(t)
	for range 2 {
		for _, change := range []func() error{
			func() error {
				_, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "gpu", Slots: 2, RequestId: "1", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.limits.PutRate(n.ctx(), &v1.PutRateRequest{Rate: "llm", Limit: 3, Per: durationpb.New(time.Second), RequestId: "2", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.limits.PutBudget(n.ctx(), &v1.PutBudgetRequest{Budget: "team", Amount: "5", RequestId: "3", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.limits.AdjustBudget(n.ctx(), &v1.AdjustBudgetRequest{Budget: "team", By: "1.5", RequestId: "4", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.slots.DeletePool(n.ctx(), &v1.DeletePoolRequest{Pool: "gpu", RequestId: "5", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.limits.DeleteRate(n.ctx(), &v1.DeleteRateRequest{Rate: "llm", RequestId: "6", Client: "amy"})
				return err
			},
			func() error {
				_, err := n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "team", RequestId: "7", Client: "amy"})
				return err
			},
		} {
			require.NoError(t, change())
		}
	}
	var said []string
	for _, l := range n.audit.all(t) {
		said = append(said, fmt.Sprintf("%v %v: %v, by %v %v", l["event_type"], l["name"], l["reason"], l["client"], l["request_id"]))
	}
	require.Equal(t, []string{
		"pool_put gpu: 2 slots, threshold 2, queue 1024, by amy 1",
		"rate_put llm: 3 per 1s, queue 1024, by amy 2",
		"budget_put team: amount 5, by amy 3",
		"budget_adjusted team: by 1.5, by amy 4",
		"pool_deleted gpu: , by amy 5",
		"rate_deleted llm: , by amy 6",
		"budget_deleted team: , by amy 7",
	}, said)
}
