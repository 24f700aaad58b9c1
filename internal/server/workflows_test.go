package server_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/storage"
)

// Workflows of Edictum on a node: where a session stands is one value, the same for all.

const flowOfP = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: p}
stages:
  - {id: read, tools: [Read], exit: [{condition: file_read("PLAN"), message: read the plan}]}
  - {id: build, tools: [Edit, "ci__*"], exit: [{condition: 'mcp_result_matches("ci__status", "outcome", "green")', message: wait for green}]}
  - {id: review, approval: {message: "may it go out?"}}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^git push", message: push alone}]}
`

func flowNode(t *testing.T) *node {
	n := start(t)
	n.putPolicy(flowOfP)
	n.session("s")
	return n
}

// did begins a call, and ends it as it went if it was admitted.
func (n *node) did(call, tool, arguments string, output any) *v1.BeginCallResponse {
	n.t.Helper()
	res := n.begin("s", call, tooled(tool, arguments), waiting(time.Nanosecond))
	if res.Outcome == v1.Outcome_OUTCOME_ADMITTED {
		out, err := structpb.NewValue(output)
		require.NoError(n.t, err)
		_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Output: out})
		require.NoError(n.t, err)
	}
	return res
}

// state is the value in which it stands.
func (n *node) state() string {
	n.t.Helper()
	res, err := n.counters.Get(n.ctx(), &v1.GetRequest{Key: "s:s:workflow:p:state"})
	require.NoError(n.t, err)
	return res.Value
}

// manyOpen adds calls to those that are open there, of which the session knows nothing.
func (n *node) manyOpen() {
	n.t.Helper()
	var gone []string
	for i := range 100 {
		gone = append(gone, fmt.Sprintf(`"g%d":{"stage":"read","tool":"Bash"}`, i))
	}
	state := strings.Replace(n.state(), `"govnode_open":{`, `"govnode_open":{`+strings.Join(gone, ",")+",", 1)
	_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "s:s:workflow:p:state", Value: state})
	require.NoError(n.t, err)
}

func TestAWorkflowOverASession(t *testing.T) {
	n := flowNode(t)
	blocked := n.did("a", "Edit", `{"path": "x"}`, nil)
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, blocked.Outcome)
	require.Equal(t, []string{"read", "workflow", "workflow:p", "read the plan"},
		[]string{blocked.Decision.MatchedRule, blocked.Decision.Source, blocked.Decision.Policy, blocked.Reason})
	require.EqualValues(t, 1, blocked.Counters.Attempts, "what a workflow refuses is an attempt")
	require.Contains(t, n.state(), `"blocked_reason":"read the plan"`)

	// What failed is no evidence, nor what was given up.
	for call, status := range map[string]v1.Status{"b1": v1.Status_STATUS_FAILED, "b2": v1.Status_STATUS_CANCELLED} {
		n.begin("s", call, tooled("Read", `{"path": "PLAN"}`))
		_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: status})
		require.NoError(t, err)
	}
	require.Equal(t, "read the plan", n.did("c", "Edit", `{"path": "x"}`, nil).Reason)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("d", "Read", `{"path": "PLAN"}`, "text").Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("e", "Edit", `{"path": "x"}`, nil).Outcome)
	require.Contains(t, n.state(), `"active_stage":"build"`)
	n.did("f", "ci__status", `{}`, map[string]any{"outcome": "red"})
	require.Equal(t, "wait for green", n.did("g", "Bash", `{"command": "git push"}`, nil).Reason)
	n.did("h", "ci__status", `{}`, map[string]any{"outcome": "green"})
	n.did("i", "ci__other", `{}`, map[string]any{"outcome": "green"})
	require.NotContains(t, n.state(), `"ci__other":[`, "at whose results no gate looks")

	// A stage that people approve: the call waits before the log, and counts nothing.
	attempts := n.getSession("s").Attempts
	asked := n.did("j", "Bash", `{"command": "git push"}`, nil)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, asked.Outcome)
	require.Equal(t, []string{"ask", "review", "workflow", "may it go out?"},
		[]string{asked.Decision.Action, asked.Decision.MatchedRule, asked.Decision.Source, asked.Reason})
	require.False(t, n.explain(asked.DecisionId).Repeat, "nobody knew the call before")
	again := n.did("k", "Bash", `{"command": "git push"}`, nil)
	require.Equal(t, 1, strings.Count(n.audit.text(), `"event_type":"approval_requested"`))
	require.Equal(t, asked.Approval.Id, again.Approval.Id, "people are asked about the stage once")
	require.Equal(t, attempts, n.getSession("s").Attempts)
	a := n.approval(asked.Approval.Id)
	require.Equal(t, []string{"p/review", "may it go out?", "s"}, []string{a.Tool, a.Reason, a.SessionId})

	// Denied, it may be asked about anew.
	_, err := n.vote(asked.Approval.Id, "amy", v1.Vote_VOTE_DENY)
	require.NoError(t, err)
	denied := n.did("j", "Bash", `{"command": "git push"}`, nil)
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, denied.Outcome)
	require.Contains(t, denied.Reason, "Approval denied")
	next := n.did("l", "Bash", `{"command": "git push"}`, nil)
	require.NotEqual(t, asked.Approval.Id, next.Approval.Id)

	// Who waits goes on with the vote that decides.
	waited := make(chan *v1.BeginCallResponse, 1)
	go func() {
		res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "m", tooled("Bash", `{"command": "git push"}`), waiting(30*time.Second)))
		if err != nil {
			res = &v1.BeginCallResponse{Reason: err.Error()}
		}
		waited <- res
	}()
	_, err = n.vote(next.Approval.Id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-waited).Outcome)
	require.Contains(t, n.state(), `"active_stage":"ship"`)
	require.Contains(t, n.state(), `"approvals":{"review":"approved"}`)
	require.Equal(t, "push alone", n.did("n", "Bash", `{"command": "ls"}`, nil).Reason)

	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "Bash", ArgumentsJson: `{"command": "ls"}`})
	require.NoError(t, err)
	require.Equal(t, []string{"ship", "workflow"}, []string{judged.Decision.MatchedRule, judged.Decision.Source})
	before := n.state()
	judged, err = n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "Bash", ArgumentsJson: `{"command": "git push"}`})
	require.NoError(t, err)
	require.True(t, judged.Decision.Allowed)
	require.Equal(t, before, n.state(), "to ask changes nothing")
}

// A call that is begun or ended again has the answer that it had, and counts once.
func TestAWorkflowKnowsRepeats(t *testing.T) {
	n := flowNode(t)
	first := n.begin("s", "a", tooled("Read", `{"path": "PLAN"}`))
	open := n.state()
	again := n.begin("s", "a", tooled("Read", `{"path": "PLAN"}`))
	require.Equal(t, first.Grants[0].Token, again.Grants[0].Token)
	require.Equal(t, open, n.state())
	require.Contains(t, open, `"govnode_open":{"a":{"stage":"read","tool":"Read","file":"PLAN"}}`)
	n.end("s", "a")
	ended := n.state()
	require.NotContains(t, ended, "govnode_open")
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.end("s", "a").Outcome)
	require.Equal(t, ended, n.state())
	// It does not run once more, so that what is said of its end is no evidence either.
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.begin("s", "a", tooled("Read", `{"path": "PLAN"}`)).Outcome)
	require.Equal(t, ended, n.state())
	n.did("f", "ci__status", `{}`, map[string]any{"outcome": "red"})
	red := n.state()
	n.begin("s", "f", tooled("ci__status", `{}`))
	green, err := structpb.NewValue(map[string]any{"outcome": "green"})
	require.NoError(t, err)
	_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "f", Output: green})
	require.NoError(t, err)
	require.Equal(t, red, n.state())

	refused := n.begin("s", "b", tooled("Bash", `{"command": "ls"}`))
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, refused.Outcome)
	require.True(t, proto.Equal(refused.Decision, func() *v1.Decision {
		d := n.begin("s", "b", tooled("Bash", `{"command": "ls"}`)).Decision
		d.EvaluationTime = refused.Decision.EvaluationTime
		return d
	}()))
	// Where the workflow would let it in by now, its first answer stands.
	n.did("c", "Edit", `{"path": "x"}`, nil)
	n.begin("s", "d", tooled("Other", `{}`))
	n.did("e", "ci__status", `{}`, map[string]any{"outcome": "green"})
	state := n.state()
	stands := n.begin("s", "d", tooled("Other", `{}`))
	require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, stands.Outcome)
	require.Equal(t, []string{"deny", "workflow", "workflow:p", "Denied by the workflow of the session; its words of that time are not remembered", "policy_rule"},
		[]string{stands.Decision.Action, stands.Decision.Source, stands.Decision.Policy, stands.Reason, stands.Decision.Category})
	require.Equal(t, state, n.state(), "it has not run")

	// An end that names another call changes nothing of it.
	n.session("t")
	begin := beginRequest("t", "x", tooled("Read", `{"path": "PLAN"}`))
	n.begin("t", "x", tooled("Read", `{"path": "PLAN"}`))
	other := proto.CloneOf(begin)
	other.ArgumentsJson = `{"path": "OTHER"}`
	_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "t", CallId: "x", Status: v1.Status_STATUS_SUCCEEDED, Begin: other})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "begin: ")
	// Nor does one that names a budget which the call is not charged to.
	_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "t", CallId: "x", Status: v1.Status_STATUS_SUCCEEDED, Spent: []*v1.BudgetAmount{{Budget: "other"}}})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "spent: ")
	require.Equal(t, "read the plan", n.begin("t", "y", tooled("Edit", `{}`)).Reason)
}

// Calls of one session at once leave every word of what they did.
func TestAWorkflowUnderManyCalls(t *testing.T) {
	n := start(t)
	n.putPolicy(strings.Replace(flowOfP, "tools: [Read]", "tools: [Read, Bash]", 1))
	n.session("s")
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			id := fmt.Sprint("c", i)
			_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", id, tooled("Read", fmt.Sprintf(`{"path": "f%d"}`, i))))
			if err == nil {
				_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: id, Status: v1.Status_STATUS_SUCCEEDED})
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	for i := range 20 {
		require.Contains(t, n.state(), fmt.Sprintf(`"f%d"`, i))
	}
	require.NotContains(t, n.state(), "govnode_open")
}

// Without a state that can be read there is no verdict, and nothing is let in.
func TestAWorkflowWhoseStateIsDamaged(t *testing.T) {
	n := flowNode(t)
	n.begin("s", "open", tooled("Read", `{"path": "PLAN"}`))
	_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "s:s:workflow:p:state", Value: "{"})
	require.NoError(t, err)
	_, err = n.calls.BeginCall(n.ctx(), beginRequest("s", "a", tooled("Read", `{"path": "PLAN"}`)))
	requireRefused(t, err, connect.CodeFailedPrecondition, "POLICY_UNREADABLE", "s:s:workflow:p:state")
	// What runs ends, which its workflow is told once it can be.
	_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "open", Status: v1.Status_STATUS_SUCCEEDED})
	requireRefused(t, err, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "s:s:workflow:p:state")
	require.EqualValues(t, 1, n.getSession("s").Executions)
	_, err = n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "s:s:workflow:p:state"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", tooled("Read", `{"path": "PLAN"}`)).Outcome)
}

// How people are asked about a stage is what the policy beside the workflow says; of a
// session that is over nobody is asked.
func TestAStageIsAskedAboutAsThePolicySays(t *testing.T) {
	n := start(t)
	flow := "apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: p}\nstages: [{id: a, approval: {message: may it?}}, {id: b, tools: [t]}]\n"
	put := func(approval string) {
		_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{
			{Path: "flow.yaml", Content: strings.Replace(flow, "may it?", "'may it?'", 1)}, {Path: "p.yaml", Content: strings.Join(policy(approval), "\n")},
		}})
		require.NoError(t, err)
	}
	put("approval: {required: 2, denials: 2, timeout: 60s, on_timeout: allow}")
	n.session("s")
	a := n.approval(n.begin("s", "a", waiting(time.Nanosecond)).Approval.Id)
	require.Equal(t, []int32{2, 2}, []int32{a.Required, a.Denials})
	require.Equal(t, v1.OnTimeout_ON_TIMEOUT_ALLOW, a.OnTimeout)
	require.InDelta(t, 60, a.ExpiresIn.AsDuration().Seconds(), 5)
	for _, who := range []string{"amy", "bob"} {
		require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, n.begin("s", "a", waiting(time.Nanosecond)).Outcome)
		_, err := n.vote(a.Id, who, v1.Vote_VOTE_APPROVE)
		require.NoError(t, err)
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", waiting(time.Nanosecond)).Outcome)

	n.session("over")
	_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "over"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_SESSION_CLOSED, n.begin("over", "a").Outcome)
	list, err := n.approvals.List(n.ctx(), &v1.ApprovalServiceListRequest{SessionId: "over"})
	require.NoError(t, err)
	require.Empty(t, list.Approvals)
}

// A state that was deleted begins anew: what people had said about a stage of the one
// before is no answer, nor is it if that was forgotten since.
func TestAStageOfADeletedStateIsAskedAboutAnew(t *testing.T) {
	const flow = "apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: p}\nstages: [{id: a, approval: {message: 'may it?'}}, {id: b, tools: [t]}]\n"
	var passed atomic.Int64
	store := storage.NewMemory(func() time.Duration { return time.Duration(passed.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy(flow)
	n.session("s")
	forget := func() {
		_, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "s:s:workflow:p:state"})
		require.NoError(t, err)
	}
	ask := func() string {
		res := n.begin("s", "a", waiting(time.Nanosecond))
		require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, res.Outcome)
		return res.Approval.Id
	}
	seen := map[string]bool{}
	for _, v := range []v1.Vote{v1.Vote_VOTE_APPROVE, v1.Vote_VOTE_DENY, v1.Vote_VOTE_APPROVE} {
		id := ask()
		require.False(t, seen[id], "it is asked about anew")
		seen[id] = true
		require.Equal(t, id, ask(), "and once")
		forget()
		require.Equal(t, id, ask(), "nobody has decided yet")
		_, err := n.vote(id, "amy", v)
		require.NoError(t, err)
		forget()
	}
	// The approvals are dropped an hour after their end, and who has asked is known.
	passed.Add(int64(40 * time.Minute))
	id := ask()
	require.False(t, seen[id])
	forget()
	passed.Add(int64(40 * time.Minute))
	require.Eventually(t, func() bool {
		for old := range seen {
			if _, err := n.approvals.Get(n.ctx(), &v1.ApprovalServiceGetRequest{Id: old}); connect.CodeOf(err) != connect.CodeNotFound {
				return false
			}
		}
		return true
	}, 10*time.Second, time.Millisecond)
	require.NotEmpty(t, ask())
}

// A call about which a rule asks goes through the workflow first, and is blocked there
// whatever people would say.
func TestAWorkflowAndARuleThatAsks(t *testing.T) {
	n := start(t)
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{
		{Path: "flow.yaml", Content: flowOfP}, {Path: "rules.yaml", Content: "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: p}\ndefaults: {mode: enforce}\nrules:\n" +
			"  - {id: ask, type: pre, tool: '*', when: {args.path: {exists: true}}, then: {action: ask, message: 'sure?'}}\n"},
	}})
	require.NoError(t, err)
	n.session("s")
	blocked := n.begin("s", "a", tooled("Edit", `{"path": "x"}`), waiting(time.Nanosecond))
	require.Equal(t, []any{v1.Outcome_OUTCOME_DENIED_BY_POLICY, "read the plan"}, []any{blocked.Outcome, blocked.Reason})
	require.Nil(t, blocked.Approval)
	asked := n.begin("s", "b", tooled("Read", `{"path": "PLAN"}`), waiting(time.Nanosecond))
	require.Equal(t, []any{v1.Outcome_OUTCOME_APPROVAL_REQUIRED, "ask"}, []any{asked.Outcome, asked.Decision.MatchedRule})
	_, err = n.vote(asked.Approval.Id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "b", tooled("Read", `{"path": "PLAN"}`), waiting(time.Nanosecond)).Outcome)
	n.end("s", "b")
	require.Contains(t, n.state(), `"reads":["PLAN"]`)
}

// A call that was kept out is judged by where its session stands when it goes on, and not
// by where that stood when it came.
func TestWhatWasKeptOutOfAWorkflowIsJudgedAnew(t *testing.T) {
	x := beginRequest("s", "x", tooled("Read", `{"path": "ASK"}`), waiting(time.Nanosecond), func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} })
	outcome := func(n *node, req *v1.BeginCallRequest) v1.Outcome {
		n.t.Helper()
		res, err := n.calls.BeginCall(n.ctx(), req)
		require.NoError(n.t, err)
		return res.Outcome
	}
	asked := func(n *node) (id string) {
		eventually(n.t, "people are asked", func() bool {
			list, err := n.approvals.List(n.ctx(), &v1.ApprovalServiceListRequest{State: v1.ApprovalState_APPROVAL_STATE_PENDING})
			require.NoError(n.t, err)
			for _, a := range list.Approvals {
				id = a.Id
			}
			return id != ""
		})
		return id
	}
	agree := func(n *node, id string) {
		_, err := n.vote(id, "amy", v1.Vote_VOTE_APPROVE)
		require.NoError(n.t, err)
	}
	again := func(n *node) v1.Outcome { return outcome(n, x) }
	for what, keepOut := range map[string]func(n *node, store *before) (goOn func(n *node) v1.Outcome){
		"people are asked": func(n *node, _ *before) func(*node) v1.Outcome {
			require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, again(n))
			return func(n *node) v1.Outcome { agree(n, asked(n)); return again(n) }
		},
		"it waits for people": func(n *node, _ *before) func(*node) v1.Outcome {
			waited := make(chan v1.Outcome, 1)
			go func() {
				long := proto.CloneOf(x)
				long.Wait = durationpb.New(30 * time.Second)
				res, _ := n.calls.BeginCall(n.ctx(), long)
				waited <- res.GetOutcome()
			}()
			id := asked(n)
			return func(n *node) v1.Outcome { agree(n, id); return <-waited }
		},
		"it is approved and queues": func(n *node, _ *before) func(*node) v1.Outcome {
			again(n)
			agree(n, asked(n))
			n.acquire("gpu", "held")
			queued := ways["batch"](n, beginFrame(1, "s", "x", func(r *v1.BeginCallRequest) { proto.Merge(r, x); r.Wait = durationpb.New(time.Minute) }))[0]
			require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued.GetBegin().GetOutcome())
			return again
		},
		"a STOP": func(n *node, _ *before) func(*node) v1.Outcome {
			n.signal("STOP", "s")
			require.Equal(t, v1.Outcome_OUTCOME_STOPPED, again(n))
			n.signal("CONTINUE", "s")
			return again
		},
		"it is not ordered": func(n *node, store *before) func(*node) v1.Outcome {
			store.do(noCalls)
			_, err := n.calls.BeginCall(n.ctx(), x)
			require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, err))
			store.do(func(session.Command) bool { return false })
			return again
		},
	} {
		t.Run(what, func(t *testing.T) {
			store := &before{Store: storage.NewMemory(nil)}
			t.Cleanup(func() { require.NoError(t, store.Close()) })
			n := startOn(t, store)
			_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{
				{Path: "flow.yaml", Content: flowOfP}, {Path: "rules.yaml", Content: "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: p}\ndefaults: {mode: enforce}\nrules:\n" +
					"  - {id: ask, type: pre, tool: Read, when: {args.path: {equals: ASK}}, then: {action: ask, message: 'sure?'}}\n"},
			}})
			require.NoError(t, err)
			n.session("s")
			n.putPool("gpu", 1)
			goOn := keepOut(n, store)
			n.did("y", "Read", `{"path": "PLAN"}`, "text")
			require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("z", "Edit", `{"path": "x"}`, nil).Outcome)
			require.Contains(t, n.state(), `"active_stage":"build"`)
			require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, goOn(n))
			require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, again(n), "which it stays")
		})
	}
}

// A session that is opened anew under an id begins at the first stage, whoever asks for
// tokens: neither what was done under that id before counts, nor what was written before.
func TestASessionOpenedAnewBeginsItsWorkflowAnew(t *testing.T) {
	n, _, passed := beforeNode(t)
	n.did("a", "Read", `{"path": "PLAN"}`, "text")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("b", "Edit", `{"path": "x"}`, nil).Outcome)
	done := n.state()
	require.Contains(t, done, `"active_stage":"build"`)
	anew := func() {
		passed.Add(int64(100 * time.Hour)) // it is over, and its state is kept for longer
		n.session("s")
	}
	anew()
	require.Equal(t, "read the plan", n.did("c", "Edit", `{"path": "x"}`, nil).Reason)
	require.Contains(t, n.state(), `"active_stage":"read"`)

	set := func() {
		_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "s:s:workflow:p:state", Value: done, Ttl: durationpb.New(time.Hour)})
		require.NoError(t, err)
	}
	set()
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("d", "Edit", `{"path": "x"}`, nil).Outcome, "it was put there")
	set()
	anew()
	require.Equal(t, "read the plan", n.did("e", "Edit", `{"path": "x"}`, nil).Reason)
}

// What runs, or stands in a queue, was let in where its session stood then.
func TestWhatAWorkflowHasLetInGoesOn(t *testing.T) {
	n := flowNode(t)
	n.putPool("gpu", 1)
	of := func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} }
	runs := n.begin("s", "runs", tooled("Read", `{"path": "a"}`), of)
	queued := ways["batch"](n, beginFrame(1, "s", "queued", tooled("Read", `{"path": "b"}`), of, waiting(time.Minute)))[0]
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued.GetBegin().GetOutcome())
	n.did("y", "Read", `{"path": "PLAN"}`, "text")
	n.did("z", "Edit", `{"path": "x"}`, nil)
	require.Contains(t, n.state(), `"active_stage":"build"`)
	state := n.state()
	require.Equal(t, runs.Grants[0].Token, n.begin("s", "runs", tooled("Read", `{"path": "a"}`), of).Grants[0].Token)
	require.Equal(t, state, n.state())
	n.end("s", "runs")
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.begin("s", "runs", tooled("Read", `{"path": "a"}`), of).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "queued", tooled("Read", `{"path": "b"}`), of, waiting(time.Minute)).Outcome)
	n.end("s", "queued")
	require.Contains(t, n.state(), `"reads":["PLAN","a","b"]`)
}

// What a session leaves behind has a bound: calls that are over and never told of it, and
// evidence.
func TestWhatAWorkflowKeepsIsBounded(t *testing.T) {
	n := start(t)
	n.putPolicy(strings.Replace(flowOfP, "tools: [Read]", "tools: [Read, Bash]", 1))
	n.session("s")
	for i := range 80 {
		n.begin("s", fmt.Sprint("c", i), tooled("Bash", `{"command": "`+strings.Repeat("x", 20)+`"}`))
		if i%20 != 0 { // ends that did not come through the node
			_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: fmt.Sprint("c", i), Status: v1.Status_STATUS_FAILED})
			require.NoError(t, err)
		}
	}
	n.manyOpen()
	n.begin("s", "last", tooled("Read", `{"path": "x"}`))
	require.NotContains(t, n.state(), `"g1"`)
	for _, id := range []string{"c0", "c20", "c40", "c60", "last"} {
		require.Contains(t, n.state(), `"`+id+`":{`, "what runs is kept")
	}
	long := strings.Repeat("y", 4000)
	for i := range 25 {
		call := fmt.Sprint("long", i)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", call, tooled("Bash", fmt.Sprintf(`{"command": "%d%s"}`, i, long))).Outcome)
		n.end("s", call)
	}
	require.Less(t, len(n.state()), 61<<10)
	require.Contains(t, n.state(), `"0yyy`)
	require.NotContains(t, n.state(), `"24yyy`)
}

// Where a gate of a workflow alone looks at what a tool returns, that is shown, and nobody
// has to send the call again; a call of a model is not looked at.
func TestAWorkflowShowsOutputs(t *testing.T) {
	n := start(t)
	n.putPolicy(strings.Replace(flowOfP, "tools: [Read]", "tools: [Read, ci__status]", 1))
	n.session("s")
	require.True(t, n.begin("s", "a", tooled("ci__status", `{}`)).Reviews)
	require.False(t, n.begin("s", "b", tooled("Read", `{"path": "x"}`)).Reviews)
	for call, reviewed := range map[string]bool{"a": true, "b": false} {
		res, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Output: structpb.NewStringValue("text")})
		require.NoError(t, err)
		require.Equal(t, reviewed, res.Review != nil)
		require.False(t, res.Review.GetChanged())
		require.Equal(t, reviewed, res.Review.GetPassed())
	}
	rules := rulesetNode(t)
	rules.begin("s", "m", func(r *v1.BeginCallRequest) { r.Tool, r.Kind = "", v1.Kind_KIND_MODEL })
	res, err := rules.calls.EndCall(rules.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "m", Output: structpb.NewStringValue("text")})
	require.NoError(t, err)
	require.Nil(t, res.Review)
}

