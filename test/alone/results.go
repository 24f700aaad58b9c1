package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What rules make of what calls return, in every field.

// A later rule is one that looks at what is returned.
type later struct {
	id, when, action, message string
	kind, field               string // of what it finds
	observes                  bool
}

var laters = []later{
	{id: "odd", when: "{output.text: {contains: odd}}", action: "warn", message: "odd {args.name}.", kind: "policy_violation", field: "text"},
	{id: "gone", when: "{all: [{args.name: {equals: other}}, {output.text: {contains: salary}}]}", action: "block", message: "the salary of {args.name}", kind: "policy_violation"},
	{id: "keys", when: `{output.text: {matches: "sk-[a-z0-9]+"}}`, action: "redact", message: "a key.", kind: "secret_detected"},
	{id: "mails", when: `{result.user.mail: {matches: "[a-z]+@x[.]io"}}`, action: "redact", message: "a mail.", kind: "policy_violation"},
	{id: "plain", when: "{output.text: {contains: export}}", action: "redact", message: "of a patient.", kind: "pii_detected"},
	{id: "quiet", when: "{output.text: {contains: quiet}}", action: "block", message: "hush.", kind: "policy_violation", observes: true},
	{id: "many", when: "{result.n: {gt: 5}}", action: "warn", message: "over the limit.", kind: "limit_exceeded"},
	{id: "far", when: "{all: [{env.REGION: {equals: far}}, {output.text: {contains: border}}]}", action: "block", message: "not from here", kind: "policy_violation"},
}

// review is what the reference says of an output, given the rules that apply, in order, and
// what is left of it. Those of unsure could not judge it.
func (x *returned) review() *v1.Review {
	const sign = "⚠️ "
	r := &v1.Review{Passed: true}
	if x.shown != nil {
		r.Changed = true
		r.Output, _ = structpb.NewValue(x.shown)
	}
	for _, l := range laters {
		if !strings.Contains(" "+x.by+" ", " "+l.id+" ") {
			continue
		}
		message := strings.ReplaceAll(l.message, "{args.name}", x.name)
		record := &v1.RuleRecord{Rule: l.id, Type: "postcondition", Message: message, Observed: l.observes, PolicyError: l.id == x.unsure, Tags: []string{"of " + l.id}}
		found := &v1.ReviewFinding{Type: l.kind, Rule: l.id, Field: "output", Message: message}
		if l.field != "" {
			found.Field = l.field
			found.Metadata = &structpb.Struct{Fields: map[string]*structpb.Value{"field": structpb.NewStringValue(l.field)}}
			record.Metadata = found.Metadata
		}
		r.Rules, r.Findings, r.PolicyError = append(r.Rules, record), append(r.Findings, found), r.PolicyError || record.PolicyError
		if l.observes {
			r.Warnings = append(r.Warnings, sign+"[observe] "+message)
			continue
		}
		r.Passed = false
		switch l.action {
		case "redact":
			r.Warnings = append(r.Warnings, sign+"Content redacted by "+l.id+".")
		case "block":
			r.Suppressed = true
			r.Warnings = append(r.Warnings, sign+"Output suppressed by "+l.id+".")
		}
		switch { // what a call has done is done
		case x.tool == "save":
			r.Warnings = append(r.Warnings, sign+message+" Tool already executed — assess before proceeding.")
		case l.action == "warn":
			r.Warnings = append(r.Warnings, sign+message+" Consider retrying.")
		}
	}
	return r
}

// returned is what a call has returned.
type returned struct {
	tool, name string
	output     any
	by         string // the rules that apply
	shown      any    // in place of the output; nil for itself
	unsure     string // of which this one could not judge it
	failed     bool
}

