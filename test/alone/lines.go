package alone

import (
	"context"
	"strings"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Who comes first, what the breaker lets pass, and what is kept for a time.

// line has slots of several weights and priorities wait for a pool: nobody overtakes whom
// there is no room for yet, unless by a higher priority.
func line(s *script) {
	queue := int32(2)
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 3, QueueLimit: &queue, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	s.single = true // what waits is answered otherwise when its turn comes
	const admitted, queued, full = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_QUEUED, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT
	heard := time.Now() // of who waits
	fresh := true       // the last one was asked for once: what tells of its time is not remembered
	ask := func(id string, weight, priority int32, wait time.Duration) *v1.AcquireSlotResponse {
		req := &v1.AcquireSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Weight: weight, Priority: priority, Ttl: long, Wait: durationpb.New(wait)}
		before := s.steps
		res := s.batch("acquire", &v1.Operation{Op: &v1.Operation_Acquire{Acquire: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		fresh = s.tries == 1 && s.steps == before+1
		if time.Since(heard) > 4*time.Second { // who waits is forgotten
			s.over = true
		}
		if s.over {
			return nil
		}
		return res[0].GetAcquire()
	}
	come := func(res *v1.AcquireSlotResponse, want v1.Outcome, position int32) *v1.AcquireSlotResponse {
		s.wrong(!s.over && (res.GetOutcome() != want || res.GetQueue().GetPosition() != position || want == queued && res.Queue.Pool != s.own || (want == full) != (res.Reason != "")),
			"the outcome is {%v}, want %v at place %d", res, want, position)
		return res
	}
	release := func(id string, token uint64) {
		req := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Token: token}
		done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, req)
		})
	}
	a, b, c, d := s.id(), s.id(), s.id(), s.id()
	held := come(ask(a, 2, 0, 0), admitted, 0)
	if heard = time.Now(); s.over {
		return
	}
	come(ask(b, 2, 0, 5*time.Minute), queued, 1)
	// There is room for one, which is not for who comes behind.
	if res := come(ask(s.id(), 1, 0, 0), full, 0); !s.over {
		wait := res.RetryAfter.AsDuration()
		s.wrong(res.Token != 0 || fresh && res.RetryAfter != nil && (wait <= 0 || wait > time.Second || res.Pressure.GetInUse() != 2 || res.Pressure.GetLimit() != 3), "it is refused as {%v}", res)
	}
	come(ask(s.id(), 1, -1, 0), full, 0)
	if first := come(ask(c, 1, 1, 0), admitted, 0); !s.over {
		release(c, first.Token)
	}
	come(ask(d, 3, 5, 5*time.Minute), queued, 1)
	come(ask(b, 2, 0, 5*time.Minute), queued, 2)
	if res := ask(s.id(), 2, 9, 5*time.Minute); !s.over { // where as many wait as may
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_QUEUE_FULL || res.Reason == "" || res.Queue != nil, "it is refused as {%v}", res)
	}
	heavy := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Weight: 4, Ttl: long}
	s.refused("acquire more than there are", "INVALID_FIELD", "weight", func(ctx context.Context, n *node) error {
		_, err := n.slots.AcquireSlot(ctx, heavy)
		return err
	})
	if s.over {
		return
	}
	release(a, held.Token)
	now := ask(d, 3, 5, 5*time.Minute)
	come(now, admitted, 0)
	come(ask(b, 2, 0, 5*time.Minute), queued, 1)
	if heard = time.Now(); s.over {
		return
	}
	s.wrong(now.Token <= held.Token, "the token is %d, and %d was given out before", now.Token, held.Token)
	begun := time.Now()
	short := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long, Wait: durationpb.New(600 * time.Millisecond)}
	for range 2 {
		if res, ok := done(s, "wait for a slot", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, short)
		}); ok {
			s.wrong(res.Outcome != v1.Outcome_OUTCOME_WAIT_TIMEOUT || res.Reason == "" || !s.Hasty && time.Since(begun) < 300*time.Millisecond, "after %v it is {%v}", time.Since(begun), res)
		}
	}
	// Fewer slots take nothing away from who holds them.
	pool.Slots, pool.RequestId = 2, s.id()
	if res, ok := done(s, "put fewer slots", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); ok {
		s.wrong(res.Pool.InUse != 3 || res.Pool.Slots != 2, "the pool is {%v}", res.Pool)
	}
	come(ask(b, 2, 0, 5*time.Minute), queued, 1)
	if heard = time.Now(); s.over {
		return
	}
	release(d, now.Token)
	last := come(ask(b, 2, 0, 5*time.Minute), admitted, 0)
	if s.over {
		return
	}
	release(b, last.Token)
	// Of another pool and of another client there is no such slot.
	for _, req := range []*v1.ReleaseSlotRequest{{Pool: s.own, SlotId: b, Client: s.own + "-other", Token: last.Token}, {Pool: s.own, SlotId: s.id(), Client: s.own, Token: last.Token}} {
		s.refused("release what is another's", "NOT_FOUND", "slotId", func(ctx context.Context, n *node) error {
			_, err := n.slots.ReleaseSlot(ctx, req)
			return err
		})
	}
}