// A workflow is about tools: a call of a model has no place in it.
func TestAWorkflowIsAboutTools(t *testing.T) {
	n := flowNode(t)
	res := n.begin("s", "m", func(r *v1.BeginCallRequest) { r.Tool, r.Kind = "", v1.Kind_KIND_MODEL })
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Empty(t, n.state())
	judged, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s"})
	require.NoError(t, err)
	require.True(t, judged.Decision.Allowed)
}

// A workflow is about what runs: the arguments that a guardrail made of a call, and not those
// that it came with.
func TestAWorkflowSeesWhatAGuardrailMade(t *testing.T) {
	const flow = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: p}
stages:
  - {id: test, tools: [Bash], checks: [{command_matches: "^test", message: tests alone}], exit: [{condition: command_matches("^test b"), message: test b first}]}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^push", message: push alone}]}
`
	made := map[string]string{
		`{"command":"test a"}`: `{"command":"push"}`, `{"command":"push it"}`: `{"command":"test b"}`,
		`{"command":"count"}`: `{"command":"push","n":9007199254740993}`,
	}
	n := start(t, func(c *server.Config) {
		c.Engine = []engine.Option{engine.WithGuardrails(guard(func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
			text, ok := made[call.Args.JSON()]
			if !ok {
				return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
			}
			args, err := value.Parse([]byte(text))
			return engine.GuardrailResult{Decision: engine.GuardrailModify, ModifiedArgs: &args}, err
		}))}
	})
	n.putPolicy(flow)
	n.session("s")
	judged := func(command string) string {
		res, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "Bash", ArgumentsJson: command})
		require.NoError(t, err)
		return res.Decision.Action
	}
	require.Equal(t, "deny", judged(`{"command": "test a"}`))
	pushes := n.did("a", "Bash", `{"command": "test a"}`, nil)
	require.Equal(t, "test b first", pushes.Reason)
	require.Nil(t, pushes.ModifiedArguments)
	require.Equal(t, "allow", judged(`{"command": "push it"}`))
	tests := n.did("b", "Bash", `{"command": "push it"}`, nil)
	require.Equal(t, "test b", tests.ModifiedArguments.GetFields()["command"].GetStringValue())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("c", "Bash", `{"command": "push"}`, nil).Outcome, "what ran is the evidence")

	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "d", tooled("Bash", `{"command": "count"}`)))
	requireRefused(t, err, connect.CodeFailedPrecondition, fault.ReasonInvalidField, "9007199254740993 is no double")
	require.NotContains(t, n.state(), `"d":`, "it does not run, and is not open")
}

// flowThatAsks is a workflow whose session ships once people have approved that.
const flowThatAsks = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: p}
stages:
  - {id: review, approval: {message: "may it go out?"}}
  - {id: ship, tools: [Bash]}
`

