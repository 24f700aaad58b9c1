package server_test

import (
	"fmt"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A policy holds its calls to rates of their kinds and tools, each shared by those
// of its scope; beside them a call names others.
func TestRatesOfAPolicy(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("rate_limits:",
		"- {name: search, limit: 1, per: 1h, tools: ['web_*']}",
		"- {name: mine, limit: 2, per: 1h, scope: session, kinds: [tool]}",
		"- {name: agents, limit: 2, per: 1h, scope: agent, kinds: [agent]}",
		"- {name: money, limit: 100, per: 1h, scope: namespace, kinds: [model], cost: tokens}")...)
	n.putRate("llm", 3, time.Hour)
	n.session("s")
	n.session("t")
	begin := func(session, call string, change func(*v1.BeginCallRequest)) *v1.BeginCallResponse {
		req := beginRequest(session, call, change)
		res, err := n.calls.BeginCall(n.ctx(), req)
		require.NoError(t, err)
		again, err := n.calls.BeginCall(n.ctx(), req)
		require.NoError(t, err)
		require.Equal(t, res.Outcome, again.Outcome)
		require.Equal(t, res.Rate, again.Rate)
		require.Equal(t, res.Reason, again.Reason)
		return res
	}
	tool := func(name string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Tool = name }
	}
	kind := func(kind v1.Kind, tokens int64) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Tool, r.Kind, r.Tokens = "", kind, tokens }
	}
	for i, tt := range []struct {
		session string
		change  func(*v1.BeginCallRequest)
		rate    string // that refuses
	}{
		{"s", tool("web_get"), ""},
		{"t", tool("web_put"), "policy/p/search"},
		{"t", tool("ls"), ""},
		{"s", tool("ls"), ""},
		{"s", tool("ls"), "policy/p/mine#s"},
		{"t", tool("ls"), ""},
		{"t", tool("ls"), "policy/p/mine#t"},
		{"s", kind(v1.Kind_KIND_AGENT, 0), ""},
		{"t", kind(v1.Kind_KIND_AGENT, 0), ""},
		{"t", kind(v1.Kind_KIND_AGENT, 0), "policy/p/agents#a"},
		{"s", kind(v1.Kind_KIND_MODEL, 60), ""},
		{"t", kind(v1.Kind_KIND_MODEL, 60), "policy//money"},
		{"t", kind(v1.Kind_KIND_MODEL, 40), ""},
		{"t", kind(v1.Kind_KIND_MODEL, 0), "policy//money"},
	} {
		res := begin(tt.session, fmt.Sprintf("c%d", i), tt.change)
		require.Equal(t, tt.rate, res.Rate, "call %d: %v", i, res)
		if tt.rate == "" {
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "call %d: %v", i, res)
			n.end(tt.session, fmt.Sprintf("c%d", i))
			continue
		}
		require.Equal(t, v1.Outcome_OUTCOME_RATE_LIMITED, res.Outcome)
		require.Equal(t, "Rate limit "+tt.rate+" reached", res.Reason)
		require.Equal(t, "rate_limit", res.Decision.Category)
		require.Positive(t, res.RetryAfter.AsDuration())
	}
	res := begin("s", "l1", func(r *v1.BeginCallRequest) {
		r.Tool, r.Kind, r.Rates = "", v1.Kind_KIND_HANDOFF, []*v1.RateWant{{Rate: "llm", Cost: 3}}
	})
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Len(t, res.Grants, 1, "a rate gives nothing that has to be given back")
	require.EqualValues(t, 3, n.rate("llm").Used)
	require.Positive(t, n.rate("llm").FreeIn.AsDuration())
	list, err := n.limits.ListRates(n.ctx(), &v1.ListRatesRequest{PageSize: 2})
	require.NoError(t, err)
	require.Len(t, list.Rates, 2)
	more, err := n.limits.ListRates(n.ctx(), &v1.ListRatesRequest{PageToken: list.NextPageToken})
	require.NoError(t, err)
	var names []string
	for _, r := range append(list.Rates, more.Rates...) {
		names = append(names, r.Rate)
	}
	require.Equal(t, []string{"llm", "policy//money", "policy/p/agents#a", "policy/p/mine#s", "policy/p/mine#t", "policy/p/search"}, names)
	pools, err := n.slots.ListPools(n.ctx(), &v1.ListPoolsRequest{})
	require.NoError(t, err)
	require.Len(t, pools.Pools, 1)
}

