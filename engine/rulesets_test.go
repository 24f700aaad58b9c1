package engine

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

const rulesetHead = "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: shells}\ndefaults: {mode: enforce}\n"

const shells = rulesetHead + `rules:
  - {id: no-rm, type: pre, tool: Bash, when: {args.command: {contains: "rm -rf"}}, then: {action: block, message: "no {args.command}"}}
  - {id: deploys, type: pre, tool: deploy, when: {args.to: {equals: prod}}, then: {action: ask, message: "may it?", timeout: 60}}
  - {id: big, type: pre, tool: "*", when: {args.n: {gt: 5}}, then: {action: block, message: "too much"}}
  - {id: admins, type: pre, tool: admin, when: {principal.role: {not_equals: admin}}, then: {action: block, message: "not {principal.role}"}}
  - {id: dry, type: pre, tool: "*", when: {env.DRY: {equals: true}}, then: {action: block, message: "a dry run"}}
  - {id: few, type: session, limits: {max_tool_calls: 7, max_attempts: 9, max_calls_per_tool: {Bash: 3}}, then: {action: block, message: "enough"}}
`

func judged(t *testing.T, p *Policy, tool, args, context string) Decision {
	t.Helper()
	a, err := value.Parse([]byte(args))
	require.NoError(t, err)
	c, err := value.Parse([]byte(context))
	require.NoError(t, err)
	in := call.Input{Tool: tool, Arguments: a, Context: c}
	d := p.Evaluate(t.Context(), in)
	was := d
	was.EvaluationTime, was.Premises = 0, nil
	require.Equal(t, was, p.Recall(d.Rule, in))
	return d
}

// A ruleset in a tree decides as its author wrote it.
func TestRulesetInATree(t *testing.T) {
	p := mustCompileFiles(t, source.File{Path: "shells.yaml", Content: []byte(shells)})
	require.Equal(t, "shells", p.Name())
	for _, c := range []struct {
		tool, args, context string
		action, rule        string
		reason              string
	}{
		{"Bash", `{"command": "ls"}`, `{}`, "allow", "", ""},
		{"Bash", `{"command": "rm -rf /"}`, `{}`, "deny", "no-rm", "no rm -rf /"},
		{"deploy", `{"to": "prod"}`, `{}`, "ask", "deploys", "may it?"},
		{"deploy", `{"to": "prod", "n": 6}`, `{}`, "deny", "big", "too much"},
		{"x", `{"n": "6"}`, `{}`, "deny", "big", "too much"},
		{"admin", `{}`, `{"principal": {"role": "guest"}}`, "deny", "admins", "not guest"},
		{"admin", `{}`, `{"principal": {"role": "admin"}}`, "allow", "", ""},
		{"x", `{}`, `{"env": {"DRY": "true"}}`, "deny", "dry", "a dry run"},
		{"x", `null`, `{}`, "allow", "", ""},
	} {
		d := judged(t, p, c.tool, c.args, c.context)
		require.Equal(t, c.action, d.Action, "%+v: %+v", c, d)
		require.Equal(t, c.action == "allow", d.Allowed)
		if c.rule != "" {
			require.Equal(t, []string{c.rule, c.reason, "shells"}, []string{d.MatchedRule, d.Reason, d.Policy})
		}
	}
	ask := judged(t, p, "deploy", `{"to": "prod"}`, `{}`).Ask
	require.Equal(t, time.Minute, ask.Timeout)
	require.False(t, ask.AllowOnTimeout)
	failed := judged(t, p, "x", `{"n": "6"}`, `{}`)
	require.Equal(t, CategoryPolicyError, failed.Category)
	require.Contains(t, failed.Error, "rule big could not be judged")
	l := p.Limits()
	require.Equal(t, []int64{7, 9}, []int64{l.MaxToolCalls, l.MaxAttempts})
	require.Equal(t, []ToolLimit{{"Bash", 3}}, l.MaxCallsPerTool)
	require.Greater(t, l.Timeout, 24*time.Hour, "what nobody wrote does not hold")
	// A model's call is none of a tool.
	require.True(t, p.Evaluate(t.Context(), call.Input{Kind: call.KindModel, Arguments: value.OfMap(value.Pair{Key: "n", Value: value.OfInt(9)})}).Allowed)
}

