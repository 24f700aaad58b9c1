package server_test

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
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

// ways are how operations may be sent: each by itself, in a batch, over a stream.
// Each returns the answers in the order of the operations.
var ways = map[string]func(*node, ...*v1.Operation) []*v1.OperationResult{
	"unary": func(n *node, ops ...*v1.Operation) []*v1.OperationResult {
		all := make([]*v1.OperationResult, len(ops))
		for i, op := range ops {
			all[i] = &v1.OperationResult{Tag: op.Tag}
			var err error
			switch o := op.Op.(type) {
			case *v1.Operation_Begin:
				var out *v1.BeginCallResponse
				out, err = n.calls.BeginCall(n.ctx(), o.Begin)
				all[i].Result = &v1.OperationResult_Begin{Begin: out}
			case *v1.Operation_End:
				var out *v1.EndCallResponse
				out, err = n.calls.EndCall(n.ctx(), o.End)
				all[i].Result = &v1.OperationResult_End{End: out}
			case *v1.Operation_Acquire:
				var out *v1.AcquireSlotResponse
				out, err = n.slots.AcquireSlot(n.ctx(), o.Acquire)
				all[i].Result = &v1.OperationResult_Acquire{Acquire: out}
			}
			if err != nil {
				all[i].Result = &v1.OperationResult_Error{Error: &v1.OperationError{
					Code: connect.CodeOf(err).String(), Reason: info(n.t, err).Reason, Message: err.Error(), RetryAfter: retryDelay(n.t, err),
				}}
			}
		}
		return all
	},
	"batch": func(n *node, ops ...*v1.Operation) []*v1.OperationResult {
		res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: ops})
		require.NoError(n.t, err)
		return res.Results
	},
	"stream": func(n *node, ops ...*v1.Operation) []*v1.OperationResult {
		l := n.exchange()
		l.send(ops...)
		require.NoError(n.t, l.stream.CloseRequest())
		of := map[uint64][]*v1.OperationResult{}
		for {
			m, err := l.stream.Receive()
			if err != nil {
				break // all is answered
			}
			for _, a := range m.Answers {
				of[a.Tag] = append(of[a.Tag], a)
			}
		}
		all := make([]*v1.OperationResult, len(ops))
		for i, op := range ops {
			require.Len(n.t, of[op.Tag], 1, "every frame has one answer: %v", of[op.Tag])
			all[i] = of[op.Tag][0]
		}
		return all
	},
}

// inEveryWay runs a test for each of the ways.
func inEveryWay(t *testing.T, test func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult)) {
	for _, way := range slices.Sorted(maps.Keys(ways)) {
		t.Run(way, func(t *testing.T) { test(t, ways[way]) })
	}
}

// A wrong is a store that gives an answer of its own to the commands of some calls.
type wrong struct {
	storage.Store
	answers map[string]func() storage.Answer // by the call
}

func (w wrong) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	answers := make([]storage.Answer, len(cmds))
	for i, c := range cmds {
		if b, ok := c.(*session.Begin); ok && w.answers[b.Call] != nil {
			answers[i] = w.answers[b.Call]()
			continue
		}
		answers[i] = w.Store.Apply(ctx, c)[0]
	}
	return answers
}

func startWrong(t *testing.T, answers map[string]func() storage.Answer, change ...func(*server.Config)) *node {
	t.Helper()
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, wrong{store, answers}, change...)
	n.putPolicy(policy("log_all_calls: true")...)
	n.session("s")
	return n
}

