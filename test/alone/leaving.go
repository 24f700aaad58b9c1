package alone

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// How what is held by the Go client comes to its end: once, whoever ends it and however often.

// finished ends calls in all the ways there are, and looks at what the session says of them.
func finished(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	x := s.shipped.Session(s.own)
	call := func() client.Call {
		return client.Call{Tool: "one", TTL: long.AsDuration(), Wait: client.NoWait}
	}
	want := &client.Counters{}
	see := func(what string) {
		got, ok := given(s, "read the session", func(ctx context.Context, _ *client.Client) (*v1.Session, error) { return x.Read(ctx) })
		if ok {
			s.alike("after "+what+" the counters are", &client.Counters{
				Attempts: got.Attempts, Calls: got.Calls, Executions: got.Executions, Failures: got.Failures, ConsecutiveFailures: got.ConsecutiveFailures, TokensUsed: got.TokensUsed,
			}, want)
			s.wrong(len(got.OpenCalls) > 0, "after %s calls are open: %v", what, got.OpenCalls)
		}
	}
	failed, panics := errors.New("failed"), "a panic"
	type key struct{}
	for _, how := range []string{"success", "an error", panics, "an end of its own"} {
		mine := how == "an end of its own"
		var o *client.OpenCall
		var caught any
		_, ok, err := through(s, "do with "+how, func(ctx context.Context, _ *client.Client) (_ any, err error) {
			defer func() { caught = recover() }()
			ctx = context.WithValue(ctx, key{}, how)
			c := call()
			c.CancelOnLost = s.rng.IntN(2) == 0
			err = x.Do(ctx, c, func(given context.Context, open *client.OpenCall) error {
				o = open
				s.wrong(given != open.Context() || given.Value(key{}) != how || given.Err() != nil, "the context that is given is not that of the call")
				s.wrong(open.State() != client.Held && time.Now().Before(open.Deadline()), "the call is %v while it is done", open.State())
				switch {
				case how == "an error":
					return failed
				case how == panics:
					panic(failed)
				case mine:
					err := open.End(ctx, client.Cancelled)
					s.over = s.over || err != nil // it may have ended all the same
					return err
				}
				return nil
			})
			if how == "an error" && errors.Is(err, failed) && len(strings.Split(err.Error(), "\n")) == 1 {
				return nil, nil // and it has ended
			}
			if how == "an error" && err == nil {
				return nil, &client.Refused{Reason: "its error is lost"}
			}
			return nil, err
		})
		if !ok {
			return
		}
		s.wrong(err != nil, "it came to %v", err)
		s.wrong((caught == failed) != (how == panics), "with %s the panic is %v", how, caught)
		if s.over || o == nil || o.Ended() == nil { // whether it has ended is not known
			s.over = true
			return
		}
		s.wrong(o.State() != client.Ended, "it has ended with %s, and is %v", how, o.State())
		want.Attempts, want.Calls = want.Attempts+1, want.Calls+1
		want.Executions++
		switch {
		case how == "an error" || how == panics:
			want.Failures, want.ConsecutiveFailures = want.Failures+1, want.ConsecutiveFailures+1
		case !mine:
			want.ConsecutiveFailures = 0
		}
		see(how)
	}
	// It is ended although its caller's context is done, and only the first time counts.
	o, ok := given(s, "begin", func(ctx context.Context, _ *client.Client) (*client.OpenCall, error) { return x.Begin(ctx, call()) })
	if !ok {
		return
	}
	s.wrong(o.Ended() != nil, "it has not ended, and its end is %v", o.Ended())
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	_, ok, err := through(s, "end with a context that is done", func(context.Context, *client.Client) (any, error) {
		return nil, o.End(gone, client.Succeeded, client.UsedTokens(7))
	})
	if !ok {
		return
	}
	s.wrong(err != nil, "it did not end: %v", err)
	want.Attempts, want.Calls, want.Executions, want.ConsecutiveFailures, want.TokensUsed = want.Attempts+1, want.Calls+1, want.Executions+1, 0, 7
	see("one whose caller has gone")
	was := o.Ended()
	for _, status := range []client.Status{client.Failed, client.Cancelled, client.Succeeded} {
		err := o.End(s.ctx, status, client.UsedTokens(9))
		s.wrong(err != nil, "ended again it gives %v, and nil at first", err)
		s.alike("its end", o.Ended(), was)
	}
	see("more ends")
	// A call of a session that was closed is lost, each time it is ended.
	if o, ok = given(s, "begin", func(ctx context.Context, _ *client.Client) (*client.OpenCall, error) { return x.Begin(ctx, call()) }); !ok {
		return
	}
	if _, ok := given(s, "close the session", func(ctx context.Context, _ *client.Client) (int, error) { return x.Close(ctx) }); !ok {
		return
	}
	var first error
	for i := range 3 {
		_, ok, err := through(s, "end what is lost", func(ctx context.Context, _ *client.Client) (any, error) { return nil, o.End(ctx, client.Succeeded) })
		if !ok {
			return
		}
		var no *client.Refused
		s.wrong(!errors.Is(err, client.ErrLeaseLost) || !errors.As(err, &no) || no.Outcome != v1.Outcome_OUTCOME_LEASE_LOST, "it is lost, and ends with %v", err)
		s.wrong(i > 0 && fmt.Sprint(err) != fmt.Sprint(first), "ended again it gives %v, and %v at first", err, first)
		first = err
	}
}

