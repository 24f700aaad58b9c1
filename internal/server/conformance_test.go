package server_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/rogpeppe/go-internal/txtar"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine"
	"example.com/govnode/engine/enginetest"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Every archive of the conformance table of package engine, whose test says what
// they hold, runs through a server as well: trees are put and read back, calls
// are judged by Evaluate and BeginCall, outputs are compared by EndCall, and the
// audit log has the records. What the API does not carry (premises, lint) is not
// compared.
func TestConformance(t *testing.T) {
	t.Parallel()
	paths, err := filepath.Glob("../../engine/testdata/*.txtar")
	require.NoError(t, err)
	require.Greater(t, len(paths), 150)
	for _, path := range paths {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".txtar"), func(t *testing.T) { serveArchive(t, path) })
	}
}

// asOfArchives is the time at which the archives are judged.
var asOfArchives = time.Date(2026, 5, 16, 9, 30, 0, 123456000, time.UTC)

// A served archive is one on a node of its own, whose log time stands where the
// archive wants it.
type served struct {
	*node
	files      map[string]string
	tree       []*v1.TextFile
	time       atomic.Int64
	guardrails enginetest.Guardrails
	opened     map[string]bool // ids of sessions
	calls      int
}

func serveArchive(t *testing.T, path string) {
	parsed, err := txtar.ParseFile(path)
	require.NoError(t, err)
	s := &served{files: map[string]string{}, opened: map[string]bool{}}
	for _, f := range parsed.Files {
		if name, ok := strings.CutPrefix(f.Name, "tree/"); ok {
			s.tree = append(s.tree, &v1.TextFile{Path: name, Content: string(f.Data)})
			continue
		}
		s.files[f.Name] = string(f.Data)
	}
	store := storage.NewMemory(func() time.Duration { return time.Duration(s.time.Load()) })
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	unchained := &lines{} // so digests of contexts have no key
	s.node = startOn(t, store, func(c *server.Config) {
		c.Audit = unchained
		c.Now = func() time.Time { return asOfArchives }
		c.Logger = slog.New(slog.DiscardHandler)
		c.Engine = []engine.Option{
			engine.WithCedar(enginetest.LoadScripted("cedar")), engine.WithRego(enginetest.LoadScripted("opa")),
			engine.WithHTTPClient(&http.Client{Transport: &s.guardrails}),
		}
	})
	s.node.audit = unchained
	if s.has("guardrails.json") {
		s.guardrails.Answers = s.json("guardrails.json")
	}
	switch {
	case s.has("resolve.json"):
		s.resolve()
	case s.has("drift.json"):
		s.drift()
	case s.has("old.yaml"):
		s.compare()
	default:
		s.policy()
	}
}

func (s *served) has(name string) bool { _, ok := s.files[name]; return ok }

func (s *served) json(name string) value.Value {
	s.t.Helper()
	v, err := value.Parse([]byte(s.files[name]))
	require.NoError(s.t, err, name)
	return v
}

// put stores a tree, which comes back as it was sent.
func (s *served) put(name string, files []*v1.TextFile) (*v1.PutPolicyResponse, error) {
	s.t.Helper()
	res, err := s.policies.PutPolicy(s.ctx(), &v1.PutPolicyRequest{Name: name, Files: files})
	if err != nil {
		return nil, err
	}
	back, err := s.policies.GetPolicy(s.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: name}})
	require.NoError(s.t, err)
	require.Len(s.t, back.Policy.Files, len(files))
	for _, f := range back.Policy.Files {
		i := slices.IndexFunc(files, func(o *v1.TextFile) bool { return o.Path == f.Path })
		require.GreaterOrEqual(s.t, i, 0)
		require.Equal(s.t, files[i].Content, f.Content)
	}
	return res, nil
}

func (s *served) policy() {
	res, err := s.put("p", s.tree)
	if s.has("refused.txt") {
		require.Equal(s.t, connect.CodeInvalidArgument, connect.CodeOf(err))
		s.linesIn("refused.txt", err.Error())
		return
	}
	require.NoError(s.t, err)
	if s.has("warnings.txt") {
		s.linesIn("warnings.txt", strings.Join(res.Warnings, "\n"))
	}
	if s.has("limits.json") {
		s.limits()
	}
	for n := 1; ; n++ {
		input, want := "input.json", "want.json"
		if n > 1 {
			input, want = "input-"+strconv.Itoa(n)+".json", "want-"+strconv.Itoa(n)+".json"
		}
		if !s.has(input) {
			return
		}
		s.guardrails.Asked = nil
		s.subset(want, s.json(want), s.judge(s.json(input)))
	}
}

