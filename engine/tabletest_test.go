package engine

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestRunTests(t *testing.T) {
	p := mustCompile(t, "rules:\n  - {name: no-delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny}\n  - {name: cap, condition: {field: call_count, operator: gte, value: 3}, action: deny}\n  - {name: unused, condition: {field: x, operator: eq, value: 1}, action: allow}\n")
	report, err := RunTests(context.Background(), p, []File{file("policy_test.yaml", `cases:
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
`)})
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
		"cases: [{expect: {action: dney}}]":                         "action must be allow, deny, audit or block, got 'dney'",
		"cases: [{expect: {alowed: true}}]":                         "cases[0].expect.alowed: unknown field",
		"cases: [{tol: x, expect: {allowed: true}}]":                "cases[0].tol: unknown field",
		"cases: [{tool: 5, expect: {allowed: true}}]":               "cases[0].tool: tool must be a string, got int: 5",
		"cases: [{kind: robot, expect: {allowed: true}}]":           "kind must be one of agent, handoff, model, tool, got 'robot'",
		"cases: [{facts: {x: 1}, expect: {allowed: true}}]":         "cases[0].facts.x: unknown field",
		"cases: [{context: [], expect: {allowed: true}}]":           "context must be a mapping",
		"cases: [{facts: {attempts: -1}, expect: {rule: a}}]":       "facts.attempts must be a non-negative integer",
		"cases: [{expect: {allowed: yes}}]":                         "allowed must be true or false, got 'yes'",
		"cases: [":                                                  "not valid YAML",
		"cases: [{facts: {elapsed_seconds: x}, expect: {rule: a}}]": "elapsed_seconds must be a number of seconds",
	} {
		_, err := RunTests(context.Background(), p, []File{file("a_test.yaml", table)})
		require.ErrorContains(t, err, want, table)
	}
}
