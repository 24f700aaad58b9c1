package engine

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"math"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

func TestPolicyName(t *testing.T) {
	require.Equal(t, "gov", mustCompileFiles(t, file("a.yaml", "name: doc\nrules: []"), file("b.yaml", "name: gov\nmax_tokens: 1")).Name())
	require.Equal(t, "doc", mustCompileFiles(t, file("a.yaml", "name: doc\nrules: []"), file("governance.yaml", "name: root\nrules: []")).Name())
	require.Equal(t, "near", mustCompileFiles(t, file("z/governance.yaml", "name: near\nrules: []"), file("a/b/governance.yaml", "name: far\nrules: []")).Name())
}

// Texts can be made again from a number, on every node alike.
func TestRuleText(t *testing.T) {
	files := []File{file("b.yaml", "rules: [{name: b, condition: {field: x, operator: eq, value: 1}, action: deny, message: no b}]"),
		file("a.yaml", "rules: [{name: a, condition: {field: x, operator: eq, value: 2}, action: deny}]")}
	p := mustCompileFiles(t, files[0], files[1])
	q := mustCompileFiles(t, files[1], files[0])
	d := p.Evaluate(context.Background(), Input{Context: mustValue(t, `{"x":1}`)})
	require.Equal(t, "b", d.MatchedRule)
	for _, policy := range []*Policy{p, q} {
		rule, reason := policy.RuleText(d.Rule)
		require.Equal(t, "b", rule)
		require.Equal(t, "no b", reason)
	}
	for n := range math.MaxUint16 {
		p.RuleTextFor(uint16(n), Input{}) // an unknown number is no panic
	}
	rule, reason := p.RuleText(math.MaxUint16)
	require.Empty(t, rule+reason)
}

func TestMatchesPatternReturnsAll(t *testing.T) {
	g := NewGovernancePolicy()
	g.BlockedPatterns = []pattern.Pattern{
		{Text: "zebra", Type: pattern.Substring}, {Text: "ze.ra", Type: pattern.Regex},
		{Text: "apple", Type: pattern.Substring}, {Text: "*zebra", Type: pattern.Glob}, {Text: "zebra", Type: pattern.Substring},
	}
	require.Empty(t, g.MatchesPattern("zebra"), "before it is validated")
	require.NoError(t, g.Validate())
	require.Equal(t, []string{"zebra", "ze.ra", "*zebra", "zebra"}, g.MatchesPattern("a Zebra"))
	require.Empty(t, g.MatchesPattern("lion"))
}

func TestValidateRefusesWhatYAMLCannotSay(t *testing.T) {
	for name, change := range map[string]func(*GovernancePolicy){
		"confidence_threshold must be a float between 0.0 and 1.0, got nan": func(g *GovernancePolicy) { g.ConfidenceThreshold = math.NaN() },
		"drift_threshold must be a float between 0.0 and 1.0, got inf":      func(g *GovernancePolicy) { g.DriftThreshold = math.Inf(1) },
		"timeout_seconds must be at most 9223372036":                        func(g *GovernancePolicy) { g.TimeoutSeconds = math.MaxInt64 },
		"deny_all_tools must not stand beside":                              func(g *GovernancePolicy) { g.DenyAllTools, g.AllowedTools = true, []string{"a"} },
		"valid UTF-8":                                                       func(g *GovernancePolicy) { g.AllowedTools = []string{"\xff"} },
		"max_attempts must be a positive integer, got 0":                    func(g *GovernancePolicy) { g.MaxAttempts = 0 },
		"blocked_patterns must have at most 1000 entries, got 1001": func(g *GovernancePolicy) {
			g.BlockedPatterns = make([]pattern.Pattern, MaxPatterns+1)
		},
	} {
		g := NewGovernancePolicy()
		change(g)
		require.ErrorContains(t, g.Validate(), name)
	}
	require.NoError(t, NewGovernancePolicy().Validate())
}