// tried fails calls until the breaker opens, and tries one after another when its time has
// passed.
func tried(s *script) {
	const reset = 2 * time.Second
	if !s.policy("max_tool_calls: 100\nmax_consecutive_failures: 2\nbreaker_reset: 2s\n") || !s.session(nil) {
		return
	}
	const admitted, open = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_BREAKER_OPEN
	begin := func() string {
		req := s.call("one")
		s.outcome(s.begin(req), admitted)
		return req.CallId
	}
	// one begins a call when somebody has said that it is time: he who admits it may be behind him,
	// as a leader is that has just begun to lead.
	one := func() string {
		for told := time.Now(); ; s.pause(100 * time.Millisecond) {
			req := s.call("one")
			res := s.begin(req)
			if s.over || res.Outcome == admitted || time.Since(told) > 5*time.Second {
				s.outcome(res, admitted)
				return req.CallId
			}
		}
	}
	end := func(id string, status v1.Status) { s.end(&v1.EndCallRequest{CallId: id, Status: status}) }
	breaker := func() *v1.Breaker {
		res, _ := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
			return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
		})
		return res.GetSession().GetBreaker()
	}
	const failed, succeeded, cancelled = v1.Status_STATUS_FAILED, v1.Status_STATUS_SUCCEEDED, v1.Status_STATUS_CANCELLED
	end(begin(), failed)
	end(begin(), succeeded)
	end(begin(), failed)
	end(begin(), cancelled)
	if x := breaker(); !s.over {
		s.wrong(x != nil, "the breaker is open: {%v}", x)
	}
	id := begin()
	for failures := int32(2); failures < 4; failures++ { // it opens, and begins anew
		since := time.Now()
		if end(id, failed); s.over {
			return
		}
		req := s.call("one")
		if res := s.begin(req); s.over {
			return
		} else if time.Since(since) < reset/2 {
			wait := res.RetryAfter.AsDuration()
			s.wrong(res.Outcome != open || res.Reason == "" || wait <= 0 || wait > reset, "after %d failures it is {%v}", failures, res)
			if x := breaker(); time.Since(since) < reset/2 {
				s.wrong(!s.over && (x.GetFailures() != failures || x.RetryAfter.AsDuration() <= 0 || x.RetryAfter.AsDuration() > reset), "the breaker is {%v}", x)
			}
		}
		for {
			x := breaker()
			if s.over {
				return
			}
			s.wrong(x == nil || x.Failures != failures, "the breaker is {%v} after %d failures", x, failures)
			if x.GetRetryAfter().AsDuration() == 0 {
				s.wrong(time.Since(since) < reset/2, "one is tried after %v", time.Since(since))
				break
			}
			s.pause(200 * time.Millisecond)
		}
		late := s.begin(req).GetOutcome() == admitted
		s.wrong(late && time.Since(since) < reset/2, "what was refused is admitted")
		if late { // it came so late for the first time that it is the one that is tried
			s.over = true
		}
		if id = one(); s.rng.IntN(2) == 0 { // one that is cancelled changes nothing
			end(id, cancelled)
			id = one()
		}
		second := s.call("")
		second.Kind = v1.Kind_KIND_MODEL
		s.outcome(s.begin(second), open)
	}
	end(id, succeeded)
	if x := breaker(); !s.over {
		s.wrong(x != nil, "the breaker is open: {%v}", x)
	}
	begin()
	end(begin(), failed)
	begin()
}

