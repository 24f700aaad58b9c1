package alone

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What the Go client does for its user, who is told by types what came of it.

// through asks by the Go client, which goes to other nodes and asks again by itself. What
// is refused or objected to comes as the error. It is not ok if the script is over.
func through[R any](s *script, step string, ask func(ctx context.Context, c *client.Client) (R, error)) (answer R, ok bool, err error) {
	if s.over {
		return answer, false, nil
	}
	s.last, s.tries = step+" by the client", 1
	ctx, cancel := context.WithTimeout(s.ctx, 10*time.Second)
	defer cancel()
	answer, err = ask(ctx, s.shipped)
	if err != nil && !errors.As(err, new(*client.Refused)) && !errors.Is(err, client.ErrLeaseLost) && (!errors.As(err, new(*client.Error)) || refused(err) == "") {
		s.over = true
		return answer, false, err
	}
	s.steps++
	return answer, true, err
}

// given is through, for what is not refused.
func given[R any](s *script, step string, ask func(ctx context.Context, c *client.Client) (R, error)) (answer R, ok bool) {
	answer, ok, err := through(s, step, ask)
	s.wrong(ok && err != nil, "it was refused: %v", err)
	return answer, ok && !s.over
}

// question asks people about something without a call, and waits for what they say.
func question(s *script) {
	q := client.Question{
		Agent: s.own, Tool: "tool", Arguments: map[string]any{"n": 1}, Message: "why not", Session: s.own + "-shown", Timeout: 20 * time.Minute,
		Required: 1, Denials: 1,
	}
	asked, ok := given(s, "request an approval", func(ctx context.Context, c *client.Client) (*v1.Approval, error) { return c.RequestApproval(ctx, q) })
	if !ok {
		return
	}
	s.wrong(asked.AgentId != s.own || asked.Tool != "tool" || asked.Arguments != `{"n":1}` || asked.Reason != "why not" || asked.SessionId != q.Session ||
		asked.Timeout.AsDuration() != q.Timeout || asked.Required != 1 || asked.Denials != 1 || asked.State != client.ApprovalPending, "the approval is %v", asked)
	listed := func(of client.Approvals, want int) {
		of.Agent = s.own
		times := 0
		for token := ""; ; {
			page, ok := given(s, "list approvals", func(ctx context.Context, c *client.Client) (*v1.ApprovalServiceListResponse, error) {
				return c.ListApprovals(ctx, of, 1, token)
			})
			if !ok {
				return
			}
			for _, a := range page.Approvals {
				s.wrong(a.Id != asked.Id, "another one is listed: %v", a)
				times++
			}
			if token = page.NextPageToken; token == "" {
				break
			}
		}
		s.wrong(times != want, "it is %d times among %v", times, of)
	}
	listed(client.Approvals{}, 1)
	listed(client.Approvals{State: client.ApprovalPending, Session: q.Session}, 1)
	listed(client.Approvals{State: client.ApprovalDenied}, 0)
	listed(client.Approvals{Session: s.own + "-other"}, 0)
	if !s.known { // where everybody says who he is
		other := "sha256:" + strings.Repeat("5", 64) // of something else
		for _, x := range []struct {
			vote client.Vote
			want client.Reason
		}{
			{client.Vote{Approver: s.own}, client.ReasonSelfApproval},
			{client.Vote{Approver: People[0], RequestDigest: other}, client.ReasonInvalidField},
		} {
			_, ok, err := through(s, "approve what may not be", func(ctx context.Context, c *client.Client) (*v1.Approval, error) {
				return c.Approve(ctx, asked.Id, x.vote)
			})
			var no *client.Error
			s.wrong(ok && (!errors.As(err, &no) || no.Reason != x.want), "the answer to %v is %v", x.vote, err)
		}
		listed(client.Approvals{State: client.ApprovalPending}, 1)
	}
	end := client.ApprovalCancelled
	waiting, stop := context.WithCancel(s.ctx)
	var under sync.WaitGroup
	defer under.Wait()
	defer stop()
	var awaited *v1.Approval
	under.Go(func() {
		if a, err := s.shipped.AwaitApproval(waiting, asked.Id); err == nil {
			awaited = a
		}
	})
	switch s.rng.IntN(4) {
	case 0:
		_, ok = given(s, "cancel the approval", func(ctx context.Context, c *client.Client) (any, error) { return nil, c.CancelApproval(ctx, asked.Id) })
	case 1:
		end = client.ApprovalDenied
		s.vote(s.rng.IntN(2), asked.Id, v1.Vote_VOTE_DENY)
	case 2:
		end = client.ApprovalApproved
		s.vote(s.rng.IntN(2), asked.Id, v1.Vote_VOTE_APPROVE)
	default:
		if s.known {
			return
		}
		end = client.ApprovalApproved
		var a *v1.Approval
		a, ok = given(s, "approve", func(ctx context.Context, c *client.Client) (*v1.Approval, error) {
			return c.Approve(ctx, asked.Id, client.Vote{Approver: People[1], Reason: "as it is", RequestDigest: asked.RequestDigest})
		})
		s.wrong(ok && (len(a.Ballots) != 1 || a.Ballots[0].Approver != People[1] || a.Ballots[0].Reason != "as it is"), "the approval is %v", a)
	}
	if s.over || !ok {
		return
	}
	got, ok := given(s, "get the approval", func(ctx context.Context, c *client.Client) (*v1.Approval, error) { return c.GetApproval(ctx, asked.Id) })
	s.wrong(ok && got.State != end, "the approval is %v, want %v", got, end)
	if under.Wait(); awaited != nil { // else the time of the script has ended it
		same(s, "the state that was waited for", awaited.State, end)
	}
	listed(client.Approvals{State: end}, 1)
	listed(client.Approvals{State: client.ApprovalPending}, 0)
}

