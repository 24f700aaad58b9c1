package policy

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cedar-policy/cedar-go"
	"github.com/cedar-policy/cedar-go/types"
	"github.com/open-policy-agent/opa/v1/ast"
	"github.com/open-policy-agent/opa/v1/rego"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// A rule denies calls by the name of the tool, by a list of names, by a regular
// expression, or by a number of tokens: a quarter of the rules each.
type rule struct {
	eq    string
	in    []string
	regex string // with its Cedar form: a literal prefix and a star
	like  string
	above int
}

func rules(n int) []rule {
	rs := make([]rule, n)
	for i := range rs {
		switch i % 4 {
		case 0:
			rs[i].eq = fmt.Sprintf("tool_%d", i)
		case 1:
			rs[i].in = []string{fmt.Sprintf("a_%d", i), fmt.Sprintf("b_%d", i), fmt.Sprintf("c_%d", i)}
		case 2:
			rs[i].regex, rs[i].like = fmt.Sprintf("^svc_%d_[a-z_]+$", i), fmt.Sprintf("svc_%d_*", i)
		case 3:
			rs[i].above = 100_000 + i
		}
	}
	return rs
}

type call struct {
	name   string
	tool   string
	tokens int
	deny   bool
}

// calls: the last rule by name matches, the last regular expression does, none.
func calls(n int) []call {
	eq := (n - 1) / 4 * 4
	re := (n-3)/4*4 + 2
	return []call{
		{"last", fmt.Sprintf("tool_%d", eq), 5000, true},
		{"regex", fmt.Sprintf("svc_%d_repo_write", re), 5000, true},
		{"none", "web_search", 5000, false},
	}
}

// A system is one evaluator with a set of rules, in both forms of asking it.
type system struct {
	name string
	// prepare builds the request once, in the evaluator's own form, and
	// returns what decides it: the decision alone. None of the three measures
	// how long it takes.
	prepare func(tool string, tokens int) (denied func() bool)
	// decide builds the request from the tool and the number, and decides it:
	// what a service does for every call it is asked about.
	decide func(tool string, tokens int) (denied bool)
}

func systems(tb testing.TB, rs []rule) []system {
	return []system{govnode(tb, rs), cedarGo(tb, rs), opa(tb, rs)}
}

// forms are the two ways of asking a system about a call.
var forms = []struct {
	name string
	of   func(system, call) func() bool
}{
	{"prepared", func(s system, c call) func() bool { return s.prepare(c.tool, c.tokens) }},
	{"from-the-call", func(s system, c call) func() bool { return func() bool { return s.decide(c.tool, c.tokens) } }},
}

func BenchmarkPolicy(b *testing.B) {
	for _, n := range []int{10, 1000} {
		all := systems(b, rules(n))
		for _, form := range forms {
			for _, c := range calls(n) {
				for _, s := range all {
					b.Run(fmt.Sprintf("%s/rules=%d/%s/%s", form.name, n, c.name, s.name), func(b *testing.B) {
						decide := form.of(s, c)
						require.Equal(b, c.deny, decide())
						b.ReportAllocs()
						for b.Loop() {
							decide()
						}
					})
				}
			}
		}
	}
}

// BenchmarkRatio asks the systems in turns, a millisecond or more each, and
// reports how many times longer the others take. Time is that of the processor
// that the whole process used, collection of garbage included, so that other
// work of the machine counts for nobody; of all turns the median holds.
func BenchmarkRatio(b *testing.B) {
	for _, n := range []int{10, 1000} {
		all := systems(b, rules(n))
		for _, form := range forms {
			for _, c := range calls(n) {
				b.Run(fmt.Sprintf("%s/rules=%d/%s", form.name, n, c.name), func(b *testing.B) {
					turns := make([]turn, len(all))
					for i, s := range all {
						turns[i] = newTurn(form.of(s, c))
					}
					for b.Loop() {
						for i := range turns {
							turns[i].take()
						}
					}
					own := turns[0].median()
					b.ReportMetric(0, "ns/op") // of a round, which says nothing
					for i, s := range all {
						took := turns[i].median()
						b.ReportMetric(took, s.name+"-cpu-ns")
						if i > 0 {
							b.ReportMetric(took/own, s.name+"/govnode")
						}
					}
				})
			}
		}
	}
}

// A turn measures one system over and over.
type turn struct {
	decide func() bool
	times  int       // decisions in a turn
	took   []float64 // nanoseconds of processor time per decision
}

// turnTime is how long a turn lasts at least; processor time is known to the
// microsecond.
const turnTime = 2 * time.Millisecond

func newTurn(decide func() bool) turn {
	t := turn{decide: decide, times: 1}
	for {
		start := processorTime()
		t.run()
		if processorTime()-start >= turnTime {
			return t
		}
		t.times *= 2
	}
}

func (t *turn) run() {
	for range t.times {
		t.decide()
	}
}

func (t *turn) take() {
	start := processorTime()
	t.run()
	t.took = append(t.took, float64(processorTime()-start)/float64(t.times))
}

func (t *turn) median() float64 {
	slices.Sort(t.took)
	return t.took[len(t.took)/2]
}

