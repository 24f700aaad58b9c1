package alone

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What ends by itself, and what stands apart.

// expires lets the lease of a slot, that of a call and a session run out.
func expires(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 1\n") || !s.session(nil) {
		return
	}
	create := &v1.CreateSessionRequest{
		SessionId: s.own + "-idle", AgentId: s.own + "-idle", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}, IdleTtl: durationpb.New(time.Second),
	}
	done(s, "create an idle session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	})
	second := durationpb.New(time.Second)
	call := s.call("one")
	call.Ttl = second
	begun := s.begin(call)
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: second}
	got, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, take)
	})
	// Each is new: what was asked for twice may have come and gone, and is answered so.
	if s.over || !ok || got.Outcome != v1.Outcome_OUTCOME_ADMITTED || begun.Outcome != v1.Outcome_OUTCOME_ADMITTED {
		return
	}
	for gone := 0; gone < 3; {
		gone = 0
		for _, name := range []string{s.own, "policy/" + s.own} {
			res, ok := done(s, "get a pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: name})
			})
			if !ok {
				return
			}
			gone += 1 - int(res.Pool.InUse)
		}
		res, ok := done(s, "get the idle session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: create.SessionId})
		})
		if !ok {
			return
		}
		if res.Session.State == v1.SessionState_SESSION_STATE_EXPIRED {
			gone++
		}
		select {
		case <-s.ctx.Done(): // time stands still
			return
		case <-time.After(300 * time.Millisecond):
		}
	}
	release := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: take.SlotId, Client: s.own, Token: got.Token}
	if res, ok := done(s, "release what has lapsed", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
		return n.slots.ReleaseSlot(ctx, release)
	}); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_LEASE_EXPIRED)
	}
	renew := &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{
		{Pool: s.own, SlotId: take.SlotId, Token: got.Token}, {SessionId: s.own, SlotId: call.CallId, Token: begun.Grants[0].Token},
	}}
	if res, ok := done(s, "renew what has lapsed", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
		return n.slots.RenewSlots(ctx, renew)
	}); ok {
		if slices.ContainsFunc(res.Results, func(r *v1.SlotRenewal) bool { return r.Outcome == v1.Outcome_OUTCOME_UNSPECIFIED }) {
			s.over = true // the node could not look
			return
		}
		s.wrong(len(res.Results) != 2 || res.Results[0].Outcome != v1.Outcome_OUTCOME_LEASE_EXPIRED || res.Results[1].Outcome != v1.Outcome_OUTCOME_LEASE_EXPIRED, "results are %v", res.Results)
	}
	end := &v1.EndCallRequest{SessionId: s.own, CallId: call.CallId, Status: v1.Status_STATUS_SUCCEEDED}
	if res, ok := done(s, "end what has lapsed", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) }); ok {
		same(s, "the outcome", res.Outcome, v1.Outcome_OUTCOME_LEASE_LOST)
	}
	want := &account{tools: map[string]int32{"one": 1}}
	want.Attempts, want.Calls, want.Executions = 1, 1, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	again := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	if res, ok := done(s, "acquire again", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, again)
	}); ok {
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_ADMITTED || res.Token <= got.Token, "it is %v, and the last token was %d", res, got.Token)
	}
	idle := s.call("one")
	idle.SessionId = create.SessionId
	if res, ok := done(s, "begin in the idle session", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, idle) }); ok {
		s.outcome(res, v1.Outcome_OUTCOME_SESSION_CLOSED)
	}
}

// apart uses the same names in two namespaces, of which nothing is the other's. Where
// people are known by what they show there is one, to which that binds them.
func apart(s *script) {
	if s.known || !s.policy("max_tool_calls: 1\n") || !s.session(nil) {
		return
	}
	in := func(ctx context.Context) context.Context {
		ctx, info := connect.NewClientContext(ctx)
		info.RequestHeader().Set("Govnode-Namespace", s.own)
		return ctx
	}
	absent(s, "get the session there", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(in(ctx), &v1.GetSessionRequest{SessionId: s.own})
	})
	absent(s, "get the policy there", func(ctx context.Context, n *node) (*v1.GetPolicyResponse, error) {
		return n.policies.GetPolicy(in(ctx), &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: s.own}})
	})
	put := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\nmax_tool_calls: 2\n", RequestId: s.id(), Client: s.own}
	done(s, "put a policy there", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(in(ctx), put)
	})
	create := &v1.CreateSessionRequest{SessionId: s.own, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	done(s, "create a session there", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(in(ctx), create)
	})
	there := func(req *v1.BeginCallRequest, want v1.Outcome) {
		res, ok := done(s, "begin there", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) {
			return n.calls.BeginCall(in(ctx), req)
		})
		if ok {
			s.outcome(res, want)
		}
	}
	const admitted, limit = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_CALL_LIMIT
	call := s.call("one")
	s.outcome(s.begin(call), admitted)
	there(call, admitted)
	s.outcome(s.begin(s.call("one")), limit)
	there(s.call("one"), admitted)
	there(s.call("one"), limit)
	if _, ok := done(s, "close the session there", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
		return n.sessions.CloseSession(in(ctx), &v1.CloseSessionRequest{SessionId: s.own})
	}); !ok {
		return
	}
	there(s.call("one"), v1.Outcome_OUTCOME_SESSION_CLOSED)
	want := &account{tools: map[string]int32{"one": 1}, open: []string{call.CallId}}
	want.Attempts, want.Calls = 2, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	for _, value := range []string{"here", "there"} {
		req := &v1.SetRequest{Key: s.own, Value: value, RequestId: s.id(), Client: s.own}
		done(s, "set a value", func(ctx context.Context, n *node) (*v1.SetResponse, error) {
			if value == "there" {
				ctx = in(ctx)
			}
			return n.counters.Set(ctx, req)
		})
	}
	if res, ok := done(s, "get the value", func(ctx context.Context, n *node) (*v1.GetResponse, error) {
		return n.counters.Get(ctx, &v1.GetRequest{Key: s.own})
	}); ok {
		same(s, "the value", res.Value, "here")
	}
}
