package governance

import (
	"fmt"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every bound of a policy holds at both of its ends and not one beyond: what stands at
// them is read, and what is beyond is refused by its field.
func TestBoundsAreExact(t *testing.T) {
	number := func(least, most int64) [2][]string {
		ends := [2][]string{{fmt.Sprint(least), fmt.Sprint(most)}, {fmt.Sprint(least - 1), "1.5", "'1'", "true", "null", "[1]"}}
		if most < math.MaxInt64 {
			ends[1] = append(ends[1], fmt.Sprint(most+1))
		}
		return ends
	}
	long := func(n int) string { return strings.Repeat("a", n) }
	list := func(n int, item string) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf(item, i))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	mapping := func(n int) string {
		var items []string
		for i := range n {
			items = append(items, fmt.Sprintf("t%d: 1", i))
		}
		return "{" + strings.Join(items, ", ") + "}"
	}
	for _, test := range []struct {
		doc, field string // %s is what is tried
		ends       [2][]string
	}{
		{"max_tokens: %s", "max_tokens", number(1, 1<<62)},
		{"timeout_seconds: %s", "timeout_seconds", number(1, 3_153_600_000)},
		{"max_concurrent: %s", "max_concurrent", number(1, 4096)},
		{"backpressure_threshold: %s", "backpressure_threshold", number(1, math.MaxInt64)},
		{"checkpoint_frequency: %s", "checkpoint_frequency", number(1, math.MaxInt64)},
		{"max_tool_calls: %s", "max_tool_calls", number(0, math.MaxInt64)},
		{"max_attempts: %s", "max_attempts", number(1, math.MaxInt64)},
		{"max_model_calls: %s", "max_model_calls", number(0, math.MaxInt64)},
		{"max_agent_calls: %s", "max_agent_calls", number(0, math.MaxInt64)},
		{"max_handoffs: %s", "max_handoffs", number(0, math.MaxInt64)},
		{"max_sampling_requests: %s", "max_sampling_requests", number(0, math.MaxInt64)},
		{"max_consecutive_failures: %s", "max_consecutive_failures", number(1, math.MaxInt64)},
		{"max_consecutive_failures: 1\nbreaker_reset: %s", "breaker_reset", [2][]string{{"1s", "24h"}, {"999ms", "24h1ns", "1", "-1s"}}},
		{"confidence_threshold: %s", "confidence_threshold", [2][]string{{"0", "1", "0.5", "1.0"}, {"-0.01", "1.01", "'1'", "true"}}},
		{"drift_threshold: %s", "drift_threshold", [2][]string{{"0", "1", "0.5", "1.0"}, {"-0.01", "1.01", "'1'", "true"}}},
		{"require_human_approval: %s", "require_human_approval", [2][]string{{"true", "false", "True"}, {"1", "'true'", "null"}}},
		{"log_all_calls: %s", "log_all_calls", [2][]string{{"true", "false"}, {"1", "'true'"}}},
		{"deny_all_tools: %s", "deny_all_tools", [2][]string{{"true", "false"}, {"1", "'true'"}}},
		{"name: %s", "name", [2][]string{{"a"}, {"''", "1", "[a]"}}},
		{"version: %s", "version", [2][]string{{"'1'", "a"}, {"''", "1", "1.5", "[a]"}}},
		{"max_calls_per_tool: %s", "max_calls_per_tool", [2][]string{{mapping(0), mapping(1024), "{" + long(128) + ": 0}"}, {mapping(1025), "{" + long(129) + ": 0}", "[a]", "{'': 1}", "{a: -1}", "{a: 1.5}", "{a: 1, b: x}"}}},
		{"allowed_tools: %s", "allowed_tools", [2][]string{{"[]", "[a, b]"}, {"a", "[a, 1]", "[a, '']", "[1, a]"}}},
		{"blocked_patterns: %s", "blocked_patterns", [2][]string{{list(1000, "a%d"), "[]"}, {list(1001, "a%d"), "[a, '']", "[a, {pattern: b, type: other}]", "[a, {pattern: '(', type: regex}]", "[{pattern: b}]", "[{pattern: b, type: regex, engine: other}]", "[{pattern: b, type: glob, engine: backtracking}]", "[{pattern: b, type: regex, more: 1}]"}}},
		{"budgets: %s", "budgets", [2][]string{{list(16, "{budget: b%d}"), "[]"}, {list(17, "{budget: b%d}"), "[{budget: a}, {budget: a}]", "[{budget: a}, {budget: ''}]", "[{amount: 1}]", "[x]", "[{budget: a, more: 1}]"}}},
		{"budgets: [{budget: %s}]", "budgets", [2][]string{{long(128), "'a._:@/-Z9'"}, {long(129), "'a b'", "'ä'"}}},
		{"budgets: [{budget: a, amount: %s}]", "budgets", [2][]string{{"0", "1000000000000", "'0.000001'", "0.5"}, {"-1", "1000000000000.000001", "'0.0000001'", "'1e3'", "true", "1000000000001"}}},
		{"rate_limits: %s", "rate_limits", [2][]string{{list(8, "{name: r%d, limit: 1, per: 1s}"), "[]"}, {list(9, "{name: r%d, limit: 1, per: 1s}"), "[x]"}}},
		{"rate_limits: [{name: %s, limit: 1, per: 1s}]", "rate_limits", [2][]string{{long(64), "'a._:@-Z9'"}, {long(65), "'a/b'", "''", "1"}}},
		{"rate_limits: [{name: a, limit: %s, per: 1s}]", "rate_limits", number(1, 1_000_000_000)},
		{"rate_limits: [{name: a, limit: 1, per: %s}]", "rate_limits", [2][]string{{"100ms", "24h"}, {"99ms", "24h1ns", "1", "''"}}},
		{"rate_limits: [{name: a, limit: 1, per: 1s, tools: %s}]", "rate_limits", [2][]string{{list(64, "t%d"), "[" + long(128) + "]"}, {list(65, "t%d"), "[" + long(129) + "]", "[]", "[a, '']", "[a, 1]", "a"}}},
		{"rate_limits: [{name: a, limit: 1, per: 1s, kinds: %s}]", "rate_limits", [2][]string{{"[tool, model, agent, handoff, sampling]"}, {"[]", "[tool, other]", "[tool, tool, tool, tool, tool, tool]"}}},
		{"rate_limits: [{name: a, limit: 1, per: 1s, scope: %s}]", "rate_limits", [2][]string{{"session", "agent", "policy", "namespace"}, {"other", "''", "1"}}},
		{"rate_limits: [{name: a, limit: 1, per: 1s, cost: %s}]", "rate_limits", [2][]string{{"calls", "tokens"}, {"other", "''", "1"}}},
		{"approval: {required: %s}", "approval", number(1, 8)},
		{"approval: {denials: %s}", "approval", number(1, 8)},
		{"approval: {max_pending: %s}", "approval", number(1, 64)},
		{"approval: {timeout: %s}", "approval", [2][]string{{"1s", "24h"}, {"999ms", "24h1ns", "1", "true"}}},
		{"approval: {on_timeout: %s}", "approval", [2][]string{{"deny", "allow"}, {"true", "ask", "''"}}},
		{"guardrails: %s", "guardrails", [2][]string{{list(8, "{name: g%d, url: 'https://a'}")}, {list(9, "{name: g%d, url: 'https://a'}")}}},
		{"guardrails: [{name: a, url: 'https://a', timeout_ms: %s}]", "guardrails", [2][]string{{"1", "10000"}, {"0", "10001", "'1'"}}},
	} {
		for _, value := range test.ends[0] {
			_, problems := readPolicy(t, fmt.Sprintf(test.doc, value)+"\n")
			require.Empty(t, problems, "%s with %.60s", test.doc, value)
		}
		for _, value := range test.ends[1] {
			if value == "null" && strings.HasPrefix(test.field, "approval") {
				continue
			}
			_, problems := readPolicy(t, fmt.Sprintf(test.doc, value)+"\n")
			require.NotEmpty(t, problems, "%s with %.60s", test.doc, value)
			require.True(t, strings.HasPrefix(problems[0].Field, test.field), "%s with %.60s: %v", test.doc, value, problems[0])
		}
	}
}

