package alone

import (
	"context"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a token reaches that is bound, beside what scoped has of that.

// A scope is what a token is bound to, and what stands beside it: a session, a call and an
// approval of an agent that is in it and of one that is out of it. Both are stopped.
type scope struct {
	*script
	in, out, nobody             string            // agents, and sessions of theirs; nobody has none
	bound, all                  *bearer           // one is bound to what is in, the other to nothing
	digests                     map[string]string // of policies: one is in, under the script's name, and one is out
	calls, decisions, approvals map[string]string // by their agents
	tokens                      map[string]uint64 // of the calls
}

// scope makes one, which has to be left.
func (s *script) scope() *scope {
	x := &scope{
		script: s, in: s.own + "-in", out: s.own + "-out", nobody: s.own + "-nobody",
		digests: map[string]string{}, calls: map[string]string{}, decisions: map[string]string{}, approvals: map[string]string{}, tokens: map[string]uint64{},
	}
	const limits = "\nmax_tool_calls: 100\nrate_limits: [{name: each, limit: 9, per: 1h, scope: session}, {name: agents, limit: 9, per: 1h, scope: agent}]\n"
	for _, name := range []string{s.own, x.out} {
		put := &v1.PutPolicyRequest{Yaml: "name: " + name + limits, RequestId: s.id(), Client: s.own}
		res, _ := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
			return n.policies.PutPolicy(ctx, put)
		})
		x.digests[name] = res.GetDigest()
	}
	for _, agent := range []string{x.in, x.out} {
		create := &v1.CreateSessionRequest{SessionId: agent, AgentId: agent, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
		done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
			return n.sessions.CreateSession(ctx, create)
		})
		call := s.call("one")
		call.SessionId = agent
		begun, _ := done(s, "begin one", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, call) })
		s.outcome(begun, v1.Outcome_OUTCOME_ADMITTED)
		ask := &v1.ApprovalServiceRequestRequest{AgentId: agent, Tool: "tool", Timeout: durationpb.New(10 * time.Minute), Required: 2, Denials: 2, RequestId: s.id(), Client: s.own}
		asked, _ := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
			return n.approvals.Request(ctx, ask)
		})
		x.calls[agent], x.decisions[agent], x.approvals[agent] = call.CallId, begun.GetDecisionId(), asked.GetApproval().GetId()
		for _, g := range begun.GetGrants() {
			x.tokens[agent] = g.Token
		}
		s.send(&v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: agent}, Signal: "STOP"})
	}
	x.all = s.bearer(&v1.CreateTokenRequest{Roles: everything})
	x.bound = s.bearer(&v1.CreateTokenRequest{Roles: everything, Agents: []string{s.own + "-i*"}, Policies: []string{s.own}})
	x.calls[x.nobody], x.decisions[x.nobody], x.approvals[x.nobody] = s.id(), "0123456789abcdef0123456789abcdef", "0123456789abcdef0123456789abcdef"
	return x
}

// leave lets the agents go on, since so many signals may stand and no more, and ends the tokens.
func (x *scope) leave() {
	for _, agent := range []string{x.in, x.out} {
		ctx, cancel := context.WithTimeout(x.outer, time.Second)
		_, _ = x.nodes[x.rng.IntN(len(x.nodes))].sessions.Signal(ctx, &v1.SignalRequest{
			Target: &v1.SignalRequest_AgentId{AgentId: agent}, Signal: "CONTINUE", RequestId: x.id(), Client: x.own,
		})
		cancel()
	}
	x.script.leave(x.bound, x.all)
}

// hidden asks for what is out of the scope, and for what is not there at all: both are
// answered alike.
func (x *scope) hidden(what string, ask func(ctx context.Context, n *node, of, id string) (any, error)) {
	for _, of := range []string{x.out, x.nobody} {
		id := x.id()
		got, reason, ok := told(x.script, what+" of others", func(ctx context.Context, n *node) (any, error) { return ask(x.bound.as(ctx), n, of, id) })
		x.wrong(ok && reason != "NOT_FOUND", "it is out of scope, and answered by %v (%s)", got, reason)
	}
}