// Beside other documents everything that can deny does.
func TestRulesetBesideOthers(t *testing.T) {
	p := mustCompileFiles(t,
		source.File{Path: "limits.yaml", Content: []byte("name: limits\nmax_tool_calls: 5\nmax_calls_per_tool: {Bash: 4, x: 2}\nblocked_patterns: [secret]\n")},
		source.File{Path: "rules.yaml", Content: []byte("name: rules\nrules:\n  - {name: ask-x, condition: {field: tool_name, operator: eq, value: x}, action: ask, priority: 1}\n")},
		source.File{Path: "shells.yaml", Content: []byte(shells)})
	require.Equal(t, "limits", p.Name())
	require.Equal(t, "deny", judged(t, p, "Bash", `{"command": "a secret"}`, `{}`).Action)
	require.Equal(t, "no-rm", judged(t, p, "Bash", `{"command": "rm -rf /"}`, `{}`).MatchedRule)
	require.Equal(t, "ask-x", judged(t, p, "x", `{}`, `{}`).MatchedRule)
	require.Equal(t, "big", judged(t, p, "x", `{"n": 6}`, `{}`).MatchedRule, "a block wins over an ask")
	l := p.Limits()
	require.Equal(t, []int64{5, 9}, []int64{l.MaxToolCalls, l.MaxAttempts})
	require.Equal(t, []ToolLimit{{"Bash", 3}, {"x", 2}}, l.MaxCallsPerTool)
}

// Of two limits of the same thing the lower one holds, whichever document has it.
func TestTheLowerLimitHolds(t *testing.T) {
	for _, c := range []struct{ governance, ruleset, want int64 }{{4, 3, 3}, {3, 4, 3}, {3, 3, 3}} {
		p := mustCompileFiles(t,
			source.File{Path: "limits.yaml", Content: fmt.Appendf(nil, "name: limits\nmax_tool_calls: %d\nmax_attempts: %[1]d\nmax_calls_per_tool: {Bash: %[1]d}\n", c.governance)},
			source.File{Path: "rules.yaml", Content: fmt.Appendf(nil, rulesetHead+"rules:\n  - {id: few, type: session, limits: {max_tool_calls: %d, max_attempts: %[1]d, max_calls_per_tool: {Bash: %[1]d}}, then: {action: block, message: m}}\n", c.ruleset)})
		l := p.Limits()
		require.Equal(t, []int64{c.want, c.want}, []int64{l.MaxToolCalls, l.MaxAttempts}, c)
		require.Equal(t, []ToolLimit{{"Bash", c.want}}, l.MaxCallsPerTool, c)
	}
}

