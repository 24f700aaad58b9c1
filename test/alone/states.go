package alone

import (
	"context"
	"errors"
	"strings"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What each request comes to in each state that a call can be in, and what is told of it
// meanwhile.

// metadata is that of an error, and why is its reason.
func metadata(err error) map[string]string { return info(err).GetMetadata() }
func why(err error) string                 { return info(err).GetReason() }

func info(err error) *errdetails.ErrorInfo {
	ce := (*connect.Error)(nil)
	if !errors.As(err, &ce) {
		return nil
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if i, ok := m.(*errdetails.ErrorInfo); ok {
				return i
			}
		}
	}
	return nil
}

// refused asks for what is refused for a reason, and for a field that the error names.
func (s *script) refused(step, reason, field string, ask func(context.Context, *node) error) {
	named := ""
	_, got, ok := told(s, step, func(ctx context.Context, n *node) (any, error) {
		err := ask(ctx, n)
		named = metadata(err)["field"]
		return nil, err
	})
	s.wrong(ok && (got != reason || named != field), "it is refused as %q of the field %q, want %q of %q", got, named, reason, field)
}

// within holds a time that is left to what it began with, unless the answer came late.
func (s *script) within(what string, left *durationpb.Duration, all time.Duration, since time.Time) {
	got := left.AsDuration()
	s.wrong(left == nil || got > all || time.Since(since) < 5*time.Second && got < all/2, "%s is %v, of %v since %v", what, got, all, time.Since(since))
}