// keeps writes values and a list, and is told of versions that are not as it thinks.
func keeps(s *script) {
	key := func(i int) string { return fmt.Sprintf("%s-%d", s.own, i) }
	want := map[string]client.Value{}
	for i := range 3 {
		text := fmt.Sprint("text ", i)
		version, ok := given(s, "set a value", func(ctx context.Context, c *client.Client) (string, error) {
			return c.Set(ctx, key(i), text, client.Write{IfVersion: client.Absent, TTL: time.Hour})
		})
		if !ok {
			return
		}
		want[key(i)] = client.Value{Found: true, Text: text, Version: version}
	}
	many := func() {
		got, ok := given(s, "get all", func(ctx context.Context, c *client.Client) (map[string]client.Value, error) {
			return c.GetMany(ctx, key(0), key(1), key(2), key(3))
		})
		s.wrong(ok && !maps.Equal(got, want), "values are %v, want %v", got, want)
	}
	conflict := func(what, today string, err error) {
		is, ok := client.Conflict(err)
		s.wrong(!s.over && (!ok || is != today), "%s: the conflict is %q (%v), want %q", what, is, err, today)
	}
	many()
	_, _, err := through(s, "set by another version", func(ctx context.Context, c *client.Client) (string, error) {
		return c.Set(ctx, key(0), "other", client.Write{IfVersion: want[key(1)].Version})
	})
	conflict("set", want[key(0)].Version, err)
	_, _, err = through(s, "set what is there", func(ctx context.Context, c *client.Client) (string, error) {
		return c.Set(ctx, key(0), "other", client.Write{IfVersion: client.Absent})
	})
	conflict("set", want[key(0)].Version, err)
	_, _, err = through(s, "delete by another version", func(ctx context.Context, c *client.Client) (bool, error) {
		return c.Delete(ctx, key(0), want[key(1)].Version)
	})
	conflict("delete", want[key(0)].Version, err)
	many()
	remove := func(version string, was bool) {
		found, ok := given(s, "delete a value", func(ctx context.Context, c *client.Client) (bool, error) { return c.Delete(ctx, key(0), version) })
		s.wrong(ok && found != was, "it was found: %v", found)
	}
	remove(want[key(0)].Version, true)
	delete(want, key(0))
	many()
	remove("", false)
	gone, ok := given(s, "get what is gone", func(ctx context.Context, c *client.Client) (client.Value, error) { return c.Get(ctx, key(0)) })
	s.wrong(ok && gone != client.Value{Version: client.Absent}, "the value is %v", gone)
	add := func(amount, sum string) {
		got, ok := given(s, "add "+amount, func(ctx context.Context, c *client.Client) (string, error) { return c.Increment(ctx, key(4), amount) })
		s.wrong(ok && got != sum, "the sum is %s, want %s", got, sum)
	}
	add("2.5", "2.5")
	add("", "3.5")
	_, ok, err = through(s, "add to a text", func(ctx context.Context, c *client.Client) (string, error) { return c.Increment(ctx, key(1), "1") })
	var no *client.Error
	s.wrong(ok && (!errors.As(err, &no) || no.Reason != client.ReasonNotANumber), "the answer is %v", err)
	none := int64(0)
	put := func(items []string, at *int64) (int64, error) {
		length, _, err := through(s, "append", func(ctx context.Context, c *client.Client) (int64, error) {
			return c.Append(ctx, s.own, items, client.Appending{TTL: time.Hour, IfLength: at})
		})
		return length, err
	}
	length, err := put([]string{"a", "b"}, &none)
	s.wrong(err != nil || length != 2, "the length is %d (%v)", length, err)
	_, err = put([]string{"c"}, &none)
	conflict("append", "2", err)
	part, ok := given(s, "read the list", func(ctx context.Context, c *client.Client) (client.Items, error) { return c.Range(ctx, s.own, 1, 5) })
	s.wrong(ok && (part.Length != 2 || part.Next != 2 || !slices.Equal(part.Items, []client.Item{{Index: 1, Text: "b"}})), "the list is %v", part)
	for _, was := range []bool{true, false} {
		found, ok := given(s, "delete the list", func(ctx context.Context, c *client.Client) (bool, error) { return c.DeleteList(ctx, s.own) })
		s.wrong(ok && found != was, "it was found: %v", found)
	}
}