// listed holds a list to have what is in the scope, and nothing else; all of it for who is
// bound to nothing. Where a node has to look up for that whose each thing is, and cannot, it
// leaves it out, but not in each of some tries.
func (x *scope) listed(what string, tries int, page func(ctx context.Context, n *node, token string) ([]string, string, error)) {
	for _, of := range []struct {
		who  *bearer
		name string
		want int
	}{{x.bound, x.in, 1}, {x.bound, x.out, 0}, {x.all, x.in, 1}, {x.all, x.out, 1}} {
		times := 0
		for range tries {
			_, times = found(x.script, what, func(ctx context.Context, n *node, token string) ([]string, string, error) {
				return page(of.who.as(ctx), n, token)
			}, func(name string) bool { return name == of.name })
			if times < 0 || times >= of.want {
				break
			}
		}
		x.wrong(times >= 0 && times != of.want, "%s is %d times in what is listed, want %d (bound: %v)", of.name, times, of.want, of.who == x.bound)
	}
}

// forbidden asks for what is beyond the scope, and is told so.
func (x *scope) forbidden(what string, ask func(context.Context, *node) (any, error)) {
	x.single = true
	defer func() { x.single = false }()
	got, reason, ok := told(x.script, what, func(ctx context.Context, n *node) (any, error) { return ask(x.bound.as(ctx), n) })
	x.wrong(ok && reason != "PERMISSION_DENIED", "it is beyond its scope, and answered by %v (%s)", got, reason)
}