// queued begins a call that waits, and goes on. It waits for some seconds more, since nobody
// asks for it: what is known is good for so long.
func (s *script) queued(req *v1.BeginCallRequest) (begun *v1.BeginCallResponse) {
	s.good = time.Now().Add(4 * time.Second)
	res := s.batch("begin what waits", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
	if s.over {
		return nil
	}
	begun = res[0].GetBegin()
	s.outcome(begun, v1.Outcome_OUTCOME_QUEUED)
	return begun
}

// cancel gives up the wait of a call, and tells what it has come to.
func (s *script) cancel(id string, want v1.Outcome) *v1.CancelCallResponse {
	res, ok := done(s, "cancel the call", func(ctx context.Context, n *node) (*v1.CancelCallResponse, error) {
		return n.calls.CancelCall(ctx, &v1.CancelCallRequest{SessionId: s.own, CallId: id})
	})
	s.wrong(ok && res.Outcome != want, "the outcome is %v, want %v", res, want)
	return res
}

// states takes calls through all states in which they can be, and asks in each for what
// fits and for what does not.
func states(s *script) {
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 1\nmax_model_calls: 2\n") || !s.session(nil) {
		return
	}
	want := &account{tools: map[string]int32{}}
	ends := func(sess, id, reason, field string) {
		s.refused("end", reason, field, func(ctx context.Context, n *node) error {
			_, err := n.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: sess, CallId: id, Status: v1.Status_STATUS_SUCCEEDED})
			return err
		})
	}
	cancels := func(sess, id, reason, field string) {
		s.refused("cancel", reason, field, func(ctx context.Context, n *node) error {
			_, err := n.calls.CancelCall(ctx, &v1.CancelCallRequest{SessionId: sess, CallId: id})
			return err
		})
	}
	renew := func(id string, token uint64, outcome v1.Outcome) {
		res, ok := done(s, "renew", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
			return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{{SessionId: s.own, SlotId: id, Token: token}}})
		})
		if ok {
			s.wrong(len(res.Results) != 1 || res.Results[0].Outcome != outcome || outcome != v1.Outcome_OUTCOME_RENEWED && res.Results[0].Ttl != nil, "it is %v, want %v", res, outcome)
		}
	}
	unknown, nobody := s.id(), s.own+"-nobody"
	ends(s.own, unknown, "NOT_FOUND", "callId")
	cancels(s.own, unknown, "NOT_FOUND", "callId")
	ends(nobody, unknown, "NOT_FOUND", "sessionId")
	cancels(nobody, unknown, "NOT_FOUND", "sessionId")
	renew(unknown, 1, v1.Outcome_OUTCOME_LEASE_EXPIRED)
	first := s.call("")
	first.Kind, first.Tokens = v1.Kind_KIND_MODEL, 5
	begun := s.begin(first)
	if s.outcome(begun, v1.Outcome_OUTCOME_ADMITTED); s.over {
		return
	}
	want.Attempts, want.Calls, want.open = 1, 1, []string{first.CallId}
	token := begun.Grants[0].Token
	cancel := func(id string, outcome v1.Outcome) {
		if res := s.cancel(id, outcome); !s.over {
			s.alike("the counters", res.Counters, &want.Counters)
		}
	}
	cancel(first.CallId, v1.Outcome_OUTCOME_ADMITTED)
	renew(first.CallId, 0, v1.Outcome_OUTCOME_FENCED)
	renew(first.CallId, token+1, v1.Outcome_OUTCOME_FENCED)
	renew(first.CallId, token, v1.Outcome_OUTCOME_RENEWED)
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	refusal := s.call("one")
	s.outcome(s.begin(refusal), v1.Outcome_OUTCOME_CONCURRENCY_LIMIT)
	want.Attempts++
	cancel(refusal.CallId, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT)
	ends(s.own, refusal.CallId, "NOT_FOUND", "callId")
	// One that waits counts as a call of its kind until it is given up.
	for range 2 {
		second := s.call("")
		second.Kind, second.Wait, second.Priority = v1.Kind_KIND_MODEL, durationpb.New(5*time.Minute), -7
		waits := s.queued(second)
		if s.over {
			return
		}
		s.wrong(waits.Queue.GetPool() != "policy/"+s.own || waits.Queue.GetPosition() != 1 || len(waits.Grants) > 0, "it waits as {%v}", waits)
		res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
		})
		if !ok {
			return
		}
		times := 0
		for _, c := range res.Session.OpenCalls {
			s.wrong(c.Waiting != (c.CallId == second.CallId) || c.Waiting != (len(c.Grants) == 0) || c.ApprovalId != "" || c.Tool != "", "an open call is {%v}", c)
			times++
		}
		s.wrong(times != 2 || res.Session.Calls != 2 || res.Session.KindCounters.GetModelCalls() != 2, "the session is {%v}", res.Session)
		slots, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: "policy/" + s.own})
		})
		if !ok {
			return
		}
		s.wrong(len(slots.Waiters) != 1 || slots.Pool.Waiting != 1, "it is not seen to wait: {%v}", slots)
		for _, w := range slots.Waiters {
			left := w.WaitLeft.AsDuration()
			s.wrong(w.Holder != s.own && w.Holder != "" || w.SessionId != s.own || w.SlotId != second.CallId || w.Position != 1 || w.Weight != 1 || w.Priority != -7 ||
				left > 5*time.Minute || left < 4*time.Minute, "it waits as {%v}", w)
		}
		third := s.call("")
		third.Kind = v1.Kind_KIND_MODEL
		s.outcome(s.begin(third), v1.Outcome_OUTCOME_KIND_LIMIT)
		want.Attempts++
		ends(s.own, second.CallId, "STILL_WAITING", "")
		renew(second.CallId, 1, v1.Outcome_OUTCOME_FENCED)
		renew(second.CallId, 0, v1.Outcome_OUTCOME_RENEWED)
		want.Attempts++
		cancel(second.CallId, v1.Outcome_OUTCOME_CANCELLED)
		s.good = time.Time{}
		cancel(second.CallId, v1.Outcome_OUTCOME_CANCELLED)
		ends(s.own, second.CallId, "NOT_FOUND", "callId")
		s.outcome(s.begin(second), v1.Outcome_OUTCOME_CANCELLED)
		s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	}
	s.end(&v1.EndCallRequest{CallId: first.CallId, Status: v1.Status_STATUS_CANCELLED})
	want.Executions, want.TokensUsed, want.open = 1, 5, nil
	cancel(first.CallId, v1.Outcome_OUTCOME_ALREADY_ENDED)
	renew(first.CallId, token, v1.Outcome_OUTCOME_LEASE_EXPIRED)
	lost := s.call("one")
	s.outcome(s.begin(lost), v1.Outcome_OUTCOME_ADMITTED)
	force := &v1.ForceReleaseRequest{SessionId: s.own, SlotId: lost.CallId, RequestId: s.id(), Client: s.own}
	done(s, "force the call", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
		return n.slots.ForceRelease(ctx, force)
	})
	s.outcome(s.begin(lost), v1.Outcome_OUTCOME_LEASE_LOST)
	want.Attempts, want.Calls, want.Executions, want.tools = want.Attempts+1, 2, 2, map[string]int32{"one": 1}
	cancel(lost.CallId, v1.Outcome_OUTCOME_LEASE_LOST)
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	force.RequestId = s.id()
	none, ok := done(s, "force what is not open", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
		return n.slots.ForceRelease(ctx, force)
	})
	s.wrong(ok && none.Outcome != v1.Outcome_OUTCOME_NOT_FOUND, "it is {%v}", none)
}