func (s *served) linesIn(name, text string) {
	s.t.Helper()
	for line := range strings.Lines(s.files[name]) {
		require.Contains(s.t, text, strings.TrimSpace(line))
	}
}

// limits compares what sessions will be held to.
func (s *served) limits() {
	s.session("limited")
	found, err := s.store.Get(s.ctx(), session.SessionKey("default", "limited"), storage.Latest)
	require.NoError(s.t, err)
	l := found.Record.(*session.Session).Pin.Limits
	count := func(n uint32) int64 { return int64(n) }
	for name, got := range map[string]int64{
		"max_tokens": l.MaxTokens, "max_tool_calls": count(l.MaxToolCalls), "max_attempts": count(l.MaxAttempts),
		"max_concurrent": int64(l.MaxConcurrent), "checkpoint_frequency": count(l.Checkpoint), "drift_threshold": l.Drift,
	} {
		if want, ok := s.json("limits.json").Get(name); ok {
			n, _ := want.AsInt()
			if name == "max_tool_calls" || name == "max_attempts" || name == "checkpoint_frequency" {
				n = min(n, 1<<31-1) // more than a session can count to
			}
			require.Equal(s.t, n, got, name)
		}
	}
	if want, ok := s.json("limits.json").Get("timeout"); ok {
		text, _ := want.AsString()
		require.Equal(s.t, text, l.Timeout.String())
	}
}

// judge has a call decided as the archive asks for it, and returns the decision
// in the words of the archives.
func (s *served) judge(in value.Value) value.Value {
	s.t.Helper()
	get := func(name string) value.Value { v, _ := in.Get(name); return v }
	word := func(name string) string { w, _ := get(name).AsString(); return w }
	text := func(name string) string {
		if v, ok := in.Get(name); ok {
			return v.JSON()
		}
		return ""
	}
	metadata := map[string]string{}
	for k, v := range get("metadata").All() {
		metadata[k], _ = v.AsString()
	}
	kind := v1.Kind(v1.Kind_value["KIND_"+strings.ToUpper(word("kind"))])
	order := v1.Order(v1.Order_value["ORDER_"+strings.ToUpper(word("order"))])
	facts, counted := in.Get("facts")
	limited, _ := get("check_limits").AsBool()
	_, inSession := in.Get("session_id")
	id := word("session_id")
	// Evaluate judges tools, and counts where it knows a count; the rest is asked
	// of BeginCall, where the order of commands decides on counts.
	begins := kind > v1.Kind_KIND_TOOL || word("call_id") != "" || counted && !limited && word("tool") != ""
	if counted || inSession || begins {
		id = s.open(id, word("agent_id"), facts)
	}
	var d *v1.Decision
	var modified *structpb.Struct
	if begins {
		s.calls++
		res, err := s.node.calls.BeginCall(s.ctx(), &v1.BeginCallRequest{
			SessionId: id, CallId: orElse(word("call_id"), fmt.Sprintf("call%d", s.calls)), Kind: kind, Tool: word("tool"), Order: order,
			ArgumentsJson: text("arguments"), ContextJson: text("context"), Metadata: metadata,
		})
		require.NoError(s.t, err)
		d, modified = res.Decision, res.ModifiedArguments
		if res.Outcome == v1.Outcome_OUTCOME_CALL_LIMIT && !limited {
			d = &v1.Decision{Allowed: true, Action: "allow"} // said the policy, and was overruled
		}
	} else {
		req := &v1.EvaluateRequest{
			Tool: word("tool"), Order: order, ArgumentsJson: text("arguments"), ContextJson: text("context"), Metadata: metadata,
			SessionId: id, AgentId: word("agent_id"),
		}
		if id == "" {
			req.Policy = byName("p")
		} else {
			req.AgentId = ""
		}
		res, err := s.policies.Evaluate(s.ctx(), req)
		require.NoError(s.t, err)
		d, modified = res.Decision, res.ModifiedArguments
	}
	out := []value.Pair{
		{Key: "allowed", Value: value.OfBool(d.Allowed)},
		{Key: "action", Value: value.OfString(d.Action)},
		{Key: "policy", Value: value.OfString(d.Policy)},
		{Key: "matched_rule", Value: orNull(d.MatchedRule)},
		{Key: "reason", Value: value.OfString(d.Reason)},
		{Key: "public_message", Value: value.OfString(d.PublicMessage)},
		{Key: "category", Value: value.OfString(d.Category)},
		{Key: "policy_chain", Value: listOfTexts(d.PolicyChain)},
		{Key: "backend", Value: orNull(d.Backend)},
		{Key: "error", Value: value.OfBool(d.Error != "")},
		{Key: "error_text", Value: value.OfString(d.Error)},
		{Key: "asked", Value: listOfTexts(s.guardrails.Asked)},
		{Key: "modified_arguments", Value: structValue(s.t, modified)},
	}
	records := s.audit.all(s.t)
	for _, r := range slices.Backward(records) { // the latest of a decision
		if _, decided := r["context_snapshot"]; decided {
			out = append(out, value.Pair{Key: "audit", Value: anyValue(s.t, r)})
			break
		}
	}
	return value.OfMap(out...)
}

