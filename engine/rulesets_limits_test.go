package engine

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

func ruled(t *testing.T, rules string, more ...source.File) *Policy {
	t.Helper()
	return mustCompileFiles(t, append(more, source.File{Path: "rules.yaml", Content: []byte(rulesetHead + "rules:\n" + rules)})...)
}

func refused(t *testing.T, files ...source.File) error {
	t.Helper()
	tree, err := source.NewTree(files)
	require.NoError(t, err)
	_, err = Compile(tree)
	return err
}

// A limit that observes is compared with what it counts: attempts, calls, or the calls of
// the tool.
func TestLimitsThatObserve(t *testing.T) {
	p := ruled(t, "  - {id: tries, type: session, mode: observe, limits: {max_attempts: 5}, then: {action: block, message: m}}\n"+
		"  - {id: calls, type: session, mode: observe, limits: {max_tool_calls: 4}, then: {action: block, message: 'enough of it'}}\n"+
		"  - {id: tools, type: session, mode: observe, limits: {max_calls_per_tool: {t: 3}}, then: {action: block, message: m}}\n")
	for _, c := range []struct {
		attempts, calls, ofTool int64
		want                    []string
	}{
		{4, 3, 2, nil},
		{5, 3, 2, []string{"tries: " + edictum.AttemptText(5)}},
		{4, 4, 2, []string{"calls: enough of it"}},
		{4, 3, 3, []string{"tools: " + edictum.ToolText("t", 3, 3)}},
		{9, 8, 7, []string{"tries: " + edictum.AttemptText(5), "calls: enough of it", "tools: " + edictum.ToolText("t", 7, 3)}},
	} {
		d := p.Evaluate(t.Context(), call.Input{Tool: "t", Facts: &call.Facts{Attempts: c.attempts, CallCount: c.calls, ToolCalls: func(string) int64 { return c.ofTool }}})
		require.True(t, d.Allowed)
		var got []string
		for _, r := range d.Records {
			require.True(t, r.Observed && !r.Passed && r.Type == edictum.SessionRecord)
			got = append(got, r.Rule+": "+r.Message)
		}
		require.Equal(t, c.want, got)
		require.Empty(t, d.Premises, "it decides nothing, so nothing rests on it")
	}
}

// A ruleset speaks of a limit only where that is its own, and not a lower one beside it.
func TestLimitsThatAreItsOwn(t *testing.T) {
	p := ruled(t, "  - {id: few, type: session, limits: {max_attempts: 5, max_tool_calls: 4, max_calls_per_tool: {t: 3}}, then: {action: block, message: enough}}\n")
	for _, c := range []struct {
		ask  func(int64) (RulesetLimit, bool)
		own  int64
		want RulesetLimit
	}{
		{p.AttemptsReached, 5, RulesetLimit{"max_attempts", "attempt_limit", edictum.AttemptText(5)}},
		{p.CallsReached, 4, RulesetLimit{"few", "yaml_session", "enough"}},
		{func(n int64) (RulesetLimit, bool) { return p.ToolReached("t", n) }, 3, RulesetLimit{"max_calls_per_tool:t", "operation_limit", edictum.ToolText("t", 3, 3)}},
	} {
		got, ok := c.ask(c.own)
		require.True(t, ok)
		require.Equal(t, c.want, got)
		_, ok = c.ask(c.own - 1)
		require.False(t, ok)
	}
	_, ok := p.ToolReached("other", 0)
	require.False(t, ok)
	unwritten, ok := ruled(t, "  - {id: a, type: pre, tool: x, when: {args.x: {exists: true}}, then: {action: block, message: m}}\n").CallsReached(edictum.DefaultToolCalls)
	require.True(t, ok)
	require.Equal(t, RulesetLimit{"max_tool_calls", "operation_limit", edictum.CallText(edictum.DefaultToolCalls)}, unwritten)
}