// shut closes a session while calls of it run, wait and are asked about: what was charged
// stays, and everything else is let go.
func shut(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 2, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 100, Per: durationpb.New(24 * time.Hour), RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	budget := &v1.PutBudgetRequest{Budget: s.own, Amount: "10", RequestId: s.id(), Client: s.own}
	done(s, "put a budget", func(ctx context.Context, n *node) (*v1.PutBudgetResponse, error) {
		return n.limits.PutBudget(ctx, budget)
	})
	if !s.policyWith("name: asks\nrules:\n  - {name: asks, condition: {field: tool_name, operator: eq, value: asked}, action: ask, priority: 1}\n") || !s.session(nil) {
		return
	}
	want := &account{tools: map[string]int32{"one": 1}}
	runs, asked, waits := s.call("one"), s.call("asked"), s.call("one")
	for _, req := range []*v1.BeginCallRequest{runs, asked, waits} {
		req.Tokens, req.Rates, req.Budgets = 7, []*v1.RateWant{{Rate: s.own, By: v1.Cost_COST_TOKENS}}, []*v1.BudgetAmount{{Budget: s.own, Amount: "3"}}
		req.Pools = []*v1.Want{{Pool: s.own, Weight: 2}}
	}
	begun := s.begin(runs)
	s.outcome(begun, v1.Outcome_OUTCOME_ADMITTED)
	parked := s.begin(asked)
	s.outcome(parked, v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
	waits.Wait = durationpb.New(5 * time.Minute)
	place := s.queued(waits)
	if s.over {
		return
	}
	s.wrong(place.Queue.GetPool() != s.own, "it waits as {%v}", place)
	of := func(name string, use, waiting int32) {
		res, ok := done(s, "get the pool "+name, func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
			return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: name})
		})
		s.wrong(ok && (res.Pool.InUse != use || res.Pool.Waiting != waiting), "the pool is {%v}, want %d and %d", res, use, waiting)
	}
	spent := func() {
		b, ok := done(s, "get the budget", func(ctx context.Context, n *node) (*v1.GetBudgetResponse, error) {
			return n.limits.GetBudget(ctx, &v1.GetBudgetRequest{Budget: s.own})
		})
		s.wrong(ok && b.Budget.Used != "3", "the budget is {%v}, want 3 used", b)
		r, ok := done(s, "get the rate", func(ctx context.Context, n *node) (*v1.GetRateResponse, error) {
			return n.limits.GetRate(ctx, &v1.GetRateRequest{Rate: s.own})
		})
		s.wrong(ok && (r.Rate.Used != 7 || r.Rate.Waiting != 0), "the rate is {%v}, want 7 used", r)
	}
	if p, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: "policy/" + s.own})
	}); ok {
		s.wrong(p.Pool.InUse != 2, "the pool is {%v}, want 2 in use", p)
	}
	res, ok := done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
		return n.sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: s.own})
	})
	if !ok {
		return
	}
	// Two of the one that ran and one of the one that waited; none on a repeat.
	s.wrong(res.Released != 0 && res.Released != 3, "%d slots were freed", res.Released)
	if time.Now().After(s.good) { // what waited may have ended before
		s.over = true
	}
	s.good = time.Time{}
	s.wrong(res.Session.State != v1.SessionState_SESSION_STATE_CLOSED || len(res.Session.OpenCalls) > 0 || res.Session.IdleLeft != nil || res.Session.ClosedReason != "" || res.Session.Signal != nil,
		"the session is {%v}", res.Session)
	of(s.own, 0, 0)
	of("policy/"+s.own, 0, 0)
	spent()
	want.Attempts, want.Calls, want.Executions, want.TokensUsed = 3, 1, 1, 7
	s.see(want, v1.SessionState_SESSION_STATE_CLOSED)
	s.approval(parked.Approval.GetId(), v1.ApprovalState_APPROVAL_STATE_CANCELLED)
	s.outcome(s.begin(waits), v1.Outcome_OUTCOME_SESSION_CLOSED)
	s.outcome(s.begin(asked), v1.Outcome_OUTCOME_SESSION_CLOSED)
	s.outcome(s.begin(runs), v1.Outcome_OUTCOME_LEASE_LOST)
	end := &v1.EndCallRequest{SessionId: s.own, CallId: runs.CallId, Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(1), Spent: []*v1.BudgetAmount{{Budget: s.own, Amount: "0"}}}
	if got, ok := done(s, "end what ran", func(ctx context.Context, n *node) (*v1.EndCallResponse, error) { return n.calls.EndCall(ctx, end) }); ok {
		s.wrong(got.Outcome != v1.Outcome_OUTCOME_LEASE_LOST || got.Reason == "" || got.Signal != nil, "it is {%v}", got)
	}
	for _, id := range []string{waits.CallId, asked.CallId} {
		s.refused("end what never ran", "NOT_FOUND", "callId", func(ctx context.Context, n *node) error {
			_, err := n.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: s.own, CallId: id, Status: v1.Status_STATUS_SUCCEEDED})
			return err
		})
	}
	none := s.id()
	s.refused("end what never was", "SESSION_CLOSED", "", func(ctx context.Context, n *node) error {
		_, err := n.calls.EndCall(ctx, &v1.EndCallRequest{SessionId: s.own, CallId: none, Status: v1.Status_STATUS_SUCCEEDED})
		return err
	})
	spent()
	s.see(want, v1.SessionState_SESSION_STATE_CLOSED)
}