func TestCompose(t *testing.T) {
	parse := func(text string) *GovernancePolicy {
		g, err := GovernancePolicyFromYAML(text)
		require.NoError(t, err)
		return g
	}
	a := parse("name: a\nmax_tokens: 100\nallowed_tools: [x, y]\nblocked_patterns: [p]\nconfidence_threshold: 0.5\nmax_calls_per_tool: {x: 3}\n")
	b := parse("name: b\nmax_tokens: 50\nallowed_tools: [y, z]\nblocked_patterns: [p, q]\nrequire_human_approval: true\nmax_calls_per_tool: {x: 2, y: 1}\ndrift_threshold: 0\n")
	c, err := a.Compose(b)
	require.NoError(t, err)
	require.Equal(t, "a + b", c.Name)
	require.Equal(t, int64(50), c.MaxTokens)
	require.Equal(t, []string{"y"}, c.AllowedTools)
	require.Equal(t, []string{"p", "q"}, c.MatchesPattern("pq"))
	require.True(t, c.RequireHumanApproval)
	require.Equal(t, map[string]int64{"x": 2, "y": 1}, c.MaxCallsPerTool)
	require.Equal(t, 0.15, c.DriftThreshold, "a threshold of 0 is off, not strict")
	require.False(t, a.StricterThan(c) || b.StricterThan(c))
	require.True(t, c.StricterThan(a) && c.StricterThan(b))

	// Nothing in common is no tool at all, never every tool.
	none, err := a.Compose(parse("allowed_tools: [other]"))
	require.NoError(t, err)
	require.True(t, none.DenyAllTools)
	p := mustCompile(t, none.YAML())
	require.False(t, p.Evaluate(context.Background(), Input{Tool: "x"}).Allowed)
	require.True(t, none.StricterThan(a))
	all, err := none.Compose(a)
	require.NoError(t, err)
	require.True(t, all.DenyAllTools)
}

func TestFormatDiff(t *testing.T) {
	g, h := NewGovernancePolicy(), NewGovernancePolicy()
	require.Equal(t, "Policies are identical.", g.FormatDiff(h))
	h.MaxTokens, h.AllowedTools = 1, []string{"a"}
	require.Contains(t, g.FormatDiff(h), "  max_tokens: 4096 -> 1\n  allowed_tools: [] -> ['a']\n")
}

// Turning the log of calls off never hides a refusal.
func TestMustAudit(t *testing.T) {
	p := mustCompile(t, "log_all_calls: false\nallowed_tools: [a]")
	ctx := context.Background()
	require.False(t, p.MustAudit(p.Evaluate(ctx, Input{Tool: "a"})))
	require.True(t, p.MustAudit(p.Evaluate(ctx, Input{Tool: "b"})))
	require.True(t, p.MustAudit(Decision{Allowed: true, Action: string(Audit)}))
	require.True(t, mustCompile(t, "log_all_calls: true").MustAudit(Decision{Allowed: true, Action: string(Allow)}))
}

// Fail-closed events are logged at ERROR with the stack and a snapshot in which
// nothing secret is left (policy engine spec 16.3).
func TestFailuresAreLoggedRedacted(t *testing.T) {
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, nil))
	p := mustCompile(t, "rules: [{name: cap, condition: {field: n, operator: gt, value: 1}, action: deny}]", WithLogger(log))
	p.Evaluate(context.Background(), Input{Tool: "mail", Context: mustValue(t, `{"n":"x","password":"hunter2","to":"jane@example.org","path":"AKIAIOSFODNN7EXAMPLE"}`)})
	line := out.String()
	require.Contains(t, line, `"level":"ERROR"`)
	require.Contains(t, line, `"rule":"cap"`)
	require.Contains(t, line, "goroutine")
	require.Contains(t, line, "REDACTED")
	for _, secret := range []string{"hunter2", "jane@", "AKIAIOS"} {
		require.NotContains(t, line, secret)
	}
}