func orElse(s, other string) string {
	if s == "" {
		return other
	}
	return s
}

// open starts a session in which the facts hold. They are brought about by the
// commands that count, past the policy whose say on them is yet to be heard.
func (s *served) open(id, agent string, facts value.Value) string {
	s.t.Helper()
	s.calls++
	name := fmt.Sprintf("s%d", s.calls)
	if id != "" && !s.opened[id] {
		name, s.opened[id] = id, true // each call has a session of its own, the first the id that is asked for
	}
	began := s.time.Load()
	_, err := s.sessions.CreateSession(s.ctx(), &v1.CreateSessionRequest{SessionId: name, AgentId: orElse(agent, "nobody"), Policy: byName("p")})
	require.NoError(s.t, err)
	number := func(of value.Value, field string) int64 { v, _ := of.Get(field); n, _ := v.AsInt(); return n }
	ofTools, _ := facts.Get("tool_calls")
	calls, attempts := int64(0), int64(0)
	for tool, n := range ofTools.All() {
		times, _ := n.AsInt()
		for range times {
			s.count(name, tool, true)
			calls, attempts = calls+1, attempts+1
		}
	}
	for ; calls < number(facts, "call_count"); calls++ {
		s.count(name, "elsewhere", true)
		attempts++
	}
	for ; attempts < number(facts, "attempts"); attempts++ {
		s.count(name, "elsewhere", false)
	}
	elapsed, _ := facts.Get("elapsed_seconds")
	seconds, _ := elapsed.AsFloat()
	s.time.Store(began + int64(seconds*float64(time.Second)))
	return name
}

func (s *served) count(name, tool string, allow bool) {
	s.t.Helper()
	s.calls++
	got, err := s.sessions.GetSession(s.ctx(), &v1.GetSessionRequest{SessionId: name})
	require.NoError(s.t, err)
	digest, err := engine.ParseDigest(got.Session.PolicyDigest)
	require.NoError(s.t, err)
	call := fmt.Sprintf("earlier%d", s.calls)
	answers := s.store.Apply(s.ctx(), &session.Begin{
		NS: "default", Session: name, Call: call, CallKind: session.Tool, Tool: tool, Digest: session.Digest(digest),
		Verdict: session.Verdict{Allow: allow}, Pools: []session.Want{{Pool: session.PolicyPool("p"), Weight: 1}}, TTL: time.Hour,
	})
	require.NoError(s.t, answers[0].Err)
	if allow {
		require.Equal(s.t, session.Admitted, answers[0].Result.Code)
		s.end(name, call)
	}
}

// resolve puts a document for each candidate, and has the strategy decide.
func (s *served) resolve() {
	v, want := s.json("resolve.json"), s.json("want.json")
	word := func(of value.Value, name string) string { f, _ := of.Get(name); w, _ := f.AsString(); return w }
	settings := ""
	if strategy := word(v, "strategy"); strategy != "" {
		settings = fmt.Sprintf("combining: %s\n", strategy)
		if word(v, "tie_break") == "deny" {
			settings += "tie_break: deny\n"
		}
	}
	candidates, _ := v.Get("candidates")
	files := []*v1.TextFile{{Path: "zz.yaml", Content: "name: none\nrules: []\n" + settings}}
	for c := range candidates.Items() {
		priority, _ := c.Get("priority")
		files = append(files, &v1.TextFile{Path: fmt.Sprintf("c%02d.yaml", len(files)), Content: fmt.Sprintf(
			"level: %s\nname: %q\nrules:\n  - {name: %q, condition: {field: tool_name, operator: eq, value: t}, action: %s, priority: %s, message: %q}\n",
			orElse(word(c, "scope"), "global"), orElse(word(c, "policy"), "unnamed"), word(c, "rule"), word(c, "action"), orElse(priority.JSON(), "0"), word(c, "reason"))})
	}
	_, err := s.put("p", files)
	if word(want, "error") != "" && candidates.Len() > 0 {
		require.Equal(s.t, connect.CodeInvalidArgument, connect.CodeOf(err), "a candidate or a strategy that nobody knows is refused when it is put")
		return
	}
	require.NoError(s.t, err)
	res, err := s.policies.Evaluate(s.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: "t"})
	require.NoError(s.t, err)
	if candidates.Len() == 0 {
		require.Equal(s.t, "No rules matched; default action applied", res.Decision.Reason, "nobody asks for a winner among none")
		return
	}
	if winner := word(want, "winner"); winner != "" {
		require.Equal(s.t, winner, res.Decision.MatchedRule)
	}
	if action := word(want, "action"); action != "" {
		require.Equal(s.t, action, res.Decision.Action)
	}
	if trace, ok := want.Get("trace"); ok && settings != "" {
		for line := range trace.Items() {
			text, _ := line.AsString()
			require.Contains(s.t, res.Trace, text)
		}
	}
}

