package alone

import (
	"context"
	"fmt"
	"strings"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What the limits of a policy say of calls, each alone and with what decides before it.

// A corner is a call under a policy, and what is said of it.
type corner struct {
	tool, arguments, context string
	early                    bool // in the other order of the checks
	category, public, reason string
}

const (
	approvalFirst = "human_approval_required"
	noApproval    = "Human approval required."
	noContent     = "Content blocked by governance policy."
	noTool        = "Tool not permitted by governance policy."
	doubt         = "confidence_threshold"
	tooUnsure     = "Confidence below required threshold."
)

// cornersOf are calls, by the limits and the rules of their policy.
var cornersOf = []struct {
	limits, rules string
	calls         []corner
}{
	// Nobody can be asked, so all are denied: as the first check, or as the fourth.
	{"require_human_approval: true\nallowed_tools: [one]\nblocked_patterns: [drop, {pattern: 'x\\d+', type: regex}]\n", "", []corner{
		{"one", ``, ``, false, approvalFirst, noApproval, "Tool 'one' requires human approval per governance policy"},
		{"one", ``, ``, true, approvalFirst, noApproval, "Execution requires human approval per governance policy"},
		{"two", `{"q": "DROP x12"}`, `{"confidence": 0.1}`, false, approvalFirst, noApproval, "Tool 'two' requires human approval per governance policy"},
		{"two", `{"q": "DROP x12"}`, `{"confidence": 0.1}`, true, "blocked_pattern_input", noContent, "Blocked pattern detected: drop"},
		{"two", `{"q": "X12"}`, `{"confidence": 0.1}`, true, "blocked_pattern_input", noContent, `Blocked pattern detected: x\d+`},
		{"two", ``, `{"confidence": 0.1}`, true, approvalFirst, noApproval, "Execution requires human approval per governance policy"},
		{"", ``, ``, false, approvalFirst, noApproval, "Execution requires human approval per governance policy"},
	}},
	{"allowed_tools: [one, three]\nblocked_patterns: [drop, {pattern: 'x\\d+', type: regex}]\n", "", []corner{
		{"one", `{"q": ["a", {"X12": 1}]}`, ``, false, "blocked_pattern_tool", noContent, `Blocked pattern 'x\d+' detected in tool 'one' arguments`},
		{"", `{"q": "drop"}`, ``, false, "blocked_pattern_tool", noContent, "Blocked pattern 'drop' detected in tool arguments"},
		{"two", `{"q": "drop"}`, `{"confidence": 0.1}`, false, "not_allowed_tool", noTool, "Tool 'two' not in allowed list: ['one', 'three']"},
		{"two", ``, `{"confidence": 0.1}`, true, doubt, tooUnsure, "Confidence 0.10 below threshold 0.80"},
		{"two", ``, ``, true, "not_allowed_tool", noTool, "Tool 'two' not in allowed list: ['one', 'three']"},
		{"three", ``, ``, true, "", "", ""}, {"", ``, ``, false, "", "", ""},
	}},
	{"deny_all_tools: true\n", "", []corner{{"one", ``, ``, false, "not_allowed_tool", noTool, "Tool 'one' not in allowed list: []"}, {"", ``, ``, true, "", "", ""}}},
	// The higher one of two thresholds holds, and that of the rules alone where there is no other.
	{"confidence_threshold: 0.5\n", "", []corner{{"one", ``, `{"confidence": 0.5}`, false, "", "", ""}, {"one", ``, `{"confidence": 0.49}`, true, doubt, tooUnsure, "Confidence 0.49 below threshold 0.50"}}},
	{"confidence_threshold: 0.5\n", "defaults: {confidence_threshold: 0.9}\n", []corner{
		{"one", ``, `{"confidence": 0.9}`, false, "", "", ""}, {"one", ``, `{"confidence": 0.89}`, false, doubt, tooUnsure, "Confidence 0.89 below threshold 0.90"},
	}},
	{"confidence_threshold: 0.5\n", "defaults: {confidence_threshold: 0.3}\n", []corner{
		{"one", ``, `{"confidence": 0.5}`, false, "", "", ""}, {"", ``, `{"confidence": 0.49}`, false, doubt, tooUnsure, "Confidence 0.49 below threshold 0.50"},
	}},
	{"", "defaults: {confidence_threshold: 0.3}\n", []corner{{"one", ``, `{"confidence": 0.3}`, false, "", "", ""}, {"one", ``, `{"confidence": 0.29}`, false, doubt, tooUnsure, "Confidence 0.29 below threshold 0.30"}}},
}

// corners evaluates and makes calls under some of these policies.
func corners(s *script) {
	for i, of := range s.rng.Perm(len(cornersOf))[:4] {
		x, name := &cornersOf[of], fmt.Sprintf("%s-%d", s.own, i)
		var files []*v1.TextFile
		if x.limits != "" {
			files = append(files, limitsFile(name, x.limits))
		}
		if x.rules != "" {
			files = append(files, &v1.TextFile{Path: "rules.yaml", Content: "name: rules\n" + x.rules})
		}
		if !s.under(name, files...) {
			return
		}
		for _, c := range x.calls {
			says := func(who string, d *v1.Decision) {
				allowed, action := c.category == "", "deny"
				if allowed {
					action, c.reason = "allow", d.GetReason()
				}
				s.wrong(d.GetAllowed() != allowed || d.GetAction() != action || d.GetMatchedRule() != "" || d.GetCategory() != c.category || d.GetPublicMessage() != c.public || d.GetReason() != c.reason,
					"%s says {%v} of %+v under %q and %q", who, d, c, x.limits, x.rules)
			}
			req := s.call(c.tool)
			req.SessionId, req.ArgumentsJson, req.ContextJson = name, c.arguments, c.context
			if req.Tool == "" {
				req.Kind = v1.Kind_KIND_MODEL
			}
			if c.early {
				req.Order = v1.Order_ORDER_PRE_EXECUTE
			}
			if c.tool != "" { // else it is no call of a tool, which is all that is evaluated
				would, ok := done(s, "evaluate "+c.tool, func(ctx context.Context, n *node) (*v1.EvaluateResponse, error) {
					return n.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: name, Tool: c.tool, ArgumentsJson: c.arguments, ContextJson: c.context, Order: req.Order})
				})
				if ok {
					says("Evaluate", would.Decision)
				}
			}
			res := s.begin(req)
			if s.over {
				return
			}
			s.wrong((res.Outcome == v1.Outcome_OUTCOME_ADMITTED) != (c.category == "") || res.Outcome != v1.Outcome_OUTCOME_ADMITTED && res.Outcome != v1.Outcome_OUTCOME_DENIED_BY_POLICY, "the outcome is %v", res)
			says("the answer", res.Decision)
		}
	}
}

