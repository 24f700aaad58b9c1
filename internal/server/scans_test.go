package server_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A text is judged by the policy that is named or pinned. A denial is in the audit
// log, in the events and in the journal, and the text is in none of them.
func TestScans(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("blocked_patterns: [forbidden]")...)
	n.session("s")
	scan := func(text string) *v1.ScanResponse {
		res, err := n.policies.Scan(n.ctx(), &v1.ScanRequest{SessionId: "s", Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: text, Tool: "search"})
		require.NoError(t, err)
		named, err := n.policies.Scan(n.ctx(), &v1.ScanRequest{Policy: byName("p"), Kind: v1.ScanKind_SCAN_KIND_OUTPUT, Text: text})
		require.NoError(t, err)
		require.Equal(t, res.Action, named.Action)
		require.Equal(t, res.DecisionId == "", res.Allowed)
		return res
	}
	before := len(n.audit.all(t))
	require.Equal(t, "allow", scan("hello").Action)
	mail := scan("from jane@example.org")
	require.Equal(t, "redact", mail.Action)
	require.Equal(t, "from [REDACTED:email]", mail.Redacted)
	require.Equal(t, "personal_data", mail.Findings[0].Type)
	require.Len(t, n.audit.all(t), before, "what is allowed is in no log")

	const text = "this is forbidden, of course"
	denied := scan(text)
	require.False(t, denied.Allowed)
	require.Equal(t, "deny", denied.Action)
	require.Equal(t, "blocked_pattern_output", denied.Category)
	require.Equal(t, "blocked_patterns[0]", denied.Findings[0].Rule)
	require.Empty(t, denied.Redacted)
	lines := n.audit.all(t)[before:]
	require.Len(t, lines, 2)
	require.Equal(t, denied.DecisionId, lines[0]["decision_id"])
	require.Equal(t, "output", lines[0]["scan"])
	require.Equal(t, "search", lines[0]["scanned_tool"])
	require.Equal(t, "s", lines[0]["session_id"])
	require.Equal(t, false, lines[0]["allowed"])
	require.Equal(t, "blocked_pattern_output", lines[0]["category"])

	kept, err := n.explains.Explain(n.ctx(), &v1.ExplainRequest{DecisionId: denied.DecisionId})
	require.NoError(t, err)
	require.Equal(t, "deny", kept.Record.Decision.Action)
	require.Contains(t, kept.Record.ContextSnapshotJson, `"output"`)
	for _, secret := range []string{"of course", text} {
		require.NotContains(t, kept.String(), secret)
		require.NotContains(t, n.audit.text(), secret)
	}
	require.Equal(t, 2.0, n.metric(`gov_scans_total{action="deny",kind="output"}`))
	require.Equal(t, 2.0, n.metric(`gov_events_total{type="policy_violation"}`))
	require.Zero(t, n.metric(`gov_events_total{type="tool_call_blocked"}`), "no call was blocked")

	_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.Equal(t, "allow", scan("the last words").Action)
}

// What is wrong with a request is said of its field.
func TestScansOfBadRequests(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	ok := func() *v1.ScanRequest {
		return &v1.ScanRequest{Policy: byName("p"), Kind: v1.ScanKind_SCAN_KIND_INPUT, Text: "x"}
	}
	for field, change := range map[string]func(*v1.ScanRequest){
		"kind":      func(r *v1.ScanRequest) { r.Kind = 0 },
		"text":      func(r *v1.ScanRequest) { r.Text = strings.Repeat("x", 64<<10+1) },
		"sessionId": func(r *v1.ScanRequest) { r.SessionId = "s" },
		"policy":    func(r *v1.ScanRequest) { r.Policy = nil },
		"tool":      func(r *v1.ScanRequest) { r.Tool = "a\nb" },
	} {
		req := ok()
		change(req)
		_, err := n.policies.Scan(n.ctx(), req)
		requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", field)
		require.Equal(t, field, info(t, err).Metadata["field"])
	}
	req := ok()
	req.Kind = 9
	_, err := n.policies.Scan(n.ctx(), req)
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "kind")
	for _, r := range []*v1.ScanRequest{{Policy: byName("none"), Kind: 1}, {SessionId: "none", Kind: 1}} {
		_, err = n.policies.Scan(n.ctx(), r)
		requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "none")
	}
	_, err = n.policies.Scan(n.ctx(), ok())
	require.NoError(t, err)
}
