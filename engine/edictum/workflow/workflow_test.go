package workflow

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

const head = "apiVersion: edictum/v1\nkind: Workflow\nmetadata: {name: w}\nstages:\n"

func parsed(t *testing.T, stages string) *Definition {
	t.Helper()
	d, err := Parse([]byte(head + stages))
	require.NoError(t, err)
	return d
}

// What is wrong with a file is said with its field and line.
func TestParseRefuses(t *testing.T) {
	stage := func(more string) string { return head + "  - {id: a, " + more + "}\n" }
	for text, says := range map[string]string{
		"[":                             "workflow: ",
		"[]":                            "must be a mapping",
		head:                            "stages: must be a list",
		head + "  []\n":                 "stages: must hold one stage",
		head + "  - 1\n":                "stages[0]: must be a mapping",
		head + "  - {id: A}\n":          "stages[0].id: must match",
		head + "  - {}\n":               "stages[0].id: must match",
		stage("tools: x"):               "stages[0].tools: must be a list",
		stage("tools: ['']"):            "stages[0].tools[0]: must not be empty",
		stage("nope: 1"):                "stages[0].nope: is not known here",
		stage("terminal: 1"):            "stages[0].terminal: must be true or false",
		stage("approval: {}"):           "stages[0].approval.message: is required",
		stage("approval: {message: 1}"): "stages[0].approval.message: must be a text",
		stage("checks: [{message: m}]"): "either command_matches or command_not_matches",
		stage("checks: [{message: m, command_matches: a, command_not_matches: b}]"): "either command_matches or command_not_matches",
		stage("checks: [{command_matches: a}]"):                                     "checks[0].message: is required",
		stage("checks: [{message: m, command_matches: '('}]"):                       `invalid expression "("`,
		stage("exit: [{condition: 'x'}]"):                                           `exit[0].condition: "x" is no condition`,
		stage("entry: [{condition: 'file_read(x)'}]"):                               "texts in double quotes",
		stage(`entry: [{condition: 'file_read("a", "b")'}]`):                        "file_read takes 1 texts in quotes, got 2",
		stage(`entry: [{condition: 'file_read("a",)'}]`):                            "a comma too many",
		stage(`entry: [{condition: 'file_read()'}]`):                                "file_read takes 1 texts in quotes, got 0",
		stage(`entry: [{condition: 'mcp_result_matches("a", "b")'}]`):               "takes 3 texts",
		stage(`entry: [{condition: 'exec("ls")'}]`):                                 "exec runs a command, which a node does not",
		stage(`entry: [{condition: 'other("ls")'}]`):                                "other is not known; use stage_complete",
		stage(`entry: [{condition: 'command_matches("(")'}]`):                       `invalid expression "("`,
		stage(`entry: [{condition: 'command_matches("\bls")'}]`):                    `write \\b`,
		stage(`entry: [{condition: 'file_read("\x07")'}]`):                          "no control characters",
		stage("tools: [a]}\n  - {id: a"):                                            `stages[1].id: "a" stands twice`,
		strings.Replace(head, "Workflow", "Ruleset", 1) + "  - {id: a}\n":           "kind: must be Workflow",
		strings.Replace(head, "/v1", "/v2", 1) + "  - {id: a}\n":                    "apiVersion: must be edictum/v1",
		strings.Replace(head, "name: w", "name: W", 1) + "  - {id: a}\n":            "metadata.name: must match",
		strings.Replace(head, "name: w", "name: w, x: 1", 1) + "  - {id: a}\n":      "metadata.x: is not known here",
		"x" + strings.Repeat(" ", edictum.MaxBytes):                                 "the most is",
	} {
		_, err := Parse([]byte(text))
		var p *edictum.Problem
		require.True(t, errors.As(err, &p), "%.80s: %v", text, err)
		require.Contains(t, err.Error(), says, "%.80s", text)
	}
	_, err := Parse([]byte(stage("exit: [{condition: 'x'}]")))
	var p *edictum.Problem
	require.True(t, errors.As(err, &p))
	require.Equal(t, []any{"a", 5}, []any{p.Rule, p.Line})
}

