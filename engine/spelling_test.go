package engine

import (
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

// A tool in other letters than those of the policy is told from it wherever the policy
// denies or counts by the name, and is not where both are written.
func TestSpelling(t *testing.T) {
	for _, c := range []struct{ path, content, known string }{
		{"governance.yaml", "max_calls_per_tool: {exec: 1}\n", "exec"},
		{"governance.yaml", "content_hashes: {exec: " + hash64 + "}\n", "exec"},
		{"governance.yaml", "rate_limits: [{name: r, limit: 1, per: 1s, tools: [exec]}]\n", "exec"},
		{"governance.yaml", "rate_limits: [{name: r, limit: 1, per: 1s, tools: ['ex*']}]\n", "ex*"},
		{"governance.yaml", "rate_limits: [{name: r, limit: 1, per: 1s, tools: ['*']}]\n", ""},
		{"governance.yaml", "allowed_tools: [exec]\n", ""}, // which denies all others
		{"governance.yaml", "allowed_tools: [exec, Exec]\nmax_calls_per_tool: {exec: 1}\n", ""},
		{"p.yaml", ruleOn("tool_name", "eq", "exec"), "exec"},
		{"p.yaml", ruleOn("tool_name", "in", "[rm, EXEC]"), "EXEC"},
		{"p.yaml", ruleOn("tool_name", "in", "[exec, Exec]"), ""},
		{"p.yaml", ruleOn("tool_calls.exec", "gt", "3"), "exec"},
		{"p.yaml", ruleOn("tool_name", "eq", "search"), ""},
		{"p.yaml", ruleOn("other", "eq", "exec"), ""},
		{"rules.yaml", ruleset("exec"), "exec"},
		{"rules.yaml", ruleset("ex*c"), "ex*c"},
		{"rules.yaml", ruleset("Ex*"), ""},
	} {
		tree, err := source.NewTree([]source.File{{Path: c.path, Content: []byte(c.content)}})
		require.NoError(t, err)
		p, err := Compile(tree)
		require.NoError(t, err, c.content)
		require.Equal(t, c.known, p.Spelling("Exec"), c.content)
		if c.known != "" && c.known != "EXEC" {
			require.Empty(t, p.Spelling("exec"), c.content)
		}
	}
}

// A ruleset limits no tool that no call can name.
func TestLimitsOfRulesetsNameTools(t *testing.T) {
	for name, why := range map[string]string{"exec": "", "ex\u200bec": "U+200B", "a\tb": "control character"} {
		tree, err := source.NewTree([]source.File{{Path: "rules.yaml", Content: []byte("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: x}\ndefaults: {mode: enforce}\nrules:\n" +
			"  - {id: few, type: session, limits: {max_calls_per_tool: {" + strconv.QuoteToASCII(name) + ": 3}}, then: {action: block, message: enough}}\n")}})
		require.NoError(t, err)
		_, err = Compile(tree)
		if why == "" {
			require.NoError(t, err)
		} else {
			require.ErrorContains(t, err, why)
		}
	}
}

const hash64 = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

func ruleOn(field, operator, value string) string {
	return "version: '1.0'\nname: p\nrules:\n  - name: r\n    condition: {field: " + field + ", operator: " + operator + ", value: " + value + "}\n    action: deny\n"
}

func ruleset(tool string) string {
	return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: x}\ndefaults: {mode: enforce}\nrules:\n  - id: r\n    type: pre\n    tool: '" + tool +
		"'\n    when: {args.a: {exists: true}}\n    then: {action: block, message: stays out}\n"
}
