package governance

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

// Every fault of a GovernancePolicy is said with the line of its field.
func TestGovernanceFaults(t *testing.T) {
	tools := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "  t%d: 1\n", i)
		}
		return b.String()
	}
	for problem, doc := range map[string]string{
		"2: deny_all_tools must not stand beside a non-empty allowed_tools":                    "allowed_tools: [a]\ndeny_all_tools: true\n",
		"1: max_attempts must be a positive integer, got 0":                                    "max_attempts: 0\n",
		"1: drift_threshold must be a float between 0.0 and 1.0, got .inf":                     "drift_threshold: .inf\n",
		"1: confidence_threshold must be a float between 0.0 and 1.0, got .nan":                "confidence_threshold: .nan\n",
		"1: blocked_patterns has 1001 entries, 1000 are allowed":                               "blocked_patterns: [" + strings.Repeat("a, ", 1001) + "]\n",
		"2: max_calls_per_tool must have at most 1024 entries, got 1025":                       "max_calls_per_tool:\n" + tools(1025),
		"3: guardrails[1]: the name 'a' is taken by another guardrail":                         "guardrails:\n- {name: a, url: 'https://a'}\n- {name: a, url: 'https://b'}\n",
		"2: guardrails must have at most 8 entries, got 9":                                     "guardrails:\n" + strings.Repeat("- {name: a, url: 'https://a'}\n", 9),
		"2: content_hashes.a must be 64 hexadecimal digits in quotes, got 'abc'":               "content_hashes:\n  a: 'abc'\n",
		"1: content_hash_mode must be strict or warn, got 'lax'":                               "content_hash_mode: lax\n",
		"2: allowed_tools[1] must be a non-empty string, got ''":                               "allowed_tools: [a,\n  '']\n",
		"2: blocked_patterns[1]: an empty pattern would match everything":                      "blocked_patterns: [a,\n  '']\n",
		"1: guardrails must be a list":                                                         "guardrails: x",
		"1: guardrails[0].name must be a non-empty string":                                     "guardrails: [{url: 'https://a'}]",
		"1: guardrails[0].url must be a non-empty string":                                      "guardrails: [{name: a}]",
		"1: guardrails[0].url must be https, or http to a loopback address, got 'http":         "guardrails: [{name: a, url: 'http://example.com/'}]",
		"1: guardrails[0].url must be https, or http to a loopback address, got 'ftp":          "guardrails: [{name: a, url: 'ftp://localhost/'}]",
		"1: guardrails[0].url must be an absolute https URL":                                   "guardrails: [{name: a, url: '/check'}]",
		"1: guardrails[0].url must not carry a user or password":                               "guardrails: [{name: a, url: 'https://u:p@h/'}]",
		"1: guardrails[0].timeout_ms must be between 1 and 10000, got 0":                       "guardrails: [{name: a, url: 'https://h/', timeout_ms: 0}]",
		"1: guardrails[0].timeout_ms must be between 1 and 10000, got 10001":                   "guardrails: [{name: a, url: 'https://h/', timeout_ms: 10001}]",
		"1: guardrails[0].retries: unknown field":                                              "guardrails: [{name: a, url: 'https://h/', retries: 3}]",
		"1: rate_limits must be a list":                                                        "rate_limits: x",
		"2: rate_limits must have at most 8 entries, got 9":                                    "rate_limits:\n" + strings.Repeat("- {name: a, limit: 1, per: 1s}\n", 9),
		"3: rate_limits[1]: the name 'a' is taken by another rate":                             "rate_limits:\n- {name: a, limit: 1, per: 1s}\n- {name: a, limit: 1, per: 1s}\n",
		"1: rate_limits[0].name must be a non-empty string":                                    "rate_limits: [{limit: 1, per: 1s}]",
		"1: rate_limits[0].name must have at most 64 bytes, got 65":                            "rate_limits: [{name: " + strings.Repeat("a", 65) + ", limit: 1, per: 1s}]",
		"1: rate_limits[0].name must be of A-Z a-z 0-9":                                        "rate_limits: [{name: a/b, limit: 1, per: 1s}]",
		"1: rate_limits[0].limit is missing":                                                   "rate_limits: [{name: a, per: 1s}]",
		"1: rate_limits[0].limit must be a positive integer, got 0":                            "rate_limits: [{name: a, limit: 0, per: 1s}]",
		"1: rate_limits[0].limit must be at most 1000000000":                                   "rate_limits: [{name: a, limit: 1000000001, per: 1s}]",
		"1: rate_limits[0].per must be a non-empty string":                                     "rate_limits: [{name: a, limit: 1}]",
		"1: rate_limits[0].per must be a duration from 100ms to 24h, for instance 1s":          "rate_limits: [{name: a, limit: 1, per: 99ms}]",
		"1: rate_limits[0].per must be a duration":                                             "rate_limits: [{name: a, limit: 1, per: 24h1ms}]",
		"1: rate_limits[0].scope must be one of session, agent, policy, namespace":             "rate_limits: [{name: a, limit: 1, per: 1s, scope: all}]",
		"1: rate_limits[0].cost must be one of calls, tokens, got 'money'":                     "rate_limits: [{name: a, limit: 1, per: 1s, cost: money}]",
		"1: rate_limits[0].kinds must be of tool, model, agent, handoff, sampling, got 'call'": "rate_limits: [{name: a, limit: 1, per: 1s, kinds: [call]}]",
		"1: rate_limits[0].tools must be a list of 1 to 64 texts, got":                         "rate_limits: [{name: a, limit: 1, per: 1s, tools: []}]",
		"1: rate_limits[0].tools must hold texts of 1 to 128 bytes, got 1":                     "rate_limits: [{name: a, limit: 1, per: 1s, tools: [1]}]",
		"1: rate_limits[0].burst: unknown field":                                               "rate_limits: [{name: a, limit: 1, per: 1s, burst: 3}]",
		"1: content_hashes must be a mapping":                                                  "content_hashes: [a]",
		"1: max_model_calls must be a non-negative integer, got -1":                            "max_model_calls: -1\n",
		"2: max_sampling_requests must be a non-negative integer, got 'many'":                  "name: p\nmax_sampling_requests: many\n",
		"1: max_consecutive_failures must be a positive integer, got 0":                        "max_consecutive_failures: 0\n",
		"1: breaker_reset needs max_consecutive_failures beside it":                            "breaker_reset: 60s\n",
		"2: breaker_reset must be a duration from 1s to 24h0m0s, such as 1m0s, got 60":         "max_consecutive_failures: 1\nbreaker_reset: 60\n",
		"2: breaker_reset must be a duration from 1s to 24h0m0s, such as 1m0s, got '999ms'":    "max_consecutive_failures: 1\nbreaker_reset: 999ms\n",
		"2: breaker_reset must be a duration from 1s to 24h0m0s, such as 1m0s, got '24h1ms'":   "max_consecutive_failures: 1\nbreaker_reset: 24h1ms\n",
	} {
		n, _ := source.Parse("policy.yaml", []byte(doc))
		ps := &source.Problems{Path: "policy.yaml"}
		Read(n, ps)
		require.NotEmpty(t, ps.List, doc)
		require.Contains(t, ps.List[0].String(), "policy.yaml:"+problem)
	}
}

