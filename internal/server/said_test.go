package server_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// moody is a backend that answers as a test wants.
type moody struct {
	name   string
	answer func() (engine.BackendDecision, error)
}

func (m *moody) Name() string { return m.name }

func (m *moody) Evaluate(context.Context, engine.BackendInput) (engine.BackendDecision, error) {
	return m.answer()
}

// Who denied a call is remembered, though not in which words: when a retry finds
// that it would say something else today, the outcome stands and the reason
// names who it was.
func TestDenialsInOthersWords(t *testing.T) {
	allow := func() (engine.BackendDecision, error) {
		return engine.BackendDecision{Allowed: true, Action: engine.Allow, Reason: "fine"}, nil
	}
	deny := func() (engine.BackendDecision, error) {
		return engine.BackendDecision{Action: engine.Deny, Reason: "not on a Sunday"}, nil
	}
	fail := func() (engine.BackendDecision, error) { return engine.BackendDecision{}, errors.New("down") }
	pass := func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailAllow}, nil
	}
	block := func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		return engine.GuardrailResult{Decision: engine.GuardrailDeny, Reason: "smells of phishing"}, nil
	}
	crash := func(engine.GuardrailCall) (engine.GuardrailResult, error) {
		return engine.GuardrailResult{}, errors.New("down")
	}
	type said struct{ reason, policy, backend, category string }
	for _, test := range []struct {
		name   string
		opa    bool
		before func() (engine.BackendDecision, error)
		guard  guard
		first  said
		later  said
	}{
		{"opa", true, deny, pass, said{"not on a Sunday", "external:opa", "opa", "policy_backend"},
			said{"Denied by the policy backend opa; its words of that time are not remembered", "external:opa", "opa", "policy_backend"}},
		{"cedar", false, deny, pass, said{"not on a Sunday", "external:cedar", "cedar", "policy_backend"},
			said{"Denied by the policy backend cedar; its words of that time are not remembered", "external:cedar", "cedar", "policy_backend"}},
		{"opa fails", true, fail, pass, said{"Policy evaluation error (fail-closed): opa: down", "default", "opa", "policy_error"},
			said{"Policy evaluation error (fail-closed): the policy backend opa could not judge", "default", "opa", "policy_error"}},
		{"cedar fails", false, fail, pass, said{"Policy evaluation error (fail-closed): cedar: down", "default", "cedar", "policy_error"},
			said{"Policy evaluation error (fail-closed): the policy backend cedar could not judge", "default", "cedar", "policy_error"}},
		{"a guardrail", true, allow, block, said{"Tool call denied: smells of phishing", "guardrail:guard", "", "guardrail"},
			said{"Denied by a guardrail; its words of that time are not remembered", "guardrail", "", "guardrail"}},
		{"a guardrail fails", true, allow, crash, said{"Policy evaluation error (fail-closed): guardrail guard: down", "guardrail:guard", "", "policy_error"},
			said{"Policy evaluation error (fail-closed): a guardrail could not judge", "guardrail", "", "policy_error"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			backend, judge := &moody{"cedar", test.before}, test.guard
			if test.opa {
				backend.name = "opa"
			}
			load := func([]engine.File) (engine.Backend, []engine.Problem) { return backend, nil }
			n := start(t, func(c *server.Config) {
				c.Engine = []engine.Option{engine.WithRego(load), engine.WithCedar(load), engine.WithGuardrails(guard(func(call engine.GuardrailCall) (engine.GuardrailResult, error) {
					return judge(call)
				}))}
			})
			file := &v1.TextFile{Path: "a.cedar", Content: "permit(principal, action, resource);"}
			if test.opa {
				file = &v1.TextFile{Path: "a.rego", Content: "package agentos"}
			}
			_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{file}})
			require.NoError(t, err)
			n.session("s")
			ask := func() said {
				res := n.begin("s", "c")
				require.Equal(t, v1.Outcome_OUTCOME_DENIED_BY_POLICY, res.Outcome)
				d := res.Decision
				require.Equal(t, []any{false, "deny", res.Reason}, []any{d.Allowed, d.Action, d.Reason})
				require.NotEmpty(t, d.PublicMessage)
				return said{res.Reason, d.Policy, d.Backend, d.Category}
			}
			require.Equal(t, test.first, ask())
			require.Equal(t, test.first, ask(), "as long as it says the same")
			backend.answer, judge = allow, pass
			require.Equal(t, test.later, ask())
			require.EqualValues(t, 1, n.getSession("s").Attempts)
		})
	}
}