// drift ends two calls of a session with the outputs.
func (s *served) drift() {
	v, want := s.json("drift.json"), s.json("want.json")
	threshold, _ := v.Get("threshold")
	limit, _ := threshold.AsFloat()
	_, err := s.put("p", []*v1.TextFile{{Path: "policy.yaml", Content: fmt.Sprintf("drift_threshold: %v\n", max(limit, 0.000001))}})
	require.NoError(s.t, err)
	s.session("s")
	var last *v1.EndCallResponse
	for _, name := range []string{"baseline", "current"} {
		output, _ := v.Get(name)
		message := &structpb.Value{}
		require.NoError(s.t, message.UnmarshalJSON([]byte(output.JSON())))
		s.begin("s", name)
		last, err = s.node.calls.EndCall(s.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: name, Status: v1.Status_STATUS_SUCCEEDED, Output: message})
		require.NoError(s.t, err)
	}
	got := []value.Pair{
		{Key: "score", Value: value.OfString(fmt.Sprintf("%.6f", last.Drift.GetScore()))},
		{Key: "exceeded", Value: value.OfBool(last.Drift.GetExceeded())},
		{Key: "same_hash", Value: value.OfBool(last.Drift.GetBaselineHash() == last.Drift.GetCurrentHash())},
		{Key: "current_hash", Value: value.OfString(last.Drift.GetCurrentHash())},
	}
	if limit > 0 {
		got = append(got, value.Pair{Key: "threshold", Value: value.OfFloat(last.Drift.GetThreshold())})
	}
	s.subset("want.json", want, value.OfMap(got...))
}

// compare puts both policies under one name and compares what is stored.
func (s *served) compare() {
	var stored []*engine.Policy
	for _, name := range []string{"old", "new"} {
		_, err := s.put("p", []*v1.TextFile{{Path: "policy.yaml", Content: s.files[name+".yaml"]}})
		require.NoError(s.t, err)
		res, err := s.policies.GetPolicy(s.ctx(), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}})
		require.NoError(s.t, err)
		tree, err := engine.NewTree([]engine.File{{Path: "policy.yaml", Content: []byte(res.Policy.Files[0].Content)}})
		require.NoError(s.t, err)
		p, err := engine.Compile(tree)
		require.NoError(s.t, err)
		stored = append(stored, p)
	}
	older, newer := stored[0].Governance(), stored[1].Governance()
	s.subset("want.json", s.json("want.json"), value.OfMap(
		value.Pair{Key: "new_is_stricter", Value: value.OfBool(newer.StricterThan(older))},
		value.Pair{Key: "old_is_stricter", Value: value.OfBool(older.StricterThan(newer))},
	))
}

// subset compares the fields that want names and that the API carries. A text
// that ends in "..." stands for all that begin so.
func (s *served) subset(where string, want, got value.Value) {
	s.t.Helper()
	if want.Kind() == value.Map && got.Kind() == value.Map {
		for k, w := range want.All() {
			if g, ok := got.Get(k); ok {
				s.subset(where+": "+k, w, g)
			} else {
				require.Contains(s.t, []string{"premises", "events", "threshold", "changes", "conflicts_of_new", "policy_chain", "ask"}, k, "%s: there is no %s in %s", where, k, got.JSON())
			}
		}
		return
	}
	if w, ok := want.AsString(); ok && strings.HasSuffix(w, "...") {
		g, _ := got.AsString()
		require.True(s.t, strings.HasPrefix(g, strings.TrimSuffix(w, "...")), "%s: want %s, got %s", where, want.JSON(), got.JSON())
		return
	}
	require.True(s.t, value.Equal(want, got), "%s: want %s, got %s", where, want.JSON(), got.JSON())
}
