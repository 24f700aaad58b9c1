package alone

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What is drawn anew each time: rules, texts, and what holds a call up.

// A rule is one of a policy that was drawn.
type rule struct {
	name, field, operator, action string
	value                         any
	priority                      int
	override                      bool
}

// matches is what the reference says of a condition; a field that is missing has none.
func (r *rule) matches(fields map[string]any) bool {
	got, there := fields[r.field]
	if !there {
		return false
	}
	number, isNumber := got.(int)
	text, _ := got.(string)
	switch r.operator {
	case "eq":
		return got == r.value
	case "ne":
		return got != r.value
	case "gt":
		return isNumber && number > r.value.(int)
	case "gte":
		return isNumber && number >= r.value.(int)
	case "lt":
		return isNumber && number < r.value.(int)
	case "lte":
		return isNumber && number <= r.value.(int)
	case "in":
		return slices.Contains(r.value.([]any), got)
	case "not_in":
		return !slices.Contains(r.value.([]any), got)
	case "contains":
		return strings.Contains(text, r.value.(string))
	}
	return regexp.MustCompile(r.value.(string)).MatchString(text)
}

// says is what the reference says of a call: of rules in the order of their priority the
// first that matches decides, and one that denies wins over one that asks, wherever it
// stands.
func says(rules []*rule, otherwise string, fields map[string]any) (outcome v1.Outcome, by string) {
	for i, r := range rules {
		if !r.matches(fields) {
			continue
		}
		switch r.action {
		case "allow", "audit":
			return v1.Outcome_OUTCOME_ADMITTED, r.name
		case "deny", "block":
			return v1.Outcome_OUTCOME_DENIED_BY_POLICY, r.name
		}
		for _, other := range rules[i+1:] {
			if (other.action == "deny" || other.action == "block") && other.matches(fields) {
				return v1.Outcome_OUTCOME_DENIED_BY_POLICY, other.name
			}
		}
		return v1.Outcome_OUTCOME_APPROVAL_REQUIRED, r.name
	}
	if otherwise == "deny" {
		return v1.Outcome_OUTCOME_DENIED_BY_POLICY, ""
	}
	return v1.Outcome_OUTCOME_ADMITTED, ""
}

