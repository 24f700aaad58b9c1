package edictum_test

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
)

// What YAML 1.1 takes for a truth value is refused wherever a ruleset takes a name or a
// value as it is, unless it stands in quotes.
func TestAmbiguousNamesAndValues(t *testing.T) {
	pre := func(then string) string {
		return "- {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: block, message: m, " + then + "}}\n"
	}
	for text, field := range map[string]string{
		pre("metadata: {a: no}"):               "rules[0].then.metadata.a",
		pre("metadata: {a: {b: [x, off]}}"):    "rules[0].then.metadata.a.b",
		pre("metadata: {on: 1}"):               "rules[0].then.metadata.on",
		pre("metadata: {a: 'no', 'on': yes2}"): "",
		"- {id: a, type: session, limits: {max_calls_per_tool: {no: 3}}, then: {action: block, message: m}}\n":   "rules[0].limits.max_calls_per_tool.no",
		"- {id: a, type: session, limits: {max_calls_per_tool: {'no': 3}}, then: {action: block, message: m}}\n": "",
	} {
		_, err := edictum.Parse("a.yaml", []byte(head+text))
		if field == "" {
			require.NoError(t, err, text)
			continue
		}
		var p *edictum.Problem
		require.ErrorAs(t, err, &p, text)
		require.Equal(t, field, p.Field, text)
		require.ErrorContains(t, err, "put it in quotes")
	}
}

// A selector that is empty selects nothing, which a not would take for a yes.
func TestAnEmptySelectorIsRefused(t *testing.T) {
	_, err := edictum.Parse("a.yaml", []byte(head+"- {id: a, type: pre, tool: x, when: {not: {'': {equals: x}}}, then: {action: block, message: m}}\n"))
	require.ErrorContains(t, err, "rules[0].when.not: must have exactly one of all, any, not, or a selector")
}

// The names of tools are such names too.
func TestAmbiguousTools(t *testing.T) {
	const rule = "- {id: a, type: session, limits: {max_attempts: 3}, then: {action: block, message: m}}\n"
	_, err := edictum.Parse("a.yaml", []byte(strings.Replace(head, "read:", "yes:", 1)+rule))
	require.ErrorContains(t, err, "tools.yes: the name yes means different things")
	_, err = edictum.Parse("a.yaml", []byte(strings.Replace(head, "read:", "'yes':", 1)+rule))
	require.NoError(t, err)
}

// A child has what its parents say and it does not: tools, whether it only observes, and
// what is doubtful about them.
func TestExtendInherits(t *testing.T) {
	parse := func(text string) *edictum.Document {
		d, err := edictum.Parse("a.yaml", []byte("apiVersion: edictum/v1\nkind: Ruleset\ndefaults: {mode: enforce}\n"+text))
		require.NoError(t, err)
		return d
	}
	rule := "rules:\n  - {id: r, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: block, message: m}}\n"
	parent := parse("metadata: {name: parent}\nobserve_alongside: true\ntools: {t: {side_effect: read}}\nrules:\n  - {id: q, type: pre, tool: x, when: {unknown.x: {exists: true}}, then: {action: block, message: m}}\n")
	lookup := func(string) *edictum.Document { return parent }
	child, err := edictum.Extend(parse("metadata: {name: child}\nextends: parent\n"+rule), lookup)
	require.NoError(t, err)
	require.True(t, child.Alongside)
	require.Equal(t, edictum.Read, child.Tools["t"].SideEffect)
	require.Equal(t, parent.Warnings, child.Warnings)
	require.NotEmpty(t, child.Warnings)
	other, err := edictum.Extend(parse("metadata: {name: child}\nextends: parent\nobserve_alongside: false\ntools: {}\n"+rule), lookup)
	require.NoError(t, err)
	require.False(t, other.Alongside)
	require.Empty(t, other.Tools)
}
