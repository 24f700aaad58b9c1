package server_test

import (
	"context"
	"log/slog"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

const canary = "AKIAIOSFODNN7CANARY0"

// quoting is a backend whose reason quotes the call.
type quoting struct{}

func (quoting) Name() string { return "opa" }

func (quoting) Evaluate(_ context.Context, in engine.BackendInput) (engine.BackendDecision, error) {
	return engine.BackendDecision{Reason: "no, because of " + in.Arguments.JSON()}, nil
}

// breaking is a store that panics with what it was told.
type breaking struct{ storage.Store }

func (breaking) Apply(context.Context, ...session.Command) []storage.Answer {
	panic("cannot apply " + canary)
}

// What others say about a call is redacted as the call is, also where they
// break.
func TestOthersDoNotTell(t *testing.T) {
	log := &lines{}
	n := start(t, func(c *server.Config) {
		c.Engine = []engine.Option{engine.WithRego(func([]engine.File) (engine.Backend, []engine.Problem) { return quoting{}, nil })}
	})
	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "p", Files: []*v1.TextFile{{Path: "a.rego", Content: "package agentos"}}})
	require.NoError(t, err)
	n.session("s")
	arguments := `{"key":"` + canary + `"}`
	res := n.begin("s", "c", func(r *v1.BeginCallRequest) { r.ArgumentsJson = arguments })
	require.Equal(t, `no, because of {"key":"[REDACTED:access_key]"}`, res.Reason)
	eval, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{SessionId: "s", Tool: "t", ArgumentsJson: arguments})
	require.NoError(t, err)
	require.Equal(t, res.Reason, eval.Decision.Reason)
	require.NotContains(t, n.audit.text(), canary)

	broken := startOn(t, breaking{n.store}, func(c *server.Config) { c.Logger = slog.New(slog.NewJSONHandler(log, nil)) })
	_, err = broken.sessions.CloseSession(t.Context(), &v1.CloseSessionRequest{SessionId: "s"})
	require.ErrorContains(t, err, "failed on this request")
	require.NotContains(t, err.Error(), canary)
	require.Contains(t, log.text(), "[REDACTED:access_key]")
	require.NotContains(t, log.text(), canary)
}