// worked makes calls of a session by the client, with all that a call may ask for.
func worked(s *script) {
	if _, ok := given(s, "put a pool", func(ctx context.Context, c *client.Client) (*v1.Pool, error) {
		return c.PutPool(ctx, client.Pool{Name: s.own, Slots: 3, QueueLimit: client.NoQueue})
	}); !ok {
		return
	}
	given(s, "put a budget", func(ctx context.Context, c *client.Client) (*v1.Budget, error) {
		return c.PutBudget(ctx, client.Spending{Budget: s.own, Amount: "10"})
	})
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 4\nbackpressure_threshold: 4\nmax_tokens: 1000\n") {
		return
	}
	open := client.Session{ID: s.own, Agent: s.own, Policy: s.own, IdleTTL: 3 * time.Hour, Attributes: map[string]string{"a": "b"}, Secret: s.rng.IntN(2) == 0}
	x, ok := given(s, "create a session", func(ctx context.Context, c *client.Client) (*client.OpenSession, error) {
		return c.CreateSession(ctx, open)
	})
	if !ok {
		return
	}
	call := client.Call{
		ID: s.id(), Tool: "one", Arguments: map[string]any{"n": 1}, Pools: []client.Want{{Pool: s.own, Weight: 2}}, Costs: []client.Cost{{Budget: s.own, Amount: "4"}},
		Tokens: 50, TTL: long.AsDuration(), Wait: client.NoWait,
	}
	begin := func(in *client.OpenSession, call client.Call) (*client.OpenCall, error) {
		o, _, err := through(s, "begin "+call.Tool, func(ctx context.Context, _ *client.Client) (*client.OpenCall, error) { return in.Begin(ctx, call) })
		return o, err
	}
	if open.Secret {
		var no *client.Error
		_, err := begin(s.shipped.Session(s.own), call)
		s.wrong(!s.over && (!errors.As(err, &no) || no.Reason != client.ReasonNotFound), "without the secret the answer is %v", err)
		x = s.shipped.SessionWith(s.own, x.Secret())
	}
	one, err := begin(x, call)
	if s.wrong(err != nil, "it was refused: %v", err); s.over {
		return
	}
	tokens := map[string]uint64{}
	for _, g := range one.Begun().GetGrants() {
		tokens[g.Pool] = g.Token
	}
	p := one.Pressure()
	s.wrong(one.ID() != call.ID || len(tokens) != 2 || one.State() != client.Held || p.Limit != 4 || p.InUse != 1, "the call is %v, of %v and with %v", one.ID(), tokens, p)
	see := func(used string, slots int) {
		b, ok := given(s, "get the budget", func(ctx context.Context, c *client.Client) (*v1.Budget, error) { return c.GetBudget(ctx, s.own) })
		s.wrong(ok && b.Used != used, "the budget is %v", b)
		res, ok := given(s, "list slots", func(ctx context.Context, c *client.Client) (*v1.ListSlotsResponse, error) {
			return c.ListSlots(ctx, s.own)
		})
		if ok {
			s.wrong(len(res.Slots) != slots || slots == 1 && (res.Slots[0].Token != tokens[s.own] || res.Slots[0].Weight != 2 || res.Slots[0].SessionId != s.own), "slots are %v", res.Slots)
		}
	}
	see("4", 1)
	counted := func(got *client.Counters, want *client.Counters) { s.alike("the counters", got, want) }
	counted(one.Begun().GetCounters(), &client.Counters{Attempts: 1, Calls: 1})
	more := call
	more.ID = s.id()
	_, err = begin(x, more)
	var no *client.Refused
	if s.wrong(!errors.As(err, &no), "more was given than there is: %v", err); s.over {
		return
	}
	s.wrong(no.Outcome != client.ConcurrencyLimit && no.Outcome != client.QueueFull || no.DecisionID == "" || no.Reason == "", "it is refused by %v", no)
	counted(no.Counters, &client.Counters{Attempts: 2, Calls: 1})
	end := func(o *client.OpenCall, status client.Status, options ...client.EndOption) error {
		_, _, err := through(s, "end", func(ctx context.Context, _ *client.Client) (any, error) { return nil, o.End(ctx, status, options...) })
		return err
	}
	for range 2 {
		err = end(one, client.Succeeded, client.UsedTokens(30), client.Spent(client.Cost{Budget: s.own, Amount: "1.5"}))
		s.wrong(err != nil, "it did not end: %v", err)
	}
	if s.over {
		return
	}
	counted(one.Ended().GetCounters(), &client.Counters{Attempts: 2, Calls: 1, Executions: 1, TokensUsed: 30})
	s.wrong(one.State() != client.Ended, "its lease is %v", one.State())
	see("1.5", 0)
	failed := errors.New("failed")
	_, _, err = through(s, "do", func(ctx context.Context, _ *client.Client) (any, error) {
		err := x.Do(ctx, client.Call{Tool: "two", Wait: client.NoWait, TTL: long.AsDuration()}, func(context.Context, *client.OpenCall) error { return failed })
		if errors.Is(err, failed) && len(strings.Split(err.Error(), "\n")) == 1 {
			return nil, nil // and it has ended
		}
		return nil, err
	})
	s.wrong(err != nil, "it came to %v", err)
	if s.over { // whether it is begun is not known
		return
	}
	got, ok := given(s, "read the session", func(ctx context.Context, _ *client.Client) (*v1.Session, error) { return x.Read(ctx) })
	if ok {
		counted(&client.Counters{
			Attempts: got.Attempts, Calls: got.Calls, Executions: got.Executions, Failures: got.Failures, ConsecutiveFailures: got.ConsecutiveFailures, TokensUsed: got.TokensUsed,
		}, &client.Counters{Attempts: 3, Calls: 2, Executions: 2, Failures: 1, ConsecutiveFailures: 1, TokensUsed: 30})
		s.wrong(got.AgentId != s.own || got.PolicyName != s.own || got.IdleTtl.AsDuration() != open.IdleTTL || !maps.Equal(got.Attributes, open.Attributes) ||
			!maps.Equal(got.CallsByTool, map[string]int32{"one": 1, "two": 1}) || len(got.OpenCalls) > 0, "the session is %v", got)
	}
	stop := func(signal string) {
		given(s, "send "+signal, func(ctx context.Context, c *client.Client) (*v1.SignalResponse, error) {
			return c.Signal(ctx, client.Target{Session: s.own}, signal, "why")
		})
	}
	stopped := client.Call{ID: s.id(), Tool: "one", TTL: long.AsDuration(), Wait: client.NoWait}
	stop(client.Stop)
	_, err = begin(x, stopped)
	s.wrong(!s.over && (!errors.As(err, &no) || no.Outcome != client.Stopped || no.Signal.GetSignal() != client.Stop || no.Signal.GetReason() != "why"), "what is stopped is %v", err)
	stop(client.Continue)
	two, err := begin(x, stopped)
	if s.wrong(err != nil, "it was refused: %v", err); s.over {
		return
	}
	if _, ok := given(s, "close the session", func(ctx context.Context, _ *client.Client) (int, error) { return x.Close(ctx) }); !ok {
		return
	}
	s.wrong(!errors.Is(end(two, client.Succeeded), client.ErrLeaseLost), "a call of a session that is closed has ended")
	stopped.ID = s.id()
	_, err = begin(x, stopped)
	s.wrong(!s.over && (!errors.As(err, &no) || no.Outcome != client.SessionClosed), "a closed session answers %v", err)
}