// A defect of the program denies and is logged; it never reaches the caller.
func TestPanicDenies(t *testing.T) {
	var out bytes.Buffer
	p := mustCompile(t, "rules: []\n", WithLogger(slog.New(slog.NewJSONHandler(&out, nil))))
	p.flatSet.rules = []*compiledRule{nil}
	d := p.Evaluate(context.Background(), Input{Tool: "t"})
	require.False(t, d.Allowed)
	require.Equal(t, "deny", d.Action)
	require.NotEmpty(t, d.Error)
	require.Contains(t, out.String(), "nil pointer")
}

func TestRedact(t *testing.T) {
	for text, want := range map[string]string{
		"mail jane.doe@example.org now":          "mail [REDACTED:email] now",
		"123-45-6789, 123 45 6789, 123456789":    "[REDACTED:ssn], [REDACTED:ssn], [REDACTED:ssn]",
		"card 4111111111111111":                  "card [REDACTED:card]",
		"5500005555555559":                       "[REDACTED:card]",
		`{"password": "a b", "x": 1}`:            `{"[REDACTED:credential], "x": 1}`,
		"api-key=abc def":                        "[REDACTED:credential] def",
		"Authorization: Bearer abcdef123456":     "Authorization: [REDACTED:bearer]",
		"eyJhbGciOiJIUzI1.eyJzdWIiOiIxMjM0.sig-": "[REDACTED:jwt]",
		"AKIAIOSFODNN7EXAMPLE":                   "[REDACTED:access_key]",
		"nothing to see, max_tokens is 5":        "nothing to see, max_tokens is 5",
	} {
		require.Equal(t, want, Redact(text))
		require.Equal(t, want != text, len(DetectPII(text)) > 0, text)
	}
	require.Equal(t, []string{"email", "ssn"}, DetectPII("a@b.io 123-45-6789"))
	in := mustValue(t, `{"apiKey":"x","session_token":"y","token_count":3,"max_tokens":4,"userPassword":7,"list":["a@b.io"],"a@b.io":1,"secret":null,"key":"z"}`)
	require.Equal(t, `{"apiKey":"[REDACTED]","session_token":"[REDACTED]","token_count":3,"max_tokens":4,"userPassword":"[REDACTED]","list":["[REDACTED:email]"],"[REDACTED:email]":1,"secret":null,"key":"z"}`, RedactValue(in).JSON())
}

func TestListeners(t *testing.T) {
	l := Listeners{Log: discard}
	var got []string
	l.On(PolicyCheck, func(Event) { got = append(got, "one") })
	l.On(PolicyCheck, func(Event) { panic("a listener's defect") })
	l.On(PolicyCheck, func(e Event) { got = append(got, "two "+e.Tool) })
	l.On(DriftDetected, func(Event) { got = append(got, "drift") })
	for _, e := range Events(Input{Tool: "t"}, Decision{Allowed: true}) {
		l.Emit(e)
	}
	require.Equal(t, []string{"one", "two t"}, got)
}

func TestCheckpoints(t *testing.T) {
	var ids []string
	for n := int64(0); n <= 10; n++ {
		if id, due := CheckpointDue(n, 5); due {
			ids = append(ids, id)
		}
	}
	require.Equal(t, []string{"checkpoint-5", "checkpoint-10"}, ids)
	events := AfterEvents(Input{Tool: "t"}, "checkpoint-5", &DriftResult{Score: 0.96, Exceeded: true, Threshold: 0.15})
	require.Equal(t, DriftDetected, events[0].Type)
	require.Equal(t, "Drift score 0.96 exceeds threshold 0.15", events[0].Reason)
	require.Equal(t, CheckpointCreated, events[1].Type)
	require.Equal(t, "checkpoint-5", events[1].Checkpoint)
	require.Empty(t, AfterEvents(Input{}, "", &DriftResult{}))
}

