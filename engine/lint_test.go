package engine

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

func TestLint(t *testing.T) {
	p := mustCompileFiles(t,
		file("rules.yaml", `rules:
  - {name: a, condition: {field: n, operator: gt, value: 5}, action: deny, priority: 9}
  - {name: b, condition: {field: n, operator: gte, value: 6}, action: allow}
  - {name: c, condition: {field: t, operator: in, value: [x, y]}, action: deny}
  - {name: d, condition: {field: t, operator: eq, value: x}, action: allow}
  - {name: e, condition: {field: t, operator: matches, value: ".*"}, action: audit}
  - {name: f, condition: {field: t, operator: contains, value: q}, action: deny}
  - {name: g, condition: {field: env, operator: ne, value: dev}, action: deny}
  - {name: h, condition: {field: n, operator: gt, value: 4}, action: allow}
  - {name: i, condition: {field: z, operator: eq, value: null}, action: allow}
`),
		file("limits.yaml", "max_tool_calls: 5\nmax_attempts: 3\nallowed_tools: [a]\nmax_calls_per_tool: {b: 9}\nblocked_patterns: [{pattern: 'rm*', type: glob}, {pattern: '*.exe', type: glob}]\n"),
	)
	out := printProblems(Lint(p))
	for _, want := range []string{
		"rules.yaml:3: b: the rule is never reached: rule 'a' (rules.yaml:2)",
		"rules.yaml:5: d: the rule is never reached: rule 'c' (rules.yaml:4)",
		"rules.yaml:7: f: the rule is never reached: rule 'e' (rules.yaml:6)",
		"rules.yaml:8: g: omitting the field env evades this rule",
		"rules.yaml:10: i: eq null never matches",
		"limits.yaml:2: max_attempts (3) < max_tool_calls (5)",
		"limits.yaml:4: max_calls_per_tool.b (9) > max_tool_calls (5)",
		"limits.yaml:4: max_calls_per_tool.b limits a tool that allowed_tools does not permit",
		"limits.yaml:5: blocked_patterns[0]: a glob is anchored at its end alone",
	} {
		require.Contains(t, out, want)
	}
	for _, not := range []string{" h: ", " a: ", " c: ", "blocked_patterns[1]"} {
		require.NotContains(t, out, not)
	}
}

// What has no effect where it stands is said: scopes that match nothing below
// their folder, settings that the flat list does not know, and a deny that a
// parent's rule of the same name hides.
func TestLintOfPlaces(t *testing.T) {
	files := []source.File{
		file("governance.yaml", "name: root\nrules:\n  - {name: delete, condition: {field: tool_name, operator: eq, value: delete}, action: audit}\n"),
		file("prod/governance.yaml", "name: prod\nrules:\n  - {name: delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny}\n"),
		file("src/governance.yaml", "name: src\nscope: 'docs/*'\nrules: []\n"),
		file("lib/governance.yaml", "name: lib\nscope: 'README.md'\nrules: []\n"),
		file("ok/governance.yaml", "name: ok\nscope: '*.go'\nrules: []\n"),
		file("fine/governance.yaml", "name: fine\nscope: 'fine/*'\nrules: []\n"),
		file("dev/governance.json", `{"name": "dev", "scope": "dev/*", "inherit": false, "rules": [{"name": "a", "condition": {"field": "x", "operator": "eq", "value": 1}, "action": "allow", "override": true}]}`),
	}
	out := printProblems(Lint(mustCompileFiles(t, files...)))
	for _, want := range []string{
		"prod/governance.yaml:3: delete: the deny is dropped: governance.yaml (line 3) has a rule of this name",
		"src/governance.yaml: scope: the document never applies: no path below src/ matches the scope 'docs/*'",
		"lib/governance.yaml: scope: the document never applies",
		"dev/governance.json: the file is one of the flat list",
		"dev/governance.json: scope has no effect in the flat list",
		"dev/governance.json: inherit has no effect in the flat list",
		"dev/governance.json:1: a: override has no effect in the flat list",
		"dev/governance.json: the document holds for calls without a context.path alone",
	} {
		require.Contains(t, out, want)
	}
	require.NotContains(t, out, "ok/")
	require.NotContains(t, out, "fine/")
	tree, err := source.NewTree(files)
	require.NoError(t, err)
	strict, err := Compile(tree, WithStrict())
	require.NoError(t, err)
	out = printProblems(Lint(strict))
	for _, not := range []string{"is dropped", "without a context.path alone"} {
		require.NotContains(t, out, not, "strict mode")
	}
}

// Of rules that ask it is said where an agent gets round them, where they never
// ask, and where merging drops them; a deny behind one is reached.
func TestLintOfAsks(t *testing.T) {
	files := []source.File{
		file("rules.yaml", `rules:
  - {name: ask-all, condition: {field: tool_name, operator: matches, value: ".*"}, action: ask, priority: 9}
  - {name: deny-pay, condition: {field: tool_name, operator: eq, value: pay}, action: deny, priority: 8}
  - {name: watch, condition: {field: tool_name, operator: eq, value: mail}, action: audit, priority: 7}
  - {name: ask-prod, condition: {field: env, operator: ne, value: test}, action: ask, priority: 1}
  - {name: others, condition: {field: env, operator: ne, value: test}, action: allow}
`),
		file("more.yaml", `rules:
  - {name: may, condition: {field: role, operator: eq, value: admin}, action: allow, priority: 99}
  - {name: ask-admin, condition: {field: role, operator: eq, value: admin}, action: ask, priority: 1}
`),
	}
	out := printProblems(Lint(mustCompileFiles(t, files...)))
	for _, want := range []string{
		"rules.yaml:4: watch: the rule is never reached: rule 'ask-all' (rules.yaml:2)",
		"rules.yaml:5: ask-prod: omitting the field env evades this rule",
		"more.yaml:3: ask-admin: the rule is never reached: rule 'may' (more.yaml:2)",
	} {
		require.Contains(t, out, want)
	}
	for _, not := range []string{"deny-pay", "never asks"} {
		require.NotContains(t, out, not)
	}
	// In strict mode an allow of another document hides no ask, and no ask is
	// evaded by leaving its field out.
	files = []source.File{
		file("a.yaml", "mode: strict\nrules:\n  - {name: may, condition: {field: role, operator: eq, value: admin}, action: allow, priority: 99}\n  - {name: no, condition: {field: role, operator: eq, value: guest}, action: deny}\n"),
		file("b.yaml", "rules:\n  - {name: ask-admin, condition: {field: role, operator: eq, value: admin}, action: ask}\n"),
	}
	require.NotContains(t, printProblems(Lint(mustCompileFiles(t, files...))), "ask-admin")
	// A deny that comes to stand beside a parent's ask is not dropped.
	files = []source.File{
		file("governance.yaml", "name: root\nrules:\n  - {name: pay, condition: {field: tool_name, operator: eq, value: pay}, action: ask}\n"),
		file("dev/governance.yaml", "name: dev\nrules:\n  - {name: pay, condition: {field: arguments.amount, operator: gt, value: 5}, action: deny, override: true}\n"),
	}
	require.NotContains(t, printProblems(Lint(mustCompileFiles(t, files...))), "dropped")
}
