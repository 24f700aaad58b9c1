package alone

import (
	"context"
	"errors"
	"slices"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What renewals tell of signals.

// advice renews calls of two sessions at once, of which one is stopped, or its agent: no call
// is told of what stands against another session.
func advice(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	other := s.own + "-other"
	create := &v1.CreateSessionRequest{SessionId: other, AgentId: other, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	done(s, "create another session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	})
	var slots []*v1.SlotRef
	for _, id := range []string{s.own, other} {
		req := s.call("one")
		req.SessionId = id
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_ADMITTED); s.over {
			return
		}
		slots = append(slots, &v1.SlotRef{SessionId: id, SlotId: req.CallId, Token: res.Grants[0].Token})
	}
	stop := &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: other}, Signal: "STOP", RequestId: s.id(), Client: s.own}
	if s.rng.IntN(2) == 0 {
		stop.Target = &v1.SignalRequest_AgentId{AgentId: other}
	}
	done(s, "stop the other", func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, stop) })
	for range 4 {
		s.rng.Shuffle(2, func(i, j int) { slots[i], slots[j] = slots[j], slots[i] })
		res, ok := done(s, "renew both", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
			return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: slots})
		})
		if !ok {
			return
		}
		s.wrong(len(res.Results) != 2, "results are %v", res.Results)
		if slices.ContainsFunc(res.Results, func(r *v1.SlotRenewal) bool { return r.Outcome == v1.Outcome_OUTCOME_UNSPECIFIED }) {
			s.over = true // the node could not look
			return
		}
		for i, r := range res.Results {
			// A node may not have heard of the signal yet.
			s.wrong(r.Outcome != v1.Outcome_OUTCOME_RENEWED || r.Slot.GetSlotId() != slots[i].SlotId ||
				r.Signal != nil && (r.Slot.SessionId != other || r.Signal.GetSessionId()+r.Signal.GetAgentId() != other || r.Signal.Signal != "STOP"), "results are %v", res.Results)
		}
	}
	// How many may stand is limited.
	lift := &v1.SignalRequest{Target: stop.Target, Signal: "CONTINUE", RequestId: s.id(), Client: s.own}
	done(s, "let the other go on", func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, lift) })
}

// braked has a call renewed while a STOP stands against its session, its agent, its policy
// or everything, or two of them, and after that: each time the call is told of one that
// stands, and of none when none does.
func braked(s *script) {
	c := s.crowd()
	c.put(s.own, "max_tool_calls: 100\n")
	self := func(string) string { return s.own }
	c.open([]string{s.own}, self, self)
	targets := map[string]*v1.SignalRequest{
		"session": {Target: &v1.SignalRequest_SessionId{SessionId: s.own}}, "agent": {Target: &v1.SignalRequest_AgentId{AgentId: s.own}},
		"policy": {Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}},
	}
	order, by := []string{"session", "agent", "policy"}, s.shipped
	if c.namespace != "" {
		other, err := s.another(client.Config{Namespace: c.namespace, Name: s.own})
		if s.wrong(err != nil, "there is no client: %v", err); s.over {
			return
		}
		defer func() { _ = other.Close() }()
		targets["everything"], by = &v1.SignalRequest{Target: &v1.SignalRequest_Everything{Everything: true}}, other
		order = append(order, "everything")
	}
	const ttl = time.Second
	call, ok, err := through(s, "begin", func(context.Context, *client.Client) (*client.OpenCall, error) {
		return by.Session(s.own).Begin(s.ctx, client.Call{ID: s.id(), Tool: "one", TTL: ttl, Wait: client.NoWait})
	})
	if !ok || errors.Is(err, client.ErrLeaseLost) { // the answer came late
		return
	}
	if s.wrong(err != nil, "it was refused: %v", err); s.over {
		return
	}
	of := func(x *v1.Signal) string {
		switch {
		case x.GetSessionId() == s.own:
			return "session"
		case x.GetAgentId() == s.own:
			return "agent"
		case x.GetPolicyName() == s.own:
			return "policy"
		case x.GetEverything():
			return "everything"
		}
		return ""
	}
	var stand []string
	// send sends a signal, and looks at what the call is told long after: the next time if a
	// node was behind, or could not look.
	send := func(signal, target string) (goesOn bool) {
		if _, reason := c.signal(signal, targets[target]); s.over || reason != "" {
			s.wrong(true, "it is refused: %s", reason)
			return false
		}
		var told *v1.Signal
		for range 3 {
			for at := time.Now(); !call.Deadline().After(at.Add(2 * ttl)); { // until it is renewed long after
				select {
				case <-s.ctx.Done():
					return false
				case <-call.Lost():
					return false
				case <-time.After(50 * time.Millisecond):
				}
			}
			told = call.Signal()
			if (told != nil) == (len(stand) > 0) && (told == nil || told.Signal == "STOP" && slices.Contains(stand, of(told))) {
				return true
			}
		}
		s.wrong(true, "after %s of the %s it is told %v, and there stand those of %v", signal, target, told, stand)
		return false
	}
	s.rng.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	order = order[:1+s.rng.IntN(2)]
	for i, target := range order {
		if stand = order[:i+1]; !send("STOP", target) {
			return
		}
	}
	for i, target := range order {
		if stand = order[i+1:]; !send("CONTINUE", target) {
			return
		}
	}
	_, _, err = through(s, "end", func(ctx context.Context, _ *client.Client) (any, error) { return nil, call.End(ctx, client.Succeeded) })
	s.wrong(err != nil && !errors.Is(err, client.ErrLeaseLost), "it did not end: %v", err)
}