// Several rulesets are one; one that another extends is its parent.
func TestRulesetsTogether(t *testing.T) {
	one := func(name, more, rules string) source.File {
		return source.File{Path: name + ".yaml", Content: []byte("apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: " + name + "}\ndefaults: {mode: enforce}\n" + more + "rules:\n" + rules)}
	}
	rule := func(id, message string) string {
		return "  - {id: " + id + ", type: pre, tool: x, when: {args." + id + ": {exists: true}}, then: {action: block, message: '" + message + "'}}\n"
	}
	p := mustCompileFiles(t, one("a", "", rule("r", "of a")+rule("s", "of a")), one("b", "", rule("r", "of b")))
	require.Equal(t, "of b", judged(t, p, "x", `{"r": 1}`, `{}`).Reason)
	require.Equal(t, "of a", judged(t, p, "x", `{"s": 1}`, `{}`).Reason)
	p = mustCompileFiles(t, one("base", "", rule("r", "of the base")), one("child", "extends: base\n", rule("s", "of the child")))
	require.Equal(t, "of the base", judged(t, p, "x", `{"r": 1, "s": 1}`, `{}`).Reason)
	twin := one("base", "", rule("t", "of its twin"))
	twin.Path = "twin.yaml"
	for text, files := range map[string][]source.File{
		"there is no ruleset 'none'": {one("a", "extends: none\n", rule("r", "x"))},
		"'b' extends itself":         {one("a", "extends: b\n", rule("r", "x")), one("b", "extends: a\n", rule("s", "x"))},
		"'d' extends itself":         {one("c", "extends: d\n", rule("r", "x")), one("d", "extends: c\n", rule("s", "x")), one("e", "", rule("t", "beside them"))},
		"twin.yaml is named base too, and one of the two is extended": {one("base", "", rule("r", "x")), one("child", "extends: base\n", rule("s", "x")), twin},
		"Duplicate rule id: 'r'": {one("a", "", rule("r", "x")), one("b", "extends: a\n", rule("r", "x"))},
		"must be block or ask":   {{Path: "a.yaml", Content: []byte(rulesetHead + "rules:\n  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: nope, message: x}}\n")}},
	} {
		tree, err := source.NewTree(files)
		require.NoError(t, err)
		_, err = Compile(tree)
		require.ErrorContains(t, err, text)
	}
}

// A parent counts with each of its children, so that a tree of many small ones does not come
// to millions of rules.
func TestRulesOfParentsAreBounded(t *testing.T) {
	ruleset := func(name, more string, first, rules int) source.File {
		var b strings.Builder
		fmt.Fprintf(&b, "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: %s}\ndefaults: {mode: enforce}\n%srules:\n", name, more)
		for i := range rules {
			fmt.Fprintf(&b, "- {id: r%d, type: pre, tool: x, when: {args.a: {exists: true}}, then: {action: block, message: m}}\n", first+i)
		}
		return source.File{Path: name + ".yaml", Content: []byte(b.String())}
	}
	family := func(children int) error {
		files := []source.File{ruleset("base", "", 0, 500)}
		for i := range children {
			files = append(files, ruleset(fmt.Sprintf("c%d", i), "extends: base\n", 1000+i, 1))
		}
		tree, err := source.NewTree(files)
		require.NoError(t, err)
		_, err = Compile(tree)
		return err
	}
	require.NoError(t, family(98))
	require.ErrorContains(t, family(99), "more than 50000 rules")
}

// In strict mode a yes that nobody gave is refused, and a ruleset is a policy.
func TestRulesetInStrictMode(t *testing.T) {
	asks := rulesetHead + "rules:\n  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: ask, message: x, timeout_action: allow}}\n"
	strict := source.File{Path: "limits.yaml", Content: []byte("name: l\nmode: strict\nmax_tool_calls: 5\n")}
	tree, err := source.NewTree([]source.File{{Path: "a.yaml", Content: []byte(asks)}, strict})
	require.NoError(t, err)
	_, err = Compile(tree)
	require.ErrorContains(t, err, "timeout_action must be block in strict mode")
	p := mustCompileFiles(t, source.File{Path: "a.yaml", Content: []byte(asks)})
	require.Len(t, p.Warnings(), 1)
	require.True(t, judged(t, p, "x", `{"x": 1}`, `{}`).Ask.AllowOnTimeout)
	tree, err = source.NewTree([]source.File{{Path: "a.yaml", Content: []byte(shells)}})
	require.NoError(t, err)
	p, err = Compile(tree, WithStrict())
	require.NoError(t, err)
	require.True(t, judged(t, p, "y", `{}`, `{}`).Allowed)
}

const flowHead = "apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: "

// A session goes through one workflow: a tree with two is refused.
func TestTwoWorkflowsInATree(t *testing.T) {
	flow := func(name string) source.File {
		return source.File{Path: name + ".yaml", Content: []byte(flowHead + name + "}\nstages:\n  - {id: a, tools: [Read]}\n")}
	}
	require.Equal(t, "one", mustCompileFiles(t, flow("one")).Workflow().Name)
	tree, err := source.NewTree([]source.File{flow("one"), flow("two")})
	require.NoError(t, err)
	_, err = Compile(tree)
	require.ErrorContains(t, err, "there is a workflow in this tree already, one")
}

