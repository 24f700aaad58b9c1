package engine

import (
	"context"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// The archives in testdata hold one case per requirement of the two
// specifications, named by its section: prose, documents, input, and the
// outcome. What an archive checks follows from the files it holds:
//
//	tree/...                 the files of a policy tree
//	input.json, want.json    a call and the decision; input-2.json, want-2.json
//	                         and so on for more calls on the same tree
//	refused.txt              lines that the error of loading must hold
//	warnings.txt             lines that the warnings of loading must hold
//	lint.txt                 lines that lint must print
//	limits.json              the numbers of the policy
//	governance.json          the GovernancePolicy as a mapping, which must come
//	                         back equal from YAML and from the mapping
//	old.yaml, new.yaml       two GovernancePolicies; want.json compares them
//	resolve.json             candidates and strategy; want.json is the outcome
//	guardrails.json          what the guardrails of the tree answer
//	drift.json               two outputs; want.json is the measure
//
// Fields that want.json leaves out are not compared.
func TestConformance(t *testing.T) {
	paths, err := filepath.Glob("testdata/*.txtar")
	require.NoError(t, err)
	require.NotEmpty(t, paths)
	slices.SortFunc(paths, func(a, b string) int { return slices.Compare(sectionKey(a), sectionKey(b)) })
	var table strings.Builder
	for _, path := range paths {
		name := strings.TrimSuffix(filepath.Base(path), ".txtar")
		ok := t.Run(name, func(t *testing.T) { runArchive(t, path) })
		fmt.Fprintf(&table, "%-6s %-44s %s\n", map[bool]string{true: "ok", false: "FAIL"}[ok], name, headline(path))
	}
	t.Log("\n" + table.String())
}

// sectionKey sorts 3.2 before 10.1, and the policy engine before the adapter.
func sectionKey(path string) []string {
	name := filepath.Base(path)
	return []string{
		map[bool]string{true: "1", false: "0"}[strings.HasPrefix(name, "adapter-")],
		regexp.MustCompile(`\d+`).ReplaceAllStringFunc(name, func(s string) string { return fmt.Sprintf("%04s", s) }),
	}
}

// headline is the first sentence of the prose.
func headline(path string) string {
	content, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	prose, _, _ := strings.Cut(string(content), "\n--")
	sentence, _, _ := strings.Cut(strings.Join(strings.Fields(prose), " "), ". ")
	return strings.TrimSuffix(sentence, ".")
}

type archive struct {
	*testing.T
	files map[string]string
	tree  []source.File
	used  map[string]bool
}

func runArchive(t *testing.T, path string) {
	parsed, err := txtar.ParseFile(path)
	require.NoError(t, err)
	a := &archive{T: t, files: map[string]string{}, used: map[string]bool{}}
	for _, f := range parsed.Files {
		if name, ok := strings.CutPrefix(f.Name, "tree/"); ok {
			a.tree = append(a.tree, source.File{Path: name, Content: f.Data})
			continue
		}
		a.files[f.Name] = string(f.Data)
	}
	require.NotEmpty(t, strings.TrimSpace(string(parsed.Comment)), "an archive begins with prose")
	a.run()
	for name := range a.files {
		require.True(t, a.used[name], "nothing reads %s", name)
	}
}

func (a *archive) run() {
	switch {
	case a.has("resolve.json"):
		a.resolve()
	case a.has("drift.json"):
		a.drift()
	case a.has("old.yaml"):
		a.compare()
	default:
		a.policy()
	}
}

func (a *archive) has(name string) bool {
	_, ok := a.files[name]
	return ok
}

func (a *archive) text(name string) string {
	a.Helper()
	a.used[name] = true
	require.True(a, a.has(name), "the archive lacks %s", name)
	return a.files[name]
}

func (a *archive) json(name string) value.Value {
	a.Helper()
	v, err := value.Parse([]byte(a.text(name)))
	require.NoError(a, err, name)
	return v
}

func (a *archive) policy() {
	guardrails := &enginetest.Guardrails{}
	if a.has("guardrails.json") {
		guardrails.Answers = a.json("guardrails.json")
	}
	tree, err := source.NewTree(a.tree)
	var p *Policy
	if err == nil {
		p, err = Compile(tree, WithLogger(discard), WithRego(enginetest.LoadScripted("opa")), WithCedar(enginetest.LoadScripted("cedar")),
			WithHTTPClient(&http.Client{Transport: guardrails}))
	}
	if a.has("refused.txt") {
		require.Error(a, err)
		a.linesIn("refused.txt", err.Error())
		return
	}
	require.NoError(a, err)
	if a.has("warnings.txt") {
		a.linesIn("warnings.txt", printProblems(p.Warnings()))
	}
	if a.has("lint.txt") {
		a.linesIn("lint.txt", printProblems(Lint(p)))
	}
	if a.has("limits.json") {
		a.subset("limits.json", a.json("limits.json"), limitsValue(p.Limits()))
	}
	if a.has("governance.json") {
		a.roundTrip(p)
	}
	for n := 1; ; n++ {
		input, want := numbered("input", n), numbered("want", n)
		if !a.has(input) {
			return
		}
		in := a.input(a.json(input))
		guardrails.Asked = nil
		d := p.Evaluate(context.Background(), in)
		got := decisionValue(p, in, d).With("asked", value.ListOf(guardrails.Asked, value.OfString))
		a.subset(want, a.json(want), got)
		a.sameAgain(p, in, d)
	}
}

func numbered(name string, n int) string {
	if n == 1 {
		return name + ".json"
	}
	return name + "-" + strconv.Itoa(n) + ".json"
}

func (a *archive) linesIn(name, text string) {
	a.Helper()
	for line := range strings.Lines(a.text(name)) {
		if line = strings.TrimSpace(line); line != "" {
			require.Contains(a, text, line)
		}
	}
}

func printProblems(list []source.Problem) string {
	var b strings.Builder
	for _, p := range list {
		b.WriteString(p.String() + "\n")
	}
	return b.String()
}

// sameAgain holds two laws for every case: the numbered decision is
// made again from its number, and explaining changes nothing.
func (a *archive) sameAgain(p *Policy, in call.Input, d Decision) {
	a.Helper()
	if d.Rule != ruleNone {
		was, again := d, p.Recall(d.Rule, in)
		was.EvaluationTime, was.Premises, was.ModifiedArguments, was.GuardrailMetadata, was.errorRule = 0, nil, nil, nil, ""
		if d.Rule == ruleError { // why it could not be judged is not known any more
			was.Error, was.Category, was.PublicMessage = "", again.Category, again.PublicMessage
		}
		require.Equal(a, was, again)
	}
	in.Explain = true
	again := p.Evaluate(context.Background(), in)
	require.NotEmpty(a, again.Trace)
	again.Trace, again.EvaluationTime, again.BackendTime = d.Trace, d.EvaluationTime, d.BackendTime
	if d.ModifiedArguments != nil {
		require.Equal(a, d.ModifiedArguments.JSON(), again.ModifiedArguments.JSON())
		again.ModifiedArguments = d.ModifiedArguments
	}
	require.Equal(a, d, again)
}

// input reads a call from JSON with the names of the wire.
func (a *archive) input(v value.Value) call.Input {
	a.Helper()
	in := call.Input{
		Tool: v.TextAt("tool"), AgentID: v.TextAt("agent_id"),
		SessionID: v.TextAt("session_id"), CallID: v.TextAt("call_id"),
		Now: time.Date(2026, 5, 16, 9, 30, 0, 123456000, time.UTC),
	}
	in.Arguments, _ = v.Get("arguments")
	given, _ := v.Get("context")
	metadata, _ := v.Get("metadata")
	in.Context = call.WithMetadata(given, metadata)
	switch kind := v.TextAt("kind"); kind {
	case "", "tool":
	case "model":
		in.Kind = call.KindModel
	case "agent":
		in.Kind = call.KindAgent
	case "handoff":
		in.Kind = call.KindHandoff
	default:
		a.Fatalf("unknown kind %q", kind)
	}
	switch order := v.TextAt("order"); order {
	case "":
	case "interceptor":
		in.Order = call.OrderInterceptor
	case "pre_execute":
		in.Order = call.OrderPreExecute
	default:
		a.Fatalf("unknown order %q", order)
	}
	if limits, ok := v.Get("check_limits"); ok {
		in.CheckLimits, _ = limits.AsBool()
	}
	if facts, ok := v.Get("facts"); ok {
		in.Facts = factsOf(facts)
	}
	return in
}

func factsOf(v value.Value) *call.Facts {
	number := func(name string) int64 {
		n, _ := v.Get(name)
		i, _ := n.AsInt()
		return i
	}
	elapsed, _ := v.Get("elapsed_seconds")
	seconds, _ := elapsed.AsFloat()
	return &call.Facts{
		CallCount: number("call_count"), Attempts: number("attempts"), TokensUsed: number("tokens_used"),
		ActiveSlots: number("active_slots"), Elapsed: time.Duration(seconds * float64(time.Second)),
		ToolCalls: func(tool string) int64 {
			calls, _ := v.Get("tool_calls")
			n, _ := calls.Get(tool)
			i, _ := n.AsInt()
			return i
		},
	}
}

func text(s string) value.Value { return value.OfString(s) }

func orNull(s string) value.Value {
	if s == "" {
		return value.Value{}
	}
	return text(s)
}

func decisionValue(p *Policy, in call.Input, d Decision) value.Value {
	modified := value.Value{}
	if d.ModifiedArguments != nil {
		modified = *d.ModifiedArguments
	}
	premises := value.ListOf(d.Premises, func(p call.Premise) value.Value {
		name := p.Fact.String()
		if p.Name != "" {
			name += "." + p.Name
		}
		return value.OfList(text(name), value.OfInt(p.Lo), value.OfInt(p.Hi))
	})
	events := value.ListOf(Events(in, d), func(e Event) value.Value { return text(string(e.Type)) })
	return value.OfMap(
		value.Pair{Key: "allowed", Value: value.OfBool(d.Allowed)},
		value.Pair{Key: "action", Value: text(d.Action)},
		value.Pair{Key: "policy", Value: text(d.Policy)},
		value.Pair{Key: "matched_rule", Value: orNull(d.MatchedRule)},
		value.Pair{Key: "reason", Value: text(d.Reason)},
		value.Pair{Key: "public_message", Value: text(d.PublicMessage)},
		value.Pair{Key: "category", Value: text(d.Category)},
		value.Pair{Key: "policy_chain", Value: value.ListOf(d.PolicyChain, value.OfString)},
		value.Pair{Key: "backend", Value: orNull(d.Backend)},
		value.Pair{Key: "error", Value: value.OfBool(d.Error != "")},
		value.Pair{Key: "error_text", Value: text(d.Error)},
		value.Pair{Key: "ask", Value: askValue(d.Ask)},
		value.Pair{Key: "premises", Value: premises},
		value.Pair{Key: "modified_arguments", Value: modified},
		value.Pair{Key: "events", Value: events},
		value.Pair{Key: "audit", Value: auditOf(p, in, d)},
	)
}

func askValue(a *Approval) value.Value {
	if a == nil {
		return value.Value{}
	}
	return value.OfMap(
		value.Pair{Key: "required", Value: value.OfInt(int64(a.Required))},
		value.Pair{Key: "denials", Value: value.OfInt(int64(a.Denials))},
		value.Pair{Key: "timeout", Value: text(a.Timeout.String())},
		value.Pair{Key: "allow_on_timeout", Value: value.OfBool(a.AllowOnTimeout)},
		value.Pair{Key: "max_pending", Value: value.OfInt(int64(a.MaxPending))},
	)
}

// auditOf is the record of a decision, as the line of it reads.
func auditOf(p *Policy, in call.Input, d Decision) value.Value {
	rec := p.Audit(in, d, ContextHash{})
	v, err := value.Parse(append(rec.AppendJSON([]byte{'{'}), '}'))
	if err != nil {
		return text("the line is no JSON: " + err.Error())
	}
	return v
}

// subset compares the fields that want names. Numbers compare exactly, with
// one use of "..." at the end of a text standing for anything.
func (a *archive) subset(where string, want, got value.Value) {
	a.Helper()
	if want.Kind() == value.Map && got.Kind() == value.Map {
		for k, w := range want.All() {
			g, ok := got.Get(k)
			require.True(a, ok, "%s: there is no field %s in %s", where, k, got.JSON())
			a.subset(where+": "+k, w, g)
		}
		return
	}
	if w, ok := want.AsString(); ok && strings.HasSuffix(w, "...") {
		g, _ := got.AsString()
		require.True(a, strings.HasPrefix(g, strings.TrimSuffix(w, "...")), "%s: want %s, got %s", where, want.JSON(), got.JSON())
		return
	}
	require.Equal(a, want.JSON(), got.JSON(), where)
}
