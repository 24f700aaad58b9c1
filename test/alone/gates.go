package alone

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What workflows ask of sessions: each kind of gate, and each way to leave a stage.

// A move is a call in a workflow, and what has to come of it.
type move struct {
	tool, about string // a file, or a command
	at, not     string // the stage that does not let it in, and why; empty where it is let in
	ends        ending
	output      any
}

// How a call ends.
type ending int

const (
	asDone ending = iota
	asFailed
	asGivenUp
	notMade    // it is evaluated alone
	onceAgreed // people are asked, and agree
)

const (
	otherTool = "Tool is not allowed in this workflow stage"
	allDone   = "workflow complete — no further tool calls are accepted"
)

// flows are workflows, each with the ways that sessions go through it.
var flows = []struct {
	stages string
	ways   [][]move
}{
	// Gates before a stage and behind it. What did not succeed is no evidence, nor is what another tool returned.
	{`
  - {id: plan, tools: [Read]}
  - {id: look, entry: [{condition: file_read("PLAN"), message: read the plan}], tools: [Glob, ci_run], exit: [{condition: 'mcp_result_matches("ci_run", "state", "green")', message: it is not green}]}
  - {id: work, entry: [{condition: stage_complete("look"), message: look first}], tools: [Edit, Bash], checks: [{command_not_matches: "rm -rf", message: nothing goes}],
     exit: [{condition: command_matches("^make"), message: make first}, {condition: command_not_matches("broken"), message: it is broken}]}
  - {id: review, approval: {message: may it go out}}
  - {id: ship, entry: [{condition: approval("review"), message: ask first}], tools: [push], exit: [{condition: approval("work"), message: nobody has agreed to the work}]}
  - {id: last, tools: [Write]}
`, [][]move{
		{
			{tool: "Bash", about: "make", at: "plan", not: "read the plan"},
			{tool: "Read", about: "OTHER"}, {tool: "Read", about: "PLAN", ends: asFailed},
			{tool: "Glob", at: "plan", not: "read the plan"},
			{tool: "Read", about: "PLAN"},
			{tool: "Edit", at: "plan", not: otherTool}, // nor does the next stage take it
			{tool: "Glob"},
			{tool: "Read", about: "PLAN", at: "look", not: "it is not green"},
			{tool: "ci_run", output: map[string]any{"state": "red"}}, {tool: "ci_run", ends: asFailed, output: map[string]any{"state": "green"}},
			{tool: "ci_run", output: "green"}, {tool: "ci_run", output: map[string]any{"other": "green"}}, {tool: "Glob", output: map[string]any{"state": "green"}},
			{tool: "Edit", at: "look", not: "it is not green"},
			{tool: "ci_run", output: map[string]any{"state": "green", "n": 1}},
			{tool: "Edit", ends: notMade},
			{tool: "Bash", about: "rm -rf /", at: "work", not: "nothing goes"},
			{tool: "Read", about: "PLAN", at: "work", not: "make first"},
			{tool: "Bash", about: "make it", ends: asGivenUp}, {tool: "push", at: "work", not: "make first"},
			{tool: "Bash", about: "remake"}, {tool: "push", at: "work", not: "make first"},
			{tool: "Bash", about: "make it"},
			{tool: "push", at: "review", not: "may it go out", ends: notMade},
			{tool: "Bash", about: "see what is broken"},
			{tool: "push", at: "work", not: "it is broken"},
			{tool: "Edit"},
		},
		{
			{tool: "Read", about: "PLAN"}, {tool: "ci_run", output: map[string]any{"state": "green"}}, {tool: "Bash", about: "make"},
			{tool: "push", at: "review", not: "may it go out", ends: onceAgreed},
			{tool: "Write", at: "ship", not: "nobody has agreed to the work"},
			{tool: "push"},
		},
	}},
	// A stage whose tools are patterns is not left for a tool of the next one.
	{`
  - {id: any, tools: ["w_*"]}
  - {id: named, tools: [Edit]}
`, [][]move{{{tool: "w_a"}, {tool: "Edit", at: "any", not: otherTool}, {tool: "w_b"}}}},
	// But for one that ends all, which takes its tools until its exit is met, and then none.
	{`
  - {id: any, tools: ["w_*"]}
  - {id: close, tools: [Bash], terminal: true, exit: [{condition: command_matches("^done"), message: not done}]}
  - {id: never, tools: [Edit]}
`, [][]move{{
		{tool: "w_a"}, {tool: "Edit", at: "close", not: otherTool}, {tool: "w_a", at: "close", not: otherTool}, {tool: "Bash", about: "ls"}, {tool: "Edit", at: "close", not: otherTool},
		{tool: "Bash", about: "done"}, {tool: "Bash", about: "ls", at: "close", not: allDone}, {tool: "Edit", at: "close", not: allDone},
	}}},
	// A check that fails keeps a call in its stage, unless the next one asks for its command.
	{`
  - {id: one, tools: [Bash], checks: [{command_matches: "^a", message: a alone}]}
  - {id: two, tools: [Bash], checks: [{command_matches: "^b", message: b alone}], exit: [{condition: stage_complete("one"), message: one comes first}, {condition: stage_complete("three"), message: three comes first}]}
  - {id: three, tools: [Edit]}
`, [][]move{{
		{tool: "Bash", about: "c", at: "one", not: "a alone"}, {tool: "Bash", about: "a"}, {tool: "Edit", at: "one", not: otherTool}, {tool: "Bash", about: "b"},
		{tool: "Bash", about: "a", at: "two", not: "three comes first"}, {tool: "Edit", at: "two", not: "three comes first"}, {tool: "Bash", about: "b"},
	}}},
	// Behind the last stage everything is let in.
	{`
  - {id: test, tools: [Bash], exit: [{condition: command_matches("^go")}]}
`, [][]move{{{tool: "Bash", about: "ls"}, {tool: "Edit", at: "test", not: otherTool}, {tool: "Bash", about: "go"}, {tool: "Edit"}, {tool: "Bash", about: "ls"}}}},
}