// The call of an operation is in the audit log once if a verdict was reached, with
// the error that its caller got if he did not get the verdict; wherever it failed.
func TestWhatFailsIsInTheAuditOnce(t *testing.T) {
	bad := guard(func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
		if call.ToolName != "unsayable" {
			return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
		}
		args, err := value.Parse([]byte(`{"n":1` + strings.Repeat("0", 400) + `}`))
		return engine.GuardrailResult{Decision: engine.GuardrailModify, ModifiedArgs: &args}, err
	})
	done := func(code session.Code) func() storage.Answer {
		return func() storage.Answer { return storage.Done(session.Result{Code: code}, 1) }
	}
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n := startWrong(t, map[string]func() storage.Answer{
			"refused": func() storage.Answer { return storage.Refused(errors.New("as the test wants it")) },
			"lost":    func() storage.Answer { return storage.Lost(errors.New("as the test wants it")) },
			"stale":   done(session.StalePremise), "many": done(session.TooManyOpen),
			"panics": func() storage.Answer {
				return storage.Done(session.Result{Code: session.StalePremise, Facts: []int64{1}}, 1)
			},
		}, func(c *server.Config) { c.Engine = []engine.Option{engine.WithGuardrails(bad)} })
		want := map[string]string{ // reason of the answer, and whether there is a line
			"good": "", "refused": "NOT_APPLIED", "lost": "OUTCOME_UNKNOWN", "stale": "NOT_APPLIED", "many": "TOO_MANY_OPEN",
			"panics": "OUTCOME_UNKNOWN", "unsayable": "INVALID_FIELD", "no id": "INVALID_FIELD",
		}
		var ops []*v1.Operation
		for _, call := range slices.Sorted(maps.Keys(want)) {
			ops = append(ops, beginFrame(uint64(len(ops)), "s", call, func(r *v1.BeginCallRequest) {
				if r.Tool = "t"; call == "unsayable" {
					r.Tool = call
				}
			}))
		}
		for i, r := range send(n, ops...) {
			require.Equal(t, want[ops[i].GetBegin().CallId], r.GetError().GetReason(), "%v", r)
		}
		lines := map[any][]any{}
		for _, l := range n.audit.all(t) {
			if l["call_id"] != nil {
				failure, _ := l["failure_reason"].(string)
				lines[l["call_id"]] = append(lines[l["call_id"]], failure)
			}
		}
		for call, reason := range want {
			if call == "no id" {
				require.Empty(t, lines[call], "nothing was judged")
				continue
			}
			require.Equal(t, []any{reason}, lines[call], call)
		}
	})
}

// What fails of one operation, with a panic or without, is its own: all others of
// the same message have their answers.
func TestOneBadOperationAmongOthers(t *testing.T) {
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n := startWrong(t, map[string]func() storage.Answer{"bad": func() storage.Answer {
			return storage.Done(session.Result{Code: session.StalePremise, Facts: []int64{1}}, 1)
		}})
		res := send(n, beginFrame(1, "s", "a"), beginFrame(2, "s", "bad"), beginFrame(3, "s", "b"), endFrame(4, "s", "a"))
		requireAdmitted(t, res[0])
		require.Equal(t, "OUTCOME_UNKNOWN", res[1].GetError().GetReason())
		requireAdmitted(t, res[2])
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, res[3].GetEnd().GetOutcome(), "%v", res[3])
		require.EqualValues(t, 1, n.metric("gov_handler_panics_total"))
	})
}

// A panickyStore has a defect in what it reads of one client.
type panickyStore struct {
	storage.Store
	storage.Counting
}

func (s panickyStore) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if k == session.ClientKey("default", "bad") {
		panic("as the test wants it")
	}
	return s.Store.Get(ctx, k, r)
}

// A panic about the quotas of one operation is its own as well.
func TestABadQuotaAmongOthers(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, panickyStore{store, store})
	n.putPolicy(policy()...)
	n.session("s")
	n.putPool("q", 9)
	n.putQuotas("default", session.Quotas{Clients: 1})
	for name, send := range ways {
		answers := send(n,
			&v1.Operation{Tag: 1, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Client: "bad", Pool: "q", SlotId: "x"}}},
			&v1.Operation{Tag: 2, Op: &v1.Operation_Begin{Begin: beginRequest("s", name)}},
		)
		require.Equal(t, "OUTCOME_UNKNOWN", answers[0].GetError().GetReason(), name)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, answers[1].GetBegin().GetOutcome(), name)
	}
}

// Operations whose premises do not hold are ordered again, eight times at most and
// without the others, and have one answer.
func TestRoundsAreForThoseThatNeedThem(t *testing.T) {
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		asked := map[string]int{}
		stale := func(call string, times int) func() storage.Answer {
			return func() storage.Answer {
				if asked[call]++; asked[call] > times {
					return storage.Done(session.Result{Code: session.Admitted}, 1)
				}
				return storage.Done(session.Result{Code: session.StalePremise}, 1)
			}
		}
		n := startWrong(t, map[string]func() storage.Answer{"once": stale("once", 1), "never": stale("never", 0), "seven": stale("seven", 7), "always": stale("always", 100)})
		res := send(n, beginFrame(1, "s", "always"), beginFrame(2, "s", "never"), beginFrame(3, "s", "seven"), beginFrame(4, "s", "once"))
		require.Equal(t, "NOT_APPLIED", res[0].GetError().GetReason())
		for _, r := range res[1:] {
			requireAdmitted(t, r)
		}
		require.Equal(t, map[string]int{"always": 8, "never": 1, "seven": 8, "once": 2}, asked)
		require.EqualValues(t, 8+7+1, n.metric("gov_premise_retries_total"))
	})
}