// drawn makes calls under rules that are drawn, and holds each to what the reference says
// of them.
func drawn(s *script) {
	pick := func(of ...string) string { return of[s.rng.IntN(len(of))] }
	var rules []*rule
	for i := range 2 + s.rng.IntN(6) {
		r := &rule{name: fmt.Sprint("r", i), action: pick("allow", "deny", "audit", "ask", "block"), priority: s.rng.IntN(4)}
		switch r.field = pick("arguments.n", "arguments.n", "arguments.s", "tool_name", "role"); r.field {
		case "arguments.n":
			r.operator, r.value = pick("eq", "ne", "gt", "gte", "lt", "lte"), s.rng.IntN(4)
		default:
			switch r.operator = pick("eq", "ne", "in", "not_in", "contains", "matches"); r.operator {
			case "eq", "ne":
				r.value = pick("ab", "bc", "cd")
			case "in", "not_in":
				r.value = []any{pick("ab", "bc"), pick("bc", "cd")}
			case "contains":
				r.value = pick("a", "b", "c")
			case "matches":
				r.value = pick("^a", "b$", "c")
			}
		}
		rules = append(rules, r)
	}
	otherwise := pick("allow", "allow", "deny")
	text := &strings.Builder{}
	fmt.Fprintf(text, "name: rules\ndefaults: {action: %s}\nrules:\n", otherwise)
	for _, r := range rules {
		value, _ := json.Marshal(r.value)
		fmt.Fprintf(text, "  - {name: %s, condition: {field: %s, operator: %s, value: %s}, action: %s, priority: %d}\n", r.name, r.field, r.operator, value, r.action, r.priority)
	}
	if !s.policyWith(text.String()) || !s.session(nil) {
		return
	}
	slices.SortStableFunc(rules, func(a, b *rule) int { return cmp.Compare(b.priority, a.priority) })
	for range 8 {
		fields, arguments, about := map[string]any{}, map[string]any{}, map[string]any{}
		if s.rng.IntN(5) > 0 {
			arguments["n"] = s.rng.IntN(4)
			fields["arguments.n"] = arguments["n"]
		}
		if s.rng.IntN(5) > 0 {
			arguments["s"] = pick("ab", "bc", "cd")
			fields["arguments.s"] = arguments["s"]
		}
		if s.rng.IntN(3) > 0 {
			about["role"] = pick("ab", "bc", "cd")
			fields["role"] = about["role"]
		}
		req := s.call(pick("ab", "bc", "cd"))
		fields["tool_name"] = req.Tool
		a, _ := json.Marshal(arguments)
		c, _ := json.Marshal(about)
		req.ArgumentsJson, req.ContextJson = string(a), string(c)
		want, by := says(rules, otherwise, fields)
		res := s.begin(req)
		if s.over {
			return
		}
		s.wrong(res.Outcome != want || res.Decision.GetMatchedRule() != by, "of %v it says %v, want %v by %q; the policy is\n%s", fields, res, want, by, text)
		ask := &v1.EvaluateRequest{SessionId: s.own, Tool: req.Tool, AgentId: s.own, ArgumentsJson: req.ArgumentsJson, ContextJson: req.ContextJson}
		said, ok := done(s, "evaluate", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
		if ok {
			s.wrong(said.Decision.GetAllowed() != (want == v1.Outcome_OUTCOME_ADMITTED) || said.Decision.GetMatchedRule() != by, "of %v Evaluate says %v, want %v by %q; the policy is\n%s", fields, said, want, by, text)
		}
	}
}

// folders makes calls about paths under rules of folders, some of which are for some paths
// alone or cut off what is above: those of the folder and of all above it hold together, and
// the default is that of the lowest.
func folders(s *script) {
	pick := func(of ...string) string { return of[s.rng.IntN(len(of))] }
	type file struct {
		folder, scope, otherwise string
		cuts                     bool
		rules                    []*rule
	}
	var files []*file
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"},
	}}
	priorities := s.rng.Perm(9)
	for i, folder := range []string{"", "sub/", "sub/deep/"} {
		if i > 0 && s.rng.IntN(4) == 0 {
			continue
		}
		f := &file{folder: folder, otherwise: "allow"}
		text := &strings.Builder{}
		fmt.Fprintf(text, "name: in-%d\n", i)
		switch s.rng.IntN(4) {
		case 0:
			f.scope = pick("*.py", "sub/*", "*deep*", "?.txt")
			fmt.Fprintf(text, "scope: %q\n", f.scope)
		case 1:
			f.cuts = i > 0
			fmt.Fprintf(text, "inherit: %v\n", !f.cuts)
		}
		if s.rng.IntN(2) == 0 {
			f.otherwise = pick("allow", "deny")
			fmt.Fprintf(text, "defaults: {action: %s}\n", f.otherwise)
		}
		text.WriteString("rules:\n")
		for n := range 1 + s.rng.IntN(3) {
			name := fmt.Sprint("r", n) // which others have as well
			if s.rng.IntN(4) == 0 {
				name = fmt.Sprint("r", i, n)
			}
			r := &rule{name: name, field: "arguments.n", operator: pick("eq", "gte", "lt"), action: pick("allow", "deny", "ask"), value: s.rng.IntN(4), priority: priorities[3*i+n]}
			r.override = i > 0 && s.rng.IntN(3) > 0
			f.rules = append(f.rules, r)
			fmt.Fprintf(text, "  - {name: %s, condition: {field: %s, operator: %s, value: %d}, action: %s, priority: %d, override: %v}\n", r.name, r.field, r.operator, r.value, r.action, r.priority, r.override)
		}
		files = append(files, f)
		put.Files = append(put.Files, &v1.TextFile{Path: folder + "governance.yaml", Content: text.String()})
	}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	for range 12 {
		path := pick("a.py", "b.txt", "sub/a.py", "sub/b.txt", "sub/deep/a.py", "sub/deep/b.txt")
		var rules []*rule
		otherwise := "allow"
		for _, f := range files { // from the root down
			if !strings.HasPrefix(path, f.folder) || f.scope != "" && !within(path, f.scope) {
				continue
			}
			if f.cuts {
				rules = nil
			}
			rules, otherwise = over(rules, f.rules), f.otherwise
		}
		slices.SortFunc(rules, func(a, b *rule) int { return cmp.Compare(b.priority, a.priority) })
		n := s.rng.IntN(4)
		req := s.call("one")
		req.ArgumentsJson, req.ContextJson = fmt.Sprintf(`{"n": %d}`, n), fmt.Sprintf(`{"path": %q}`, path)
		want, by := says(rules, otherwise, map[string]any{"arguments.n": n})
		res := s.begin(req)
		if s.over {
			return
		}
		s.wrong(res.Outcome != want || res.Decision.GetMatchedRule() != by, "of %d in %s it says %v, want %v by %q; the policy is %v", n, path, res, want, by, put.Files)
	}
}

