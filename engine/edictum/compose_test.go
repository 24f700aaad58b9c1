package edictum_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

// fileOf is a document with a name, more at its top, and rules.
func fileOf(t *testing.T, name, mode, more string, rules ...string) *edictum.Document {
	t.Helper()
	d, err := edictum.Parse(name+".yaml", []byte("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: "+name+"}\ndefaults: {mode: "+mode+"}\n"+more+"rules:\n- "+strings.Join(rules, "\n- ")+"\n"))
	require.NoError(t, err)
	return d
}

func blocks(id, arg string) string {
	return fmt.Sprintf("{id: %s, type: pre, tool: '*', when: {args.%s: {exists: true}}, then: {action: block, message: %[2]s}}", id, arg)
}

func limits(id, more, limits string) string {
	return fmt.Sprintf("{id: %s, type: session, %slimits: {%s}, then: {action: block, message: of %[1]s}}", id, more, limits)
}

// Of several files the last one that says something has its way, rule by rule, tool by
// tool; what stands beside the others changes nothing of them.
func TestCompose(t *testing.T) {
	a := fileOf(t, "a", "enforce", "tools: {x: {side_effect: read}, y: {side_effect: read}}\n", blocks("one", "a"), blocks("two", "b"), "{id: odd, type: pre, tool: t, when: {unknown.a: {exists: true}}, then: {action: block, message: m}}")
	b := fileOf(t, "b", "observe", "tools: {y: {side_effect: write}, z: {side_effect: pure}}\n", blocks("two", "c"), blocks("three", "d"), "{id: odder, type: pre, tool: t, when: {unknown.b: {exists: true}}, then: {action: block, message: m}}")
	c := fileOf(t, "c", "enforce", "observe_alongside: true\n", blocks("two", "e"), blocks("four", "f"))
	last := fileOf(t, "d", "enforce", "", blocks("two", "g"), blocks("four", "h"))

	ids := func(d *edictum.Document) (all []string) {
		for _, r := range d.Rules {
			all = append(all, fmt.Sprintf("%s of %s by %s", r.ID, r.Message, r.Source))
			require.Equal(t, strings.HasSuffix(r.ID, ":candidate"), r.Candidate)
		}
		return all
	}
	one, report, err := edictum.Compose(a)
	require.NoError(t, err)
	require.Equal(t, ids(a), ids(one))
	require.Zero(t, report)

	two, report, err := edictum.Compose(a, b)
	require.NoError(t, err)
	require.Equal(t, []string{"one of a by a.yaml", "two of c by b.yaml", "odd of m by a.yaml", "three of d by b.yaml", "odder of m by b.yaml"}, ids(two))
	require.Equal(t, []edictum.Override{{Rule: "two", By: "b.yaml", From: "a.yaml"}}, report.Overrides)
	require.Empty(t, report.Candidates)
	require.Equal(t, map[string]edictum.Tool{"x": {SideEffect: edictum.Read}, "y": {SideEffect: edictum.Write}, "z": {SideEffect: edictum.Pure}}, toolsOf(two))
	require.Equal(t, b.Mode, two.Mode)
	require.Equal(t, "b", two.Name)
	require.Equal(t, append(append([]string{}, a.Warnings...), b.Warnings...), two.Warnings)
	require.Len(t, two.Warnings, 2)

	all, report, err := edictum.Compose(a, b, c, last)
	require.NoError(t, err)
	require.Equal(t, []string{
		"one of a by a.yaml", "two of g by d.yaml", "odd of m by a.yaml", "three of d by b.yaml", "odder of m by b.yaml",
		"two:candidate of e by c.yaml", "four:candidate of f by c.yaml", "four of h by d.yaml",
	}, ids(all))
	require.Equal(t, []edictum.Override{{Rule: "two", By: "b.yaml", From: "a.yaml"}, {Rule: "two", By: "d.yaml", From: "b.yaml"}}, report.Overrides)
	require.Equal(t, []edictum.Override{{Rule: "two", By: "c.yaml", From: "b.yaml"}, {Rule: "four", By: "c.yaml"}}, report.Candidates)
	beside, _, err := edictum.Compose(b, c)
	require.NoError(t, err)
	require.Equal(t, b.Mode, beside.Mode, "what stands beside changes no mode")
	enforced, _, err := edictum.Compose(b, last)
	require.NoError(t, err)
	require.Equal(t, last.Mode, enforced.Mode)

	require.Len(t, a.Rules, 3, "they stay as they were")
	require.Equal(t, "b", a.Rules[1].Message)
	require.Len(t, toolsOf(a), 2)
	_, _, err = edictum.Compose()
	require.ErrorContains(t, err, "there is no ruleset")

	// A candidate says what it would do, and the rule beside it decides.
	rs, err := edictum.Compile(all)
	require.NoError(t, err)
	for arg, want := range map[string]edictum.Action{"a": edictum.Block, "g": edictum.Block, "h": edictum.Block, "e": edictum.Allow, "f": edictum.Allow, "b": edictum.Allow, "c": edictum.Allow} {
		v := rs.Before(&edictum.Call{Tool: "t", Args: value.OfMap(value.Pair{Key: arg, Value: value.OfInt(1)})})
		require.Equal(t, want, v.Action, arg)
		if arg == "e" || arg == "f" {
			require.Len(t, v.Candidates, 1, arg)
			require.True(t, v.Candidates[0].Observed && v.Candidates[0].Candidate, arg)
		}
	}
}

func toolsOf(d *edictum.Document) map[string]edictum.Tool {
	all := map[string]edictum.Tool{}
	for name, tool := range d.Tools {
		tool.Idempotent = false
		all[name] = tool
	}
	return all
}