const shipping = `{"session_id":"s","active_stage":"ship","completed_stages":["review"],"approvals":{"review":"approved"},` +
	`"evidence":{"reads":[],"stage_calls":{},"mcp_results":{}},"blocked_reason":null,"pending_approval":{"required":false},` +
	`"last_blocked_action":null,"last_recorded_evidence":null}`

// guardedFlow is a node that asks who calls, with a workflow that asks people.
func guardedFlow(t *testing.T, store storage.Store) (n *node, all, bot clients) {
	n = startOn(t, store, func(c *server.Config) { c.Authentication = true })
	all = n.as(n.token("team", "all1", append(allRoles, worker...)))
	_, err := all.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "p", Yaml: flowThatAsks})
	require.NoError(t, err)
	return n, all, n.as(n.token("team", "bots", worker, agents("bot-*")))
}

func ships(t *testing.T, c clients, sess, call string) v1.Outcome {
	t.Helper()
	res, err := c.calls.BeginCall(t.Context(), beginRequest(sess, call, tooled("Bash", `{"command": "git push"}`)))
	require.NoError(t, err)
	return res.Outcome
}

// An agent does not write past people where its session stands: neither in its own nor in
// that of another. Who may move sessions may.
func TestAgentsDoNotWriteWhereTheyStand(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n, all, bot := guardedFlow(t, store)
	require.NoError(t, open(all, "s", "bot-1", "p"))
	require.NoError(t, open(all, "other", "vip", "p"))
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, ships(t, bot, "s", "c1"))
	for _, sess := range []string{"s", "other"} {
		key := "s:" + sess + ":workflow:p:state"
		for what, try := range map[string]func() error{
			"set": func() error {
				_, err := bot.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: shipping})
				return err
			},
			"delete": func() error { _, err := bot.counters.Delete(t.Context(), &v1.DeleteRequest{Key: key}); return err },
			"increment": func() error {
				_, err := bot.counters.Increment(t.Context(), &v1.IncrementRequest{Key: key})
				return err
			},
		} {
			err := try()
			requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "which the nodes judge")
			require.ErrorContains(t, err, "workflow set", what)
		}
	}
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, ships(t, bot, "s", "c2"))
	// Nor does it ask in the place of a node, so that the node finds its id taken.
	_, err := bot.approvals.Request(t.Context(), &v1.ApprovalServiceRequestRequest{AgentId: "bot-1", Tool: "t", Client: "workflow", RequestId: "stage-0"})
	requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonInvalidField, "client")
	// Nor by something else that it asks for under that id, which it can work out.
	sum := sha256.Sum256([]byte("other\x00p\x00review\x00" + session.Absent))
	id := "stage-" + hex.EncodeToString(sum[:16])
	_, err = bot.counters.Increment(t.Context(), &v1.IncrementRequest{Key: "k", Client: "workflow", RequestId: id})
	requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonInvalidField, "client")
	_, err = bot.slots.AcquireSlot(t.Context(), &v1.AcquireSlotRequest{Pool: "k", Client: "workflow", SlotId: id})
	requireRefused(t, err, connect.CodeInvalidArgument, fault.ReasonInvalidField, "client")
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, ships(t, all, "other", "c1"))
	got, err := bot.counters.Get(t.Context(), &v1.GetRequest{Key: "s:s:workflow:p:state"})
	require.NoError(t, err)
	require.Contains(t, got.Value, `"active_stage":"review"`)

	for i, role := range []v1.Role{v1.Role_ROLE_OPERATOR, v1.Role_ROLE_POLICY_AUTHOR} {
		sess := fmt.Sprint("moved", i)
		require.NoError(t, open(all, sess, "bot-1", "p"))
		mover := n.as(n.token("team", fmt.Sprint("mover", i), []v1.Role{v1.Role_ROLE_AGENT, role}))
		_, err := mover.counters.Set(t.Context(), &v1.SetRequest{Key: "s:" + sess + ":workflow:p:state", Value: strings.Replace(shipping, `:"s"`, `:"`+sess+`"`, 1)})
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, ships(t, bot, sess, "c"))
	}
}

