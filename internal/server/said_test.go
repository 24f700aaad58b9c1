package server_test

import (
	"context"
	"errors"
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