// A chain of parents has at most fifty of them, has no circle and no rule twice, and its
// rules stand before its child's.
func TestExtendHasBounds(t *testing.T) {
	docs := map[string]*edictum.Document{}
	for i := range 53 {
		more := ""
		if i > 0 {
			more = fmt.Sprintf("extends: d%d\n", i-1)
		}
		docs[fmt.Sprint("d", i)] = fileOf(t, fmt.Sprint("d", i), "enforce", more, blocks(fmt.Sprint("r", i), "a"))
	}
	lookup := func(name string) *edictum.Document { return docs[name] }
	d, err := edictum.Extend(docs["d50"], lookup)
	require.NoError(t, err)
	require.Len(t, d.Rules, 51)
	for i, r := range d.Rules {
		require.Equal(t, fmt.Sprint("r", i), r.ID)
	}
	_, err = edictum.Extend(docs["d51"], lookup)
	require.ErrorContains(t, err, "more than 50 parents")
	docs["d0"] = fileOf(t, "d0", "enforce", "extends: d2\n", blocks("r0", "a"))
	_, err = edictum.Extend(docs["d2"], lookup)
	require.ErrorContains(t, err, "extends itself")
	docs["d0"] = fileOf(t, "d0", "enforce", "extends: none\n", blocks("r0", "a"))
	_, err = edictum.Extend(docs["d2"], lookup)
	require.ErrorContains(t, err, "there is no ruleset 'none'")
	docs["d0"] = fileOf(t, "d0", "enforce", "", blocks("r2", "a"))
	_, err = edictum.Extend(docs["d2"], lookup)
	require.ErrorContains(t, err, "Duplicate rule id: 'r2'")
	alone, err := edictum.Extend(docs["d0"], lookup)
	require.NoError(t, err)
	require.Equal(t, docs["d0"], alone)
}

// The least of each limit holds, whichever rule has it, with that rule's name and words;
// rules that only observe are held apart.
func TestLimitsAreTheLeast(t *testing.T) {
	of := func(rules ...string) *edictum.Ruleset {
		rs, err := edictum.Compile(fileOf(t, "a", "enforce", "", rules...))
		require.NoError(t, err)
		return rs
	}
	limit := func(n int64, rule string) edictum.Limit {
		return edictum.Limit{N: n, Rule: rule, Message: "of " + rule}
	}
	got := of(
		limits("a", "", "max_attempts: 9, max_calls_per_tool: {x: 3, y: 4}"),
		limits("b", "", "max_attempts: 8, max_tool_calls: 7, max_calls_per_tool: {y: 5, z: 1}"),
		limits("c", "", "max_tool_calls: 6, max_calls_per_tool: {x: 2, y: 4}"),
		limits("d", "", "max_attempts: 8"),
		limits("e", "mode: observe, ", "max_attempts: 1, max_calls_per_tool: {x: 1}"),
		limits("f", "mode: observe, ", "max_tool_calls: 2"),
	).Limits()
	require.Equal(t, limit(8, "b"), got.Attempts)
	require.Equal(t, limit(6, "c"), got.ToolCalls)
	require.Equal(t, map[string]edictum.Limit{"x": limit(2, "c"), "y": limit(4, "a"), "z": limit(1, "b")}, got.PerTool)
	require.Len(t, got.Observed, 2)
	require.Equal(t, limit(1, "e"), got.Observed[0].Attempts)
	require.Equal(t, limit(2, "f"), got.Observed[1].ToolCalls)

	require.Equal(t, edictum.Limits{Attempts: edictum.Limit{N: 500}, ToolCalls: edictum.Limit{N: 200}, PerTool: map[string]edictum.Limit{}}, edictum.DefaultLimits())
	some := of(limits("a", "", "max_attempts: 900")).Limits()
	require.Equal(t, limit(900, "a"), some.Attempts)
	require.Equal(t, edictum.Limit{N: 200}, some.ToolCalls)
}

// What observes says so from the call on that it would refuse, for each of its limits.
func TestLimitsThatOnlyObserve(t *testing.T) {
	beside := fileOf(t, "b", "enforce", "observe_alongside: true\n", limits("lim", "", "max_attempts: 5"))
	d, _, err := edictum.Compose(fileOf(t, "a", "enforce", "",
		limits("tries", "mode: observe, ", "max_attempts: 3"), limits("calls", "mode: observe, ", "max_tool_calls: 3"), limits("tool", "mode: observe, ", "max_calls_per_tool: {x: 3, y: 9}")), beside)
	require.NoError(t, err)
	rs, err := edictum.Compile(d)
	require.NoError(t, err)
	says := func(tool string, attempts, calls, ofTool int64) (said []string) {
		for _, r := range rs.Would(tool, attempts, calls, ofTool) {
			require.True(t, r.Observed)
			require.Equal(t, "session_contract", r.Type)
			require.Equal(t, strings.HasSuffix(r.Rule, ":candidate"), r.Candidate)
			said = append(said, r.Rule+": "+r.Message)
		}
		return said
	}
	require.Nil(t, says("x", 2, 2, 2))
	require.Equal(t, []string{"tries: " + edictum.AttemptText(3)}, says("x", 3, 2, 2))
	require.Equal(t, []string{"calls: of calls"}, says("x", 2, 3, 2))
	require.Equal(t, []string{"tool: " + edictum.ToolText("x", 3, 3)}, says("x", 2, 2, 3))
	require.Nil(t, says("y", 2, 2, 8))
	require.Equal(t, []string{"tool: " + edictum.ToolText("y", 9, 9)}, says("y", 2, 2, 9))
	require.Nil(t, says("z", 2, 2, 99))
	require.Equal(t, []string{"tries: " + edictum.AttemptText(3), "lim:candidate: " + edictum.AttemptText(5)}, says("z", 5, 0, 0))
}