// reviewed ends calls with what they have returned, with and without the request that began
// them, and has the same judged by Evaluate.
func reviewed(s *script) {
	rules := ""
	for _, l := range laters {
		rules += "  - {id: " + l.id + ", type: post, tool: \"[ls]*\", when: " + l.when + ", "
		if l.observes {
			rules += "mode: observe, "
		}
		rules += "then: {action: " + l.action + ", message: \"" + l.message + "\", tags: [of " + l.id + "]"
		if l.field != "" {
			rules += ", metadata: {field: " + l.field + "}"
		}
		rules += "}}\n"
	}
	limits := &v1.TextFile{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_concurrent: 64\nmax_tool_calls: 100\n"}
	if _, ok := s.put(limits, edicts("looks", "tools: {look: {side_effect: read}, save: {side_effect: write}}\n", rules)); !ok || !s.session(map[string]string{"env.REGION": "far"}) {
		return
	}
	type fields = map[string]any
	const key, hidden = "the key is sk-a1b2", "the key is [REDACTED]"
	tries := []returned{
		{tool: "look", output: "nothing of note"}, {tool: "other", output: "odd quiet sk-a1b2"}, {tool: "look", output: nil},
		{tool: "look", output: "odd", by: "odd"}, {tool: "save", output: "odd", by: "odd"},
		{tool: "look", output: "salary: 5"}, {tool: "look", name: "other", output: "salary: 5", by: "gone", shown: "[OUTPUT SUPPRESSED] the salary of other"},
		{tool: "save", name: "other", output: "odd salary", by: "odd gone", shown: "[OUTPUT SUPPRESSED] the salary of other"},
		{tool: "look", output: key, by: "keys", shown: hidden}, {tool: "save", output: key, by: "keys", shown: hidden},
		{tool: "look", name: "other", output: "salary: sk-a1b2", by: "gone keys", shown: "[OUTPUT SUPPRESSED] the salary of other"},
		{tool: "look", output: fields{"k": "sk-a1b2", "n": 2}, by: "keys", shown: "{'k': '[REDACTED]', 'n': 2}"},
		{tool: "look", output: fields{"user": fields{"mail": "to anna@x.io", "id": 7}, "n": 3}, by: "mails", shown: fields{"user": fields{"mail": "to [REDACTED]", "id": 7}, "n": 3}},
		{tool: "look", output: fields{"user": fields{"mail": 5}}, by: "mails", unsure: "mails", shown: fields{"user": fields{"mail": "[REDACTED]"}}},
		{tool: "look", output: fields{"user": fields{"name": "anna@x.io"}}},
		{tool: "look", output: "export API_KEY=abc123 and more", by: "plain", shown: "export API_KEY=[REDACTED] and more"},
		{tool: "save", output: fields{"lines": []any{"export DB_PASSWORD=x1", "fine"}}, by: "plain", shown: fields{"lines": []any{"export DB_PASSWORD=[REDACTED]", "fine"}}},
		{tool: "look", output: "quiet", by: "quiet"}, {tool: "look", output: "odd and quiet", by: "odd quiet"},
		{tool: "look", output: fields{"n": 9}, by: "many"}, {tool: "save", output: fields{"n": 6}, by: "many"}, {tool: "look", output: fields{"n": 5}},
		{tool: "look", output: fields{"n": "9"}, by: "many", unsure: "many"}, {tool: "look", output: "over the border", by: "far", shown: "[OUTPUT SUPPRESSED] not from here"},
		{tool: "look", output: fields{"is_error": true, "text": "odd"}, by: "odd", failed: true}, {tool: "look", output: fields{"is_error": false}}, {tool: "other", output: "Fatal: it is over", failed: true},
	}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	want := &account{tools: map[string]int32{}}
	for _, x := range tries[:14] {
		if x.name == "" {
			x.name = "me"
		}
		output, err := structpb.NewValue(x.output)
		if err != nil {
			panic(err)
		}
		req := s.call(x.tool)
		req.ArgumentsJson, req.ContextJson = `{"name": "`+x.name+`"}`, `{"env": {"REGION": "near"}}` // which is pinned
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_ADMITTED); s.over {
			return
		}
		same(s, "whether it is reviewed", res.Reviews, x.tool != "other")
		end := &v1.EndCallRequest{SessionId: s.own, CallId: req.CallId, Output: output}
		if s.rng.IntN(3) == 0 {
			s.otherwise(end, req)
		}
		review := x.review()
		s.wouldReview(&x, output, review)
		if x.tool == "other" {
			review = nil
		}
		// The wait is no part of what was asked for.
		end.Begin = proto.CloneOf(req)
		end.Begin.Wait = durationpb.New(time.Second)
		unsaid := x.tool != "other" && s.rng.IntN(5) == 0
		if unsaid { // what the call was
			end.Begin = nil
		}
		got := s.end(end).GetReview()
		if s.over {
			return
		}
		if unsaid {
			s.wrong(!got.GetSuppressed() || !got.Changed || got.Passed || !got.PolicyError || len(got.Warnings) != 1 || !strings.HasPrefix(got.Output.GetStringValue(), "[OUTPUT SUPPRESSED] ") || strings.Contains(got.String(), "sk-a1b2"),
				"of %v without its begin the review is %v", x, got)
		} else {
			s.wrong((got == nil) != (review == nil) || !proto.Equal(got, review), "of %v the review is {%v}, want {%v}", x, got, review)
		}
		want.Attempts, want.Calls, want.Executions, want.ConsecutiveFailures = want.Attempts+1, want.Calls+1, want.Executions+1, want.ConsecutiveFailures+1
		if want.tools[x.tool]++; x.failed {
			want.Failures++
		} else {
			want.ConsecutiveFailures = 0
		}
	}
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
}