// kept holds a slot by renewals: for as long as its holder may believe in it, it is seen to
// hold it.
func kept(s *script) {
	if _, ok := given(s, "put a pool", func(ctx context.Context, c *client.Client) (*v1.Pool, error) {
		return c.PutPool(ctx, client.Pool{Name: s.own, Slots: 2})
	}); !ok {
		return
	}
	slot, ok, err := through(s, "acquire", func(ctx context.Context, c *client.Client) (*client.Slot, error) {
		return c.Acquire(s.ctx, s.own, client.SlotID(s.id()), client.TTL(2*time.Second), client.Weight(2), client.Label("label"), client.CancelOnLost(), client.Wait(client.NoWait))
	})
	if !ok || errors.Is(err, client.ErrLeaseLost) { // the answer came late
		return
	}
	if s.wrong(err != nil, "it was refused: %v", err); s.over {
		return
	}
	for until := time.Now().Add(time.Duration(s.rng.Int64N(int64(6 * time.Second)))); time.Now().Before(until) && slot.State() != client.Lost; {
		believed := slot.Deadline()
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if !ok {
			break
		}
		state := slot.State()
		in := time.Now().Before(believed)
		s.wrong(in && (len(res.Slots) != 1 || res.Slots[0].SlotId != slot.ID() || res.Slots[0].Token != slot.Token() || res.Slots[0].Weight != 2 || res.Slots[0].Label != "label"),
			"it is held until %v, and slots are %v", time.Until(believed), res.Slots)
		s.wrong(in && state == client.Lost, "it was good for %v more, and is lost", time.Until(believed))
		select {
		case <-s.ctx.Done():
		case <-slot.Lost():
		case <-time.After(time.Duration(s.rng.Int64N(int64(500 * time.Millisecond)))):
		}
	}
	believed := slot.Deadline()
	err = slot.ReleaseContext(s.ctx)
	s.wrong(time.Now().Before(believed) && errors.Is(err, client.ErrLeaseLost), "it was good for %v more, and was lost: %v", time.Until(believed), err)
	if err == nil {
		s.wrong(slot.Context().Err() == nil, "its context goes on")
		res, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
			return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
		})
		s.wrong(ok && res.Pool.InUse != 0, "the pool is %v", res.GetPool())
	}
}

