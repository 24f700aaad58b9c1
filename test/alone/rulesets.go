package alone

import (
	"context"
	"encoding/json"
	"fmt"
	"path"
	"regexp"
	"slices"
	"strings"

	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Rulesets of Edictum that are drawn anew each time, and the reference that says what they
// come to.

// An edict is a rule of a ruleset.
type edict struct {
	id, tool, action, message string
	mode                      string // of its own; "" for that of the file
	disabled                  bool
	when                      *clause
	observes, candidate       bool // once files are put together
}

// A ruleset is one file.
type ruleset struct {
	name, mode, extends string
	alongside           bool
	rules               []*edict
}

func (r *ruleset) file() *v1.TextFile {
	doc := map[string]any{
		"apiVersion": "edictum/v1", "kind": "Ruleset", "metadata": map[string]any{"name": r.name}, "defaults": map[string]any{"mode": r.mode},
		"tools": map[string]any{"ab": map[string]any{"side_effect": "read"}},
	}
	if r.extends != "" {
		doc["extends"] = r.extends
	}
	if r.alongside {
		doc["observe_alongside"] = true
	}
	var rules []any
	for _, e := range r.rules {
		rule := map[string]any{
			"id": e.id, "type": "pre", "tool": e.tool, "when": e.when.written(), "then": map[string]any{"action": e.action, "message": e.message, "tags": []string{e.id}},
		}
		if e.mode != "" {
			rule["mode"] = e.mode
		}
		if e.disabled {
			rule["enabled"] = false
		}
		rules = append(rules, rule)
	}
	doc["rules"] = rules
	text, _ := json.Marshal(doc) // which is YAML as well
	return &v1.TextFile{Path: r.name + ".yaml", Content: string(text)}
}

// composedOf is what files come to, in the order of their names: a rule takes the place of one
// with its id, a parent stands before the file that extends it, and a file that observes
// alongside decides nothing. The last mode is that of all rules that have none.
func composedOf(files []*ruleset) (rules []*edict) {
	mode := ""
	for _, f := range files {
		own := f.rules
		for _, other := range files {
			if other.name == f.extends {
				own = slices.Concat(other.rules, own)
			}
		}
		if slices.ContainsFunc(files, func(other *ruleset) bool { return other.extends == f.name }) {
			continue
		}
		if !f.alongside {
			mode = f.mode
		}
		for _, e := range own {
			e := new(*e)
			at := slices.IndexFunc(rules, func(x *edict) bool { return x.id == e.id })
			switch {
			case f.alongside:
				e.candidate, e.id = true, e.id+":candidate"
				rules = append(rules, e)
			case at >= 0:
				rules[at] = e
			default:
				rules = append(rules, e)
			}
		}
	}
	rules = slices.DeleteFunc(rules, func(e *edict) bool { return e.disabled })
	for _, e := range rules {
		e.observes = e.candidate || e.mode == "observe" || e.mode == "" && mode == "observe"
	}
	return rules
}

// come is what the reference says of a call: the first block decides, an ask where nothing
// blocks, and what stands beside the others is looked at where the call is let through.
func come(rules []*edict, call map[string]any) (v1.Outcome, *v1.Decision) {
	d := &v1.Decision{Allowed: true, Action: "allow", Reason: "No rules matched; default action applied", SideEffect: "irreversible"}
	tool := call["tool.name"].(string)
	if tool == "ab" {
		d.SideEffect = "read"
	}
	outcome := v1.Outcome_OUTCOME_ADMITTED
	for _, candidates := range []bool{false, true} {
		for _, e := range rules {
			if matches, _ := path.Match(e.tool, tool); !matches || e.candidate != candidates || candidates && !d.Allowed {
				continue
			}
			d.RulesEvaluated++
			t := e.when.judge(call)
			if t == isNot {
				continue
			}
			r := &v1.RuleRecord{
				Rule: e.id, Type: "precondition", Message: filled(e.message, call), Observed: e.observes, Candidate: candidates, PolicyError: t == unsure,
				Tags: []string{strings.TrimSuffix(e.id, ":candidate")},
			}
			d.Rules = append(d.Rules, r)
			if e.observes || !d.Allowed && e.action == "ask" {
				continue
			}
			d.Allowed, d.MatchedRule, d.Reason, d.Source, d.Error = false, e.id, r.Message, "yaml_precondition", ""
			if t == unsure {
				d.Error = "rule " + e.id + " could not be judged, and applies"
			}
			outcome, d.Action, d.Category = v1.Outcome_OUTCOME_APPROVAL_REQUIRED, "ask", "human_approval_required"
			if e.action == "ask" {
				continue
			}
			outcome, d.Action, d.Category = v1.Outcome_OUTCOME_DENIED_BY_POLICY, "deny", "policy_rule"
			if t == unsure {
				d.Category = "policy_error"
			}
			return outcome, d
		}
	}
	return outcome, d
}

var places = regexp.MustCompile(`\{[^}]+\}`)

// filled is a message with what its places select; one that selects nothing stays.
func filled(message string, call map[string]any) string {
	return places.ReplaceAllStringFunc(message, func(place string) string {
		if v, there := call[place[1:len(place)-1]]; there {
			return fmt.Sprint(v)
		}
		return place
	})
}

// put puts a policy of files under the script's own name.
func (s *script) put(files ...*v1.TextFile) (res *v1.PutPolicyResponse, ok bool) {
	req := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: files}
	return done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, req)
	})
}