// An agent that judges by itself keeps its states where there is no such session. What it
// has written there says nothing about a session that is opened later, though its request
// is overtaken by the opening.
func TestStatesBeforeTheirSession(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	_, all, bot := guardedFlow(t, store)
	key := "s:s:workflow:p:state"
	set := func(text string) {
		_, err := bot.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: text, Ttl: durationpb.New(1000 * time.Hour)})
		require.NoError(t, err)
	}
	set("mine")
	_, err := bot.counters.Delete(t.Context(), &v1.DeleteRequest{Key: key})
	require.NoError(t, err)
	set(shipping)
	got, err := bot.counters.Get(t.Context(), &v1.GetRequest{Key: key})
	require.NoError(t, err)
	require.Equal(t, shipping, got.Value)
	require.NoError(t, open(all, "s", "bot-1", "p"))
	judged, err := bot.policies.Evaluate(t.Context(), &v1.EvaluateRequest{SessionId: "s", Tool: "Bash", ArgumentsJson: `{"command": "ls"}`})
	require.NoError(t, err)
	require.False(t, judged.Decision.Allowed)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, ships(t, bot, "s", "c"))
}

// A request of an agent that was let in before its session was there, and comes behind it
// in the order, says nothing either.
func TestStatesThatTheirSessionOvertakes(t *testing.T) {
	slow := &overtaken{Store: storage.NewMemory(nil), looked: make(chan struct{}), goOn: make(chan struct{})}
	t.Cleanup(func() { require.NoError(t, slow.Close()) })
	_, all, bot := guardedFlow(t, slow)
	done := make(chan error, 1)
	go func() {
		_, err := bot.counters.Set(context.Background(), &v1.SetRequest{Client: "slow", Key: "s:s:workflow:p:state", Value: shipping})
		done <- err
	}()
	<-slow.looked
	require.NoError(t, open(all, "s", "bot-1", "p"))
	close(slow.goOn)
	require.NoError(t, <-done)
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, ships(t, bot, "s", "c"))
}