// shape holds each field of the answers about a call and a slot to what was asked for.
func shape(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 5, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	put := &v1.PutPolicyRequest{Yaml: "name: " + s.own + "\nmax_tool_calls: 100\nmax_concurrent: 4\nbackpressure_threshold: 2\n", RequestId: s.id(), Client: s.own}
	policy, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	})
	if !ok {
		return
	}
	begun := time.Now()
	create := &v1.CreateSessionRequest{SessionId: s.own, AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Digest{Digest: policy.Digest}}, ParentSessionId: s.own + "-parent"}
	named := s.rng.IntN(2) == 0
	if named {
		create.Policy.Ref = &v1.PolicyRef_Name{Name: s.own}
	}
	made, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, create)
	})
	if !ok {
		return
	}
	const day = 24 * time.Hour
	about := func(x *v1.Session) {
		s.wrong((x.PolicyName == s.own) != named || (x.PolicyName == "") == named || (x.PolicyVersion > 0) != named || named && x.PolicyVersion != policy.Version, "its policy is %q of version %d", x.PolicyName, x.PolicyVersion)
		s.wrong(x.PolicyDigest != policy.Digest || x.ParentSessionId != create.ParentSessionId || len(x.Attributes)+len(x.Checkpoints) > 0 || x.Signal != nil || x.Breaker != nil || x.KindCounters != nil, "it is {%v}", x)
		s.wrong(x.IdleTtl.AsDuration() != day || x.IdleLeft == nil || x.IdleLeft.AsDuration() > day+long.AsDuration() || x.IdleLeft.AsDuration() < day-time.Minute, "it is idle for %v, and %v is left", x.IdleTtl, x.IdleLeft)
		s.wrong(x.Age.AsDuration() > 2*time.Since(begun)+2*time.Second || x.Age.AsDuration() < 0, "it is %v old", x.Age.AsDuration())
	}
	about(made.Session)
	// A call that says nothing of its time has that of all, and one that is bound to an end no more than that.
	type try struct {
		ttl, hold *durationpb.Duration
		want      time.Duration
	}
	tries := []try{{nil, nil, 30 * time.Second}, {long, nil, long.AsDuration()}, {long, durationpb.New(2 * time.Minute), 2 * time.Minute}, {durationpb.New(time.Minute), durationpb.New(time.Hour), time.Minute}}
	s.rng.Shuffle(len(tries), func(i, j int) { tries[i], tries[j] = tries[j], tries[i] })
	grants := map[string][]*v1.Grant{}
	asked := time.Now()
	s.good = asked.Add(15 * time.Second) // then the shortest may have lapsed
	for i, x := range tries {
		use := int32(i + 1)
		req := s.call("one")
		req.Ttl, req.MaxHold, req.Pools = x.ttl, x.hold, []*v1.Want{{Pool: s.own}}
		since := time.Now()
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_ADMITTED); s.over {
			return
		}
		s.wrong(res.Reason != "" || res.DecisionId == "" || res.RetryAfter != nil || res.Queue != nil || res.ModifiedArguments != nil || res.Approval != nil || res.Rate != "" || res.Budget != nil || res.Signal != nil || res.Reviews ||
			!res.Decision.GetAllowed(), "it is admitted as {%v}", res)
		pressure := &v1.Pressure{Level: v1.Level_LEVEL_NONE, InUse: use, Limit: 4}
		if use >= 2 {
			pressure.Level, pressure.AdvisedDelay = v1.Level_LEVEL_PRESSED, durationpb.New(time.Duration(use-1)*50*time.Millisecond)
		}
		s.alike("the pressure", res.Pressure, pressure)
		s.wrong(len(res.Grants) != 2 || res.Grants[0].Pool != "policy/"+s.own || res.Grants[1].Pool != s.own, "the grants are %v", res.Grants)
		for _, g := range res.Grants {
			s.within("the lease of "+g.Pool, g.Ttl, x.want, since)
		}
		if s.over {
			return
		}
		grants[req.CallId] = res.Grants
		if x.want <= time.Minute {
			continue // it may have lapsed by the time of the renewal
		}
		for _, ttl := range []*durationpb.Duration{durationpb.New(5 * time.Minute), long} {
			since = time.Now()
			renewed, ok := done(s, "renew", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
				return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Ttl: ttl, Slots: []*v1.SlotRef{{SessionId: s.own, SlotId: req.CallId, Token: res.Grants[i%2].Token}}})
			})
			if !ok {
				return
			}
			most := ttl.AsDuration()
			if x.hold != nil {
				most = min(most, x.want)
			}
			s.wrong(renewed.Results[0].Outcome != v1.Outcome_OUTCOME_RENEWED || renewed.Results[0].Signal != nil, "it is {%v}", renewed)
			s.within("the lease that was renewed", renewed.Results[0].Ttl, most, since)
		}
	}
	over := s.call("one")
	if res := s.begin(over); !s.over {
		wait := res.RetryAfter.AsDuration() // with a repeat, if only between nodes, it is not known any more
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_CONCURRENCY_LIMIT || res.Reason == "" || res.Decision.GetAllowed() || res.Decision.GetPublicMessage() == "" || wait > time.Second || len(res.Grants) > 0 || res.Queue != nil,
			"it is refused as {%v}", res)
	}
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if !ok {
		return
	}
	about(res.Session)
	for _, c := range res.Session.OpenCalls {
		s.wrong(c.Tool != "one" || c.Waiting || c.ApprovalId != "" || c.Ttl.AsDuration() <= 0 || c.Ttl.AsDuration() > long.AsDuration() || c.Age.AsDuration() < 0 || c.Age.AsDuration() > time.Minute, "an open call is {%v}", c)
		got := grants[c.CallId]
		s.wrong(len(c.Grants) != 2 || len(got) != 2, "it has the grants %v, and was told of %v", c.Grants, got)
		for i := range got {
			s.wrong(!s.over && (c.Grants[i].Pool != got[i].Pool || c.Grants[i].Token != got[i].Token || c.Grants[i].Ttl.AsDuration() != c.Ttl.AsDuration()), "it has the grants %v, and was told of %v", c.Grants, got)
		}
	}
	listed, ok := done(s, "list sessions", func(ctx context.Context, n *node) (*v1.ListSessionsResponse, error) {
		return n.sessions.ListSessions(ctx, &v1.ListSessionsRequest{PolicyDigest: policy.Digest})
	})
	s.wrong(ok && (len(listed.Sessions) != 1 || listed.Sessions[0].SessionId != s.own || listed.NextPageToken != ""), "sessions of the policy are %v", listed)
	for _, req := range []*v1.ListSessionsRequest{
		{PolicyDigest: policy.Digest, AgentId: s.own + "-other"}, {PolicyDigest: "sha256:" + strings.Repeat("5", 64), AgentId: s.own},
	} {
		none, ok := done(s, "list sessions of others", func(ctx context.Context, n *node) (*v1.ListSessionsResponse, error) {
			return n.sessions.ListSessions(ctx, req)
		})
		s.wrong(ok && len(none.Sessions) > 0, "sessions of others are %v", none)
	}
	// A slot of a client likewise.
	slot := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Label: "label"}
	since := time.Now()
	hold := s.rng.IntN(2) == 0
	most := 30 * time.Second
	if hold {
		slot.Ttl, slot.MaxHold, most = long, durationpb.New(2*time.Minute), 2*time.Minute
	}
	held, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, slot)
	})
	if !ok {
		return
	}
	s.wrong(held.Outcome != v1.Outcome_OUTCOME_ADMITTED || held.Reason != "" || held.RetryAfter != nil || held.Queue != nil, "it is {%v}", held)
	s.alike("the pressure", held.Pressure, &v1.Pressure{Level: v1.Level_LEVEL_PRESSED, InUse: 5, Limit: 5, AdvisedDelay: durationpb.New(50 * time.Millisecond)}) // full, which is its threshold
	s.within("its lease", held.Ttl, most, since)
	if !hold {
		return
	}
	renewed, ok := done(s, "renew the slot", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
		return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{{Pool: s.own, SlotId: slot.SlotId, Token: held.Token}}})
	})
	if ok {
		s.wrong(renewed.Results[0].Outcome != v1.Outcome_OUTCOME_RENEWED || renewed.Results[0].Slot.GetPool() != s.own || renewed.Results[0].Slot.GetSlotId() != slot.SlotId, "it is {%v}", renewed)
		s.within("the lease that was renewed", renewed.Results[0].Ttl, most, since)
	}
	since = time.Now()
	renewed, ok = done(s, "renew the slot", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
		return n.slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Client: s.own, Slots: []*v1.SlotRef{{Pool: s.own, SlotId: slot.SlotId, Token: held.Token}}})
	})
	if ok {
		s.within("the lease that was renewed without a ttl", renewed.Results[0].Ttl, 30*time.Second, since)
	}
}