// parted closes a client that holds things: what becomes of them is told to whoever ends
// them afterwards, and nothing more can be asked of it.
func parted(s *script) {
	if !s.policy("max_tool_calls: 100\n") {
		return
	}
	told := &losses{}
	c, ok := s.also(8, client.Config{Name: s.own, OnLost: told.onLost})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	x, ok := s.opens(c)
	if !ok {
		return
	}
	s.last, s.tries = "hold", 1
	var slots [3]*client.Slot
	var calls [3]*client.OpenCall
	for i := range slots {
		var err error
		options := []client.SlotOption{client.TTL(long.AsDuration()), client.Wait(client.NoWait)}
		if i == 0 {
			options = append(options, client.CancelOnLost())
		}
		if slots[i], err = c.Acquire(s.ctx, s.own, options...); err != nil {
			return
		}
		if calls[i], err = x.Begin(s.ctx, client.Call{Tool: "one", Pools: []client.Want{{Pool: s.own}}, TTL: long.AsDuration(), Wait: client.NoWait, CancelOnLost: i == 0}); err != nil {
			return
		}
	}
	s.steps++
	if slots[2].Release() != nil || calls[2].End(s.ctx, client.Failed) != nil {
		return
	}
	shut, stop := context.WithTimeout(s.ctx, 5*time.Second)
	defer stop()
	s.last = "close"
	err := c.Close()
	if s.rng.IntN(2) == 0 {
		err = errors.Join(err, c.Shutdown(shut))
	}
	s.wrong(errors.As(err, new(*client.Refused)), "all was held, and Close says %v", err)
	if err != nil {
		return
	}
	s.steps++
	for i, slot := range slots {
		s.wrong(slot.State() != client.Ended, "the client is closed, and a slot is %v", slot.State())
		for range 2 {
			err := slot.Release()
			s.wrong(err != nil, "the slot %d was given back, and released again it gives %v", i, err)
		}
	}
	for i, call := range calls {
		for range 2 {
			s.wrong(call.State() != client.Ended, "the client is closed, and a call is %v", call.State())
			err := call.End(s.ctx, client.Cancelled)
			s.wrong(err != nil, "the call %d has ended as cancelled, and ended so it gives %v", i, err)
			err = call.End(s.ctx, client.Succeeded)
			s.wrong((i < 2) != errors.Is(err, client.ErrClosed), "of the calls 0 and 1 were ended as cancelled by Close, and %d gives %v", i, err)
		}
	}
	for _, ctx := range []context.Context{slots[0].Context(), calls[0].Context()} {
		s.wrong(!errors.Is(context.Cause(ctx), client.ErrClosed) && s.ctx.Err() == nil, "the client is closed, and a context has ended for %v", context.Cause(ctx))
	}
	s.wrong(slots[1].Context().Err() != nil && s.ctx.Err() == nil, "a context has ended that nobody wanted to end")
	gone, cancel := context.WithCancel(s.ctx)
	cancel()
	for range 4 {
		err := errors.Join(c.Close(), c.Shutdown(gone))
		s.wrong(err != nil, "it was closed, and closed again it says %v", err)
	}
	s.wrong(c.Name() != s.own, "its name is %s", c.Name())
	for what, ask := range methods(s.ctx, c, s.own) {
		err := ask()
		s.wrong(!errors.Is(err, client.ErrClosed), "after Close %s gives %v", what, err)
	}
	s.wrong(told.number() > 0, "of what was given back losses are told: %v", told.told)
	got, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	s.wrong(ok && (len(got.Session.OpenCalls) > 0 || got.Session.Calls != 3 || got.Session.Executions != 3 || got.Session.Failures != 1), "the session is %v", got.GetSession())
	pool, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	})
	s.wrong(ok && pool.Pool.InUse != 0, "the pool is %v", pool.GetPool())
}

