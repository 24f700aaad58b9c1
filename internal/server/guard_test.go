package server_test

import (
	"context"
	"errors"

	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// guard is a guardrail that does what a test wants.
type guard func(call engine.GuardrailCall) (engine.GuardrailResult, error)

func (guard) Name() string { return "guard" }

func (g guard) Evaluate(_ context.Context, call engine.GuardrailCall) (engine.GuardrailResult, error) {
	return g(call)
}

func startGuarded(t *testing.T, g guard) *node {
	t.Helper()
	n := start(t, func(c *server.Config) { c.Engine = []engine.Option{engine.WithGuardrails(g)} })
	n.putPolicy(policy()...)
	n.session("s")
	return n
}

// What a guardrail puts in the place of the arguments reaches the caller; what
// cannot be told to him is not admitted, and one that fails denies.
func TestGuardrails(t *testing.T) {
	modify := func(text string) guard {
		return func(engine.GuardrailCall) (engine.GuardrailResult, error) {
			args, err := value.Parse([]byte(text))
			return engine.GuardrailResult{Decision: engine.GuardrailModify, ModifiedArgs: &args}, err
		}
	}
	n := startGuarded(t, modify(`{"q":"cleaned"}`))
	for range 2 { // and again for a repeat
		res := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"q":"dirty"}` })
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.Equal(t, "cleaned", res.ModifiedArguments.Fields["q"].GetStringValue())
	}

	n = startGuarded(t, modify(`{"n":1`+strings.Repeat("0", 400)+`}`))
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	requireRefused(t, err, connect.CodeFailedPrecondition, "INVALID_FIELD", "a guardrail changed them")
	require.Zero(t, n.getSession("s").Attempts, "nothing was spent on it")
	written := n.audit.all(t)
	require.Equal(t, "INVALID_FIELD", written[len(written)-1]["failure_reason"], "that it was judged is written down")

	n = startGuarded(t, func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		return engine.GuardrailResult{}, errors.New("down")
	})
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, n.begin("s", "c").Outcome)
	require.EqualValues(t, 1, n.getSession("s").Attempts)
}

// Who asks again for a call that was admitted with changed arguments never runs
// the ones it came with: the guardrails are asked for theirs again, and who was
// admitted without any gets none.
func TestGuardrailsOfARepeat(t *testing.T) {
	args, err := value.Parse([]byte(`{"q":"cleaned"}`))
	require.NoError(t, err)
	modify := func() (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailModify, ModifiedArgs: &args}, nil
	}
	allow := func() (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
	}
	deny := func() (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailDeny, Reason: "no"}, nil
	}
	fail := func() (engine.GuardrailResult, error) { return engine.GuardrailResult{}, errors.New("down") }

	answer := modify
	n := startGuarded(t, func(engine.GuardrailCall) (engine.GuardrailResult, error) { return answer() })
	first := n.begin("s", "changed")
	require.Equal(t, "cleaned", first.ModifiedArguments.Fields["q"].GetStringValue())
	for name, now := range map[string]func() (engine.GuardrailResult, error){"allow": allow, "deny": deny, "fail": fail} {
		answer = now
		_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "changed"))
		requireRefused(t, err, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "it was admitted with arguments that a guardrail changed")
		require.EqualValues(t, 1, n.getSession("s").Attempts, name)
	}
	answer = modify
	again := n.begin("s", "changed")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, again.Outcome)
	require.Equal(t, first.ModifiedArguments.AsMap(), again.ModifiedArguments.AsMap())
	require.Equal(t, first.Grants[0].Token, again.Grants[0].Token)
	require.Equal(t, first.Decision.Reason, again.Decision.Reason)

	answer = allow
	require.Nil(t, n.begin("s", "as-it-came").ModifiedArguments)
	answer = modify
	again = n.begin("s", "as-it-came")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, again.Outcome)
	require.Nil(t, again.ModifiedArguments, "it was admitted without any")
}

// The hash that is registered for a tool, in the state and not in the tree, is
// held against the one that comes with the call.
func TestContentHashes(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("content_hash_mode: strict")...)
	n.session("s")
	hash := strings.Repeat("ab", 32)
	for _, a := range n.store.Apply(n.ctx(), &session.PutHash{NS: "default", By: session.Maker{Client: "w"}, Tool: "t", Hash: hash}) {
		require.NoError(t, a.Err)
	}
	with := func(hash string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Metadata = map[string]string{"content_hash": hash} }
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "right", with(hash)).Outcome)
	wrong := n.begin("s", "wrong", with(strings.Repeat("cd", 32)))
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, wrong.Outcome)
	require.Contains(t, wrong.Reason, "content hash mismatch")
	require.Equal(t, wrong.Reason, n.begin("s", "wrong", with(strings.Repeat("cd", 32))).Reason)
	require.Contains(t, n.begin("s", "none").Reason, "missing content_hash")
	alias := func() string {
		return n.begin("s", "alias", with(hash), func(r *v1.BeginCallRequest) { r.Tool = "alias" }).Reason
	}
	require.Contains(t, alias(), "no registered content hash")
	for _, a := range n.store.Apply(n.ctx(), &session.PutHash{NS: "default", By: session.Maker{Client: "w", Request: "2"}, Tool: "alias", Hash: hash}) {
		require.NoError(t, a.Err)
	}
	require.Contains(t, alias(), "no registered content hash", "it was denied for that")
}

// The order of the checks decides which reason is given, and its words (adapter
// contract 3.6, 5.4); drift is computed where it has a threshold alone.
func TestOrdersOfChecks(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("require_human_approval: true", "blocked_patterns: ['rm -rf']", "drift_threshold: 0.0")...)
	n.session("s")
	for order, want := range map[v1.Order][2]string{
		v1.Order_ORDER_UNSPECIFIED: {"Tool 't' requires human approval per governance policy", "human_approval_required"},
		v1.Order_ORDER_INTERCEPTOR: {"Tool 't' requires human approval per governance policy", "human_approval_required"},
		v1.Order_ORDER_PRE_EXECUTE: {"Blocked pattern detected: rm -rf", "blocked_pattern_input"},
	} {
		change := func(r *v1.BeginCallRequest) { r.ArgumentsJson, r.Order = `{"command":"rm -rf /"}`, order }
		res := n.begin("s", order.String(), change)
		require.Equal(t, want, [2]string{res.Reason, res.Decision.Category}, order)
		require.NotContains(t, res.Decision.PublicMessage, "rm -rf")
		eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", ArgumentsJson: `{"command":"rm -rf /"}`, Order: order})
		require.NoError(t, err)
		require.Equal(t, want, [2]string{eval.Decision.Reason, eval.Decision.Category}, order)
	}

	n.putPolicy(policy("drift_threshold: 0.0")...)
	n.session("calm")
	for _, call := range []string{"a", "b"} {
		n.begin("calm", call)
		require.Nil(t, n.endWith("calm", call, call+" is an output of its own").Drift)
	}
}

// A call of several pools takes all or none, and the words of its refusal are
// the same when it is repeated, though nobody remembers which pool was full.
func TestSeveralPools(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.putPool("gpu", 2)
	n.putPool("net", 1)
	both := func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "net"}, {Pool: "gpu", Weight: 2}} }
	res := n.begin("s", "a", both)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Equal(t, []string{"policy/p", "gpu", "net"}, []string{res.Grants[0].Pool, res.Grants[1].Pool, res.Grants[2].Pool})
	for range 2 {
		res = n.begin("s", "b", both)
		require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, res.Outcome)
		require.Equal(t, "Max concurrency reached in one of the pools policy/p, gpu, net", res.Reason)
	}
	pool, err := n.slots.GetPool(n.ctx(), &v1.GetPoolRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.EqualValues(t, 1, pool.Pool.InUse, "none was taken")
}

// slow is a store that answers a command when its caller has given up.
type slow struct{ storage.Store }

func (s slow) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if _, begin := cmds[0].(*session.Begin); !begin {
		return s.Store.Apply(ctx, cmds...)
	}
	<-ctx.Done()
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Lost(errors.New("the stream broke"))
	}
	return answers
}

// A batch is answered when its most patient operation gives up.
func TestTimeoutsInABatch(t *testing.T) {
	quick := start(t)
	quick.putPolicy(policy()...)
	quick.session("s")
	n := startOn(t, slow{quick.store})
	op := func(call string, timeout time.Duration) *v1.Operation {
		return &v1.Operation{Op: &v1.Operation_Begin{Begin: beginRequest("s", call)}, Timeout: durationpb.New(timeout)}
	}
	begun := time.Now()
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{op("a", time.Millisecond), op("b", 200*time.Millisecond)}})
	require.NoError(t, err)
	require.GreaterOrEqual(t, time.Since(begun), 200*time.Millisecond)
	require.Less(t, time.Since(begun), 5*time.Second)
	for _, r := range res.Results {
		require.Equal(t, "OUTCOME_UNKNOWN", r.GetError().GetReason())
		require.Equal(t, "unavailable", r.GetError().GetCode())
	}
	last := n.audit.all(t)
	require.Equal(t, "OUTCOME_UNKNOWN", last[len(last)-1]["failure_reason"], "a decision that may have been spent is written down")
}

// A request without a deadline gets the server's own, and one with a longer deadline too.
func TestRequestTimeout(t *testing.T) {
	quick := start(t)
	quick.putPolicy(policy()...)
	quick.session("s")
	n := startOn(t, slow{quick.store}, func(c *server.Config) { c.RequestTimeout = 100 * time.Millisecond })
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	requireRefused(t, err, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "same id")
	for _, opts := range [][]connect.ClientOption{nil, {connect.WithProtoJSON()}, {connect.WithGRPC()}, {connect.WithGRPCWeb()}} {
		ctx, cancel := context.WithTimeout(n.ctx(), 2000*time.Hour)
		_, err := n.h2(opts...).calls.BeginCall(ctx, beginRequest("s", "c"))
		cancel()
		requireRefused(t, err, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "same id")
	}
}

// unread is a store that cannot read registered hashes.
type unread struct {
	storage.Store
	broken atomic.Bool
}

func (u *unread) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if u.broken.Load() && k == session.HashKey("default", "t") {
		return storage.Found{}, storage.Unread(errors.New("connection refused"))
	}
	return u.Store.Get(ctx, k, r)
}

// A tool whose registered hash cannot be read is not taken for one that has
// none: the call is neither admitted nor denied, and nothing is counted.
func TestAHashThatCannotBeRead(t *testing.T) {
	store := &unread{Store: storage.NewMemory(nil)}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy("name: p", "content_hash_mode: warn")
	n.session("s")
	_, err := n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat("ab", 32)})
	require.NoError(t, err)
	require.Contains(t, n.begin("s", "c1").Reason, "missing content_hash")
	store.broken.Store(true)
	_, err = n.calls.BeginCall(n.ctx(), beginRequest("s", "c2"))
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "%v", err)
	_, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t"})
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(err), "%v", err)
	require.EqualValues(t, 1, n.getSession("s").Attempts)
	store.broken.Store(false)
	require.Contains(t, n.begin("s", "c2").Reason, "missing content_hash", "the id is free")
}
