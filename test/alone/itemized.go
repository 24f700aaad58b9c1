package alone

import (
	"context"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/emptypb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What the role of a token is for: of methods, and of each operation of those that come
// together.

// methodsOf says for which roles methods are, as docs/security.md does. None of those in a
// namespace has what is the cluster's.
var methodsOf = []struct{ roles, methods string }{
	{"agent", "Call.BeginCall Call.CancelCall Call.EndCall Limit.TakeRate Slot.AcquireSlot Slot.ReleaseSlot Slot.RenewSlots"},
	{"agent orchestrator", "Approval.Request Counter.Append Counter.DeleteList Counter.Delete Counter.Increment Counter.Set"},
	{"agent orchestrator approver", "Approval.Cancel"},
	{"agent orchestrator approver auditor operator", "Approval.Get Event.Follow Session.GetSession Session.ListSignals"},
	{"agent orchestrator approver policy-author auditor operator", "Decision.Explain Policy.GetPolicy Policy.ListPolicies Access.WhoAmI Cluster.Status Call.BatchCalls"},
	{"agent orchestrator auditor", "Counter.BatchGet Counter.Get Counter.Range"},
	{"agent orchestrator auditor operator", "Limit.GetBudget Limit.GetRate Limit.ListBudgets Limit.ListRates Slot.GetPool Slot.ListPools"},
	{"agent orchestrator policy-author", "Policy.Evaluate Policy.Scan"},
	{"agent orchestrator policy-author auditor operator", "Policy.ListHashes"},
	{"approver", "Approval.Decide Approval.DeleteStanding Approval.PutStanding"},
	{"approver auditor operator", "Approval.ListStanding"},
	{"", "Access.PutQuotas Cluster.RemoveNode Cluster.Restore Cluster.Snapshot Cluster.TransferLeadership Cluster.AddNode"},
	{"operator", "Cluster.RepairIDs Limit.AdjustBudget Limit.DeleteBudget Limit.DeleteRate Limit.PutBudget Limit.PutRate Slot.DeletePool Slot.PutPool"},
	{"operator auditor", "Access.GetQuotas Access.ListChains Access.ListTokens"},
	{"operator", "Access.AllowSubject Access.CreateToken Access.DenySubject Access.RevokeToken"},
	{"orchestrator", "Session.CreateSession"},
	{"orchestrator approver auditor operator", "Approval.List"},
	{"orchestrator auditor operator", "Session.ListSessions Slot.ListSlots"},
	{"orchestrator operator", "Session.CloseSession Session.Signal Slot.ForceRelease"},
	{"policy-author", "Policy.DeleteHash Policy.DeletePolicy Policy.PutHash Policy.PutPolicy"},
}

// roleNamed is a role by the name that people write.
func roleNamed(name string) v1.Role {
	return v1.Role(v1.Role_value["ROLE_"+strings.ToUpper(strings.ReplaceAll(name, "-", "_"))])
}

// itemized has a bearer of one role ask for all there is, and sends what agents do together
// by the role of an agent and by that role: each operation is held to it by itself.
func itemized(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 8, RequestId: s.id(), Client: s.own}
	done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 8, Per: durationpb.New(24 * time.Hour), RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	name := []string{"orchestrator", "approver", "policy-author", "auditor", "operator"}[s.rng.IntN(5)]
	agent, other := s.bearer(&v1.CreateTokenRequest{Roles: everything[:1]}), s.bearer(&v1.CreateTokenRequest{Roles: []v1.Role{roleNamed(name)}})
	defer s.leave(agent, other)
	if s.over {
		return
	}
	if s.rng.IntN(4) == 0 {
		s.may(agent, "agent")
	} else {
		s.may(other, name)
	}
	s.counts(agent, other, name)
	nothing := &account{tools: map[string]int32{}}
	begin, slot, take := s.call("one"), s.id(), s.id()
	acquire := &v1.AcquireSlotRequest{Pool: s.own, SlotId: slot, Client: s.own, Ttl: long}
	ops := func(tokens map[string]uint64) (ops []*v1.Operation) {
		for _, o := range []*v1.Operation{
			{Op: &v1.Operation_Begin{Begin: begin}}, {Op: &v1.Operation_Acquire{Acquire: acquire}},
			{Op: &v1.Operation_Take{Take: &v1.TakeRateRequest{Rate: s.own, RequestId: take, Client: s.own}}},
			{Op: &v1.Operation_Renew{Renew: &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{{Pool: s.own, SlotId: slot, Token: tokens["slot"]}, {SessionId: s.own, SlotId: begin.CallId, Token: tokens["call"]}}}}},
			{Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: s.own, SlotId: slot, Client: s.own, Token: tokens["slot"]}}},
			{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: s.own, CallId: begin.CallId, Status: v1.Status_STATUS_SUCCEEDED}}},
			{Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: s.own, CallId: begin.CallId}}},
		} {
			o.Tag = uint64(len(ops) + 1)
			ops = append(ops, o)
		}
		return ops
	}
	// Of another role they are all refused, whatever comes first, and nothing is done.
	denied := func(tokens map[string]uint64) {
		all := ops(tokens)
		s.rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for tag, r := range s.sent(other, name, all[:2+s.rng.IntN(len(all)-1)]) {
			s.wrong(r.GetError().GetReason() != "PERMISSION_DENIED" || r.GetError().GetCode() != "permission_denied", "operation %d of the role %s is answered {%v}", tag, name, r)
		}
	}
	denied(nil)
	s.see(nothing, v1.SessionState_SESSION_STATE_OPEN)
	tokens := map[string]uint64{}
	for _, r := range s.sent(agent, "agent", ops(nil)[:3]) {
		switch {
		case r.GetBegin() != nil:
			s.outcome(r.GetBegin(), v1.Outcome_OUTCOME_ADMITTED)
			for _, g := range r.GetBegin().Grants {
				tokens["call"] = g.Token
			}
		case r.GetAcquire() != nil:
			same(s, "the outcome", r.GetAcquire().Outcome, v1.Outcome_OUTCOME_ADMITTED)
			tokens["slot"] = r.GetAcquire().Token
		default:
			same(s, "the outcome", r.GetTake().GetOutcome(), v1.Outcome_OUTCOME_ADMITTED)
		}
	}
	s.streamed(other, name)
	denied(tokens)
	nothing.Attempts, nothing.Calls, nothing.tools["one"], nothing.open = 1, 1, 1, []string{begin.CallId}
	s.see(nothing, v1.SessionState_SESSION_STATE_OPEN)
	if used := s.rate(s.own).GetUsed(); !s.over {
		same(s, "what is used", used, 1)
	}
	s.sent(agent, "agent", ops(tokens)[3:6])
	nothing.Executions, nothing.open = 1, nil
	s.see(nothing, v1.SessionState_SESSION_STATE_OPEN)
	if res, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	}); ok {
		same(s, "what is in use", res.Pool.InUse, 0)
	}
}