// opened has a call wait until the breaker opens: it is refused when its turn comes.
func opened(s *script) {
	put := &v1.PutPolicyRequest{Name: s.own, RequestId: s.id(), Client: s.own, Files: []*v1.TextFile{
		{Path: "limits.yaml", Content: "name: " + s.own + "\nmax_tool_calls: 100\nmax_concurrent: 1\nmax_tokens: 1000\nmax_consecutive_failures: 1\nbreaker_reset: 1h\n"},
		{Path: "more.yaml", Content: "name: more\nrules:\n  - {name: spent, condition: {field: tokens_used, operator: gte, value: 900}, action: deny, priority: 1}\n"},
	}}
	if _, ok := done(s, "put a policy", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(ctx, put)
	}); !ok || !s.session(nil) {
		return
	}
	first, second := s.call("one"), s.call("two")
	s.outcome(s.begin(first), v1.Outcome_OUTCOME_ADMITTED)
	second.Wait, second.Tokens = durationpb.New(5*time.Minute), 900
	s.single = true
	s.queued(second)
	// What it may use is used, for rules, until it is known that it does not.
	if res := s.begin(s.call("one")); !s.over {
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_DENIED_BY_POLICY || res.Decision.GetMatchedRule() != "spent", "it is {%v}", res)
	}
	s.end(&v1.EndCallRequest{CallId: first.CallId, Status: v1.Status_STATUS_FAILED})
	res := s.begin(second)
	if s.over {
		return
	}
	s.wrong(res.Outcome != v1.Outcome_OUTCOME_BREAKER_OPEN || res.RetryAfter.AsDuration() < 50*time.Minute, "it is {%v}", res)
	s.outcome(s.begin(s.call("one")), v1.Outcome_OUTCOME_BREAKER_OPEN)
	if res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	}); ok {
		s.wrong(res.Session.Calls != 1 || res.Session.Attempts != 4 || len(res.Session.OpenCalls) > 0 || res.Session.CallsByTool["two"] != 0, "the session is {%v}", res.Session)
	}
	if p, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: "policy/" + s.own})
	}); ok {
		s.wrong(p.Pool.InUse != 0 || p.Pool.Waiting != 0, "the pool is {%v}", p.Pool)
	}
}