func TestDriftIsBounded(t *testing.T) {
	long := strings.Repeat("x", MaxDriftRunes+1)
	require.Equal(t, 0.0, Drift(long, long, 0.1).Score)
	r := Drift(long, long+"y", 0.1)
	require.True(t, r.Bounded && r.Exceeded)
	require.Equal(t, 1.0, r.Score)
}

func TestContentHashRegisteredOutside(t *testing.T) {
	h := strings.Repeat("ab", 32)
	registered := func(tool string) (string, bool) { return h, tool == "known" }
	p := mustCompile(t, "rules: []")
	ctx := context.Background()
	in := Input{Tool: "known", ContentHash: registered}
	require.Equal(t, CategoryContentHash, p.Evaluate(ctx, in).Category)
	in.Context = mustValue(t, `{"content_hash":"SHA256"}`)
	require.False(t, p.Evaluate(ctx, in).Allowed)
	in.Context = mustValue(t, `{"metadata":{"content_hash":"sha256:`+strings.ToUpper(h)+`"}}`)
	require.True(t, p.Evaluate(ctx, in).Allowed)
	require.True(t, p.Evaluate(ctx, Input{Tool: "other", ContentHash: registered}).Allowed)

	strict := mustCompile(t, "content_hash_mode: strict")
	require.True(t, strict.Evaluate(ctx, in).Allowed)
	require.False(t, strict.Evaluate(ctx, Input{Tool: "other", ContentHash: registered}).Allowed)
	lax := mustCompile(t, "content_hash_mode: warn")
	require.True(t, lax.Evaluate(ctx, Input{Tool: "other"}).Allowed)
}

func TestCache(t *testing.T) {
	trees := make([]*Tree, 4)
	for i := range trees {
		var err error
		trees[i], err = SingleFile("name: p" + string(rune('0'+i)) + "\nrules: []")
		require.NoError(t, err)
	}
	var loads atomic.Int64
	c := NewCache(2, WithLogger(discard))
	get := func(i int) *Policy {
		p, err := c.Policy(trees[i].Digest(), func() (*Tree, error) { loads.Add(1); return trees[i], nil })
		require.NoError(t, err)
		return p
	}
	first := get(0)
	require.Same(t, first, get(0))
	get(1)
	get(0)
	get(2) // pushes 1 out, which was used longest ago
	require.Equal(t, 2, c.Len())
	require.Same(t, first, get(0))
	require.Equal(t, int64(3), loads.Load())
	get(1)
	require.Equal(t, int64(4), loads.Load())

	// What comes back must be what was asked for, and failures are not kept.
	_, err := c.Policy(trees[3].Digest(), func() (*Tree, error) { return trees[0], nil })
	require.ErrorContains(t, err, "was altered")
	_, err = c.Policy(trees[3].Digest(), func() (*Tree, error) { return nil, errors.New("not here") })
	require.ErrorContains(t, err, "not here")
	require.Equal(t, "p3", get(3).Name())
}

func TestCacheCompilesOnce(t *testing.T) {
	tree, err := SingleFile("rules: []")
	require.NoError(t, err)
	var loads atomic.Int64
	gate := make(chan struct{})
	c := NewCache(1, WithLogger(discard))
	results := make(chan *Policy, 8)
	for range 8 {
		go func() {
			p, _ := c.Policy(tree.Digest(), func() (*Tree, error) { loads.Add(1); <-gate; return tree, nil })
			results <- p
		}()
	}
	close(gate)
	first := <-results
	for range 7 {
		require.Same(t, first, <-results)
	}
	require.Equal(t, int64(1), loads.Load())
}