// may asks for each method with nothing in the request, which tells whether it was looked
// at: who may not ask is told so before.
func (s *script) may(b *bearer, name string) {
	for _, of := range methodsOf {
		for _, method := range strings.Fields(of.methods) {
			allowed := slices.Contains(strings.Fields(of.roles), name)
			if method == "Cluster.RepairIDs" && allowed {
				continue // it needs nothing in its request
			}
			service, m, _ := strings.Cut(method, ".")
			_, reason, ok := told(s, method+" of "+name, func(ctx context.Context, n *node) (any, error) {
				return nil, bare(b.as(ctx), connect.NewClient[emptypb.Empty, emptypb.Empty](s.web, n.url+"/govnode.v1."+service+"Service/"+m), method)
			})
			s.wrong(ok && (reason == "PERMISSION_DENIED") == allowed, "it is answered as %q, and allowed: %v", reason, allowed)
		}
	}
}

// bare asks for a method with an empty request, and hears of a stream its first word.
func bare(ctx context.Context, c *connect.Client[emptypb.Empty, emptypb.Empty], method string) error {
	switch method {
	case "Event.Follow", "Cluster.Snapshot":
		stream, err := c.CallServerStream(ctx, connect.NewRequest(&emptypb.Empty{}))
		if err != nil {
			return err
		}
		if !stream.Receive() {
			err = stream.Err()
		}
		_ = stream.Close()
		return err
	case "Cluster.Restore":
		stream, err := c.CallClientStreamSimple(ctx)
		if err == nil {
			_, err = stream.CloseAndReceive()
		}
		return err
	}
	_, err := c.CallUnary(ctx, connect.NewRequest(&emptypb.Empty{}))
	return err
}