// late waits for a slot for longer than it is to hold it: its lease begins when it gets it.
func late(s *script) {
	if _, ok := given(s, "put a pool", func(ctx context.Context, c *client.Client) (*v1.Pool, error) {
		return c.PutPool(ctx, client.Pool{Name: s.own, Slots: 1})
	}); !ok {
		return
	}
	before := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: durationpb.New(2500 * time.Millisecond)}
	if _, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, before)
	}); !ok {
		return
	}
	slot, ok, err := through(s, "acquire after another", func(context.Context, *client.Client) (*client.Slot, error) {
		return s.shipped.Acquire(s.ctx, s.own, client.SlotID(s.id()), client.TTL(time.Second), client.Wait(8*time.Second))
	})
	if !ok {
		return
	}
	var no *client.Refused
	// Handed to it and not taken for a second, it is passed on: to nobody here.
	s.wrong(errors.As(err, &no) && no.Outcome != client.WaitTimeout && no.Outcome != client.WaitCancelled && !errors.Is(err, client.ErrLeaseLost), "it was refused: %v", err)
	if err != nil || slot.State() == client.Lost { // the answer came late
		s.over = true
		return
	}
	_ = slot.ReleaseContext(s.ctx)
}

// capped holds a slot that may not be held for long, however often it is renewed.
func capped(s *script) {
	const hold = 3 * time.Second
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	slot, ok, err := through(s, "acquire", func(_ context.Context, c *client.Client) (*client.Slot, error) {
		return c.Acquire(s.ctx, s.own, client.SlotID(s.id()), client.TTL(2*time.Second), client.MaxHold(hold), client.CancelOnLost(), client.Wait(client.NoWait))
	})
	if !ok || errors.Is(err, client.ErrLeaseLost) {
		return
	}
	if s.wrong(err != nil, "it was refused: %v", err); s.over {
		return
	}
	latest := time.Now().Add(4 * hold) // time in which nobody leads does not count, and may be a part of each renewal
	for slot.State() != client.Lost && !s.over {
		s.wrong(slot.Deadline().After(latest), "it is held for %v longer than it may be", slot.Deadline().Sub(latest))
		select {
		case <-s.ctx.Done():
			return
		case <-slot.Lost():
		case <-time.After(200 * time.Millisecond):
		}
	}
	select {
	case <-s.ctx.Done():
		return
	case <-slot.Lost():
	case <-time.After(5 * time.Second):
		s.wrong(true, "nobody is told that it is lost")
	}
	s.wrong(!errors.Is(context.Cause(slot.Context()), client.ErrLeaseLost), "it is lost, and its context has ended for %v", context.Cause(slot.Context()))
	_ = slot.ReleaseContext(s.ctx) // of the service it may be for a moment more
	// It is free, for somebody else.
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long, Wait: durationpb.New(2 * time.Second)}
	if res, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, take)
	}); ok {
		s.wrong(res.Outcome == v1.Outcome_OUTCOME_ADMITTED && res.Token <= slot.Token(), "the token is %d, and %d was given out before", res.Token, slot.Token())
	}
}