func TestMerge(t *testing.T) {
	root, leaf := newDocument("governance.yaml"), newDocument("a/governance.yaml")
	leaf.Defaults.Action = Deny
	rule := func(d *Document, name string, a Action, override bool) {
		d.Rules = append(d.Rules, &Rule{Name: name, Action: a, Override: override, doc: d, Condition: Condition{Field: "x", Operator: OpEq, Value: value.OfInt(1)}})
	}
	rule(root, "kept", Deny, false)
	rule(root, "replaced", Allow, false)
	rule(leaf, "kept", Allow, true)
	rule(leaf, "replaced", Audit, true)
	rule(leaf, "own", Allow, false)
	rules, defaults, trace := Merge([]*Document{root, leaf})
	var got []string
	for _, r := range rules {
		got = append(got, r.Rule.Name+" "+string(r.Rule.Action)+" "+r.From)
	}
	require.Equal(t, []string{"kept deny governance.yaml", "replaced audit a/governance.yaml", "own allow a/governance.yaml"}, got)
	require.Equal(t, Deny, defaults.Action)
	require.Equal(t, []string{
		"rule 'kept' of a/governance.yaml is dropped: a parent's deny cannot be overridden",
		"rule 'replaced' of a/governance.yaml replaces that of governance.yaml",
	}, trace)
}

func TestLint(t *testing.T) {
	p := mustCompileFiles(t,
		file("rules.yaml", `rules:
  - {name: a, condition: {field: n, operator: gt, value: 5}, action: deny, priority: 9}
  - {name: b, condition: {field: n, operator: gte, value: 6}, action: allow}
  - {name: c, condition: {field: t, operator: in, value: [x, y]}, action: deny}
  - {name: d, condition: {field: t, operator: eq, value: x}, action: allow}
  - {name: e, condition: {field: t, operator: matches, value: ".*"}, action: audit}
  - {name: f, condition: {field: t, operator: contains, value: q}, action: deny}
  - {name: g, condition: {field: env, operator: ne, value: dev}, action: deny}
  - {name: h, condition: {field: n, operator: gt, value: 4}, action: allow}
  - {name: i, condition: {field: z, operator: eq, value: null}, action: allow}
`),
		file("limits.yaml", "max_tool_calls: 5\nmax_attempts: 3\nallowed_tools: [a]\nmax_calls_per_tool: {b: 9}\nblocked_patterns: [{pattern: 'rm*', type: glob}, {pattern: '*.exe', type: glob}]\n"),
	)
	out := printProblems(Lint(p))
	for _, want := range []string{
		"rules.yaml:3: b: the rule is never reached: rule 'a' (rules.yaml:2)",
		"rules.yaml:5: d: the rule is never reached: rule 'c' (rules.yaml:4)",
		"rules.yaml:7: f: the rule is never reached: rule 'e' (rules.yaml:6)",
		"rules.yaml:8: g: omitting the field env evades this rule",
		"rules.yaml:10: i: eq null never matches",
		"limits.yaml:2: max_attempts (3) < max_tool_calls (5)",
		"limits.yaml:4: max_calls_per_tool.b (9) > max_tool_calls (5)",
		"limits.yaml:4: max_calls_per_tool.b limits a tool that allowed_tools does not permit",
		"limits.yaml:5: blocked_patterns[0]: a glob is anchored at its end alone",
	} {
		require.Contains(t, out, want)
	}
	for _, not := range []string{" h: ", " a: ", " c: ", "blocked_patterns[1]"} {
		require.NotContains(t, out, not)
	}
}

