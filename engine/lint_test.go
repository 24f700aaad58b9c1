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