// withheld asks by a token that is bound for what stands for others, what they have spent and
// what they hold, and for what is more than the token may do.
func withheld(s *script) {
	x := s.scope()
	defer x.leave()
	if s.over {
		return
	}
	const ofSession, ofAgent, ofPolicy = v1.StandingScope_STANDING_SCOPE_SESSION, v1.StandingScope_STANDING_SCOPE_AGENT, v1.StandingScope_STANDING_SCOPE_POLICY
	stand := func(scope v1.StandingScope, name string) func(context.Context, *node) (*v1.PutStandingResponse, error) {
		req := &v1.PutStandingRequest{Scope: scope, Name: name, Tool: "two", Expiry: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
		return func(ctx context.Context, n *node) (*v1.PutStandingResponse, error) {
			return n.approvals.PutStanding(ctx, req)
		}
	}
	standings := map[v1.StandingScope]map[string]string{ofSession: {x.nobody: "standing-nobody"}, ofAgent: {x.nobody: "standing-nobody"}, ofPolicy: {}}
	for scope, names := range map[v1.StandingScope][]string{ofSession: {x.in, x.out}, ofAgent: {x.in, x.out}, ofPolicy: {s.own}} {
		for _, name := range names {
			put := stand(scope, name)
			res, _ := done(s, "put a standing approval", func(ctx context.Context, n *node) (*v1.PutStandingResponse, error) { return put(x.all.as(ctx), n) })
			standings[scope][name] = res.GetStanding().GetId()
		}
	}
	drop := func(id, request string) func(context.Context, *node) (any, error) {
		return func(ctx context.Context, n *node) (any, error) {
			return n.approvals.DeleteStanding(ctx, &v1.DeleteStandingRequest{Id: id, RequestId: request, Client: s.own})
		}
	}
	each, agents := "policy/"+s.own+"/each#", "policy/"+s.own+"/agents#"
	for what, ask := range map[string]func(ctx context.Context, n *node, of, id string) (any, error){
		"let calls pass in the session": func(ctx context.Context, n *node, of, id string) (any, error) {
			return n.approvals.PutStanding(ctx, &v1.PutStandingRequest{Scope: ofSession, Name: of, Tool: "one", Expiry: durationpb.New(time.Hour), RequestId: id, Client: s.own})
		},
		"take back what stands for the session": func(ctx context.Context, n *node, of, id string) (any, error) {
			return drop(standings[ofSession][of], id)(ctx, n)
		},
		"take back what stands for the agent": func(ctx context.Context, n *node, of, id string) (any, error) {
			return drop(standings[ofAgent][of], id)(ctx, n)
		},
		"evaluate in the session": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.policies.Evaluate(ctx, &v1.EvaluateRequest{SessionId: of, Tool: "one"})
		},
		"scan in the session": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.policies.Scan(ctx, &v1.ScanRequest{SessionId: of, Kind: v1.ScanKind_SCAN_KIND_INPUT, Text: "plain"})
		},
		"get what the session has spent": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: each + of})
		},
		"get what the agent has spent": func(ctx context.Context, n *node, of, _ string) (any, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: agents + of})
		},
	} {
		x.hidden(what, ask)
	}
	x.beyond(stand(ofAgent, x.out), stand(ofPolicy, s.own), drop(standings[ofPolicy][s.own], s.id()))
	x.holds()
	// All of it is there as before.
	for _, scope := range []v1.StandingScope{ofSession, ofAgent} {
		x.listed("list standing approvals", 3, func(ctx context.Context, n *node, token string) ([]string, string, error) {
			res, err := n.approvals.ListStanding(ctx, &v1.ListStandingRequest{Scope: scope, PageSize: 1000, PageToken: token})
			return namesOf(res.GetStandings(), func(y *v1.Standing) string { return y.Name }), res.GetNextPageToken(), err
		})
	}
	for _, of := range []string{each, agents} {
		x.listed("list rates", 3, func(ctx context.Context, n *node, token string) ([]string, string, error) {
			res, err := n.limits.ListRates(ctx, &v1.ListRatesRequest{PageSize: 1000, PageToken: token})
			return namesOf(res.GetRates(), func(y *v1.Rate) string { return strings.TrimPrefix(y.Rate, of) }), res.GetNextPageToken(), err
		})
	}
	x.listed("list slots", 3, func(ctx context.Context, n *node, _ string) ([]string, string, error) {
		res, err := n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: "policy/" + s.own})
		return namesOf(res.GetSlots(), func(y *v1.Slot) string { return y.SessionId }), "", err
	})
}

