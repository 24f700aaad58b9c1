package alone

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A factOf is a fact of a session that rules may look at.
type factOf struct {
	field     string
	base, one int  // what it is behind the calls that come first, and what a call adds to it
	frees     bool // the end of a call takes that back
}

// facts begins calls at once under two rules over one fact, by some that are drawn.
func facts(s *script) {
	all := []factOf{{"call_count", 2, 1, false}, {"attempts", 4, 1, false}, {"tokens_used", 20, 10, true}, {"tool_calls.one", 0, 1, false}, {"active_slots", 1, 1, true}}
	for _, i := range s.rng.Perm(len(all))[:2] {
		if s.fact(all[i]); s.over {
			return
		}
	}
}

// fact begins calls at once: no more are admitted than the stricter rule lets through, at
// whatever nodes they are judged and whatever their context says of the fact.
func (s *script) fact(x factOf) {
	rule := func(name string, calls int) string {
		return fmt.Sprintf("{name: %s, condition: {field: %s, operator: gte, value: %d}, action: deny, message: %s}", name, x.field, x.base+calls*x.one, name)
	}
	rules := []string{rule("strict", 3), rule("loose", 20)}
	if s.rng.IntN(2) == 0 {
		slices.Reverse(rules)
	}
	name := s.own + "-" + x.field
	if !s.under(name, limitsFile(name, "allowed_tools: [one, two]\n"), &v1.TextFile{Path: "rules.yaml", Content: "name: rules\nrules: [" + rules[0] + ", " + rules[1] + "]\n"}) {
		return
	}
	call := func(tool string) *v1.BeginCallRequest {
		req := s.call(tool)
		req.SessionId = name
		if req.Tokens = 10; s.rng.IntN(2) == 0 {
			req.ContextJson = `{"call_count": 0, "attempts": 0, "tokens_used": 0, "active_slots": 0, "tool_calls": {"one": 0}, "tool_calls.one": 0}`
		}
		return req
	}
	end := func(id string, tokens *int64) {
		req := &v1.EndCallRequest{SessionId: name, CallId: id, Status: v1.Status_STATUS_SUCCEEDED, Tokens: tokens}
		done(s, "end", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, req) })
	}
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	// What comes first makes each fact another number.
	first := call("two")
	s.outcome(s.begin(first), admitted)
	s.outcome(s.begin(call("two")), admitted)
	end(first.CallId, nil)
	for range 2 {
		s.outcome(s.begin(call("three")), denied)
	}
	if s.over {
		return
	}
	type answer struct {
		id  string
		res *v1.BeginCallResponse
		ok  bool
	}
	answers := make(chan answer, 6)
	var under sync.WaitGroup
	for range cap(answers) {
		req, at := call("one"), s.nodes[s.rng.IntN(len(s.nodes))]
		under.Go(func() {
			ctx, cancel := context.WithTimeout(s.ctx, 3*time.Second)
			defer cancel()
			res, err := at.calls.BeginCall(ctx, req)
			answers <- answer{req.CallId, res, err == nil}
		})
	}
	under.Wait()
	close(answers)
	s.last = "begin six calls at once by " + x.field
	var in []string
	all := true
	for a := range answers {
		switch {
		case !a.ok:
			all = false
		case a.res.Outcome == admitted:
			in = append(in, a.id)
		default:
			s.wrong(a.res.Outcome != denied || a.res.Reason != "strict", "the outcome is %v", a.res)
		}
	}
	s.wrong(len(in) > 3 || all && len(in) < 3, "%d were admitted of those that may be 3 (all answered: %v)", len(in), all)
	if s.over = s.over || !all; s.over { // nobody knows what became of the others
		return
	}
	s.outcome(s.begin(call("one")), denied)
	end(in[0], proto.Int64(0))
	if x.frees {
		s.outcome(s.begin(call("one")), admitted)
	} else {
		s.outcome(s.begin(call("one")), denied)
	}
}