// overtaken is a store that holds up what the client slow sets.
type overtaken struct {
	storage.Store
	looked, goOn chan struct{}
}

func (s *overtaken) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if c, sets := cmds[0].(*session.Set); sets && c.By.Client == "slow" {
		close(s.looked)
		<-s.goOn
	}
	return s.Store.Apply(ctx, cmds...)
}

// A before is a store that does something before a command is ordered, and orders none of
// which that says so.
type before struct {
	storage.Store
	first atomic.Pointer[func(session.Command) (refuse bool)]
}

func (s *before) do(first func(session.Command) (refuse bool)) { s.first.Store(&first) }

func (s *before) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	answers := make([]storage.Answer, len(cmds))
	for i, c := range cmds {
		if first := s.first.Load(); first != nil && (*first)(c) {
			answers[i] = storage.Refused(errLeaderGone)
			continue
		}
		answers[i] = s.Store.Apply(ctx, c)[0]
	}
	return answers
}

// beforeNode is a node with a workflow on such a store, in time that the test passes.
func beforeNode(t *testing.T) (n *node, store *before, passed *atomic.Int64) {
	passed = &atomic.Int64{}
	store = &before{Store: storage.NewMemory(func() time.Duration { return time.Duration(passed.Load()) })}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n = startOn(t, store)
	n.putPolicy(flowOfP)
	n.session("s")
	return n, store, passed
}