// beyond asks for what reaches others: by name, by a policy, by all of a namespace, and by
// another namespace.
func (x *scope) beyond(ofAgent, ofPolicy func(context.Context, *node) (*v1.PutStandingResponse, error), drops func(context.Context, *node) (any, error)) {
	s := x.script
	x.forbidden("let calls of another agent pass", func(ctx context.Context, n *node) (any, error) { return ofAgent(ctx, n) })
	x.forbidden("let calls of a policy pass", func(ctx context.Context, n *node) (any, error) { return ofPolicy(ctx, n) })
	x.forbidden("take back what stands for a policy", drops)
	ask := &v1.ApprovalServiceRequestRequest{AgentId: x.out, Tool: "tool", Timeout: durationpb.New(10 * time.Minute), RequestId: s.id(), Client: s.own}
	x.forbidden("request an approval for another agent", func(ctx context.Context, n *node) (any, error) { return n.approvals.Request(ctx, ask) })
	for _, req := range []*v1.SignalRequest{
		{Target: &v1.SignalRequest_AgentId{AgentId: x.out}}, {Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}},
		{Target: &v1.SignalRequest_Everything{Everything: true}, Signal: "CONTINUE"}, // which would stop nobody else
	} {
		if req.RequestId, req.Client = s.id(), s.own; req.Signal == "" {
			req.Signal = []string{"STOP", "KILL", "CONTINUE", "drain"}[s.rng.IntN(4)]
		}
		x.forbidden("send "+req.Signal+" to more", func(ctx context.Context, n *node) (any, error) { return n.sessions.Signal(ctx, req) })
	}
	policy := &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}
	x.forbidden("evaluate for another agent", func(ctx context.Context, n *node) (any, error) {
		return n.policies.Evaluate(ctx, &v1.EvaluateRequest{AgentId: x.out, Tool: "one", Policy: policy})
	})
	for what, req := range map[string]*v1.DeletePolicyRequest{
		"another policy": {Ref: &v1.DeletePolicyRequest_Name{Name: x.out}}, "a policy by its digest": {Ref: &v1.DeletePolicyRequest_Digest{Digest: x.digests[s.own]}},
	} {
		req.RequestId, req.Client = s.id(), s.own
		x.forbidden("delete "+what, func(ctx context.Context, n *node) (any, error) { return n.policies.DeletePolicy(ctx, req) })
	}
	put := &v1.PutHashRequest{Tool: s.own, Hash: strings.Repeat("1", 64), RequestId: s.id(), Client: s.own}
	x.forbidden("put a hash", func(ctx context.Context, n *node) (any, error) { return n.policies.PutHash(ctx, put) })
	remove := &v1.DeleteHashRequest{Tool: s.own, RequestId: s.id(), Client: s.own}
	x.forbidden("delete a hash", func(ctx context.Context, n *node) (any, error) { return n.policies.DeleteHash(ctx, remove) })
	assign := &v1.SetRequest{Key: "edictum/assignment/" + x.out, Value: "a", RequestId: s.id(), Client: s.own}
	x.forbidden("assign a ruleset to another agent", func(ctx context.Context, n *node) (any, error) { return n.counters.Set(ctx, assign) })
	x.forbidden("ask in another namespace", func(ctx context.Context, n *node) (any, error) {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Authorization", "Bearer "+x.bound.token)
		info.RequestHeader().Set("Govnode-Namespace", s.own)
		return n.slots.ListPools(ctx, &v1.ListPoolsRequest{})
	})
}

// holds renews and takes away what calls of others hold by the token: none of it is there
// for it, and it is held on.
func (x *scope) holds() {
	s := x.script
	for _, of := range []string{x.out, x.nobody} {
		force := &v1.ForceReleaseRequest{SessionId: of, SlotId: x.calls[of], RequestId: s.id(), Client: s.own}
		res, ok := done(s, "force a call of others", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
			return n.slots.ForceRelease(x.bound.as(ctx), force)
		})
		s.wrong(ok && res.Outcome != v1.Outcome_OUTCOME_NOT_FOUND, "it is out of scope, and forced: %v", res)
	}
	for _, by := range []*bearer{x.bound, x.all} {
		renew := &v1.RenewSlotsRequest{Client: s.own, Ttl: long}
		for _, of := range []string{x.in, x.out, x.nobody} {
			renew.Slots = append(renew.Slots, &v1.SlotRef{SessionId: of, SlotId: x.calls[of], Token: x.tokens[of]})
		}
		s.rng.Shuffle(3, func(i, j int) { renew.Slots[i], renew.Slots[j] = renew.Slots[j], renew.Slots[i] })
		res, ok := done(s, "renew calls of others", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
			return n.slots.RenewSlots(by.as(ctx), renew)
		})
		if s.wrong(ok && len(res.Results) != 3, "results are %v", res); !ok || s.over {
			return
		}
		for i, r := range res.Results {
			want, of := v1.Outcome_OUTCOME_LEASE_EXPIRED, renew.Slots[i].SessionId
			if of == x.in || of == x.out && by == x.all {
				want = v1.Outcome_OUTCOME_RENEWED
			}
			if r.Outcome == v1.Outcome_OUTCOME_UNSPECIFIED { // the node could not look
				s.over = true
				return
			}
			s.wrong(r.Outcome != want || r.Signal != nil && (want != v1.Outcome_OUTCOME_RENEWED || r.Signal.GetAgentId() != of), "of %s it is told %v, want %v (bound: %v)", of, r, want, by == x.bound)
		}
	}
}
