package engine

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/value"
)

// Inside the ranges of its premises a decision stays what it is; for rules on
// integers the range is also as wide as it can be.
func TestPremisesHold(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	ops := []document.Operator{document.OpEq, document.OpNe, document.OpGt, document.OpLt, document.OpGte, document.OpLte, document.OpIn, document.OpNotIn}
	for range 2000 {
		yaml := "rules:\n"
		for i := range 1 + rng.IntN(5) {
			op, target := ops[rng.IntN(len(ops))], fmt.Sprint(rng.IntN(12)-1)
			switch {
			case op == document.OpIn || op == document.OpNotIn:
				target = fmt.Sprintf("[%d, %d, x, %d]", rng.IntN(12), rng.IntN(12), rng.IntN(12))
			case rng.IntN(3) == 0:
				target += ".5"
			}
			field := []string{"call_count", "attempts", "tokens_used", "active_slots", "tool_calls.t"}[rng.IntN(5)]
			yaml += fmt.Sprintf("  - {name: r%d, condition: {field: %s, operator: %s, value: %s}, action: %s}\n", i, field, op, target, []string{"allow", "deny"}[rng.IntN(2)])
		}
		p := mustCompile(t, yaml)
		facts := call.Facts{CallCount: rng.Int64N(10), Attempts: rng.Int64N(10), TokensUsed: rng.Int64N(10), ActiveSlots: rng.Int64N(10)}
		ofTool := rng.Int64N(10)
		at := func(f call.Facts, tool int64) Decision {
			f.ToolCalls = func(string) int64 { return tool }
			return p.Evaluate(context.Background(), call.Input{Tool: "t", SessionID: "s", Facts: &f})
		}
		d := at(facts, ofTool)
		for _, premise := range d.Premises {
			require.LessOrEqual(t, premise.Lo, premise.Hi)
			for x := max(premise.Lo, 0); x <= min(premise.Hi, 14); x++ {
				moved, tool := facts, ofTool
				switch premise.Fact {
				case call.CallCount:
					moved.CallCount = x
				case call.Attempts:
					moved.Attempts = x
				case call.TokensUsed:
					moved.TokensUsed = x
				case call.ActiveSlots:
					moved.ActiveSlots = x
				case call.ToolCalls:
					tool = x
				}
				again := at(moved, tool)
				require.Equal(t, d.MatchedRule, again.MatchedRule, "%s\n%v at %d", yaml, premise, x)
			}
		}
	}
}

// A limit in seconds is taken as it is written, to the nanosecond: 0.1 is a
// tenth and not the double next to it.
func TestElapsedIsExact(t *testing.T) {
	for _, c := range []struct {
		op          document.Operator
		target      string
		first, last int64 // of the times from 0 on for which it is true; none if last is before first
	}{
		{document.OpEq, "0.1", 1e8, 1e8},
		{document.OpEq, "0.30", 3e8, 3e8},
		{document.OpGte, "0.1", 1e8, math.MaxInt64},
		{document.OpGt, "0.1", 1e8 + 1, math.MaxInt64},
		{document.OpLt, "0.7", 0, 7e8 - 1},
		{document.OpLte, "2.5", 0, 25e8},
		{document.OpGt, "1e2", 1e11 + 1, math.MaxInt64},
		{document.OpGt, "1e-9", 2, math.MaxInt64},
		{document.OpGt, "1e-10", 1, math.MaxInt64},
		{document.OpLt, "1e-10", 0, 0},
		{document.OpEq, "1e-10", 0, -1},
		{document.OpGte, "-0.1", 0, math.MaxInt64},
		{document.OpLt, "-0.1", 0, -1},
		{document.OpEq, "true", 1e9, 1e9},
		{document.OpIn, "[0.1, 1e-10, x]", 1e8, 1e8},
		{document.OpGt, "9223372036.854775806", math.MaxInt64, math.MaxInt64},
		{document.OpGt, "9223372036.854775807", 0, -1},
		{document.OpLte, "9223372036.854775807", 0, math.MaxInt64},
		{document.OpLt, "1e300", 0, math.MaxInt64},
		{document.OpGt, "1e-300", 1, math.MaxInt64},
		{document.OpGt, "123456789012345678901234567890", 0, -1},
	} {
		p := mustCompile(t, fmt.Sprintf("rules: [{name: r, condition: {field: elapsed_seconds, operator: %s, value: %s}, action: deny}]", c.op, c.target))
		for _, x := range []int64{0, 1, c.first - 1, c.first, c.first + 1, c.last - 1, c.last, min(c.last, math.MaxInt64-1) + 1, math.MaxInt64} {
			if x < 0 {
				continue
			}
			d := p.Evaluate(context.Background(), call.Input{Facts: &call.Facts{Elapsed: time.Duration(x)}})
			require.Equal(t, c.first <= x && x <= c.last, !d.Allowed, "%d ns %s %s", x, c.op, c.target)
			require.Len(t, d.Premises, 1)
			lo, hi := d.Premises[0].Lo, d.Premises[0].Hi
			require.True(t, lo <= x && x <= hi, "%d ns %s %s: premise %v", x, c.op, c.target, d.Premises[0])
			if !d.Allowed {
				require.True(t, lo == c.first && hi == c.last, "%d ns %s %s: premise %v", x, c.op, c.target, d.Premises[0])
			}
		}
	}
}