func noCalls(c session.Command) bool {
	switch c.(type) {
	case *session.Begin, *session.End:
		return true
	}
	return false
}

// Where a call stands in the workflow is written before it is ordered. So one that was
// not ordered is not one of which nothing was applied, however it was sent. Its end is
// taken down behind that.
func TestWhatAWorkflowHasTakenDownIsNotNothing(t *testing.T) {
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n, store, _ := beforeNode(t)
		n.begin("s", "open", tooled("Read", `{"path": "PLAN"}`))
		store.do(noCalls)
		res := send(n, beginFrame(1, "s", "new", tooled("Read", `{"path": "PLAN"}`)), endFrame(2, "s", "open"), beginFrame(3, "s", "bad", tooled("Read", "{")))
		require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOfResult(t, res[0]))
		require.Equal(t, "unavailable NOT_APPLIED", saidOfResult(t, res[1]))
		require.Equal(t, "invalid_argument INVALID_FIELD", saidOfResult(t, res[2]), "what others did is not its own")
		require.Contains(t, n.state(), `"new":{`)
		require.Contains(t, n.state(), `"open":{`)
	})
}

// What the log has not ended as succeeded is no evidence, however late that turns out.
func TestAnEndThatIsRefusedIsNoEvidence(t *testing.T) {
	n, store, passed := beforeNode(t)
	meanwhile := func(do func()) {
		var done atomic.Bool
		store.do(func(c session.Command) bool {
			if _, ends := c.(*session.End); ends && done.CompareAndSwap(false, true) {
				do()
			}
			return false
		})
	}
	ended := func(call string, status v1.Status) (*v1.EndCallResponse, error) {
		return n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: status})
	}
	read := func(call string) {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", call, tooled("Read", `{"path": "PLAN"}`)).Outcome)
	}
	closed := func() {
		t.Helper()
		require.NotContains(t, n.state(), `"reads":["PLAN"]`)
	}
	read("late")
	meanwhile(func() { passed.Add(int64(10 * time.Minute)) })
	for range 2 { // the second finds it lost
		require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, n.end("s", "late").Outcome)
		closed()
	}
	read("failed")
	meanwhile(func() {
		_, err := ended("failed", v1.Status_STATUS_FAILED)
		require.NoError(t, err)
	})
	_, err := ended("failed", v1.Status_STATUS_SUCCEEDED)
	require.Equal(t, "invalid_argument ID_REUSED", saidOf(t, err))
	closed()
	require.Equal(t, "read the plan", n.did("edit", "Edit", `{"path": "x"}`, nil).Reason)
}

