package alone

import (
	"context"
	"fmt"
	"slices"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A sort is what a call says that it is.
type sort struct {
	kind v1.Kind
	tool string
}

// sortsOf are all that there are, for calls that may name a tool: one of KIND_TOOL has to.
func sortsOf(tool string) (all []sort) {
	for kind := range v1.Kind_name {
		all = append(all, sort{v1.Kind(kind), tool})
		if kind > int32(v1.Kind_KIND_TOOL) && kind != int32(v1.Kind_KIND_SAMPLING) {
			all = append(all, sort{v1.Kind(kind), ""})
		}
	}
	return all
}

// ofTool is of a call that names a tool, of whatever kind: it is a call of that.
func (x sort) ofTool() bool { return x.tool != "" && x.kind != v1.Kind_KIND_SAMPLING }

// counts is of what max_tool_calls bounds.
func (x sort) counts() bool { return x.ofTool() || x.kind == v1.Kind_KIND_MODEL }

// sorts makes calls of each kind, with a tool and without one, and holds the counters and
// what limits them to the table of the kinds.
func sorts(s *script) {
	n := 0
	// open puts a policy and opens a session of it, both under a name of their own.
	open := func(policy string) string {
		n++
		name := fmt.Sprintf("%s-%d", s.own, n)
		put := &v1.PutPolicyRequest{Yaml: "name: " + name + "\n" + policy, RequestId: s.id(), Client: s.own}
		done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			return n.policies.PutPolicy(ctx, put)
		})
		create := &v1.CreateSessionRequest{SessionId: name, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: name}}}
		done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, create)
		})
		return name
	}
	want, byKind := &account{tools: map[string]int32{}}, &v1.KindCounters{SamplingRequests: map[string]int32{}}
	inUse := int32(0)
	begin := func(in string, x sort, outcome v1.Outcome) {
		req := s.call(x.tool)
		req.SessionId, req.Kind = in, x.kind
		req.ArgumentsJson = `{"n": 1}`
		res, ok := done(s, fmt.Sprintf("begin %v of %q", x.kind, x.tool), func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
			return n.calls.BeginCall(ctx, req)
		})
		if !ok {
			return
		}
		if s.outcome(res, outcome); s.over {
			return
		}
		if outcome != v1.Outcome_OUTCOME_ATTEMPT_LIMIT {
			want.Attempts++
		}
		if outcome == v1.Outcome_OUTCOME_ADMITTED {
			inUse++
			switch {
			case x.ofTool():
				want.tools[x.tool]++
			case x.kind == v1.Kind_KIND_MODEL:
				byKind.ModelCalls++
			case x.kind == v1.Kind_KIND_AGENT:
				byKind.AgentCalls++
			case x.kind == v1.Kind_KIND_HANDOFF:
				byKind.Handoffs++
			default:
				byKind.SamplingRequests[x.tool]++
			}
			if x.counts() {
				want.Calls++
			}
		}
		s.wrong(res.Counters.GetAttempts() != want.Attempts || res.Counters.GetCalls() != want.Calls, "the counters are %v, want %v", res.Counters, &want.Counters)
	}
	// see holds the session to what was counted, and begins to count anew.
	see := func(in string, kinds bool) {
		res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: in})
		})
		if ok {
			x := res.Session
			if kinds {
				s.alike("the counters by kind", x.KindCounters, byKind)
			} else {
				s.wrong(x.KindCounters != nil, "no kind has a limit, and the session is %v", x)
			}
			s.wrong(x.Attempts != want.Attempts || x.Calls != want.Calls || fmt.Sprint(x.CallsByTool) != fmt.Sprint(want.tools), "the session is %v, want %v of tools %v", x, &want.Counters, want.tools)
		}
		pool, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
			return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: "policy/" + in})
		})
		s.wrong(ok && pool.Pool.InUse != inUse, "all kinds take slots, and the pool is %v, want %d in use", pool.GetPool(), inUse)
		want, byKind, inUse = &account{tools: map[string]int32{}}, &v1.KindCounters{SamplingRequests: map[string]int32{}}, 0
	}
	shuffled := func(all ...sort) []sort {
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		return all
	}
	const admitted = v1.Outcome_OUTCOME_ADMITTED
	// either is what a sort comes to, which a limit holds back or not.
	either := func(held bool, outcome v1.Outcome) v1.Outcome {
		if held {
			return outcome
		}
		return admitted
	}
	both := append(sortsOf("one"), sortsOf("two")...)
	const limit = "max_model_calls: %[1]d\nmax_agent_calls: %[1]d\nmax_handoffs: %[1]d\nmax_sampling_requests: %[1]d\n"
	all := open("max_tool_calls: 100\nmax_concurrent: 100\n" + fmt.Sprintf(limit, 100))
	for _, x := range shuffled(both...) {
		begin(all, x, admitted)
	}
	see(all, true)
	// max_tool_calls: what does not count is admitted behind it.
	calls := open("max_tool_calls: 2\nmax_concurrent: 100\n")
	first := shuffled(slices.DeleteFunc(sortsOf("one"), func(x sort) bool { return !x.counts() })...)
	for _, x := range first[:2] {
		begin(calls, x, admitted)
	}
	for _, x := range shuffled(both...) {
		begin(calls, x, either(x.counts(), v1.Outcome_OUTCOME_CALL_LIMIT))
	}
	see(calls, false)
	// max_calls_per_tool: of one tool alone, and whoever names it.
	tools := open("max_tool_calls: 100\nmax_concurrent: 100\nmax_calls_per_tool: {one: 1}\n")
	first = shuffled(slices.DeleteFunc(sortsOf("one"), func(x sort) bool { return !x.ofTool() })...)
	begin(tools, first[0], admitted)
	for _, x := range shuffled(both...) {
		begin(tools, x, either(x.ofTool() && x.tool == "one", v1.Outcome_OUTCOME_TOOL_LIMIT))
	}
	see(tools, false)
	// What may be called: by a list, by a list of none, and by a rule.
	if i := s.rng.IntN(2); i == 0 {
		few := open("max_tool_calls: 100\nmax_concurrent: 100\nallowed_tools: [two]\n")
		for _, x := range shuffled(both...) {
			begin(few, x, either(x.ofTool() && x.tool == "one", v1.Outcome_OUTCOME_DENIED_BY_POLICY))
		}
		see(few, false)
	} else {
		none := open("max_tool_calls: 100\nmax_concurrent: 100\ndeny_all_tools: true\n")
		for _, x := range shuffled(both...) {
			begin(none, x, either(x.ofTool(), v1.Outcome_OUTCOME_DENIED_BY_POLICY))
		}
		see(none, false)
	}
	// Limits by kind are for calls that name no tool.
	none := open("max_tool_calls: 100\nmax_concurrent: 100\n" + fmt.Sprintf(limit, 0))
	for _, x := range shuffled(both...) {
		begin(none, x, either(!x.ofTool(), v1.Outcome_OUTCOME_KIND_LIMIT))
	}
	see(none, true)
	// max_attempts and max_concurrent are for all.
	last := shuffled(both...)
	attempts := open("max_tool_calls: 100\nmax_concurrent: 100\nmax_attempts: 1\n")
	begin(attempts, last[0], admitted)
	begin(attempts, last[1], v1.Outcome_OUTCOME_ATTEMPT_LIMIT)
	see(attempts, false)
	slots := open("max_tool_calls: 100\nmax_concurrent: 1\n")
	begin(slots, last[2], admitted)
	begin(slots, last[3], v1.Outcome_OUTCOME_CONCURRENCY_LIMIT)
	see(slots, false)
}