// Escapes in conditions are those of Python.
func TestConditions(t *testing.T) {
	s := &State{
		Completed: []string{"a"}, Reads: []string{`q"\`, "é"}, Approvals: map[string]string{"b": approved, "c": "denied"},
		Calls:   map[string][]string{"here": {"git push", "ls"}},
		Results: map[string][]value.Value{"ci": {result(`{"ok": true, "n": 1.0, "s": "yes", "none": null}`)}},
	}
	for text, met := range map[string]bool{
		`stage_complete("a")`: true, `stage_complete("b")`: false,
		`file_read("q\"\\")`: true, `file_read("\xe9")`: true, `file_read("\u00e9")`: true, `file_read("e")`: false,
		`approval("b")`: true, `approval("c")`: false, `approval()`: false,
		`command_matches("^git\\s")`: true, `command_matches("^git\s")`: true, `command_matches("^rm")`: false,
		`command_not_matches("^rm")`: true, `command_not_matches("push$")`: false,
		`mcp_result_matches("ci", "ok", "True")`: true, `mcp_result_matches("ci", "ok", "true")`: false,
		`mcp_result_matches("ci", "n", "1.0")`: true, `mcp_result_matches("ci","s","yes")`: true,
		`mcp_result_matches("ci", "none", "None")`: false, `mcp_result_matches("ci", "none", "")`: true,
		`mcp_result_matches("ci", "x", "")`: false, `mcp_result_matches("cd", "ok", "True")`: false,
	} {
		c, _, err := conditionOf(text, new(pattern.Searches))
		require.NoError(t, err, text)
		require.Equal(t, met, c(s, "here"), text)
	}
	c, _, err := conditionOf("approval()", new(pattern.Searches))
	require.NoError(t, err)
	require.True(t, c(s, "b"), "of the stage itself")
	_, tool, err := conditionOf(`mcp_result_matches("ci", "ok", "True")`, new(pattern.Searches))
	require.NoError(t, err)
	require.Equal(t, "ci", tool)
}

func result(text string) value.Value {
	v, err := value.Parse([]byte(text))
	if err != nil {
		panic(err)
	}
	return evidence(v)
}

const gated = `
  - {id: plan, tools: [Read], exit: [{condition: file_read("PLAN"), message: read the plan}]}
  - {id: build, entry: [{condition: stage_complete("plan")}], tools: [Edit, Bash], checks: [{command_not_matches: push, message: no push yet}]}
  - id: test
    entry: [{condition: stage_complete("build")}]
    tools: [Bash]
    checks: [{command_matches: "^test", message: tests alone}]
    exit: [{condition: command_matches("^test"), message: run the tests}]
    approval: {message: 'may it go out?'}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^push", message: push alone}], exit: [{condition: command_matches("^push")}]}
`

// A session on its way through a workflow.
func TestAWorkflowFromEndToEnd(t *testing.T) {
	d := parsed(t, gated)
	s := d.New("s")
	for i, c := range []struct {
		call    string // tool and what it is about
		approve string // a stage, first
		action  edictum.Action
		reason  string
		at      string // the stage behind it
		left    string
	}{
		{"Edit x", "", edictum.Block, "read the plan", "plan", ""},
		{"Bash test", "", edictum.Block, "read the plan", "plan", ""},
		{"Read PLAN", "", edictum.Allow, "", "plan", ""},
		{"Bash push", "", edictum.Block, "no push yet", "build", "plan"},
		{"Other x", "", edictum.Block, textTool, "build", ""},
		{"Edit x", "", edictum.Allow, "", "build", ""},
		{"Bash make", "", edictum.Allow, "", "build", ""},
		{"Bash test", "", edictum.Allow, "", "build", ""}, // it is allowed where it is, so nothing is left for it
		{"Bash push", "", edictum.Block, "no push yet", "build", ""},
	} {
		tool, about, _ := strings.Cut(c.call, " ")
		call := &Call{Tool: tool}
		if tool == "Bash" {
			call.Command = about
		} else {
			call.File = about
		}
		before := s.Clone()
		v, err := d.Judge(s, call)
		require.NoError(t, err)
		require.Equal(t, []any{c.action, c.reason, c.at, c.left}, []any{v.Action, v.Reason, s.Active, strings.Join(v.Left, " ")}, "%d: %s", i, c.call)
		if len(v.Left) == 0 {
			require.Equal(t, before.Encode(), s.Encode(), "judging leaves no trace")
		}
		if v.Action == edictum.Allow {
			d.Executed(s, v.Stage, call, value.Value{}, "t")
		}
	}

	// A check keeps a call in its stage unless the next one asks for it.
	require.NoError(t, d.SetStage(s, "test"))
	push, test := &Call{Tool: "Bash", Command: "push"}, &Call{Tool: "Bash", Command: "test it"}
	v, err := d.Judge(s, push)
	require.NoError(t, err)
	require.Equal(t, "run the tests", v.Reason, "what is left to do, and not that it must not be done")
	v, err = d.Judge(s, test)
	require.NoError(t, err)
	d.Executed(s, v.Stage, test, value.Value{}, "t")
	v, err = d.Judge(s, push)
	require.NoError(t, err)
	require.Equal(t, Verdict{Action: edictum.Ask, Reason: "may it go out?", Stage: "test"}, v)
	s.Note(v, push, "t")
	require.Equal(t, Pending{true, "test", "may it go out?"}, s.Pending)
	s.Approve("test")
	require.Equal(t, Pending{}, s.Pending)
	v, err = d.Judge(s, push)
	require.NoError(t, err)
	require.Equal(t, Verdict{Stage: "ship", Left: []string{"test"}}, v)
	d.Executed(s, v.Stage, push, value.Value{}, "t")
	require.Empty(t, s.Active, "the last stage is over with what it waited for")
	v, err = d.Judge(s, &Call{Tool: "Anything"})
	require.NoError(t, err)
	require.Equal(t, Verdict{}, v, "behind it all is allowed")

	s.Asked = map[string]string{"build": "an approval", "test": "another", "ship": "a third"}
	require.NoError(t, d.Reset(s, "test"))
	require.Equal(t, map[string]string{"build": "an approval"}, s.Asked, "what people say of a stage that was taken back is for what was")
	require.Equal(t, []any{"test", []string{"plan", "build"}, []string{"PLAN"}}, []any{s.Active, s.Completed, s.Reads})
	require.Empty(t, s.Approvals)
	require.NotContains(t, s.Calls, "test")
	require.NoError(t, d.Reset(s, "plan"))
	require.Equal(t, d.New("s").Encode(), func() string { s.LastGood, s.LastBad = nil, nil; return s.Encode() }())
	require.Error(t, d.Reset(s, "none"))
	require.Error(t, d.SetStage(s, "none"))
}

// W1 and W2, by themselves.
func TestChecksThatFail(t *testing.T) {
	two := func(first, second string) *Definition {
		return parsed(t, "  - {id: a, tools: [Bash], "+first+"}\n  - {id: b, "+second+"}\n")
	}
	const no, only = `checks: [{command_not_matches: x, message: no x}]`, `checks: [{command_matches: y, message: y alone}]`
	for _, c := range []struct {
		name          string
		first, second string
		reason        string // empty where it goes on to b
	}{
		{"the next asks for it", no, `tools: [Bash], checks: [{command_matches: x, message: m}]`, ""},
		{"the next takes all", no, `tools: [Bash]`, "no x"},
		{"the next refuses others", no, `tools: [Bash], checks: [{command_not_matches: z, message: m}]`, "no x"},
		{"the next has another tool", no, `tools: [Edit], checks: [{command_matches: x, message: m}]`, "no x"},
		{"the next is closed", no, `entry: [{condition: file_read("f"), message: read f}], tools: [Bash], checks: [{command_matches: x, message: m}]`, "no x"},
		{"an exit that is not met", no + `, exit: [{condition: file_read("f"), message: read f}]`, `tools: [Bash]`, "no x"},
		{"an exit that is not met, of another check", only + `, exit: [{condition: file_read("f"), message: read f}]`, `tools: [Bash]`, "read f"},
		{"an exit without words", only + `, exit: [{condition: file_read("f")}]`, `tools: [Bash]`, "y alone"},
		{"an exit that is met", only + `, exit: [{condition: command_not_matches("q")}]`, `tools: [Bash]`, ""},
	} {
		d := two(c.first, c.second)
		s := d.New("s")
		v, err := d.Judge(s, &Call{Tool: "Bash", Command: "x"})
		require.NoError(t, err)
		require.Equal(t, c.reason, v.Reason, c.name)
		require.Equal(t, c.reason == "", v.Action == edictum.Allow, c.name)
		require.Equal(t, c.reason == "", s.Active == "b", c.name)
	}
}

// Where a stage ends all, where its tools are patterns, where it is no more than a
// boundary, and where it has no tools at all.
func TestWhenAStageIsLeft(t *testing.T) {
	ran := func(commands ...string) func(*State) {
		return func(s *State) { s.Calls = map[string][]string{"a": commands} }
	}
	for _, c := range []struct {
		name   string
		stages string
		before func(*State)
		call   Call
		action edictum.Action
		reason string
		at     string
	}{
		{"a terminal stage without an exit takes nothing", "  - {id: a, tools: [Edit], terminal: true}\n", nil, Call{Tool: "Edit"}, edictum.Block, textComplete, "a"},
		{"nor does one without tools", "  - {id: a, terminal: true, exit: [{condition: 'file_read(\"f\")', message: f}]}\n", nil, Call{Tool: "Edit"}, edictum.Block, textTool, "a"},
		{"a terminal stage takes its tools until its exit is met", "  - {id: a, tools: [Bash], terminal: true, exit: [{condition: 'command_matches(\"^x\")'}]}\n", nil, Call{Tool: "Bash", Command: "x"}, edictum.Allow, "", "a"},
		{"and then nothing", "  - {id: a, tools: [Bash], terminal: true, exit: [{condition: 'command_matches(\"^x\")'}]}\n", ran("x"), Call{Tool: "Bash", Command: "x"}, edictum.Block, textComplete, "a"},
		{"nothing follows a terminal stage", "  - {id: a, tools: [Bash], terminal: true, exit: [{condition: 'command_matches(\"^x\")', message: run x}]}\n  - {id: b, tools: [Edit]}\n", nil, Call{Tool: "Edit"}, edictum.Block, textTool, "a"},
		{"a call that goes on into a terminal stage is judged there", "  - {id: a, tools: [Edit]}\n  - {id: b, terminal: true}\n", nil, Call{Tool: "Read"}, edictum.Block, textComplete, "b"},
		{"a stage whose tools are patterns is not left for a tool", "  - {id: a, tools: ['m_*']}\n  - {id: b, tools: [Edit]}\n", nil, Call{Tool: "Edit"}, edictum.Block, textTool, "a"},
		{"one whose tools are names is", "  - {id: a, tools: [m_x]}\n  - {id: b, tools: [Edit]}\n", nil, Call{Tool: "Edit"}, edictum.Allow, "", "b"},
		{"but not for one that the next refuses", "  - {id: a, tools: [m_x]}\n  - {id: b, tools: [Edit]}\n", nil, Call{Tool: "Read"}, edictum.Block, textTool, "a"},
		{"it is left for what people have to approve", "  - {id: a, tools: [m_x]}\n  - {id: b, approval: {message: ok}}\n", nil, Call{Tool: "Edit"}, edictum.Ask, "ok", "b"},
		{"a boundary at the end is over once it is met", "  - {id: a, approval: {message: ok}}\n", func(s *State) { s.Approve("a") }, Call{Tool: "Edit"}, edictum.Allow, "", ""},
		{"a stage without tools takes all", "  - {id: a}\n", nil, Call{Tool: "Edit"}, edictum.Allow, "", "a"},
		{"another tool at the end is blocked whatever the exit is", "  - {id: a, tools: [Bash], exit: [{condition: 'command_matches(\"^x\")'}]}\n", ran("x"), Call{Tool: "Edit"}, edictum.Block, textTool, "a"},
	} {
		d := parsed(t, c.stages)
		s := d.New("s")
		if c.before != nil {
			c.before(s)
		}
		v, err := d.Judge(s, &c.call)
		require.NoError(t, err)
		require.Equal(t, []any{c.action, c.reason, c.at}, []any{v.Action, v.Reason, s.Active}, c.name)
	}
}

// Each word of a state comes back, and a stage that is completed twice is completed once.
func TestStateComesBack(t *testing.T) {
	d := parsed(t, gated)
	s := d.New("s")
	s.Completed, s.Reads, s.Approvals = []string{"plan"}, []string{"PLAN"}, map[string]string{"test": "denied"}
	s.Calls, s.Results = map[string][]string{"build": {"make"}}, map[string][]value.Value{"ci": {result(`{"a": [1, null]}`)}}
	s.Note(Verdict{Action: edictum.Ask, Stage: "test", Reason: "may it?"}, &Call{Tool: "Bash", Command: "x"}, "t1")
	s.LastBad, s.LastGood = &Note{"a", "b", "c", "d"}, &Note{Tool: "e", Summary: "f", Time: "g"}
	s.Open, s.Asked = map[string]Running{"c": {"build", "Bash", "x", "f"}}, map[string]string{"test": "id"}
	s.Blocked = new("because")
	again, err := d.Decode("s", s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, again)
	require.Equal(t, s, s.Clone())

	s.Approve("test")
	require.Equal(t, []any{map[string]string{"test": approved}, map[string]string{}, Pending{}, (*string)(nil)}, []any{s.Approvals, s.Asked, s.Pending, s.Blocked})
	d.leave(0, s)
	require.Equal(t, []string{"plan"}, s.Completed)
	require.Equal(t, "build", s.Active)

	// A stage that is asked about blocks nothing, and forgets what was blocked.
	s.LastBad = &Note{Tool: "a"}
	s.Note(Verdict{Action: edictum.Ask, Stage: "test", Reason: "may it?"}, &Call{Tool: "Bash"}, "t2")
	require.Nil(t, s.LastBad)
	// Whose stage takes every tool keeps the results of tools when it is taken back.
	free := parsed(t, "  - {id: z, tools: [x]}\n  - {id: a}\n")
	f := free.New("s")
	f.Results = map[string][]value.Value{"ci": {result(`{}`)}, "x": {result(`{}`)}}
	require.NoError(t, free.Reset(f, "a"))
	require.Len(t, f.Results, 2)
	// A terminal stage at the end is not completed by what was done in it, nor is what was
	// read a result.
	last := parsed(t, "  - {id: a, tools: [Bash, Read], terminal: true, exit: [{condition: 'command_matches(\"^x\")'}]}\n")
	l := last.New("s")
	last.Executed(l, "a", &Call{Tool: "Bash", Command: "x"}, value.Value{}, "t")
	last.Executed(l, "a", &Call{Tool: "Read", File: "f"}, result(`{"a": 1}`), "t")
	require.Equal(t, "a", l.Active)
	require.Empty(t, l.Results)
}

// What is no fit evidence is left out, and lists have a bound.
func TestEvidenceIsBounded(t *testing.T) {
	d := parsed(t, "  - {id: a}\n  - {id: b}\n")
	s := d.New("s")
	took := func(c *Call, r string) { d.Executed(s, "a", c, result(r), "t") }
	took(&Call{Tool: "Bash", Command: "a\nb"}, `{}`)
	took(&Call{Tool: "Bash", Command: strings.Repeat("x", longest+1)}, `{}`)
	took(&Call{Tool: "Read", File: "a\x00"}, `{}`)
	d.Executed(s, "", &Call{Tool: "Bash", Command: "c"}, value.Value{}, "t")
	require.Empty(t, s.Calls)
	require.Empty(t, s.Reads)
	for i := range mostEvidence + 5 {
		took(&Call{Tool: "Read", File: fmt.Sprint(i)}, `{}`)
		took(&Call{Tool: "Read", File: "0"}, `{}`)
		took(&Call{Tool: "Bash", Command: "same"}, `{}`)
		took(&Call{Tool: "ci"}, `{"a": "b\n", "c": 1}`)
	}
	took(&Call{Tool: "cd"}, `{"a": "`+strings.Repeat("y", longest)+`", "b": [`+strings.Repeat("1,", 20_000)+`1]}`)
	require.Equal(t, []int{mostEvidence, mostEvidence, mostEvidence, 0}, []int{len(s.Reads), len(s.Calls["a"]), len(s.Results["ci"]), len(s.Results["cd"])})
	require.Equal(t, `{"a":"","c":1}`, s.Results["ci"][0].JSON())
	took(&Call{Tool: "Bash", Command: "curl --password=hunter2"}, `{}`)
	require.NotContains(t, s.LastGood.Summary, "hunter2")
}

// A result that is nested as deeply as a document may be would be nested more deeply in a
// State, which nobody could read any more: it is no evidence.
func TestDeepResultsAreNoEvidence(t *testing.T) {
	d := parsed(t, "  - {id: a, exit: [{condition: 'mcp_result_matches(\"t\", \"x\", \"y\")'}]}\n")
	nested := func(depth int) value.Value {
		v, err := value.Parse([]byte(strings.Repeat(`{"x":`, depth) + "1" + strings.Repeat("}", depth)))
		require.NoError(t, err)
		return v
	}
	for depth := 1; depth <= value.MaxDepth; depth++ {
		s := d.New("s")
		d.Executed(s, "a", &Call{Tool: "t"}, nested(depth), "now")
		require.NotNil(t, s.LastGood, "%d", depth)
		back, err := d.Decode("s", s.Encode())
		require.NoError(t, err, "%d", depth)
		require.Equal(t, s.Encode(), back.Encode(), "%d", depth)
		require.Equal(t, depth <= value.MaxDepth-4, len(s.Results["t"]) == 1, "%d", depth)
	}
}

// A State that is damaged is no new beginning.
func TestDecodeRefuses(t *testing.T) {
	d := parsed(t, gated)
	for _, text := range []string{"", "{", "[]", `{"active_stage": "none"}`} {
		_, err := d.Decode("s", text)
		require.Error(t, err, text)
	}
	s := d.New("s")
	s.Active = "none"
	_, err := d.Judge(s, &Call{})
	require.ErrorContains(t, err, `no stage "none"`)
}

func FuzzParseWorkflow(f *testing.F) {
	f.Add([]byte(head + gated))
	f.Fuzz(func(t *testing.T, raw []byte) {
		d, err := Parse(raw)
		if err != nil {
			return
		}
		s := d.New("s")
		if _, err := d.Judge(s, &Call{Tool: "Bash", Command: "test"}); err != nil {
			t.Fatal(err)
		}
	})
}

func FuzzDecodeState(f *testing.F) {
	d, err := Parse([]byte(head + gated))
	require.NoError(f, err)
	s := d.New("s")
	call := &Call{Tool: "Bash", Command: "test"}
	s.Note(Verdict{Action: edictum.Block, Reason: "r"}, call, "t")
	s.Open, s.Asked = map[string]Running{"c": {Stage: "a", Tool: "Bash", Command: "x", File: "f"}}, map[string]string{"test": "id"}
	d.Executed(s, "test", call, result(`{"a": 1}`), "t")
	s.Approve("build")
	f.Add(s.Encode())
	f.Fuzz(func(t *testing.T, text string) {
		s, err := d.Decode("s", text)
		if err != nil {
			return
		}
		again, err := d.Decode("s", s.Encode())
		require.NoError(t, err)
		require.Equal(t, s.Encode(), again.Encode())
		require.Equal(t, s.Encode(), s.Clone().Encode())
	})
}

// The last stage lets nothing past it that it does not take.
func TestTheLastStageIsNotLeftForOtherCalls(t *testing.T) {
	for _, c := range []struct{ stage, call, reason string }{
		{"tools: [Read]", "ls", textTool},
		{`tools: [Bash], checks: [{command_matches: "^push", message: push alone}]`, "ls", "push alone"},
		{`tools: [Read], exit: [{condition: file_read("f"), message: read f}]`, "ls", textTool},
	} {
		d := parsed(t, "  - {id: a, "+c.stage+"}\n")
		s := d.New("s")
		v, err := d.Judge(s, &Call{Tool: "Bash", Command: c.call})
		require.NoError(t, err)
		require.Equal(t, Verdict{Action: edictum.Block, Reason: c.reason, Stage: "a"}, v, c.stage)
		require.Equal(t, "a", s.Active)
	}
}

// What is asked takes the place of what was refused, and comes back out of the text of a
// State as all the rest of it.
func TestAStateIsReadAsItWasWritten(t *testing.T) {
	d := parsed(t, gated)
	s := d.New("s")
	call := &Call{Tool: "Bash", Command: "push"}
	s.Note(Verdict{Action: edictum.Block, Reason: "no"}, call, "t")
	require.Equal(t, &Note{"Bash", "push", "no", "t"}, s.LastBad)
	s.Note(Verdict{Action: edictum.Ask, Reason: "may it?", Stage: "test"}, call, "t")
	require.Nil(t, s.LastBad)
	require.Nil(t, s.Blocked)
	s.Open = map[string]Running{"c": {Stage: "plan", Tool: "Read", File: "PLAN"}, "d": {Stage: "build", Tool: "Bash", Command: "make"}}
	s.Asked = map[string]string{"test": "id"}
	again, err := d.Decode("s", s.Encode())
	require.NoError(t, err)
	require.Equal(t, s, again)
}

// A stage that people have approved asks nobody when a session is taken to it.
func TestSetStageAsksOnce(t *testing.T) {
	d := parsed(t, gated)
	s := d.New("s")
	require.NoError(t, d.SetStage(s, "test"))
	require.Equal(t, Pending{true, "test", "may it go out?"}, s.Pending)
	s.Approve("test")
	require.NoError(t, d.SetStage(s, "test"))
	require.Equal(t, Pending{}, s.Pending)
}

// A call that passes by many stages is judged once in each of them.
func TestManyStagesAreLeftAtOnce(t *testing.T) {
	var stages strings.Builder
	for i := range mostStages {
		fmt.Fprintf(&stages, "  - {id: s%d, tools: [t%d]}\n", i, i)
	}
	d := parsed(t, stages.String())
	s := d.New("x")
	v, err := d.Judge(s, &Call{Tool: "t99"})
	require.NoError(t, err)
	require.Equal(t, "s99", v.Stage)
	require.Equal(t, edictum.Allow, v.Action)
	require.Len(t, v.Left, 99)
	require.Equal(t, s.Completed, v.Left)
	require.Equal(t, "s99", s.Active)

	s = d.New("x")
	v, err = d.Judge(s, &Call{Tool: "none"})
	require.NoError(t, err)
	require.Equal(t, Verdict{Action: edictum.Block, Reason: textTool, Stage: "s0"}, v)
	require.Equal(t, d.New("x"), s, "nothing is left for a call that no stage takes")
}

// What a command that is no text would do is not known, so that it passes no check of
// commands, neither of those that it must match nor of those that it must not.
func TestACommandThatIsNoTextPassesNoCheck(t *testing.T) {
	for _, check := range []string{"command_matches", "command_not_matches"} {
		d := parsed(t, "  - {id: a, tools: [Bash], checks: [{"+check+": '^rm', message: never}]}\n")
		v, err := d.Judge(d.New("x"), CallOf("Bash", result(`{"command": ["rm", "-rf"]}`)))
		require.NoError(t, err)
		require.Equal(t, Verdict{Action: edictum.Block, Reason: "never", Stage: "a"}, v)
	}
}