func TestElapsedPremise(t *testing.T) {
	p := mustCompile(t, "rules: [{name: r, condition: {field: elapsed_seconds, operator: matches, value: '^1'}, action: deny}]")
	d := p.Evaluate(context.Background(), call.Input{SessionID: "s", Facts: &call.Facts{Elapsed: 12*time.Second + 7}})
	require.Equal(t, "r", d.MatchedRule)
	require.Equal(t, []call.Premise{{Fact: call.Elapsed, Lo: int64(12 * time.Second), Hi: int64(13*time.Second) - 1}}, d.Premises)
}

// Merged chains are shared between goroutines; whoever builds one, all see the
// same decisions.
func TestEvaluateConcurrently(t *testing.T) {
	p := mustCompileFiles(t,
		file("governance.yaml", "name: root\nrules: [{name: a, condition: {field: tool_name, operator: eq, value: t}, action: deny}]\n"),
		file("src/governance.yaml", "name: src\nscope: 'src/*.go'\nrules: [{name: b, condition: {field: tool_name, operator: eq, value: u}, action: deny}]\n"),
		file("src/x/governance.yaml", "name: x\nrules: []\n"),
	)
	inputs := []call.Input{
		{Tool: "u", Context: enginetest.Value(t, `{"path": "src/x/a.go"}`)},
		{Tool: "u", Context: enginetest.Value(t, `{"path": "src/x/a.md"}`)},
		{Tool: "t", Context: enginetest.Value(t, `{"path": "docs"}`)},
	}
	want := []string{"b", "", "a"}
	done := make(chan string, 16)
	for range 16 {
		go func() {
			fault := ""
			for i := range 300 {
				d := p.Evaluate(context.Background(), inputs[i%3])
				if d.MatchedRule != want[i%3] {
					fault = fmt.Sprintf("input %d: rule %q", i%3, d.MatchedRule)
				}
			}
			done <- fault
		}()
	}
	for range 16 {
		require.Empty(t, <-done)
	}
}

// A path of very many segments costs no more than one of a few.
func TestDeepPath(t *testing.T) {
	p := mustCompileFiles(t, file("a/b/governance.yaml", "name: ab\nrules: []\n"), file("governance.yaml", "name: root\nrules: []\n"))
	deep := value.OfString("a/b/" + repeat("x/", 30_000))
	start := time.Now()
	d := p.Evaluate(context.Background(), call.Input{Context: value.OfMap(value.Pair{Key: "path", Value: deep})})
	require.Equal(t, []string{"root", "ab"}, d.PolicyChain)
	require.Less(t, time.Since(start), time.Second)
}

func repeat(s string, n int) string {
	b := make([]byte, 0, len(s)*n)
	for range n {
		b = append(b, s...)
	}
	return string(b)
}