// counts counts up and down: an agent gives itself nothing back.
func (s *script) counts(agent, other *bearer, name string) {
	sum := func(by *bearer, amount, want string) {
		req := &v1.IncrementRequest{Key: s.own, Amount: amount, RequestId: s.id(), Client: s.own}
		res, reason, ok := told(s, "add "+amount, func(ctx context.Context, n *node) (*v1.IncrementResponse, error) {
			return n.counters.Increment(by.as(ctx), req)
		})
		if want == "" {
			s.wrong(ok && reason != "PERMISSION_DENIED", "it is added: %v (%s)", res, reason)
		} else if ok {
			s.wrong(reason != "" || res.Value != want, "the sum is %v (%s), want %s", res, reason, want)
		}
	}
	sum(agent, "2", "2")
	sum(agent, "-1", "")
	if name == "orchestrator" {
		sum(other, "-0.5", "1.5")
		sum(agent, "-0.5", "")
		sum(agent, "1", "2.5")
	} else {
		sum(other, "1", "")
		sum(agent, "1", "3")
	}
}

// sent sends operations in a batch or over a stream, and again until each has an answer.
func (s *script) sent(b *bearer, name string, ops []*v1.Operation) (results map[uint64]*v1.OperationResult) {
	streams := s.rng.IntN(2) == 0
	for range asks {
		all, ok := done(s, "send as "+name, func(ctx context.Context, n *node) ([]*v1.OperationResult, error) {
			if streams {
				return exchanged(b.as(ctx), n, ops)
			}
			res, err := n.calls.BatchCalls(b.as(ctx), &v1.BatchCallsRequest{Operations: ops})
			return res.GetResults(), err
		})
		if !ok {
			return nil
		}
		without := false
		results = map[uint64]*v1.OperationResult{}
		for _, r := range all {
			results[r.Tag] = r
			without = without || r.GetError() != nil && slices.Contains([]string{"", "NOT_APPLIED", "OUTCOME_UNKNOWN", "STALE_ID", "OVERLOADED"}, r.GetError().Reason)
		}
		s.wrong(len(all) != len(ops) || len(results) != len(ops), "%d operations have the results %v", len(ops), all)
		for _, r := range all {
			s.wrong(!without && name == "agent" && r.GetError() != nil, "an agent is answered {%v}", r)
		}
		if !without || s.over {
			return results
		}
	}
	s.over = true
	return nil
}

// exchanged sends operations over a stream of their own, which it ends when it has their
// answers.
func exchanged(ctx context.Context, n *node, ops []*v1.Operation) (all []*v1.OperationResult, err error) {
	stream, err := n.calls.Exchange(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { _, _ = stream.CloseRequest(), stream.CloseResponse() }()
	if err := stream.Send(&v1.ExchangeRequest{Frames: ops}); err != nil {
		for err = nil; err == nil; { // which has the error that is the answer
			_, err = stream.Receive()
		}
		return nil, err
	}
	for len(all) < len(ops) {
		m, err := stream.Receive()
		if err != nil {
			return nil, err
		}
		all = append(all, m.Answers...)
	}
	return all, nil
}

// streamed asks by the Go client for what is for agents, at the same time, so that it goes
// over one stream.
func (s *script) streamed(b *bearer, name string) {
	c, err := s.another(client.Config{Name: s.own, Token: b.token})
	if s.wrong(err != nil, "there is no client: %v", err); s.over {
		return
	}
	defer func() { _ = c.Close() }()
	s.last, s.tries = "ask as "+name+" by a client", 1
	answers := make(chan error)
	for i := range 4 {
		go func() {
			var err error
			switch i {
			case 0, 1:
				_, err = c.Acquire(s.ctx, s.own, client.TTL(long.AsDuration()), client.Wait(client.NoWait))
			case 2:
				_, err = c.Session(s.own).Begin(s.ctx, client.Call{Tool: "one", TTL: long.AsDuration(), Wait: client.NoWait})
			default:
				err = c.TakeRate(s.ctx, client.Take{Rate: s.own})
			}
			answers <- err
		}()
	}
	for range 4 {
		err := <-answers
		reason := why(err)
		s.wrong(s.ctx.Err() == nil && (err == nil || connect.IsWireError(err) && refused(err) != "" && reason != "PERMISSION_DENIED"), "it is answered: %v", err)
		s.steps++
	}
}