// overrides has rules of the same name in a folder and in the one above, of all actions: what is
// denied above stays so, what is asked for above is asked for at least, and what is not said to
// override does not.
func overrides(s *script) {
	actions := []string{"allow", "deny", "ask"}
	above, below := "name: above\nrules:\n", "name: below\nrules:\n"
	var want []v1.Outcome
	for _, override := range []bool{true, false} {
		for _, first := range actions {
			for _, second := range actions {
				n := len(want)
				rule := fmt.Sprintf("  - {name: r%d, condition: {field: arguments.n, operator: eq, value: %d}, priority: %d, action: ", n, n, s.rng.IntN(9))
				above += rule + first + "}\n"
				below += rule + fmt.Sprintf("%s, override: %v}\n", second, override)
				is := first
				if override && (first == "allow" || first == "ask" && second == "deny") {
					is = second
				}
				want = append(want, map[string]v1.Outcome{
					"allow": v1.Outcome_OUTCOME_ADMITTED, "deny": v1.Outcome_OUTCOME_DENIED_BY_POLICY, "ask": v1.Outcome_OUTCOME_APPROVAL_REQUIRED,
				}[is])
			}
		}
	}
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"},
		{Path: "governance.yaml", Content: above}, {Path: "sub/governance.yaml", Content: below},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	for n, want := range want {
		req := s.call("one")
		req.ArgumentsJson, req.ContextJson = fmt.Sprintf(`{"n": %d}`, n), `{"path": "sub/a.py"}`
		if res := s.begin(req); !s.over {
			s.wrong(res.Outcome != want, "rule r%d comes to %v, want %v; the policy is %v", n, res, want, put.Files)
		}
	}
}

// over is what the rules of a folder come to with those above: of the same name there is the
// one above, unless that allows and the one below overrides it. A deny that tries to override an
// ask stands beside it.
func over(above, below []*rule) []*rule {
	all := slices.Clone(above)
	for _, r := range below {
		has := func(x *rule) bool { return x.name == r.name }
		of := func(action string) bool {
			return slices.ContainsFunc(above, func(x *rule) bool { return has(x) && x.action == action })
		}
		switch {
		case !slices.ContainsFunc(above, has), r.override && r.action == "deny" && of("ask") && !of("deny"):
			all = append(all, r)
		case r.override && !of("ask") && !of("deny"):
			all = append(slices.DeleteFunc(all, has), r)
		}
	}
	return all
}

// within reports whether a path is one that a pattern is for, whose stars stand for anything.
func within(path, pattern string) bool {
	text := regexp.QuoteMeta(pattern)
	text = strings.ReplaceAll(strings.ReplaceAll(text, `\*`, ".*"), `\?`, ".")
	return regexp.MustCompile("^" + text + "$").MatchString(path)
}