// What takes long to be judged keeps its place among the others of a batch: its end
// does not come before it.
func TestSlowOperationsKeepTheirPlace(t *testing.T) {
	n := startGuarded(t, func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
	})
	n.putPolicy("name: p", "max_concurrent: 1", "max_tool_calls: 1000")
	n.session("one")
	res := ways["batch"](n, beginFrame(1, "one", "c"), endFrame(2, "one", "c"), beginFrame(3, "one", "d"), beginFrame(4, "one", "e"))
	requireAdmitted(t, res[0])
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, res[1].GetEnd().GetOutcome(), "%v", res[1])
	requireAdmitted(t, res[2])
	require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, res[3].GetBegin().GetOutcome(), "%v", res[3])
}

// Queued is an answer in a batch, and what is told while it waits over a stream;
// for both kinds that may wait.
func TestWhereQueuedIsAnAnswer(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "max_tool_calls: 1000", "log_all_calls: true")
	n.session("s")
	n.putPool("gpu", 1)
	n.begin("s", "held")
	_, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "held"})
	require.NoError(t, err)
	ops := func() []*v1.Operation {
		return []*v1.Operation{
			beginFrame(1, "s", "c", waiting(time.Minute)),
			{Tag: 2, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "c", Wait: durationpb.New(time.Minute)}}},
		}
	}
	res := ways["batch"](n, ops()...)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, res[0].GetBegin().GetOutcome())
	require.NotNil(t, res[0].GetBegin().GetDecision())
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, res[1].GetAcquire().GetOutcome())
	lines := func() (outcomes []any) {
		for _, l := range n.audit.all(t) {
			if l["call_id"] == "c" {
				outcomes = append(outcomes, l["outcome"])
			}
		}
		return outcomes
	}
	require.Equal(t, []any{"queued"}, lines())

	l := n.exchange()
	l.send(ops()...)
	notices := l.receive(2)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, notices[1][0].GetBegin().GetOutcome())
	require.Nil(t, notices[1][0].GetBegin().GetDecision(), "nothing is decided")
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, notices[2][0].GetAcquire().GetOutcome())
	require.Len(t, lines(), 1, "what is told of its place is no decision")
	n.end("s", "held")
	_, err = n.slots.ForceRelease(n.ctx(), &v1.ForceReleaseRequest{Pool: "gpu", SlotId: "held"})
	require.NoError(t, err)
	last := l.receive(2)
	requireAdmitted(t, last[1][0])
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, last[2][0].GetAcquire().GetOutcome())
	require.Equal(t, []any{"queued", "admitted"}, lines())
}

// A wait that ends without an answer leaves a verdict that nobody was told, which
// is in the audit log as such.
func TestAWaitWithoutAnAnswerIsInTheAudit(t *testing.T) {
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "max_tool_calls: 1000")
	n.session("s")
	n.begin("s", "held")
	l := n.exchange()
	l.send(beginFrame(1, "s", "stream", waiting(time.Minute)))
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, l.one().GetBegin().GetOutcome())
	unary := make(chan error, 1)
	go func() {
		_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "unary", waiting(time.Minute)))
		unary <- err
	}()
	eventually(t, "both wait", func() bool { return n.metric("gov_waiting_requests") == 2 })
	require.NoError(t, n.server.Drain(n.ctx()))
	requireRefused(t, <-unary, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "the place in the queue is kept")
	require.Equal(t, "OUTCOME_UNKNOWN", l.one().GetError().GetReason())
	failures := map[any]any{}
	for _, line := range n.audit.all(t) {
		if line["failure_reason"] != nil {
			failures[line["call_id"]] = line["failure_reason"]
		}
	}
	require.Equal(t, map[any]any{"unary": "OUTCOME_UNKNOWN", "stream": "OUTCOME_UNKNOWN"}, failures)
}
