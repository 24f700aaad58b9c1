package engine

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/redact"
)

// Turning the log of calls off never hides a refusal.
func TestMustAudit(t *testing.T) {
	p := mustCompile(t, "log_all_calls: false\nallowed_tools: [a]")
	ctx := context.Background()
	require.False(t, p.MustAudit(new(p.Evaluate(ctx, call.Input{Tool: "a"}))))
	require.True(t, p.MustAudit(new(p.Evaluate(ctx, call.Input{Tool: "b"}))))
	require.True(t, p.MustAudit(&Decision{Allowed: true, Action: string(document.Audit)}))
	require.True(t, mustCompile(t, "log_all_calls: true").MustAudit(&Decision{Allowed: true, Action: string(document.Allow)}))
}

// A time is written as its layout would write it.
func TestAppendStamp(t *testing.T) {
	for _, at := range []time.Time{
		{}, time.Unix(0, 0), time.Unix(1, 999_999_999), time.Unix(1, 1_000), time.Unix(1, 999), time.Unix(-1, 42_000),
		time.Date(2026, 11, 27, 12, 0, 0, 123_456_789, time.FixedZone("", 5400)), time.Date(12026, 1, 1, 0, 0, 0, 0, time.UTC),
	} {
		require.Equal(t, at.UTC().Format("x2006-01-02T15:04:05.000000Z07:00"), string(appendStamp([]byte("x"), at)))
	}
}

// Fail-closed events are logged at ERROR with the stack (policy engine spec 16.3), and with
// nothing of what the caller sent but the tool.
func TestFailuresAreLoggedWithoutTheirContext(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	p := mustCompile(t, "rules: [{name: cap, condition: {field: n, operator: gt, value: 1}, action: deny}]", WithLogger(log))
	p.Evaluate(context.Background(), call.Input{Tool: "mail", Context: enginetest.Value(t, `{"n":"x","password":"hunter2","to":"jane@example.org","path":"AKIAIOSFODNN7EXAMPLE"}`)})
	line := out.String()
	require.Contains(t, line, `"level":"ERROR"`)
	require.Contains(t, line, `"rule":"cap"`)
	require.Contains(t, line, "goroutine")
	for _, secret := range []string{"hunter2", "jane@", "AKIAIOS", "password"} {
		require.NotContains(t, line, secret)
	}
}

// A defect of the program denies as any error does (policy engine spec 16.1, 16.2), is logged
// with its stack (16.3), and its record names the chain that was judged by (17.1).
func TestPanicsDeny(t *testing.T) {
	var out bytes.Buffer
	log := WithLogger(slog.New(slog.NewJSONHandler(&out, nil)))
	p := mustCompileFilesWith(t, []Option{log}, file("governance.yaml", "name: root\nrules: []"), file("a/governance.yaml", "name: a\nrules: []"))
	in := call.Input{
		Tool: "mail", Context: enginetest.Value(t, `{"path":"a/x"}`),
		ContentHash: func(string) (string, bool) { panic("lost the table, password=hunter2") },
	}
	d := p.Evaluate(context.Background(), in)
	require.False(t, d.Allowed)
	require.Equal(t, "deny", d.Action)
	require.Equal(t, "Policy evaluation error — access denied (fail closed)", d.Reason)
	require.Equal(t, []string{"root", "a"}, d.PolicyChain)
	record := p.Audit(in, d, ContextHash{})
	require.True(t, record.Error)
	require.Equal(t, []string{"root", "a"}, record.PolicyChain)
	require.Contains(t, out.String(), `"level":"ERROR"`)
	require.Contains(t, out.String(), "goroutine")
	require.NotContains(t, out.String()+d.Error, "hunter2")
}

// In mode warn a tool without a registered hash may be called, and is warned of (policy
// engine spec 10.5).
func TestUnknownToolsAreWarnedOf(t *testing.T) {
	var out bytes.Buffer
	p := mustCompile(t, "content_hash_mode: warn\ncontent_hashes: {}", WithLogger(slog.New(slog.NewJSONHandler(&out, nil))))
	require.True(t, p.Evaluate(context.Background(), call.Input{Tool: "mail"}).Allowed)
	require.Contains(t, out.String(), `"level":"WARN"`)
	require.Contains(t, out.String(), `"tool":"mail"`)
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"mail jane.doe@example.org now":          "mail [REDACTED:email] now",
		"123-45-6789, 123 45 6789, 123456789":    "[REDACTED:ssn], [REDACTED:ssn], [REDACTED:ssn]",
		"card 4111111111111111":                  "card [REDACTED:card]",
		"5500005555555559":                       "[REDACTED:card]",
		`{"password": "a b", "x": 1}`:            `{"[REDACTED:credential], "x": 1}`,
		"api-key=abc def":                        "[REDACTED:credential] def",
		"Authorization: Bearer abcdef123456":     "Authorization: [REDACTED:bearer]",
		"eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig-": "[REDACTED:jwt]",
		"AKIAIOSFODNN7EXAMPLE":                   "[REDACTED:access_key]",
		"nothing to see, max_tokens is 5":        "nothing to see, max_tokens is 5",
	} {
		require.Equal(t, want, redact.Text(text))
	}
	in := enginetest.Value(t, `{"apiKey":"x","session_token":"y","token_count":3,"max_tokens":4,"userPassword":7,"list":["a@b.io"],"a@b.io":1,"secret":null,"key":"z"}`)
	require.Equal(t, `{"apiKey":"[REDACTED]","session_token":"[REDACTED]","token_count":3,"max_tokens":4,"userPassword":"[REDACTED]","list":["[REDACTED:email]"],"[REDACTED:email]":1,"secret":null,"key":"z"}`, redact.Value(in).JSON())
}

func TestAfterEvents(t *testing.T) {
	events := AfterEvents(call.Input{Tool: "t"}, "checkpoint-5", &DriftResult{Score: 0.96, Exceeded: true, Threshold: 0.15}, nil)
	require.Equal(t, DriftDetected, events[0].Type)
	require.Equal(t, "Drift score 0.96 exceeds threshold 0.15", events[0].Reason)
	require.Equal(t, CheckpointCreated, events[1].Type)
	require.Equal(t, "checkpoint-5", events[1].Checkpoint)
	require.Empty(t, AfterEvents(call.Input{}, "", &DriftResult{}, nil))
}

func TestDriftIsBounded(t *testing.T) {
	long := strings.Repeat("x", MaxDriftRunes+1)
	require.Equal(t, 0.0, Drift(long, long, 0.1).Score)
	r := Drift(long, long+"y", 0.1)
	require.True(t, r.Bounded && r.Exceeded)
	require.Equal(t, 1.0, r.Score)
}

// A time since the start may have the digits of a social security number. It is
// the service's own word and stays, whatever the caller says in its place.
func TestFactsAreNotRedacted(t *testing.T) {
	p := mustCompile(t, "rules: []")
	in := call.Input{
		Tool: "t", Facts: &call.Facts{Elapsed: 3141592653 * time.Nanosecond, ToolCalls: func(string) int64 { return 2 }},
		Context: enginetest.Value(t, `{"call_count": 99, "ssn": "123-45-6789", "elapsed_seconds": "soon"}`),
	}
	require.Equal(t, `{"ssn":"[REDACTED:ssn]","tool_name":"t","call_count":0,"attempts":0,"tokens_used":0,"active_slots":0,"tool_calls":{"t":2},"`+call.Elapsed.String()+`":3.141592653}`,
		p.Audit(in, p.Evaluate(context.Background(), in), ContextHash{}).ContextSnapshot.JSON())
}