// processorTime is what the process used of all processors so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		panic(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// TestSameDecisions holds the three to each other and to what the rules say,
// so that the benchmark compares equals.
func TestSameDecisions(t *testing.T) {
	rs := rules(40)
	all := systems(t, rs)
	for _, tool := range []string{"tool_0", "tool_36", "tool_1", "a_1", "c_37", "d_1", "svc_2_x", "svc_38_y_z", "svc_3_x", "other"} {
		for _, tokens := range []int{0, 100_003, 100_004, 100_040} {
			want := false
			for _, r := range rs {
				want = want || r.eq == tool && r.eq != "" || r.regex != "" && regexp.MustCompile(r.regex).MatchString(tool) || r.above > 0 && tokens > r.above
				for _, name := range r.in {
					want = want || name == tool
				}
			}
			for _, s := range all {
				require.Equal(t, want, s.prepare(tool, tokens)(), "%s prepared: %s, %d tokens", s.name, tool, tokens)
				require.Equal(t, want, s.decide(tool, tokens), "%s from the call: %s, %d tokens", s.name, tool, tokens)
			}
		}
	}
}

func govnode(tb testing.TB, rs []rule) system {
	var y strings.Builder
	y.WriteString("name: bench\nrules:\n")
	for i, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("{field: tool_name, operator: eq, value: %s}", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("{field: tool_name, operator: in, value: [%s]}", strings.Join(r.in, ", "))
		case r.regex != "":
			cond = fmt.Sprintf("{field: tool_name, operator: matches, value: '%s'}", r.regex)
		default:
			cond = fmt.Sprintf("{field: token_count, operator: gt, value: %d}", r.above)
		}
		fmt.Fprintf(&y, "  - {name: r%d, condition: %s, action: deny, priority: %d}\n", i, cond, len(rs)-i)
	}
	tree, err := engine.SingleFile(y.String())
	require.NoError(tb, err)
	p, err := engine.Compile(tree)
	require.NoError(tb, err)
	ctx := context.Background()
	input := func(tool string, tokens int) engine.Input {
		return engine.Input{Tool: tool, Context: value.OfMap(value.Pair{Key: "token_count", Value: value.OfInt(int64(tokens))})}
	}
	return system{
		name: "govnode",
		prepare: func(tool string, tokens int) func() bool {
			in := input(tool, tokens)
			var d engine.Decision
			return func() bool {
				p.Decide(ctx, &in, &d)
				return !d.Allowed
			}
		},
		decide: func(tool string, tokens int) bool {
			in := input(tool, tokens)
			var d engine.Decision
			p.Decide(ctx, &in, &d)
			return !d.Allowed
		},
	}
}

func cedarGo(tb testing.TB, rs []rule) system {
	var y strings.Builder
	y.WriteString("permit(principal, action, resource);\n")
	for _, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("context.tool_name == %q", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("[%q, %q, %q].contains(context.tool_name)", r.in[0], r.in[1], r.in[2])
		case r.regex != "":
			cond = fmt.Sprintf("context.tool_name like %q", r.like)
		default:
			cond = fmt.Sprintf("context.token_count > %d", r.above)
		}
		fmt.Fprintf(&y, "forbid(principal, action, resource) when { %s };\n", cond)
	}
	set, err := cedar.NewPolicySetFromBytes("bench.cedar", []byte(y.String()))
	require.NoError(tb, err)
	// What is the same for every call is made once in both forms.
	principal, action, resource := types.NewEntityUID("Agent", "a"), types.NewEntityUID("Action", "call"), types.NewEntityUID("Resource", "default")
	entities := types.EntityMap{}
	request := func(tool string, tokens int) cedar.Request {
		return cedar.Request{
			Principal: principal, Action: action, Resource: resource,
			Context: types.NewRecord(types.RecordMap{"tool_name": types.String(tool), "token_count": types.Long(tokens)}),
		}
	}
	denied := func(r cedar.Request) bool {
		decision, _ := cedar.Authorize(set, entities, r)
		return decision == cedar.Deny
	}
	return system{
		name: "cedar",
		prepare: func(tool string, tokens int) func() bool {
			r := request(tool, tokens)
			return func() bool { return denied(r) }
		},
		decide: func(tool string, tokens int) bool { return denied(request(tool, tokens)) },
	}
}

func opa(tb testing.TB, rs []rule) system {
	var y strings.Builder
	y.WriteString("package bench\n\ndefault allow := true\n\nallow := false if denied\n\n")
	for _, r := range rs {
		var cond string
		switch {
		case r.eq != "":
			cond = fmt.Sprintf("input.tool_name == %q", r.eq)
		case r.in != nil:
			cond = fmt.Sprintf("input.tool_name in {%q, %q, %q}", r.in[0], r.in[1], r.in[2])
		case r.regex != "":
			cond = fmt.Sprintf("regex.match(%q, input.tool_name)", r.regex)
		default:
			cond = fmt.Sprintf("input.token_count > %d", r.above)
		}
		fmt.Fprintf(&y, "denied if { %s }\n", cond)
	}
	ctx := context.Background()
	q, err := rego.New(rego.Query("data.bench.allow"), rego.Module("bench.rego", y.String())).PrepareForEval(ctx)
	require.NoError(tb, err)
	// The object is built directly, which costs less than converting a map.
	toolName, tokenCount := ast.StringTerm("tool_name"), ast.StringTerm("token_count")
	input := func(tool string, tokens int) ast.Value {
		return ast.NewObject([2]*ast.Term{toolName, ast.StringTerm(tool)}, [2]*ast.Term{tokenCount, ast.IntNumberTerm(tokens)})
	}
	denied := func(in ast.Value) bool {
		rs, err := q.Eval(ctx, rego.EvalParsedInput(in))
		return err != nil || !rs.Allowed()
	}
	return system{
		name: "opa",
		prepare: func(tool string, tokens int) func() bool {
			in := input(tool, tokens)
			return func() bool { return denied(in) }
		},
		decide: func(tool string, tokens int) bool { return denied(input(tool, tokens)) },
	}
}