// passing sets values that are kept for a time, and others that are not any more.
func passing(s *script) {
	const ttl = 1500 * time.Millisecond
	set := func(key, value string, ttl time.Duration, at string) string {
		req := &v1.SetRequest{Key: key, Value: value, IfVersion: at, RequestId: s.id(), Client: s.own}
		if ttl > 0 {
			req.Ttl = durationpb.New(ttl)
		}
		res, _ := done(s, "set "+key, func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, req) })
		return res.GetVersion()
	}
	add := func(key, amount, want string) {
		req := &v1.IncrementRequest{Key: key, Amount: amount, RequestId: s.id(), Client: s.own}
		res, ok := done(s, "add to "+key, func(ctx context.Context, n *node) (*v1.IncrementResponse, error) {
			return n.counters.Increment(ctx, req)
		})
		s.wrong(ok && res.Value != want, "the sum is %v, want %s", res, want)
	}
	get := func(key string) *v1.GetResponse {
		res, _ := done(s, "get "+key, func(ctx context.Context, n *node) (*v1.GetResponse, error) {
			return n.counters.Get(ctx, &v1.GetRequest{Key: key})
		})
		return res
	}
	text, number, stays := s.own+"-text", s.own+"-number", s.own+"-stays"
	set(stays, "1", ttl, "0")
	one := set(stays, "1", 0, "") // without a time it stays
	begun := time.Now()
	of := set(text, "1", ttl, "0")
	same(s, "the version of the same value", of, one)
	s.good = time.Now().Add(ttl / 2)
	set(number, "5", ttl, "0")
	add(number, "", "6")
	if time.Now().After(s.good) {
		s.over = true
	}
	s.good = time.Time{}
	two := set(stays, "2", 0, one)
	s.wrong(!s.over && two == one, "another value has the version %s", two)
	same(s, "the version of what it was before", set(stays, "1", 0, two), one)
	for gone := map[string]bool{}; len(gone) < 2; {
		for _, key := range []string{text, number} {
			got := get(key)
			if s.over {
				return
			}
			if !got.Found {
				s.wrong(time.Since(begun) < ttl/2 || got.Version != "0" || got.Value != "", "after %v it is {%v}", time.Since(begun), got)
				gone[key] = true
				continue
			}
			s.wrong(gone[key] || got.Value != map[string]string{text: "1", number: "6"}[key], "it is {%v}", got)
		}
		if s.over {
			return
		}
		s.pause(300 * time.Millisecond)
	}
	s.pause(300 * time.Millisecond) // a node over a Redis may be behind in time
	all, ok := done(s, "get all", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
		return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: []string{text, number, stays}})
	})
	s.wrong(ok && (len(all.Values) != 1 || len(all.Versions) != 1 || all.Values[stays] != "1" || all.Versions[stays] != one), "there is {%v}", all)
	remove := &v1.DeleteRequest{Key: text, IfVersion: "0", RequestId: s.id(), Client: s.own}
	if res, ok := done(s, "delete what has lapsed", func(ctx context.Context, n *node) (*v1.DeleteResponse, error) { return n.counters.Delete(ctx, remove) }); ok {
		s.wrong(res.Found, "it was there")
	}
	add(number, "2.5", "2.5") // it begins anew
	set(text, "again", 0, "0")
	// A value and a list under one key are two things.
	items := &v1.AppendRequest{Key: stays, Items: []string{"a", "b"}, Ttl: long, RequestId: s.id(), Client: s.own}
	done(s, "append", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return n.counters.Append(ctx, items) })
	if got := get(stays); !s.over {
		s.wrong(got.Value != "1", "the value is {%v}", got)
	}
	gone := &v1.DeleteRequest{Key: stays, IfVersion: one, RequestId: s.id(), Client: s.own}
	done(s, "delete the value", func(ctx context.Context, n *node) (*v1.DeleteResponse, error) { return n.counters.Delete(ctx, gone) })
	if res, ok := done(s, "read the list", func(ctx context.Context, n *node) (*v1.RangeResponse, error) {
		return n.counters.Range(ctx, &v1.RangeRequest{Key: stays})
	}); ok {
		s.wrong(len(res.Items) != 2 || res.Length != 2 || res.Next != 2, "the list is {%v}", res)
	}
	// What stands there is told where it is not as the request says.
	told := func(step, what, want string, ask func(context.Context, *node) error) {
		today := ""
		s.refused(step, "VERSION_CONFLICT", "", func(ctx context.Context, n *node) error {
			err := ask(ctx, n)
			today = metadata(err)[what]
			return err
		})
		same(s, "what is told of today", today, want)
	}
	again := &v1.AppendRequest{Key: stays, Items: []string{"c"}, Ttl: long, IfLength: new(int64), RequestId: s.id(), Client: s.own}
	told("append to none", "length", "2", func(ctx context.Context, n *node) error { _, err := n.counters.Append(ctx, again); return err })
	other := &v1.SetRequest{Key: stays, Value: "x", IfVersion: two, RequestId: s.id(), Client: s.own}
	told("set what is gone", "version", "0", func(ctx context.Context, n *node) error { _, err := n.counters.Set(ctx, other); return err })
	most := s.own + "-most"
	set(most, "9223372036854.775807", 0, "")
	over := &v1.IncrementRequest{Key: most, Amount: "0.000001", RequestId: s.id(), Client: s.own}
	s.refused("add to the most", "OVERFLOW", "", func(ctx context.Context, n *node) error { _, err := n.counters.Increment(ctx, over); return err })
	add(most, "-0.000001", "9223372036854.775806")
	if s.rng.IntN(4) > 0 {
		return
	}
	// A list holds so much, to the byte.
	large := &v1.AppendRequest{Key: s.own, Ttl: long, Items: []string{strings.Repeat("x", 1<<16), strings.Repeat("y", 1<<16)}, Client: s.own}
	for i := range 32 {
		large.RequestId = s.id()
		res, ok := done(s, "append much", func(ctx context.Context, n *node) (*v1.AppendResponse, error) { return n.counters.Append(ctx, large) })
		if !ok {
			return
		}
		same(s, "its length", res.Length, int64(2*i+2))
	}
	large.Items, large.RequestId = []string{""}, s.id()
	reason := ""
	done(s, "append one more", func(ctx context.Context, n *node) (any, error) {
		_, err := n.counters.Append(ctx, large)
		if reason = why(err); reason == "LIST_FULL" {
			return nil, nil
		}
		return nil, err
	})
	same(s, "the reason", reason, "LIST_FULL")
	drop := &v1.DeleteListRequest{Key: s.own, RequestId: s.id(), Client: s.own}
	done(s, "delete the list", func(ctx context.Context, n *node) (*v1.DeleteListResponse, error) {
		return n.counters.DeleteList(ctx, drop)
	})
}