// A rule behind one that implies it is unreachable: no context reaches it.
func TestLintNeverInvents(t *testing.T) {
	values := []string{`"a"`, `"ab"`, `1`, `2`, `2.5`, `true`, `["a"]`, `""`, `0`}
	var conds []Condition
	for _, op := range []Operator{OpEq, OpNe, OpGt, OpGte, OpLt, OpLte, OpIn, OpNotIn, OpContains} {
		for _, target := range []string{`"a"`, `1`, `2`, `["a", 1]`, `["a"]`} {
			c := Condition{Field: "x", Operator: op, Value: mustValue(t, target)}
			if targetProblem(op, c.Value) == "" {
				conds = append(conds, c)
			}
		}
	}
	found := 0
	for _, a := range conds {
		for _, b := range conds {
			if !implies(&a, &b) {
				continue
			}
			found++
			for _, v := range values {
				if ok, err := a.holds(mustValue(t, v)); ok && err == nil {
					hit, err := b.holds(mustValue(t, v))
					require.True(t, hit || err != nil, "%s %s implies %s %s, but not for %s", a.Operator, a.Value.JSON(), b.Operator, b.Value.JSON(), v)
				}
			}
		}
	}
	require.Greater(t, found, len(conds))
}

func TestRunTests(t *testing.T) {
	p := mustCompile(t, "rules:\n  - {name: no-delete, condition: {field: tool_name, operator: eq, value: delete}, action: deny}\n  - {name: cap, condition: {field: call_count, operator: gte, value: 3}, action: deny}\n  - {name: unused, condition: {field: x, operator: eq, value: 1}, action: allow}\n")
	report, err := RunTests(context.Background(), p, []File{file("policy_test.yaml", `cases:
  - name: deletes are denied
    tool: delete
    expect: {allowed: false, action: deny, rule: no-delete}
  - name: the third call is denied
    tool: read
    session_id: s
    facts: {call_count: 3, elapsed_seconds: 1.5, tool_calls: {read: 1}}
    expect: {rule: cap}
  - name: reads pass
    tool: read
    expect: {action: allow, rule: ""}
  - tool: delete
    expect: {action: allow, rule: no-such, reason: because}
`)})
	require.NoError(t, err)
	require.Equal(t, 1, report.Failed)
	require.Len(t, report.Cases, 4)
	require.Equal(t, []string{`action: expected "allow", got "deny"`, `rule: expected "no-such", got "no-delete"`, `reason: expected "because", got "Matched rule 'no-delete'"`}, report.Cases[3].Failures)
	require.Equal(t, 13, report.Cases[3].Line)
	hits := map[string]int{}
	for _, c := range report.Coverage {
		hits[c.Rule] = c.Hits
	}
	require.Equal(t, map[string]int{"no-delete": 2, "cap": 1, "unused": 0}, hits)
}

func TestRunTestsRefusesBadTables(t *testing.T) {
	p := mustCompile(t, "rules: []")
	for table, want := range map[string]string{
		"rules: []":                                                 "a_test.yaml:1: cases: a table of tests is a mapping with a list of cases",
		"cases: [{}]":                                               "a_test.yaml:1: cases[0].expect: expect must say at least one of",
		"cases: [{expect: {action: dney}}]":                         "action must be allow, deny, audit or block, got 'dney'",
		"cases: [{expect: {alowed: true}}]":                         "cases[0].expect.alowed: unknown field",
		"cases: [{tol: x, expect: {allowed: true}}]":                "cases[0].tol: unknown field",
		"cases: [{tool: 5, expect: {allowed: true}}]":               "cases[0].tool: tool must be a string, got int: 5",
		"cases: [{kind: robot, expect: {allowed: true}}]":           "kind must be one of agent, handoff, model, tool, got 'robot'",
		"cases: [{facts: {x: 1}, expect: {allowed: true}}]":         "cases[0].facts.x: unknown field",
		"cases: [{context: [], expect: {allowed: true}}]":           "context must be a mapping",
		"cases: [{facts: {attempts: -1}, expect: {rule: a}}]":       "facts.attempts must be a non-negative integer",
		"cases: [{expect: {allowed: yes}}]":                         "allowed must be true or false, got 'yes'",
		"cases: [":                                                  "not valid YAML",
		"cases: [{facts: {elapsed_seconds: x}, expect: {rule: a}}]": "elapsed_seconds must be a number of seconds",
	} {
		_, err := RunTests(context.Background(), p, []File{file("a_test.yaml", table)})
		require.ErrorContains(t, err, want, table)
	}
}

