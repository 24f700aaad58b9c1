package governance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

func readPolicy(t *testing.T, doc string) (*Policy, []source.Problem) {
	t.Helper()
	n, probs := source.Parse("policy.yaml", []byte(doc))
	require.Empty(t, probs)
	ps := &source.Problems{Path: "policy.yaml"}
	g := Read(n, ps)
	return g, ps.List
}

// Every fault of an approval block is said with the line and the name of its
// field.
func TestApprovalFaults(t *testing.T) {
	for problem, doc := range map[string]string{
		"1: approval must be a mapping with any of required, denials, timeout, on_timeout, max_pending, got bool": "approval: true\n",
		"1: approval must be a mapping":                                                             "approval: [required]\n",
		"2: approval.required must be a positive integer, got 0":                                    "approval:\n  required: 0\n",
		"2: approval.required must be a positive integer, got 'two'":                                "approval:\n  required: two\n",
		"2: approval.required must be a positive integer, got 1.5":                                  "approval:\n  required: 1.5\n",
		"2: approval.required must be at most 8, got 9":                                             "approval:\n  required: 9\n",
		"2: approval.required must be at most 8, got 4294967297":                                    "approval:\n  required: 4294967297\n",
		"3: approval.denials must be a positive integer, got 0":                                     "approval:\n  required: 1\n  denials: 0\n",
		"3: approval.denials must be at most 8, got 9":                                              "approval:\n  required: 1\n  denials: 9\n",
		"2: approval.timeout must be a duration from 1s to 24h0m0s, such as 5m0s, got '999ms'":      "approval:\n  timeout: 999ms\n",
		"2: approval.timeout must be a duration from 1s to 24h0m0s, such as 5m0s, got '24h1ms'":     "approval:\n  timeout: 24h1ms\n",
		"2: approval.timeout must be a duration from 1s to 24h0m0s, such as 5m0s, got 300":          "approval:\n  timeout: 300\n",
		"2: approval.on_timeout must be deny or allow, got 'ask'":                                   "approval:\n  on_timeout: ask\n",
		"2: approval.on_timeout must be deny or allow, got True":                                    "approval:\n  on_timeout: true\n",
		"2: approval.max_pending must be a positive integer, got 0":                                 "approval:\n  max_pending: 0\n",
		"2: approval.max_pending must be at most 64, got 65":                                        "approval:\n  max_pending: 65\n",
		"2: approval.requried: unknown field (did you mean required?); known are required, denials": "approval:\n  requried: 1\n",
	} {
		_, problems := readPolicy(t, doc)
		require.NotEmpty(t, problems, doc)
		require.True(t, strings.HasPrefix(problems[0].String(), "policy.yaml:"+problem), problems[0].String())
		require.True(t, strings.HasPrefix(problems[0].Field, "approval"))
	}
}

// What stands at the edges is read, is in the mapping of the policy, and is read
// from it again.
func TestApprovalRoundTrip(t *testing.T) {
	for doc, want := range map[string]Approval{
		"approval: {}\n": DefaultApproval(),
		"approval: {required: 1, denials: 1, timeout: 1s, on_timeout: deny, max_pending: 1}\n":    {Required: 1, Denials: 1, Timeout: time.Second, MaxPending: 1},
		"approval: {required: 8, denials: 8, timeout: 24h, on_timeout: allow, max_pending: 64}\n": {Required: 8, Denials: 8, Timeout: 24 * time.Hour, AllowOnTimeout: true, MaxPending: 64},
		"approval: {timeout: 1m30.5s}\n": {Required: 1, Denials: 1, Timeout: 90500 * time.Millisecond, MaxPending: 16},
	} {
		g, problems := readPolicy(t, doc)
		require.Empty(t, problems, doc)
		require.Equal(t, &want, g.Approval, doc)
		dict := g.Dict().JSON()
		again, problems := readPolicy(t, dict)
		require.Empty(t, problems, dict)
		require.Equal(t, g.Approval, again.Approval)
		require.Empty(t, g.Diff(again))
	}
	require.Nil(t, Default().Approval)
	require.NotContains(t, Default().Dict().JSON(), `"approval"`)
	require.True(t, Fields["approval"])
	require.Equal(t, Approval{Required: 1, Denials: 1, Timeout: 300 * time.Second, MaxPending: 16}, Default().Asking())
}

// Which of two ways to ask is the stricter.
func TestApprovalStrictness(t *testing.T) {
	const asks = "require_human_approval: true\napproval: "
	for _, pair := range [][2]string{ // the stricter one first
		{"require_human_approval: true\n", asks + "{}\n"},
		{asks + "{}\n", "require_human_approval: false\n"},
		{asks + "{}\n", "approval: {}\n"},
		{asks + "{required: 2}\n", asks + "{}\n"},
		{asks + "{}\n", asks + "{denials: 2}\n"},
		{asks + "{timeout: 1m}\n", asks + "{}\n"},
		{asks + "{}\n", asks + "{on_timeout: allow}\n"},
		{asks + "{on_timeout: allow, timeout: 1h}\n", asks + "{on_timeout: allow, timeout: 1m}\n"},
		{asks + "{max_pending: 15}\n", asks + "{}\n"},
		{asks + "{required: 8, denials: 1, timeout: 1s, max_pending: 1}\n", "approval: {required: 1, denials: 8, timeout: 24h, on_timeout: allow, max_pending: 64}\n"},
	} {
		a, _ := readPolicy(t, pair[0])
		b, _ := readPolicy(t, pair[1])
		require.True(t, a.StricterThan(b), "%v", pair)
		require.False(t, b.StricterThan(a), "%v", pair)
		require.False(t, a.StricterThan(a))
	}
	for _, pair := range [][2]string{ // neither
		{asks + "{}\n", asks + "{required: 1, timeout: 5m}\n"},
		{asks + "{required: 2}\n", asks + "{timeout: 1m}\n"},
		{asks + "{required: 2, on_timeout: allow}\n", asks + "{}\n"},
		{"max_tokens: 10\n" + asks + "{}\n", "require_human_approval: true\n"},
		{"max_tokens: 10\napproval: {on_timeout: allow}\n", "approval: {}\n"},
	} {
		a, _ := readPolicy(t, pair[0])
		b, _ := readPolicy(t, pair[1])
		require.False(t, a.StricterThan(b) || b.StricterThan(a), "%v", pair)
	}
}
