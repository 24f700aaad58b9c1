package engine

import (
	"context"
	"net/http"
	"net/http/httptest"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

func TestRunTests(t *testing.T) {
	p := mustCompile(t, "rules:\n  - {name: no-delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny}\n  - {name: cap, condition: {field: call_count, operator: gte, value: 3}, action: deny}\n  - {name: unused, condition: {field: x, operator: eq, value: 1}, action: allow}\n")
	report, err := RunTests(context.Background(), p, []source.File{file("policy_test.yaml", `cases:
  - name: deletes are denied
    tool: delete
    expect: {allowed: false, action: deny, rule: no-delete}
  - name: the third call is denied
    tool: read
    session_id: s
    facts: {call_count: 3, elapsed_seconds: 1.5, tool_calls: {read: 1}}
    expect: {rule: cap}
  - name: reads pass
    tool: read
    expect: {action: allow, rule: ""}
  - tool: delete
    expect: {action: allow, rule: no-such, reason: because}
`)}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, report.Failed)
	require.Len(t, report.Cases, 4)
	require.Equal(t, []string{`action: expected "allow", got "deny"`, `rule: expected "no-such", got "no-delete"`, `reason: expected "because", got "Matched rule 'no-delete'"`}, report.Cases[3].Failures)
	require.Equal(t, 13, report.Cases[3].Line)
	hits := map[string]int{}
	for _, c := range report.Coverage {
		hits[c.Rule] = c.Hits
	}
	require.Equal(t, map[string]int{"no-delete": 2, "cap": 1, "unused": 0}, hits)
}

func TestRunTestsRefusesBadTables(t *testing.T) {
	p := mustCompile(t, "rules: []")
	for table, want := range map[string]string{
		"rules: []":                                                 "a_test.yaml:1: cases: a table of tests is a mapping with a list of cases",
		"cases: [{}]":                                               "a_test.yaml:1: cases[0].expect: expect must say at least one of",
		"cases: [{expect: {action: dney}}]":                         "action must be allow, deny, audit, block or ask, got 'dney'",
		"cases: [{expect: {alowed: true}}]":                         "cases[0].expect.alowed: unknown field",
		"cases: [{tol: x, expect: {allowed: true}}]":                "cases[0].tol: unknown field",
		"cases: [{tool: 5, expect: {allowed: true}}]":               "cases[0].tool: tool must be a string, got int: 5",
		"cases: [{kind: robot, expect: {allowed: true}}]":           "kind must be one of agent, handoff, model, sampling, tool, got 'robot'",
		"cases: [{facts: {x: 1}, expect: {allowed: true}}]":         "cases[0].facts.x: unknown field",
		"cases: [{context: [], expect: {allowed: true}}]":           "context must be a mapping",
		"cases: [{facts: {attempts: -1}, expect: {rule: a}}]":       "facts.attempts must be a non-negative integer",
		"cases: [{expect: {allowed: yes}}]":                         "allowed must be true or false, got 'yes'",
		"stubs: {nobody: allow}\ncases: []":                         "a_test.yaml:1: stubs.nobody: the policy has no guardrail of this name",
		"stubs: 5\ncases: []":                                       "stubs must be a mapping",
		"cases: [":                                                  "not valid YAML",
		"cases: [{facts: {elapsed_seconds: x}, expect: {rule: a}}]": "elapsed_seconds must be a number of seconds",
	} {
		_, err := RunTests(context.Background(), p, []source.File{file("a_test.yaml", table)}, nil)
		require.ErrorContains(t, err, want, table)
	}
}

// Tests ask no guardrail: what one answers stands in the table, or the case
// fails, also where it expects the denial that follows.
func TestRunTestsWithStubs(t *testing.T) {
	asked := 0
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		asked++
		_, _ = w.Write([]byte(`{"decision":"allow"}`))
	}))
	defer endpoint.Close()
	p := mustCompile(t, "name: p\nblocked_patterns: [secret]\nguardrails:\n  - {name: scanner, url: '"+endpoint.URL+"'}\n  - {name: masker, url: '"+endpoint.URL+"'}\n", WithLogger(discard))
	table := `stubs: {scanner: allow}
cases:
  - {name: allowed, tool: t, stubs: {masker: allow}, expect: {allowed: true}}
  - {name: denied, tool: t, stubs: {scanner: {decision: deny, reason: no}}, expect: {allowed: false, category: guardrail, reason: "Tool call denied: no"}}
  - {name: modified, tool: t, stubs: {masker: {decision: modify, modified_args: {x: secret}}}, expect: {category: blocked_pattern_tool}}
  - {name: unsaid, tool: t, expect: {allowed: false}}
  - {name: never reached, tool: t, arguments: {x: secret}, expect: {category: blocked_pattern_tool}}
`
	report, err := RunTests(context.Background(), p, []source.File{file("a_test.yaml", table)}, nil)
	require.NoError(t, err)
	require.Equal(t, 1, report.Failed)
	require.Equal(t, []string{"the guardrail 'masker' is asked, and tests ask none: say under stubs what it answers"}, report.Cases[3].Failures)
	require.Zero(t, asked)

	report, err = RunTests(context.Background(), p, []source.File{file("a_test.yaml", table)}, regexp.MustCompile("^un|^de"))
	require.NoError(t, err)
	require.Len(t, report.Cases, 2)
	for bad, want := range map[string]string{
		"cases: [{stubs: {scanner: maybe}, expect: {allowed: true}}]":                               "cases[0].stubs.scanner: a guardrail answers allow, deny or modify",
		"cases: [{stubs: {scanner: {decision: allow, modified_args: 5}}, expect: {allowed: true}}]": "modified_args must be a mapping",
		"cases: [{stubs: {scanner: {reson: x, decision: deny}}, expect: {allowed: true}}]":          "cases[0].stubs.scanner.reson: unknown field",
	} {
		_, err := RunTests(context.Background(), p, []source.File{file("a_test.yaml", bad)}, nil)
		require.ErrorContains(t, err, want)
	}
}