func TestEvaluateIgnoresItsClock(t *testing.T) {
	// The time of an input is for the record; decisions rest on facts alone.
	p := mustCompile(t, "timeout_seconds: 5")
	d := p.Evaluate(context.Background(), Input{Tool: "t", Now: time.Date(1990, 1, 1, 0, 0, 0, 0, time.UTC), Facts: &Facts{Elapsed: time.Second}, CheckLimits: true})
	require.True(t, d.Allowed)
}

// Searches that would take too long are given up and denied.
func TestCeiling(t *testing.T) {
	long := value.OfMap(value.Pair{Key: "x", Value: value.OfString(strings.Repeat("a", longText))})
	for name, yaml := range map[string]string{
		"condition": "rules: [{name: r, condition: {field: x, operator: matches, value: 'b'}, action: deny}]",
		"pattern":   "blocked_patterns: [{pattern: '[g-z][h-z]{40}', type: regex}]",
	} {
		in := Input{Tool: "t", Context: long, Arguments: long}
		require.True(t, mustCompile(t, yaml).Evaluate(context.Background(), in).Allowed, name)
		d := mustCompile(t, yaml, WithCeiling(-time.Second)).Evaluate(context.Background(), in)
		require.False(t, d.Allowed, name)
		require.Equal(t, CategoryBudgetExhausted, d.Category, name)
		require.Equal(t, "the evaluation took too long", d.Error, name)
	}
}

func TestPolicyAccessors(t *testing.T) {
	tree, err := NewTree([]File{file("b/governance.yaml", "name: b\nrules: []"), file("a.yaml", "name: a\nmode: strict\nrules: []")})
	require.NoError(t, err)
	p, err := Compile(tree)
	require.NoError(t, err)
	require.Equal(t, tree.Digest(), p.Digest())
	require.True(t, p.Strict())
	var got []string
	for _, d := range p.Documents() {
		got = append(got, d.Path)
	}
	require.Equal(t, []string{"a.yaml", "b/governance.yaml"}, got)
	require.True(t, mustCompile(t, "rules: []", WithStrict()).Strict())

	res, err := Resolve(DenyOverrides, []Candidate{{Rule: "a", Action: Allow}, {Rule: "d", Action: Deny}})
	require.NoError(t, err)
	require.Equal(t, "d", res.Winner.Rule)
	_, err = Resolve("COIN_TOSS", []Candidate{{Action: Allow}, {Action: Deny}})
	require.ErrorContains(t, err, "unknown strategy")
}

// Kinds of calls other than tools are not held to the list of tools, and have
// the text of approvals that names none.
func TestKinds(t *testing.T) {
	p := mustCompile(t, "require_human_approval: true\nallowed_tools: [a]")
	for kind, want := range map[Kind]string{
		KindTool: "Tool 'x' requires human approval per governance policy", KindModel: "Execution requires human approval per governance policy",
		KindAgent: "Execution requires human approval per governance policy", KindHandoff: "Execution requires human approval per governance policy",
	} {
		require.Equal(t, want, p.Evaluate(context.Background(), Input{Tool: "x", Kind: kind}).Reason)
	}
	p = mustCompile(t, "rules: [{name: k, condition: {field: action_type, operator: in, value: [model_call, agent_call]}, action: audit}]")
	for kind, want := range map[Kind]string{KindTool: "", KindModel: "k", KindAgent: "k", KindHandoff: ""} {
		in := Input{Kind: kind, SessionID: "s", Context: mustValue(t, `{"action_type":"tool_call"}`)}
		require.Equal(t, want, p.Evaluate(context.Background(), in).MatchedRule, kind.String())
	}
	// Without a session the caller may describe a call of any kind.
	require.Equal(t, "k", p.Evaluate(context.Background(), Input{Context: mustValue(t, `{"action_type":"model_call"}`)}).MatchedRule)
}