// A call whose end is ordered is over, whether or not its workflow could be told. The
// repeat tells it, also where so many calls are open that others are taken out.
func TestARepeatTellsTheWorkflow(t *testing.T) {
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n, store, _ := beforeNode(t)
		n.begin("s", "c", tooled("Read", `{"path": "PLAN"}`))
		store.do(func(c session.Command) bool { _, sets := c.(*session.Set); return sets })
		require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOfResult(t, send(n, endFrame(1, "s", "c"))[0]))
		require.EqualValues(t, 1, n.getSession("s").Executions)
		require.Contains(t, n.state(), `"c":{`)
		store.do(func(session.Command) bool { return false })
		n.manyOpen()
		n.begin("s", "other", tooled("Read", `{"path": "x"}`))
		require.NotContains(t, n.state(), `"g1"`)
		require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, send(n, endFrame(1, "s", "c"))[0].GetEnd().GetOutcome())
		require.Contains(t, n.state(), `"reads":["PLAN"]`)
		require.NotContains(t, n.state(), `"c":{`)
	})
}

// telling is a store that notes until when it may take to read values.
type telling struct {
	storage.Store
	mu    sync.Mutex
	until map[time.Time]int
}

func (s *telling) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if at, ok := ctx.Deadline(); ok && k.Kind() == session.KindCounter {
		s.mu.Lock()
		s.until[at]++
		s.mu.Unlock()
	}
	return s.Store.Get(ctx, k, r)
}

