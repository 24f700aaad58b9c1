package engine

import (
	"context"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// The short way decides as the long way does, to the last field, and writes
// nothing where it decides nothing: whatever stands beside the rules of a document, and in
// strict mode too.
func TestDirectIsTheLongWay(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	pick := func(of ...string) string { return of[rng.IntN(len(of))] }
	shapes := 9
	conditions := func() string {
		switch rng.IntN(shapes) {
		case 0, 1:
			return "field: tool_name, operator: eq, value: " + pick("a", "ab", "abc_1", "long_name_of_a_tool", `"\ufffd"`)
		case 2:
			return "field: tool_name, operator: in, value: [" + pick("a, b", "abc_1, c", "c") + "]"
		case 3, 4:
			return "field: tool_name, operator: matches, value: '" + pick("^a", "^ab[a-z_]+$", "^abc_[0-9]*", "^long_") + "'"
		case 5:
			return "field: x, operator: " + pick("gt", "gte", "lt", "lte") + ", value: " + pick("1", "2.5", "-3", "100")
		case 6:
			return "field: y, operator: " + pick("eq", "in") + ", value: " + pick("[a]", "a", "b", "3")
		case 7:
			return "field: x, operator: matches, value: '" + pick("^1", "^2", "^-9", "^a") + "'"
		}
		return "field: " + pick("x", "x", "call_count") + ", operator: gt, value: " + pick("1", "5")
	}
	direct, denied, rulesSeen := 0, 0, map[string]bool{}
	for range 1500 {
		if shapes = 9; rng.IntN(2) == 0 {
			shapes = 5 // the tool alone: in strict mode nothing is missing then
		}
		var y strings.Builder
		document := func(name string) source.File {
			begin := y.Len()
			fmt.Fprintf(&y, "name: %s\nrules:\n", name)
			for i := range 1 + rng.IntN(9) {
				fmt.Fprintf(&y, "  - {name: r%d, condition: {%s}, action: %s, priority: %d}\n", i, conditions(), pick("allow", "deny", "audit", "block", "ask"), rng.IntN(3))
			}
			fmt.Fprintf(&y, "defaults: {action: %s}\n", pick("allow", "deny"))
			return file(name+".yaml", y.String()[begin:])
		}
		files := []source.File{document("p")}
		for _, more := range []func() source.File{ // what may decide beside the first document
			func() source.File { return document("q") },
			func() source.File { return document("q/governance") },
			func() source.File {
				return file("g.yaml", "name: g\n"+pick("max_tool_calls: 0", "max_tool_calls: 5", "allowed_tools: [a, ab]", "require_human_approval: true", "confidence_threshold: 0.5", "approval: {required: 2}")+"\n")
			},
			func() source.File {
				return file("s.yaml", "name: s\nrules: []\ncombining: "+pick("deny_overrides", "allow_overrides")+"\n")
			},
			func() source.File {
				return file("r.yaml", rulesetHead+"rules:\n  - {id: a, type: pre, tool: 'a*', when: {args.x: {exists: false}}, then: {action: "+pick("block", "ask")+", message: m}}\n")
			},
		} {
			if rng.IntN(8) == 0 {
				files = append(files, more())
			}
		}
		tree, err := source.NewTree(files)
		require.NoError(t, err)
		var opts []Option
		if rng.IntN(3) == 0 {
			opts = append(opts, WithStrict())
		}
		p, err := Compile(tree, append(opts, WithLogger(discard))...)
		if err != nil {
			continue // a target that an operator cannot work on
		}
		for range 20 {
			in := call.Input{Tool: pick("", "a", "ab", "abc_1", "abc_x", "abz", "c", "long_name_of_a_tool", "\xff", "é", strings.Repeat("a", 4<<10)), Kind: call.Kind(rng.IntN(2))}
			ctx := value.OfMap()
			for _, f := range []string{"x", "y", "tool_name", "confidence"} {
				if rng.IntN(3) > 0 {
					continue
				}
				ctx = ctx.With(f, enginetest.Value(t, pick(`1`, `2.5`, `-9`, `1000`, `"a"`, `"b"`, `null`, `true`, `0.1`, `["a"]`)))
			}
			in.Context = ctx
			if rng.IntN(3) == 0 {
				in.Facts = &call.Facts{CallCount: rng.Int64N(8)}
			}
			if rng.IntN(4) == 0 {
				hashed := pick("a", "b", "none of them")
				in.ContentHash = func(tool string) (string, bool) { return "x", tool == hashed }
			}
			untouched := Decision{Reason: "untouched"}
			short, long := untouched, untouched
			if !p.decideDirectly(&in, &short) {
				require.Equal(t, untouched, short)
				continue
			}
			answers := p.answers
			p.answers = nil
			p.Decide(context.Background(), &in, &long)
			p.answers = answers
			require.Equal(t, long, short, "%s\n%q %s", y.String(), in.Tool, ctx.JSON())
			direct++
			rulesSeen[short.MatchedRule] = true
			if !short.Allowed {
				denied++
			}
		}
	}
	require.Greater(t, direct, 1000, "the short way was hardly used")
	require.Greater(t, denied, 200)
	require.Less(t, denied, direct-200)
	require.Greater(t, len(rulesSeen), 5)
}

// What has more than rules to judge by does not go the short way.
func TestDirectIsForRulesAlone(t *testing.T) {
	const rules = "name: p\nrules:\n  - {name: a, condition: {field: tool_name, operator: eq, value: x}, action: deny}\n  - {name: b, condition: {field: tool_name, operator: eq, value: y}, action: deny}\n"
	doc := source.File{Path: "policy.yaml", Content: []byte(rules)}
	require.NotEmpty(t, mustCompileFiles(t, doc).answers)
	for name, more := range map[string]source.File{
		"governance policy": {Path: "g.yaml", Content: []byte("name: g\nallowed_tools: [z]\n")},
		"approval":          {Path: "g.yaml", Content: []byte("name: g\nrequire_human_approval: true\n")},
		"patterns":          {Path: "g.yaml", Content: []byte("name: g\nblocked_patterns: [rm]\n")},
		"no calls":          {Path: "g.yaml", Content: []byte("name: g\nmax_tool_calls: 0\n")},
		"folders":           {Path: "governance.yaml", Content: []byte("name: root\nrules: []\n")},
		"argument":          {Path: "z.yaml", Content: []byte("name: z\nrules:\n  - {name: c, condition: {field: arguments.q, operator: eq, value: y}, action: deny}\n  - {name: d, condition: {field: arguments.q, operator: eq, value: z}, action: deny}\n")},
		"fact":              {Path: "z.yaml", Content: []byte("name: z\nrules:\n  - {name: c, condition: {field: call_count, operator: gt, value: 1}, action: deny}\n")},
	} {
		require.Empty(t, mustCompileFiles(t, doc, more).answers, name)
	}
	hashOf := func(registered string) func(string) (string, bool) {
		return func(tool string) (string, bool) { return "x", tool == registered }
	}
	p := mustCompileFiles(t, doc)
	var d Decision
	for name, in := range map[string]call.Input{
		"explained":    {Tool: "z", Explain: true},
		"limits":       {Tool: "z", CheckLimits: true},
		"long":         {Tool: strings.Repeat("z", 4<<10/3)},
		"confidence":   {Tool: "z", Context: enginetest.Value(t, `{"confidence":1}`)},
		"content hash": {Tool: "z", ContentHash: hashOf("z")},
		"content hash of the tool that the context names": {Context: enginetest.Value(t, `{"tool_name":"z"}`), ContentHash: hashOf("z")},
	} {
		require.False(t, p.decideDirectly(&in, &d), name)
	}
	require.True(t, p.decideDirectly(&call.Input{Tool: "z", ContentHash: hashOf("y")}, &d))
}

// Decide writes over whatever was in the decision, on either way.
func TestDecideLeavesNothingOfTheLastDecision(t *testing.T) {
	p := mustCompile(t, "name: p\nrules:\n  - {name: a, condition: {field: tool_name, operator: eq, value: x}, action: deny}\n  - {name: b, condition: {field: tool_name, operator: eq, value: y}, action: deny}\n")
	for _, explain := range []bool{false, true} {
		in := call.Input{Tool: "z", Explain: explain}
		want := p.Evaluate(context.Background(), in)
		want.EvaluationTime = 0
		modified := value.OfInt(1)
		d := Decision{
			Error: "x", errorRule: "x", Backend: "x", BackendTime: 1, EvaluationTime: 1, Category: "x", PublicMessage: "x", MatchedRule: "x",
			PolicyChain: []string{"x"}, Premises: []call.Premise{{}}, Trace: []string{"x"}, ModifiedArguments: &modified,
		}
		p.Decide(context.Background(), &in, &d)
		require.Equal(t, want, d)
	}
}

// A tool whose name is no UTF-8 is judged as what every text becomes, on every
// way of judging.
func TestToolThatIsNoUTF8(t *testing.T) {
	for _, rules := range []string{
		"  - {name: a, condition: {field: tool_name, operator: eq, value: \"b\\ufffd\"}, action: deny}\n  - {name: b, condition: {field: tool_name, operator: matches, value: \"^c\\ufffd\"}, action: deny}\n",
		"  - {name: c, condition: {field: tool_name, operator: matches, value: '^d.e$'}, action: deny}\n  - {name: d, condition: {field: tool_name, operator: matches, value: '^f[a-z]+'}, action: deny}\n",
	} {
		p := mustCompile(t, "name: p\nrules:\n"+rules)
		for tool, rule := range map[string]string{"b\xff": "a", "c\xffd": "b", "b": "", "d\xff\xfee": "c", "fx\xff": "d", "f\xff": ""} {
			if !strings.Contains(rules, "name: "+rule) {
				continue
			}
			for _, explain := range []bool{false, true} { // true takes the long way
				require.Equal(t, rule, p.Evaluate(context.Background(), call.Input{Tool: tool, Explain: explain}).MatchedRule, "%q", tool)
			}
		}
	}
}