// The lists of deny_sensitive_reads may be others, each by itself.
func TestSensitiveReadsOfOthers(t *testing.T) {
	for settings, denied := range map[string][]string{
		"true":                                   {"env", "cat /.env", "env x"},
		"{paths: [/vault/]}":                     {"env", "cat /vault/x"},
		"{commands: [vault]}":                    {"vault get", "cat /.env"},
		"{paths: [/vault/], commands: [vault]}":  {"vault get", "cat /vault/x"},
		"{paths: [], commands: []}":              nil,
		"false":                                  nil,
		"{paths: ['/.env'], commands: [setenv]}": {"setenv x", "cat /.env"},
	} {
		p := mustCompileFiles(t, source.File{Path: "p.yaml", Content: []byte("name: p\nmax_tool_calls: 5\ndeny_sensitive_reads: " + settings + "\n")})
		for _, command := range []string{"env", "env x", "cat /.env", "cat /vault/x", "vault get", "setenv x", "ls", "environment"} {
			d := judged(t, p, "Bash", `{"command": "`+command+`"}`, `{}`)
			want := false
			for _, x := range denied {
				want = want || x == command || x == "env" && strings.HasPrefix(command, "env ")
			}
			require.Equal(t, !want, d.Allowed, "%s: %s", settings, command)
		}
	}
	for text, says := range map[string]string{
		"1":                    "deny_sensitive_reads must be true, false, or a mapping",
		"{path: []}":           "did you mean paths",
		"{paths: x}":           "must be a list",
		"{commands: ['', a]}":  "must hold texts of 1 to",
		"{commands: [a, [b]]}": "must hold texts of 1 to",
	} {
		err := refused(t, source.File{Path: "p.yaml", Content: []byte("name: p\ndeny_sensitive_reads: " + text + "\n")})
		require.ErrorContains(t, err, says, text)
	}
}

// What a rule would have refused is kept also where admissions are not; of many rules
// only those are kept that did not pass, without secrets.
func TestWhatIsKeptOfRules(t *testing.T) {
	quiet := source.File{Path: "p.yaml", Content: []byte("name: p\nmax_tool_calls: 5\nlog_all_calls: false\n")}
	rules := "  - {id: far, type: pre, tool: t, mode: observe, when: {args.far: {exists: true}}, then: {action: block, message: 'to {args.far}'}}\n"
	for i := range 101 {
		rules += "  - {id: r" + strings.Repeat("x", i) + ", type: pre, tool: many, when: {args.none: {exists: true}}, then: {action: block, message: m}}\n"
	}
	p := ruled(t, rules+"  - {id: m, type: pre, tool: many, mode: observe, when: {args.far: {exists: true}}, then: {action: block, message: m}}\n", quiet)
	kept := func(tool, args string) (must bool, rules []string) {
		a, err := value.Parse([]byte(args))
		require.NoError(t, err)
		in := call.Input{Tool: tool, Arguments: a}
		d := p.Evaluate(t.Context(), in)
		for _, r := range p.Audit(in, d, ContextHash{}).Records {
			rules = append(rules, r.Rule+": "+r.Message)
		}
		return p.MustAudit(&d), rules
	}
	must, told := kept("t", `{}`)
	require.False(t, must)
	require.Equal(t, []string{"far: "}, told)
	must, told = kept("t", `{"far": "mail me at ann@example.com"}`)
	require.True(t, must)
	require.Equal(t, []string{"far: to mail me at [REDACTED:email]"}, told)
	_, told = kept("many", `{"far": "x"}`)
	require.Equal(t, []string{"m: m"}, told)
}

// A tree has one workflow, and one alone makes a policy.
func TestOneWorkflowInATree(t *testing.T) {
	flow := func(name string) source.File {
		return source.File{Path: name + ".yaml", Content: []byte("apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: " + name + "}\nstages: [{id: a}]\n")}
	}
	p := mustCompileFiles(t, flow("one"))
	require.Equal(t, []any{"one", "one"}, []any{p.Name(), p.Workflow().Name})
	require.Equal(t, []any{int64(edictum.DefaultToolCalls), int64(edictum.DefaultAttempts)}, []any{p.Limits().MaxToolCalls, p.Limits().MaxAttempts})
	require.False(t, p.Local(), "where a session stands is asked of others")
	err := refused(t, flow("one"), flow("two"))
	require.ErrorContains(t, err, "there is a workflow in this tree already, one")
	err = refused(t, source.File{Path: "a.yaml", Content: []byte("apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: a}\nstages: []\n")})
	require.ErrorContains(t, err, "stages: must hold")
}

// What cannot be judged by a defect of the program is not shown.
func TestAReviewThatPanics(t *testing.T) {
	p := ruled(t, "  - {id: a, type: post, tool: t, when: {output.text: {contains: x}}, then: {action: warn, message: m}}\n")
	p.ruleset = &edictum.Ruleset{} // nothing of it is made
	r := p.Review(call.Input{Tool: "t"}, Output{Value: value.OfString("the output")})
	require.True(t, r.Suppressed && r.PolicyError && !r.Passed)
	require.NotContains(t, r.Output.JSON(), "the output")
	d := p.Evaluate(t.Context(), call.Input{Tool: "t"})
	require.False(t, d.Allowed)
}