// Ends that are ordered together tell their workflows within one time, however many they
// are: others wait for their answers.
func TestEndsTellTheirWorkflowsWithinOneTime(t *testing.T) {
	store := &telling{Store: storage.NewMemory(nil), until: map[time.Time]int{}}
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	n := startOn(t, store)
	n.putPolicy(flowOfP)
	n.session("s")
	req := &v1.BatchCallsRequest{}
	for i := range 40 {
		call := fmt.Sprint("c", i)
		n.begin("s", call, tooled("Read", `{"path": "x"}`))
		req.Operations = append(req.Operations, endFrame(uint64(i), "s", call))
	}
	clear(store.until)
	res, err := n.calls.BatchCalls(n.ctx(), req)
	require.NoError(t, err)
	for _, r := range res.Results {
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, r.GetEnd().GetOutcome(), "%v", r)
	}
	require.Len(t, store.until, 1)
}

// What was refused, or waits still, is no evidence, whatever its caller says of its end;
// and what was admitted is, also where its end was sent together with its begin.
func TestWhatWasNotAdmittedIsNoEvidence(t *testing.T) {
	n := flowNode(t)
	n.putPool("gpu", 1)
	held := n.acquire("gpu", "held")
	of := func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: "gpu"}} }
	read := tooled("Read", `{"path": "PLAN"}`)
	ended := func(call string) error {
		_, err := n.calls.EndCall(n.ctx(), endFrame(1, "s", call).GetEnd())
		return err
	}
	require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, n.begin("s", "refused", read, of).Outcome)
	require.Equal(t, "not_found NOT_FOUND", saidOf(t, ended("refused")))
	require.NotContains(t, n.state(), `"reads":["PLAN"]`)
	queued := ways["batch"](n, beginFrame(1, "s", "waits", read, of, waiting(time.Minute)))[0]
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, queued.GetBegin().GetOutcome())
	require.Equal(t, "failed_precondition STILL_WAITING", saidOf(t, ended("waits")))
	require.NotContains(t, n.state(), `"reads":["PLAN"]`)

	_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "held", Client: "w", Token: held.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "waits", read, of, waiting(time.Minute)).Outcome)
	require.NoError(t, ended("waits"))
	require.Contains(t, n.state(), `"reads":["PLAN"]`)

	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n := flowNode(t)
		if res := send(n, beginFrame(1, "s", "c", read), endFrame(2, "s", "c")); res[1].GetError() != nil {
			_, err := n.calls.EndCall(n.ctx(), endFrame(1, "s", "c").GetEnd()) // a stream promises no order of what is set apart
			require.NoError(t, err)
		}
		require.Contains(t, n.state(), `"reads":["PLAN"]`)
	})
}

// A node whose clock was ahead has drawn ids of the future for what it changed: those of
// others, and its own since, are drawn behind them once they are forgotten.
func TestAWorkflowBehindIDsOfTheFuture(t *testing.T) {
	n := flowNode(t)
	ahead := startOn(t, n.store, func(c *server.Config) {
		c.NewID = func() string {
			u := ulid.Make()
			require.NoError(t, u.SetTime(ulid.Now()+uint64(time.Hour.Milliseconds())))
			return u.String()
		}
	})
	for i := range ids.MaxRemembered { // two changes each, so that many are forgotten
		in, call := fmt.Sprint("ahead", i/200), fmt.Sprint("c", i)
		if i%200 == 0 {
			n.session(in)
		}
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, ahead.begin(in, call, tooled("Read", `{"path": "OTHER"}`)).Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, ahead.end(in, call).Outcome)
	}
	for i := range 3 {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did(fmt.Sprint("now", i), "Read", `{"path": "PLAN"}`, "text").Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, ahead.did(fmt.Sprint("again", i), "Read", `{"path": "PLAN"}`, "text").Outcome)
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.did("edit", "Edit", `{"path": "x"}`, nil).Outcome, "what was read is taken down")
}