// texts keeps texts of all sorts, which come back as they were.
func texts(s *script) {
	all := []string{
		"", " ", "0", "-0", "007", "1.50", "+1", "1e3", ".5", "5.", "0x10", "1_000", "NaN", "null", "true", "[1]", `{"a":1}`, "\x00", "ü", "\u202e", "a\nb",
		"9223372036854775807", "9223372036854.775808", "-9223372036854.775808", "0.0000001", "00", "1 ", " 1", strings.Repeat("x", 3000), strings.Repeat("7", 40),
	}
	s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	want, versions := map[string]string{}, map[string]string{}
	for i, text := range all[:6] {
		req := &v1.SetRequest{Key: fmt.Sprint(s.own, "-", i), Value: text, RequestId: s.id(), Client: s.own}
		set, ok := done(s, fmt.Sprintf("set %.40q", text), func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, req) })
		if !ok {
			return
		}
		want[req.Key] = text
		for key, version := range versions {
			s.wrong(version == set.Version, "%.40q has the version %q, as %.40q", text, version, want[key])
		}
		versions[req.Key] = set.Version
		got, ok := done(s, fmt.Sprintf("get %.40q", text), func(ctx context.Context, n *node) (*v1.GetResponse, error) {
			return n.counters.Get(ctx, &v1.GetRequest{Key: req.Key})
		})
		s.wrong(ok && (!got.Found || got.Value != text || got.Version != set.Version), "it is %.60q of version %q, want %.60q of %q", got.GetValue(), got.GetVersion(), text, set.Version)
	}
	many, ok := done(s, "get all", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
		return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: slices.Collect(maps.Keys(want))})
	})
	s.wrong(ok && (!maps.Equal(many.Values, want) || !maps.Equal(many.Versions, versions)), "values are %.200v, want %.200v", many, want)
	put := &v1.AppendRequest{Key: s.own, Items: all[6:12], Ttl: long, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "append", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return n.counters.Append(ctx, put) }); !ok {
		return
	}
	items, ok := done(s, "read the list", func(ctx context.Context, n *node) (*v1.RangeResponse, error) {
		return n.counters.Range(ctx, &v1.RangeRequest{Key: s.own})
	})
	if ok {
		var got []string
		for _, i := range items.Items {
			got = append(got, i.Value)
		}
		s.wrong(!slices.Equal(got, put.Items), "items are %.200q, want %.200q", got, put.Items)
	}
}