// methods are all that can be asked of a client.
func methods(ctx context.Context, c *client.Client, own string) map[string]func() error {
	x := c.Session(own)
	return map[string]func() error{
		"PutPolicy":       func() error { _, err := c.PutPolicy(ctx, own, "name: "+own+"\n"); return err },
		"PutPolicyTree":   func() error { _, err := c.PutPolicyTree(ctx, &v1.PutPolicyRequest{Name: own}); return err },
		"GetPolicy":       func() error { _, err := c.GetPolicy(ctx, own); return err },
		"ListPolicies":    func() error { _, err := c.ListPolicies(ctx, 1, ""); return err },
		"PutPool":         func() error { _, err := c.PutPool(ctx, client.Pool{Name: own, Slots: 9}); return err },
		"ListSlots":       func() error { _, err := c.ListSlots(ctx, own); return err },
		"Evaluate":        func() error { _, err := c.Evaluate(ctx, &v1.EvaluateRequest{}); return err },
		"Scan":            func() error { _, err := c.Scan(ctx, &v1.ScanRequest{}); return err },
		"Status":          func() error { _, err := c.Status(ctx); return err },
		"WhoAmI":          func() error { _, err := c.WhoAmI(ctx); return err },
		"RequestApproval": func() error { _, err := c.RequestApproval(ctx, client.Question{Agent: own, Tool: "one"}); return err },
		"GetApproval":     func() error { _, err := c.GetApproval(ctx, own); return err },
		"AwaitApproval":   func() error { _, err := c.AwaitApproval(ctx, own); return err },
		"ListApprovals":   func() error { _, err := c.ListApprovals(ctx, client.Approvals{}, 1, ""); return err },
		"Approve":         func() error { _, err := c.Approve(ctx, own, client.Vote{Approver: own}); return err },
		"Deny":            func() error { _, err := c.Deny(ctx, own, client.Vote{Approver: own}); return err },
		"CancelApproval":  func() error { return c.CancelApproval(ctx, own) },
		"PutStanding": func() error {
			_, err := c.PutStanding(ctx, client.Standing{Scope: client.OfAgent, Name: own, Tool: "one", Expiry: time.Hour})
			return err
		},
		"ListStanding":   func() error { _, err := c.ListStanding(ctx, 1, ""); return err },
		"DeleteStanding": func() error { return c.DeleteStanding(ctx, own) },
		"PutBudget":      func() error { _, err := c.PutBudget(ctx, client.Spending{Budget: own, Amount: "1"}); return err },
		"GetBudget":      func() error { _, err := c.GetBudget(ctx, own); return err },
		"ListBudgets":    func() error { _, err := c.ListBudgets(ctx, 1, ""); return err },
		"AdjustBudget":   func() error { _, err := c.AdjustBudget(ctx, own, "1"); return err },
		"DeleteBudget":   func() error { return c.DeleteBudget(ctx, own) },
		"PutRate":        func() error { _, err := c.PutRate(ctx, client.Rate{Name: own, Limit: 1, Per: time.Second}); return err },
		"GetRate":        func() error { _, err := c.GetRate(ctx, own); return err },
		"ListRates":      func() error { _, err := c.ListRates(ctx, 1, ""); return err },
		"DeleteRate":     func() error { return c.DeleteRate(ctx, own) },
		"TakeRate":       func() error { return c.TakeRate(ctx, client.Take{Rate: own}) },
		"CreateSession":  func() error { _, err := c.CreateSession(ctx, client.Session{Agent: own, Policy: own}); return err },
		"Signal":         func() error { _, err := c.Signal(ctx, client.Target{Session: own}, client.Stop, "why"); return err },
		"ListSignals":    func() error { _, err := c.ListSignals(ctx); return err },
		"Acquire":        func() error { _, err := c.Acquire(ctx, own); return err },
		"Get":            func() error { _, err := c.Get(ctx, own); return err },
		"GetMany":        func() error { _, err := c.GetMany(ctx, own); return err },
		"Increment":      func() error { _, err := c.Increment(ctx, own, "1"); return err },
		"Set":            func() error { _, err := c.Set(ctx, own, "text", client.Write{}); return err },
		"Delete":         func() error { _, err := c.Delete(ctx, own, ""); return err },
		"Append": func() error {
			_, err := c.Append(ctx, own, []string{"one"}, client.Appending{TTL: time.Hour})
			return err
		},
		"Range":      func() error { _, err := c.Range(ctx, own, 0, 1); return err },
		"DeleteList": func() error { _, err := c.DeleteList(ctx, own); return err },
		"Begin":      func() error { _, err := x.Begin(ctx, client.Call{Tool: "one"}); return err },
		"Do": func() error {
			return x.Do(ctx, client.Call{Tool: "one"}, func(context.Context, *client.OpenCall) error { return nil })
		},
		"Read":               func() error { _, err := x.Read(ctx); return err },
		"Close of a session": func() error { _, err := x.Close(ctx); return err },
	}
}