// faulty puts trees with faults, which are refused as a whole: each fault is told with its file
// and its line.
func faulty(s *script) {
	name := "name: " + s.own + "\n"
	good := &v1.TextFile{Path: "good.yaml", Content: "name: good\nrules:\n  - {name: a, condition: {field: n, operator: eq, value: 1}, action: deny}\n"}
	for _, x := range []struct {
		file  *v1.TextFile
		wants []string // of the faults, in the order in which they are found
	}{
		{&v1.TextFile{Path: "limits.yaml", Content: name + "\nmax_tool_calls: -1\nmax_attempts: 5\nmax_concurrent: 0\n"}, []string{"limits.yaml:5: max_concurrent", "limits.yaml:3: max_tool_calls"}},
		{&v1.TextFile{Path: "sub/governance.yaml", Content: "name: sub\nrules:\n  - name: a\n    condition: {field: n, operator: near, value: 1}\n    action: deny\n"}, []string{"sub/governance.yaml:4: "}},
		{&v1.TextFile{Path: "more.yaml", Content: "name: more\nrules: [{name: a, condition: {field: n, operator: matches, value: '('}, action: deny}]\n"}, []string{"more.yaml:2: "}},
		{&v1.TextFile{Path: "notes.txt", Content: "a policy"}, []string{"notes.txt: "}},
	} {
		req := &v1.PutPolicyRequest{Name: s.own, Files: []*v1.TextFile{good, x.file}, RequestId: s.id(), Client: s.own}
		var says map[string]string
		_, reason, ok := told(s, "put a tree with faults", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			res, err := n.policies.PutPolicy(ctx, req)
			says = metadata(err)
			return res, err
		})
		if !ok {
			return
		}
		s.wrong(reason != "INVALID_POLICY" || says["problems"] != fmt.Sprint(len(x.wants)), "%s is refused by %s with %v", x.file.Path, reason, says)
		for i, want := range x.wants {
			problem := says[fmt.Sprintf("problem%03d", i)]
			s.wrong(!strings.HasPrefix(problem, want), "of %s it says %q, want %s", x.file.Path, problem, want)
		}
	}
	absent(s, "get the policy", func(ctx context.Context, n *node) (*v1.GetPolicyResponse, error) {
		return n.policies.GetPolicy(ctx, &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: s.own}})
	})
}