// gates takes sessions through workflows: each call is judged by what was done so far, by who
// evaluates it as by who makes it.
func gates(s *script) {
	s.single = true
	n := 0
	for _, i := range s.rng.Perm(len(flows)) { // not all of them where it takes long
		f := &flows[i]
		for _, way := range f.ways {
			n++
			name := fmt.Sprintf("%s-%d", s.own, n)
			if !s.under(name, limitsFile(name, ""), &v1.TextFile{Path: "flow.yaml", Content: "apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: flow}\nstages:" + f.stages}) {
				return
			}
			w := &walk{script: s, session: name, sure: true}
			for _, m := range way {
				if w.move(m); s.over {
					return
				}
			}
		}
	}
}

// A walk is a session on its way through a workflow.
type walk struct {
	*script
	session string
	// sure: each call was begun once. One that was sent again may come once more, late, and
	// take the session to another stage.
	sure bool
}

func (w *walk) move(m move) {
	key := "path"
	if m.tool == "Bash" {
		key = "command"
	}
	req := w.call(m.tool)
	req.SessionId, req.ArgumentsJson = w.session, fmt.Sprintf(`{%q: %q}`, key, m.about)
	would, ok := done(w.script, "evaluate "+m.tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) {
		return n.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: w.session, Tool: m.tool, ArgumentsJson: req.ArgumentsJson})
	})
	if ok {
		w.hold(m, would.Decision)
	}
	if w.over || m.ends == notMade {
		return
	}
	res := w.first(req)
	if w.over {
		return
	}
	if w.hold(m, res.Decision); m.ends == onceAgreed {
		w.vote(w.rng.IntN(2), res.Approval.GetId(), v1.Vote_VOTE_APPROVE)
		if res = w.first(req); w.over {
			return
		}
		m.not = ""
		w.hold(m, res.Decision)
	}
	if w.over || m.not != "" {
		return
	}
	same(w.script, "whether what it returns is looked at", res.Reviews, m.tool == "ci_run")
	end := &v1.EndCallRequest{SessionId: w.session, CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED}
	switch m.ends {
	case asFailed:
		end.Status = v1.Status_STATUS_FAILED
	case asGivenUp:
		end.Status = v1.Status_STATUS_CANCELLED
	}
	if m.output != nil {
		end.Output, _ = structpb.NewValue(m.output)
	}
	ended, ok := done(w.script, "end "+m.tool, func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) })
	w.wrong(ok && ended.Outcome != v1.Outcome_OUTCOME_ENDED && ended.Outcome != v1.Outcome_OUTCOME_ALREADY_ENDED, "it has not ended: %v", ended)
}

// first begins a call, and knows whether that was sent once.
func (w *walk) first(req *v1.BeginCallRequest) *v1.BeginCallResponse {
	before := w.steps
	res := w.begin(req)
	w.sure = w.sure && w.tries == 1 && w.steps == before+1
	return res
}

// hold holds a decision to what has to come of a move.
func (w *walk) hold(m move, d *v1.Decision) {
	action, category := "deny", "policy_rule"
	if m.at == "review" {
		action, category = "ask", "human_approval_required"
	}
	fits := d.GetAllowed()
	if m.not != "" {
		fits = !d.GetAllowed() && d.GetAction() == action && d.GetCategory() == category && d.GetPolicy() == "workflow:flow" && d.GetMatchedRule() == m.at && d.GetReason() == m.not &&
			d.GetSource() == "workflow" && d.GetPublicMessage() != ""
	}
	if !fits && !w.sure {
		w.over = true
		return
	}
	w.wrong(!fits, "in %s %s of %q is {%v}, want %q of the stage %q", w.session, m.tool, m.about, d, m.not, m.at)
}