// Each field on its own makes one policy stricter than another, and in its direction alone.
func TestEachFieldOrdersPolicies(t *testing.T) {
	for _, pair := range [][2]string{ // the stricter one first
		{"max_tokens: 9", "max_tokens: 10"},
		{"max_tool_calls: 1", "max_tool_calls: 2"},
		{"timeout_seconds: 1", "timeout_seconds: 2"},
		{"max_concurrent: 1", "max_concurrent: 2"},
		{"backpressure_threshold: 7", "backpressure_threshold: 8"},
		{"checkpoint_frequency: 4", "checkpoint_frequency: 5"},
		{"blocked_patterns: [a, b]", "blocked_patterns: [a]"},
		{"deny_all_tools: true", "deny_all_tools: false"},
		{"deny_all_tools: true", "allowed_tools: [a]"},
		{"confidence_threshold: 0.9", "confidence_threshold: 0.8"},
		{"require_human_approval: true", "require_human_approval: false"},
		{"allowed_tools: [a]", "allowed_tools: [a, b]"},
		{"allowed_tools: [a]", "allowed_tools: []"},
		{"require_human_approval: true", "require_human_approval: true\napproval: {}"},
		{"require_human_approval: true\napproval: {required: 2}", "require_human_approval: true\napproval: {required: 1}"},
		{"require_human_approval: true\napproval: {denials: 1}", "require_human_approval: true\napproval: {denials: 2}"},
		{"require_human_approval: true\napproval: {timeout: 1s}", "require_human_approval: true\napproval: {timeout: 2s}"},
		{"require_human_approval: true\napproval: {timeout: 2s, on_timeout: allow}", "require_human_approval: true\napproval: {timeout: 1s, on_timeout: allow}"},
		{"require_human_approval: true\napproval: {on_timeout: deny}", "require_human_approval: true\napproval: {on_timeout: allow}"},
		{"require_human_approval: true\napproval: {max_pending: 1}", "require_human_approval: true\napproval: {max_pending: 2}"},
	} {
		strict, problems := readPolicy(t, pair[0]+"\n")
		require.Empty(t, problems)
		lax, problems := readPolicy(t, pair[1]+"\n")
		require.Empty(t, problems)
		require.True(t, strict.StricterThan(lax), "%q than %q", pair[0], pair[1])
		require.False(t, lax.StricterThan(strict), "%q than %q", pair[1], pair[0])
		require.False(t, strict.StricterThan(strict), pair[0])
		require.NotEmpty(t, strict.Diff(lax), pair[0])
	}
}