// What a policy says of kinds and of the breaker is in its mapping, and read
// from it again.
func TestKindsAndBreakerRoundTrip(t *testing.T) {
	doc := "max_model_calls: 3\nmax_agent_calls: 0\nmax_handoffs: 2\nmax_sampling_requests: 1\nmax_consecutive_failures: 4\nbreaker_reset: 90s\n"
	read := func(doc string) *Policy {
		n, _ := source.Parse("policy.yaml", []byte(doc))
		ps := &source.Problems{Path: "policy.yaml"}
		g := Read(n, ps)
		require.Empty(t, ps.List)
		return g
	}
	g := read(doc)
	require.Equal(t, map[string]int64{"max_model_calls": 3, "max_agent_calls": 0, "max_handoffs": 2, "max_sampling_requests": 1}, g.MaxOfKind)
	require.EqualValues(t, 4, g.MaxConsecutiveFailures)
	require.Equal(t, 90*time.Second, g.BreakerReset)
	dict := g.Dict().JSON()
	require.Contains(t, dict, `"breaker_reset":"1m30s"`)
	require.Equal(t, dict, read(dict).Dict().JSON())
	require.Equal(t, time.Minute, read("max_consecutive_failures: 1\n").BreakerReset)
	for _, field := range append(KindFields, "max_consecutive_failures", "breaker_reset") {
		require.NotContains(t, Default().Dict().JSON(), field)
		require.True(t, Fields[field])
	}
	require.Len(t, read("name: p\n").Diff(g), 7, "and the name")
}