// Lists of one's own take the place of the built-in ones, each by itself.
func TestSensitiveReadsOfOnesOwn(t *testing.T) {
	const own = "name: g\ndeny_sensitive_reads: {paths: [/vault/], commands: [whoami]}\n"
	p := mustCompileFiles(t, source.File{Path: "g.yaml", Content: []byte(own)})
	for command, action := range map[string]string{"whoami": "deny", "cat /vault/x": "deny", "cat /home/x/.ssh/id_rsa": "allow", "env": "allow"} {
		require.Equal(t, action, judged(t, p, "Bash", `{"command": "`+command+`"}`, `{}`).Action, command)
	}
}

// How many people are asked is what the policy beside a ruleset says, and by when what
// the rule says, within what approvals can have.
func TestARulesetAsksAsThePolicyBesideItSays(t *testing.T) {
	asks := rulesetHead + "rules:\n  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: ask, message: m, timeout: 999999}}\n"
	beside := "name: g\nrequire_human_approval: true\napproval: {required: 2, timeout: 5m}\n"
	files := []source.File{{Path: "a.yaml", Content: []byte(asks)}, {Path: "w.yaml", Content: []byte(flowHead + "w}\nstages:\n  - {id: a, tools: [Read]}\n")}}
	p := mustCompileFiles(t, files...)
	require.Equal(t, 24*time.Hour, judged(t, p, "x", `{"x": 1}`, `{}`).Ask.Timeout)
	require.Equal(t, 1, int(p.StageApproval().Required))
	p = mustCompileFiles(t, append(files, source.File{Path: "g.yaml", Content: []byte(beside)})...)
	require.Equal(t, 2, int(judged(t, p, "x", `{"x": 1}`, `{}`).Ask.Required))
	require.Equal(t, []any{2, 5 * time.Minute}, []any{int(p.StageApproval().Required), p.StageApproval().Timeout})
}

// Where a ruleset asks about a call and others do too, nobody's silence is a yes unless
// all of them take it for one. Of the rules of a ruleset the first that asks speaks.
func TestSilenceIsAYesWhereAllTakeItForOne(t *testing.T) {
	ask := func(id, more string) string {
		return "  - {id: " + id + ", type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: ask, message: m" + more + "}}\n"
	}
	ruleset := func(rules string) source.File { return file("a.yaml", rulesetHead+"rules:\n"+rules) }
	const allows = ", timeout_action: allow"
	document := file("d.yaml", "name: d\nrules: [{name: q, condition: {field: tool_name, operator: eq, value: x}, action: ask}]\n")
	for name, c := range map[string]struct {
		files []source.File
		yes   bool
	}{
		"one":                         {[]source.File{ruleset(ask("a", allows))}, true},
		"the first of two rules":      {[]source.File{ruleset(ask("a", allows) + ask("b", ""))}, true},
		"the policy for all does not": {[]source.File{ruleset(ask("a", allows)), file("g.yaml", "name: g\nrequire_human_approval: true\napproval: {required: 2}\n")}, false},
		"the policy for all does":     {[]source.File{ruleset(ask("a", allows)), file("g.yaml", "name: g\nrequire_human_approval: true\napproval: {on_timeout: allow}\n")}, true},
		"the document alone does":     {[]source.File{ruleset(ask("a", "")), document, file("g.yaml", "name: g\napproval: {on_timeout: allow}\n")}, false},
		"the document too":            {[]source.File{ruleset(ask("a", allows)), document, file("g.yaml", "name: g\napproval: {on_timeout: allow}\n")}, true},
	} {
		p := mustCompileFiles(t, c.files...)
		for range 2 { // what is shared is not written to
			d := judged(t, p, "x", `{"x": 1}`, `{}`)
			require.NotNil(t, d.Ask, name)
			require.Equal(t, c.yes, d.Ask.AllowOnTimeout, name)
		}
	}
}
