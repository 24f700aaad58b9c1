package edictum_test

import (
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/value"
)

const head = "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: case}\ndefaults: {mode: enforce}\ntools: {read: {side_effect: read}}\nrules:\n"

// The cases of testdata/rulesets.txt.
func TestRulesets(t *testing.T) {
	raw, err := os.ReadFile("testdata/rulesets.txt")
	require.NoError(t, err)
	cases := strings.Split(string(raw), "\n== ")[1:]
	require.NotEmpty(t, cases)
	for _, text := range cases {
		name, rest, _ := strings.Cut(text, "\n")
		t.Run(name, func(t *testing.T) {
			var rules, steps []string
			for _, line := range strings.Split(rest, "\n") {
				switch {
				case strings.HasPrefix(line, "- "):
					rules = append(rules, line)
				case line != "":
					steps = append(steps, line)
				}
			}
			doc, err := edictum.Parse(name, []byte(head+strings.Join(rules, "\n")))
			require.NoError(t, err)
			rs, err := edictum.Compile(doc)
			require.NoError(t, err)
			runSteps(t, rs, steps)
		})
	}
}

func runSteps(t *testing.T, rs *edictum.Ruleset, steps []string) {
	var call *edictum.Call
	var got string
	for _, step := range steps {
		word, rest, _ := strings.Cut(step, " ")
		switch word {
		case "call":
			call = callOf(t, rest)
			got = verdictOf(rs.Before(call))
		case "out":
			v, err := value.Parse([]byte(rest))
			require.NoError(t, err, step)
			got = shownOf(rs.After(call, edictum.Output{Value: v}))
		case "=":
			want, text, says := strings.Cut(rest, " | ")
			if strings.HasPrefix(rest, "shown ") {
				require.Equal(t, rest, got)
				continue
			}
			gotVerdict, gotText, _ := strings.Cut(got, " | ")
			require.Equal(t, want, gotVerdict, "%s: %s", step, got)
			if says {
				require.Equal(t, text, gotText)
			}
		default:
			t.Fatalf("no step: %s", step)
		}
	}
}

func callOf(t *testing.T, line string) *edictum.Call {
	line, more, _ := strings.Cut(line, " | ")
	tool, args, _ := strings.Cut(line, " ")
	v, err := value.Parse([]byte(args))
	require.NoError(t, err, line)
	c := &edictum.Call{Tool: tool, Args: v}
	if more == "" {
		return c
	}
	name, text, _ := strings.Cut(more, ": ")
	extra, err := value.Parse([]byte(text))
	require.NoError(t, err, line)
	switch name {
	case "principal":
		c.Principal = extra
	case "metadata":
		c.Metadata = extra
	case "environment":
		c.Environment, _ = extra.AsString()
	case "env":
		c.Env = func(name string) (value.Value, bool) {
			v, ok := extra.Get(name)
			s, _ := v.AsString()
			return edictum.Coerce(s), ok
		}
	}
	return c
}

func verdictOf(v edictum.Verdict) string {
	what := v.Action.String()
	switch {
	case v.Action == edictum.Ask:
		after := "block"
		if v.AllowOnTimeout {
			after = "allow"
		}
		return fmt.Sprintf("ask %s %d %s | %s", v.Rule, v.Timeout, after, v.Reason)
	case v.PolicyError:
		what = "error"
	case v.Action == edictum.Allow:
		for _, r := range v.Records {
			if r.Observed {
				what += " observed " + r.Rule
			}
		}
		return what
	}
	return fmt.Sprintf("%s %s | %s", what, v.Rule, v.Reason)
}

func shownOf(r edictum.Result) string {
	text := "shown " + spaced(r.Output.JSON())
	for _, w := range r.Warnings {
		text += " | " + strings.TrimPrefix(w, "⚠️ ")
	}
	return text
}

// spaced puts the blanks into JSON that the script has.
func spaced(json string) string {
	return strings.NewReplacer(`":`, `": `, `","`, `", "`, `},"`, `}, "`).Replace(json)
}

// Names come from agents: however many there were, the rules of a tool that is used
// are remembered.
func TestNamesThatNobodyUsesAgainKeepNoOtherOut(t *testing.T) {
	doc, err := edictum.Parse("names", []byte(head+"- {id: a, type: pre, tool: 't*', when: {args.x: {exists: true}}, then: {action: block, message: stop}}\n"))
	require.NoError(t, err)
	rs, err := edictum.Compile(doc)
	require.NoError(t, err)
	for i := range 5000 {
		rs.Before(&edictum.Call{Tool: fmt.Sprint("junk ", i), Args: value.OfMap()})
	}
	call := &edictum.Call{Tool: "tool", Args: value.OfMap()}
	require.Zero(t, testing.AllocsPerRun(100, func() { rs.Before(call) }))
}

// What is said of an output that a rule finds something in.
func TestWhatIsSaidOfAnOutput(t *testing.T) {
	doc, err := edictum.Parse("said", []byte(strings.Replace(head, "tools: {", "tools: {write: {side_effect: write}, ", 1)+
		"- {id: a, type: post, tool: '*', when: {output.text: {contains: odd}}, then: {action: warn, message: odd., metadata: {field: mail}}}\n"))
	require.NoError(t, err)
	rs, err := edictum.Compile(doc)
	require.NoError(t, err)
	for tool, says := range map[string]string{
		"read":  "⚠️ odd. Consider retrying.",
		"write": "⚠️ odd. Tool already executed — assess before proceeding.",
		"other": "⚠️ odd. Tool already executed — assess before proceeding.",
	} {
		res := rs.After(&edictum.Call{Tool: tool, Args: value.OfMap()}, edictum.Output{Value: value.OfString("odd")})
		require.Equal(t, []string{says}, res.Warnings, tool)
		require.Equal(t, "mail", res.Findings[0].Field, "where its author says that it is")
	}
	// Of a call that failed the error is shown.
	res := rs.After(&edictum.Call{Tool: "read", Args: value.OfMap()}, edictum.Output{Error: "no such file"})
	require.Equal(t, `"no such file"`, res.Output.JSON())
	// What cannot be judged is told, and nothing of it is shown.
	res = edictum.Unjudged("nobody knows")
	require.True(t, res.Told() && res.PolicyError && res.Changed && res.Suppressed)
	require.Equal(t, `"[OUTPUT SUPPRESSED] nobody knows"`, res.Output.JSON())
}