// More rates than a call may have in all are refused, and nothing is counted.
func TestMoreRatesThanACallMayHave(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("rate_limits: [{name: a, limit: 1, per: 1h}]")...)
	n.session("s")
	var rates []*v1.RateWant
	for i := range 8 {
		name := fmt.Sprintf("r%d", i)
		n.putRate(name, 1, time.Hour)
		rates = append(rates, &v1.RateWant{Rate: name})
	}
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", func(r *v1.BeginCallRequest) { r.Rates = rates }))
	require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err))
	require.ErrorContains(t, err, "rates: has 8 items, and the policy holds this call to 1 more; the most is 8 together")
	require.Zero(t, n.getSession("s").Attempts)
	res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", func(r *v1.BeginCallRequest) { r.Rates = rates[:7] }))
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
}

// A call that costs its tokens costs what it used in the end.
func TestTokensAreCorrected(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.putRate("tpm", 1000, time.Hour)
	n.session("s")
	for i, tt := range []struct {
		estimate int64
		used     *int64
		counts   int32
	}{
		{100, proto.Int64(40), 40}, {100, nil, 140}, {100, proto.Int64(0), 140}, {0, proto.Int64(60), 200},
		{0, proto.Int64(0), 200}, {100, proto.Int64(900), 1100},
	} {
		call := fmt.Sprintf("c%d", i)
		res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", call, func(r *v1.BeginCallRequest) {
			r.Tokens, r.Rates = tt.estimate, []*v1.RateWant{{Rate: "tpm", By: v1.Cost_COST_TOKENS}}
		}))
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Tokens: tt.used})
		require.NoError(t, err)
		require.Equal(t, tt.counts, n.rate("tpm").Used, "call %d", i)
	}
}

// Who waits for a rate is admitted when it comes free, in order, and within no
// window more than it admits; who gives up takes nothing.
func TestWaitingForARate(t *testing.T) {
	n := start(t)
	n.putRate("r", 2, time.Second)
	take := func(id string, wait time.Duration, priority int32) *v1.TakeRateResponse {
		res, err := n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "r", RequestId: id, Wait: durationpb.New(wait), Priority: priority})
		require.NoError(t, err)
		return res
	}
	for _, id := range []string{"a", "b"} {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, take(id, 0, 0).Outcome)
	}
	refused := take("c", 0, 0)
	require.Equal(t, v1.Outcome_OUTCOME_RATE_LIMITED, refused.Outcome)
	require.LessOrEqual(t, refused.RetryAfter.AsDuration(), time.Second)
	done := make(chan *v1.TakeRateResponse, 4)
	for i, id := range []string{"w1", "w2", "w3", "first"} {
		priority := int32(i / 3)
		go func() { done <- take(id, 30*time.Second, priority) }()
		eventually(t, id+" waits", func() bool { return n.rate("r").Waiting == int32(i+1) })
	}
	_, err := n.limits.DeleteRate(n.ctx(), &v1.DeleteRateRequest{Rate: "r", RequestId: "d"})
	require.Equal(t, "POOL_IN_USE", info(t, err).Reason)
	require.ErrorContains(t, err, `rate "r": somebody waits for it`)
	for range 4 {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-done).Outcome)
	}
	require.LessOrEqual(t, n.rate("r").Used, int32(2))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, take("w1", 0, 0).Outcome, "sent again it takes nothing")
	_, err = n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "r", RequestId: "w1", Cost: 2})
	require.Equal(t, "ID_REUSED", info(t, err).Reason, "another cost is another request")
	n.putRate("none", 1, time.Hour)
	_, err = n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "none", RequestId: "x"})
	require.NoError(t, err)
	late, err := n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "none", RequestId: "y", Wait: durationpb.New(10 * time.Millisecond)})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, late.Outcome)
	require.EqualValues(t, 1, n.rate("none").Used)
}

// Clients take from a rate in a batch and on a stream as they do alone, and the
// same id is known on all three ways.
func TestTakesAmongOthers(t *testing.T) {
	n := start(t)
	n.putRate("llm", 2, time.Hour)
	frame := func(tag uint64, id string) *v1.Operation {
		return &v1.Operation{Tag: tag, Op: &v1.Operation_Take{Take: &v1.TakeRateRequest{Rate: "llm", RequestId: id, Client: "w"}}}
	}
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{frame(1, "a"), frame(2, "b"), frame(3, "c")}})
	require.NoError(t, err)
	for i, want := range []v1.Outcome{v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_RATE_LIMITED} {
		require.Equal(t, want, res.Results[i].GetTake().GetOutcome(), i)
	}
	l := n.exchange()
	l.send(frame(1, "a"), frame(2, "d"))
	answers := l.receive(2)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, answers[1][0].GetTake().GetOutcome(), "it was admitted in the batch")
	require.Equal(t, v1.Outcome_OUTCOME_RATE_LIMITED, answers[2][0].GetTake().GetOutcome())
	alone, err := n.limits.TakeRate(n.ctx(), frame(0, "b").GetTake())
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, alone.Outcome)
	require.EqualValues(t, 2, n.rate("llm").Used)
}