// A repeat is told the decision that the call was given, whatever would be decided by now:
// which rule it was and of what file, and what comes with that.
func TestARepeatIsToldTheDecisionOfThatTime(t *testing.T) {
	first := func(rule, action string) string {
		return "{name: " + rule + ", condition: {field: attempts, operator: eq, value: 0}, action: " + action + ", priority: 5, message: the first}"
	}
	after := func(action string) string {
		return "{name: later, condition: {field: attempts, operator: gt, value: 0}, action: " + action + ", message: not the first}"
	}
	flat := func(rules ...string) []*v1.TextFile {
		return []*v1.TextFile{{Path: "a.yaml", Content: "name: doc\nrules: [" + strings.Join(rules, ", ") + "]\n"}}
	}
	folders := func(rules ...string) []*v1.TextFile {
		return []*v1.TextFile{{Path: "governance.yaml", Content: "name: root\nrules: []\n"}, {Path: "sub/governance.yaml", Content: "name: sub\nrules: [" + strings.Join(rules, ", ") + "]\n"}}
	}
	beside := func(files []*v1.TextFile, more ...string) []*v1.TextFile {
		for i, text := range more {
			files = append(files, &v1.TextFile{Path: fmt.Sprintf("m%d.yaml", i), Content: text})
		}
		return files
	}
	const ruleset = "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: shells}\ndefaults: {mode: enforce}\nrules:\n" +
		"  - {id: no-t, type: pre, tool: t, when: {args.x: {equals: 1}}, then: {action: block, message: never}}\n" +
		"  - {id: seen, type: pre, mode: observe, tool: \"*\", when: {args.x: {equals: 2}}, then: {action: block, message: seen}}\n"
	for name, test := range map[string]struct {
		files   []*v1.TextFile
		outcome v1.Outcome
		policy  string
		rule    string
		args    string
	}{
		"denied":                  {flat(first("early", "deny")), v1.Outcome_OUTCOME_DENIED_BY_POLICY, "doc", "early", ""},
		"blocked":                 {flat(first("early", "block")), v1.Outcome_OUTCOME_DENIED_BY_POLICY, "doc", "early", ""},
		"denied in a folder":      {folders(first("early", "deny")), v1.Outcome_OUTCOME_DENIED_BY_POLICY, "folder-scoped", "early", ""},
		"allowed":                 {flat(first("early", "allow"), after("deny")), v1.Outcome_OUTCOME_ADMITTED, "doc", "early", ""},
		"allowed in a folder":     {folders(first("early", "audit"), after("deny")), v1.Outcome_OUTCOME_ADMITTED, "folder-scoped", "early", ""},
		"denied by a check":       {beside(flat(first("early", "allow"), after("deny")), "name: g\nallowed_tools: [u]\n"), v1.Outcome_OUTCOME_DENIED_BY_POLICY, "g", "", ""},
		"refused by a number":     {beside(folders(first("early", "allow"), after("deny")), "name: g\nmax_tool_calls: 0\n"), v1.Outcome_OUTCOME_CALL_LIMIT, "folder-scoped", "", ""},
		"by a ruleset":            {beside(flat(first("early", "allow"), after("deny")), ruleset), v1.Outcome_OUTCOME_DENIED_BY_POLICY, "shells", "no-t", `{"x": 1}`},
		"observed by a ruleset":   {beside(flat(first("early", "allow"), after("deny")), ruleset), v1.Outcome_OUTCOME_ADMITTED, "doc", "early", `{"x": 2}`},
		"asked about, and parked": {flat(first("early", "ask"), after("ask")), v1.Outcome_OUTCOME_APPROVAL_REQUIRED, "doc", "early", ""},
	} {
		t.Run(name, func(t *testing.T) {
			n := start(t)
			_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: test.files})
			require.NoError(t, err)
			n.session("s")
			ask := func() *v1.BeginCallResponse {
				res := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.ContextJson, r.ArgumentsJson = `{"path": "sub/x"}`, test.args })
				res.Decision.EvaluationTime, res.Index = nil, 0
				return res
			}
			was := ask()
			require.Equal(t, []any{test.outcome, test.policy, test.rule}, []any{was.Outcome, was.Decision.Policy, was.Decision.MatchedRule})
			is := ask()
			require.NotContains(t, is.String(), "later")
			require.Equal(t, was.Decision.String(), is.Decision.String())
			require.Equal(t, []string{was.Outcome.String(), was.Reason}, []string{is.Outcome.String(), is.Reason})
		})
	}
}

// What was remembered before such denials had numbers reads as it did.
func TestDenialsWithoutANumber(t *testing.T) {
	backend := &moody{name: "opa", answer: func() (engine.BackendDecision, error) {
		return engine.BackendDecision{Action: engine.Deny, Reason: "no"}, nil
	}}
	n := startOn(t, &unnumbered{storage.NewMemory(nil)}, func(c *server.Config) {
		c.Engine = []engine.Option{engine.WithRego(func([]engine.File) (engine.Backend, []engine.Problem) { return backend, nil })}
	})
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{{Path: "a.rego", Content: "package agentos"}}})
	require.NoError(t, err)
	n.session("s")
	require.Equal(t, "no", n.begin("s", "c").Reason)
	require.Equal(t, "no", n.begin("s", "c").Reason)
	backend.answer = func() (engine.BackendDecision, error) {
		return engine.BackendDecision{Allowed: true, Action: engine.Allow}, nil
	}
	require.Equal(t, "Policy denied by evaluator", n.begin("s", "c").Reason)
}

// unnumbered remembers no rules.
type unnumbered struct{ storage.Store }

func (u *unnumbered) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	for _, c := range cmds {
		if b, ok := c.(*session.Begin); ok {
			b.Verdict.Rule = 0
		}
	}
	return u.Store.Apply(ctx, cmds...)
}