// closes ends a client that holds slots and calls: where it says that it has given back all
// of them nothing is held any more.
func closes(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 8, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	c, err := s.another(client.Config{Name: s.own})
	if s.wrong(err != nil, "there is no client: %v", err); s.over {
		return
	}
	all := true
	for range 1 + s.rng.IntN(4) {
		ctx, cancel := context.WithTimeout(s.ctx, 5*time.Second)
		if s.rng.IntN(2) == 0 {
			_, err = c.Acquire(ctx, s.own, client.TTL(long.AsDuration()), client.Wait(client.NoWait))
		} else {
			_, err = c.Session(s.own).Begin(ctx, client.Call{Tool: "one", Pools: []client.Want{{Pool: s.own}}, TTL: long.AsDuration(), Wait: client.NoWait})
		}
		cancel()
		all = all && err == nil // else it may be given back behind the scenes, or not
	}
	select {
	case <-s.ctx.Done():
	case <-time.After(time.Duration(s.rng.Int64N(int64(time.Second)))):
	}
	s.last, s.tries = "close", 1
	if err := c.Close(); err != nil || !all {
		return
	}
	got, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	})
	s.wrong(ok && got.Pool.InUse != 0, "the pool is %v", got.GetPool())
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	s.wrong(ok && (len(res.Session.OpenCalls) > 0 || res.Session.Executions != res.Session.Calls), "the session is %v", res.GetSession())
}