// otherwise ends a call with the request of another one, which ends nothing.
func (s *script) otherwise(end *v1.EndCallRequest, begun *v1.BeginCallRequest) {
	others := map[string]func(*v1.BeginCallRequest){
		"other arguments": func(r *v1.BeginCallRequest) { r.ArgumentsJson = `{"name": "nobody"}` }, "another tool": func(r *v1.BeginCallRequest) { r.Tool += "s" },
		"another context": func(r *v1.BeginCallRequest) { r.ContextJson = `{"env": {}}` }, "other metadata": func(r *v1.BeginCallRequest) { r.Metadata = map[string]string{"a": "b"} },
		"another call": func(r *v1.BeginCallRequest) { r.CallId = s.id() }, "another session": func(r *v1.BeginCallRequest) { r.SessionId += "-other" },
	}
	for what, change := range others {
		req := proto.CloneOf(end)
		req.Begin = proto.CloneOf(begun)
		change(req.Begin)
		res, reason, ok := told(s, "end with "+what, func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, req) })
		s.wrong(ok && reason != "INVALID_FIELD", "it was another call, and ends by {%v} (%s)", res, reason)
		if s.rng.IntN(2) == 0 {
			return
		}
	}
}

// wouldReview has the same judged by Evaluate, which tells of the rules that passed as well.
func (s *script) wouldReview(x *returned, output *structpb.Value, want *v1.Review) {
	req := &v1.EvaluateRequest{SessionId: s.own, Tool: x.tool, ArgumentsJson: `{"name": "` + x.name + `"}`, Output: output}
	if s.rng.IntN(2) == 0 { // nothing is pinned there
		req.SessionId, req.Policy, req.ContextJson = "", &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, `{"env": {"REGION": "far"}}`
	}
	res, ok := done(s, "evaluate an output", func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) { return n.policies.Evaluate(ctx, req) })
	if !ok {
		return
	}
	got := proto.CloneOf(res.Review)
	if got == nil {
		got = &v1.Review{}
	}
	var rules []*v1.RuleRecord
	for _, r := range got.Rules {
		if !r.Passed {
			rules = append(rules, r)
		}
	}
	s.wrong(x.tool != "other" && len(got.Rules) != len(laters), "of %v Evaluate tells of %v", x, got.Rules)
	got.Rules = rules
	s.alike("what Evaluate makes of "+req.ArgumentsJson, got, want)
}