// decides holds what Evaluate and BeginCall say of a call to one decision. Who decides is
// compared where that is given.
func (s *script) decides(req *v1.BeginCallRequest, outcome v1.Outcome, want *v1.Decision) *v1.BeginCallResponse {
	ask := &v1.EvaluateRequest{
		SessionId: s.own, Tool: req.Tool, ArgumentsJson: req.ArgumentsJson, ContextJson: req.ContextJson, Metadata: req.Metadata, MetadataJson: req.MetadataJson,
	}
	before, ok := done(s, "evaluate "+req.Tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, ask) })
	if !ok {
		return nil
	}
	res := s.begin(req)
	if s.outcome(res, outcome); s.over {
		return nil
	}
	for what, d := range map[string]*v1.Decision{"the decision": res.Decision, "what Evaluate says": before.Decision} {
		d, want := decided(d), proto.CloneOf(want)
		if want.PolicyDigest, want.PublicMessage = d.GetPolicyDigest(), d.GetPublicMessage(); want.Policy == "" {
			want.Policy = d.GetPolicy()
		}
		s.wrong((d.GetPublicMessage() == "") != want.Allowed || d.GetPolicy() == "" || d.GetPolicyDigest() == "", "%s is %v", what, d)
		s.alike(what+" on "+req.ArgumentsJson, d, want)
	}
	return res
}

// rulesets makes calls under rulesets that are drawn, and holds each to what the reference
// says of them, with each rule that has something to say.
func rulesets(s *script) {
	pinned := map[string]string{"env.E": pick(s, "ab", "bc", "2")}
	files := []*ruleset{s.ruleset("a", "r0", "r1", "r2", "r3", "r4", "r5")}
	files[0].rules = append(s.each(), files[0].rules...)
	if s.rng.IntN(6) > 0 {
		b := s.ruleset("b", "r1", "r3", "x0", "x1")
		switch s.rng.IntN(3) {
		case 0:
			b.alongside = true
		case 1:
			b.extends, b.rules = "a", b.rules[2:] // the id of a parent's rule is refused
		}
		files = append(files, b)
	}
	if s.rng.IntN(2) == 0 {
		files = append(files, s.ruleset("c", "r0", "x1", "x2"))
	}
	var tree []*v1.TextFile
	text := ""
	for _, f := range files {
		tree = append(tree, f.file())
		text += f.file().Content + "\n"
	}
	if s.rng.IntN(2) == 0 { // else the limits of a ruleset alone
		tree = append(tree, &v1.TextFile{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"})
	}
	s.rng.Shuffle(len(tree), func(i, j int) { tree[i], tree[j] = tree[j], tree[i] })
	if _, ok := s.put(tree...); !ok || !s.session(pinned) {
		return
	}
	rules := composedOf(files)
	for range 10 {
		req, call := s.selected(pinned)
		outcome, want := come(rules, call)
		if len(files) == 1 && !want.Allowed {
			want.Policy = "a"
		}
		if s.decides(req, outcome, want); s.over {
			return
		}
	}
}

// pick draws one of some texts.
func pick(s *script, of ...string) string { return of[s.rng.IntN(len(of))] }
