package sim

import (
	"context"
	"errors"
	"strings"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/test/check"
)

// Sessions that go through the stages of a workflow, and outputs at which rules look.

const (
	stepsPolicy = "steps"
	stepsFlow   = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: steps}
stages:
  - {id: read, tools: [Read], exit: [{condition: file_read("PLAN"), message: read first}]}
  - {id: test, tools: [Bash], checks: [{command_matches: "^test", message: tests alone}], exit: [{condition: command_matches("^test"), message: test first}]}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^push", message: push alone}]}
`
	stepsRules = `apiVersion: edictum/v1
kind: Ruleset
metadata: {name: steps}
defaults: {mode: enforce}
rules:
  - {id: keys, type: post, tool: Bash, when: {output.text: {matches: "sk-[a-z]+"}}, then: {action: redact, message: a key}}
`
	stepsSecret = "the key is sk-secret"
)

func stepsTree() *v1.PutPolicyRequest {
	return &v1.PutPolicyRequest{Name: stepsPolicy, Files: []*v1.TextFile{
		{Path: "flow.yaml", Content: stepsFlow}, {Path: "rules.yaml", Content: stepsRules},
		{Path: "limits.yaml", Content: "name: steps\nmax_concurrent: 64\nbackpressure_threshold: 64\nmax_tool_calls: 1000000\n"},
	}}
}

// steps takes a session of its own through the workflow, and tries each stage before its
// time: what was not done must not open it, and what was acknowledged must.
func (w *worker) steps(ctx context.Context) {
	s, err := w.client.CreateSession(ctx, client.Session{ID: w.name + "-steps-" + newID(), Agent: w.name, Policy: stepsPolicy})
	if err != nil {
		return
	}
	for _, step := range []struct {
		early, now client.Call // what must not be let in yet, and what must
	}{
		{client.Call{Tool: "Bash", ArgumentsJSON: `{"command": "test it"}`}, client.Call{Tool: "Read", ArgumentsJSON: `{"path": "PLAN"}`}},
		{client.Call{Tool: "Bash", ArgumentsJSON: `{"command": "push"}`}, client.Call{Tool: "Bash", ArgumentsJSON: `{"command": "test it"}`}},
		{client.Call{Tool: "Read", ArgumentsJSON: `{"path": "PLAN"}`}, client.Call{Tool: "Bash", ArgumentsJSON: `{"command": "push"}`}},
	} {
		// The last of them is early in no stage: by then it is behind.
		if call, _ := w.step(ctx, s, step.early); call != nil {
			w.recorder.broke("workflow", "%s %s was admitted before its time in %s", step.early.Tool, step.early.ArgumentsJSON, s.ID())
			return
		}
		call, err := w.step(ctx, s, step.now)
		var no *client.Refused
		if errors.As(err, &no) && no.Outcome == client.DeniedByPolicy {
			w.recorder.broke("evidence", "%s %s was denied in %s although what it waited for was acknowledged: %s", step.now.Tool, step.now.ArgumentsJSON, s.ID(), no.Reason)
		}
		if call == nil || !w.stepped(ctx, s, call) {
			return // nobody knows where it stands
		}
	}
}

// step begins one call.
func (w *worker) step(ctx context.Context, s *client.OpenSession, c client.Call) (*client.OpenCall, error) {
	o := check.Op{Client: w.name, Kind: check.Begin, Object: s.ID(), ID: newID(), Call: w.recorder.now()}
	c.ID, c.Wait, c.TTL = o.ID, client.NoWait, 5*time.Second
	w.recorder.begun(o)
	call, err := s.Begin(ctx, c)
	o.Return = w.recorder.now()
	if o.Outcome, o.Text = outcome(err), text(err); err == nil {
		o.Granted, o.Index = true, call.Begun().GetIndex()
	}
	w.recorder.done(o)
	return call, err
}

// stepped ends a call with an output that must not be shown as it is, and tells whether
// that is acknowledged.
func (w *worker) stepped(ctx context.Context, s *client.OpenSession, call *client.OpenCall) bool {
	e := check.Op{Client: w.name, Kind: check.End, Object: s.ID(), ID: call.ID(), Call: w.recorder.now()}
	w.recorder.begun(e)
	ending, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
	defer cancel()
	err := call.End(ending, client.Succeeded, client.Output(stepsSecret))
	e.Return = w.recorder.now()
	e.Outcome, e.Text = outcome(err), text(err)
	w.recorder.done(e)
	if shown, _ := call.Shown(stepsSecret); call.Begun().GetReviews() && strings.Contains(shown.(string), "sk-") {
		w.recorder.broke("review", "an output was shown as it was: %v of %v", shown, e)
	}
	return err == nil
}