// heldUp begins calls that are charged in all ways and that a STOP, people and a full pool
// hold up, as drawn: asked for at all nodes at once each is charged once.
func heldUp(s *script) {
	stopped, asked, full := s.rng.IntN(2) == 0, s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 100, Per: durationpb.New(24 * time.Hour), RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	root, child, every := s.own+"-root", s.own+"-child", s.own+"-every"
	for _, b := range []*v1.PutBudgetRequest{{Budget: root, Amount: "100"}, {Budget: child, Parent: root, Amount: "50"}, {Budget: every, Parent: root, Amount: "50"}} {
		b.RequestId, b.Client = s.id(), s.own
		done(s, "put "+b.Budget, func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) { return n.limits.PutBudget(ctx, b) })
	}
	text := "max_tool_calls: 100\nmax_tokens: 1000\nbudgets: [{budget: " + every + ", amount: 0.5}]\n"
	if asked {
		text += "require_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n"
	}
	if !s.policy(text) || !s.session(nil) {
		return
	}
	req := s.call("one")
	req.Pools, req.Rates, req.Budgets = []*v1.Want{{Pool: s.own}}, []*v1.RateWant{{Rate: s.own, Cost: 3}}, []*v1.BudgetAmount{{Budget: child, Amount: "2"}}
	req.Tokens, req.Wait = 10, durationpb.New(10*time.Second)
	var held *v1.AcquireSlotResponse
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	if full {
		held, _ = done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, take)
		})
	}
	send := func(signal string) {
		req := &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: s.own}, Signal: signal, RequestId: s.id(), Client: s.own}
		done(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, req) })
	}
	approval := ""
	if asked {
		res := s.batch("begin what is asked about", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		if s.over {
			return
		}
		if approval = res[0].GetBegin().GetApproval().GetId(); approval == "" {
			s.wrong(true, "people are not asked: %v", res[0])
			return
		}
	}
	if stopped {
		send("STOP")
	}
	if s.over {
		return
	}
	answers := make(chan *v1.BeginCallResponse, 2*len(s.nodes))
	var under sync.WaitGroup
	for i := range cap(answers) {
		at := s.nodes[i%len(s.nodes)]
		under.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, 12*time.Second)
			defer cancel()
			if res, err := at.calls.BeginCall(ctx, req); err == nil {
				answers <- res
			}
		})
	}
	defer under.Wait()
	var ways []func()
	if stopped {
		ways = append(ways, func() { send("CONTINUE") })
	}
	if asked {
		ways = append(ways, func() { s.vote(s.rng.IntN(2), approval, v1.Vote_VOTE_APPROVE) })
	}
	if full {
		release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: held.GetToken()}
		ways = append(ways, func() {
			done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
				return n.slots.ReleaseSlot(ctx, release)
			})
		})
	}
	s.rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	for _, free := range ways {
		select {
		case <-s.ctx.Done():
		case <-time.After(time.Duration(s.rng.Int64N(int64(600 * time.Millisecond)))):
		}
		free()
	}
	under.Wait()
	close(answers)
	if s.over {
		return
	}
	res := s.begin(req)
	if s.over {
		return
	}
	for a := range answers {
		s.wrong(a.Outcome == v1.Outcome_OUTCOME_ADMITTED && (res.Outcome != a.Outcome || res.Grants[0].Token != a.Grants[0].Token), "it is answered by %v and by %v", a, res)
	}
	if res.Outcome != v1.Outcome_OUTCOME_ADMITTED { // its wait was over before all had been heard
		s.over = true
		return
	}
	see := func(ofChild, ofEvery, ofRoot string, slots int32) {
		for name, want := range map[string]string{child: ofChild, every: ofEvery, root: ofRoot} {
			b, ok := done(s, "get "+name, func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
				return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: name})
			})
			s.wrong(ok && b.Budget.Used != want, "%v is used up to %v, want %s", name, b.GetBudget(), want)
		}
		r, ok := done(s, "get the rate", func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: s.own})
		})
		s.wrong(ok && (r.Rate.Used != 3 || r.Rate.Waiting != 0), "the rate is %v", r.GetRate())
		for _, name := range []string{s.own, "policy/" + s.own} {
			p, ok := done(s, "get a pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: name})
			})
			s.wrong(ok && (p.Pool.InUse != slots || p.Pool.Waiting != 0), "the pool is %v, want %d in use", p.GetPool(), slots)
		}
	}
	see("2", "0.5", "2.5", 1)
	want := &account{tools: map[string]int32{"one": 1}, open: []string{req.CallId}}
	want.Attempts, want.Calls = 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	s.end(&v1.EndCallRequest{CallId: req.CallId, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(4), Spent: []*v1.BudgetAmount{{Budget: child, Amount: "1.25"}}})
	see("1.25", "0.5", "1.75", 0)
	want.Executions, want.TokensUsed, want.open = 1, 4, nil
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// givenUp begins a call, or asks for a slot, by the client and gives that up at some moment:
// what it may have been granted is given back by itself, and who waited waits no more.
func givenUp(s *script) {
	defer func() { s.single = true }() // what was given up may still be on its way, and change the session
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	open := s.shipped.Session(s.own)
	for range 3 {
		// What was given up may still be on its way, and be granted and given back now.
		take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long, Wait: durationpb.New(2 * time.Second)}
		full := s.rng.IntN(2) == 0
		held := &v1.AcquireSlotResponse{}
		if full {
			held, _ = done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
				return n.slots.AcquireSlot(ctx, take)
			})
		}
		if s.over || full && held.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			return
		}
		s.last, s.tries = "give up", 1
		patience := 300 * time.Millisecond
		if s.rng.IntN(2) == 0 {
			patience = 5 * time.Millisecond
		}
		ctx, cancel := context.WithTimeout(s.ctx, time.Duration(1+s.rng.Int64N(int64(patience))))
		granted := true
		if s.rng.IntN(2) == 0 {
			call, err := open.Begin(ctx, client.Call{Tool: "one", Pools: []client.Want{{Pool: s.own}}, TTL: long.AsDuration(), Wait: 10 * time.Second})
			if granted = err == nil; granted {
				_ = call.End(s.ctx, client.Succeeded)
			}
		} else {
			slot, err := s.shipped.Acquire(ctx, s.own, client.TTL(long.AsDuration()), client.Wait(10*time.Second))
			if granted = err == nil; granted {
				_ = slot.ReleaseContext(s.ctx)
			}
		}
		cancel()
		s.wrong(granted && full, "it was granted, and there is no room")
		if full {
			release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: held.Token}
			done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
				return n.slots.ReleaseSlot(ctx, release)
			})
		}
		for free := false; !free; {
			p, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
			})
			if !ok {
				return // where it could not be given back in time it is held until its lease ends
			}
			if free = p.Pool.InUse == 0 && p.Pool.Waiting == 0; !free {
				select {
				case <-s.ctx.Done():
				case <-time.After(100 * time.Millisecond):
				}
			}
		}
	}
}
