package alone

import (
	"context"
	"slices"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// Who waits, and in which order they come.

// queue lets three wait for the one slot of a pool, of which one that came later goes
// first, and gives the slot from one to the next.
func queue(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	acquire := func(id string, priority int32, wait time.Duration) *v1.AcquireSlotRequest {
		return &v1.AcquireSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Ttl: long, Wait: durationpb.New(wait), Priority: priority, Label: "label " + id}
	}
	first := acquire(s.id(), 0, 0)
	held, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, first)
	})
	if !ok {
		return
	}
	same(s, "the outcome", held.Outcome, v1.Outcome_OUTCOME_ADMITTED)
	list := func() *v1.ListSlotsResponse {
		res, _ := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		return res
	}
	type waiter struct {
		id     string
		answer chan *v1.AcquireSlotResponse // nil: nobody answered
	}
	var line []waiter // in the order in which they come
	defer func() {
		for _, w := range line {
			<-w.answer
		}
	}()
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	came := time.Now()
	for i, priority := range []int32{1, 0, 1} {
		w := waiter{s.id(), make(chan *v1.AcquireSlotResponse, 1)}
		at, req := s.nodes[s.rng.IntN(len(s.nodes))], acquire(w.id, priority, 5*time.Minute)
		go func() {
			res, _ := at.slots.AcquireSlot(ctx, req) // who is not answered is over
			w.answer <- res
		}()
		line = slices.Insert(line, []int{0, 1, 1}[i], w)
		for { // until it stands in the queue
			res := list()
			if s.over {
				return
			}
			if len(res.Waiters) == i+1 {
				break
			}
			select {
			case answer := <-w.answer:
				w.answer <- answer
				s.wrong(answer != nil, "a wait ended although the slot is held: %v", answer)
				s.over = true // or its node is gone
				return
			case <-time.After(50 * time.Millisecond):
			}
		}
	}
	res := list()
	if s.over {
		return
	}
	s.good = came.Add(9 * time.Second) // a place of which nobody hears lapses, and its node may be gone
	for i, w := range res.Waiters {
		s.wrong(i >= len(line) || w.SlotId != line[i].id || w.Position != int32(i+1) || w.Holder != s.own || w.Label != "label "+w.SlotId || w.Weight != 1,
			"the waiters are %v, want %v", res.Waiters, line)
	}
	same(s, "who waits, by the pool", res.Pool.Waiting, 3)
	token, id := held.Token, first.SlotId
	for len(line) > 0 {
		req, begun := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Token: token}, time.Now()
		if _, ok := done(s, "release "+id, func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, req)
		}); !ok {
			return
		}
		answer := <-line[0].answer
		id, line = line[0].id, line[1:]
		if answer == nil || answer.Outcome == v1.Outcome_OUTCOME_WAIT_TIMEOUT && time.Since(begun) > 4*time.Second {
			s.over = true // his node did not come to the slot in the 5 s in which it was his
			return
		}
		s.wrong(answer.Outcome != v1.Outcome_OUTCOME_ADMITTED || answer.Token <= token, "the wait of %s ended with %v, and the last token was %d", id, answer, token)
		if token = answer.Token; s.over {
			return
		}
		now := list()
		if s.over {
			return
		}
		s.wrong(len(now.Slots) != 1 || now.Slots[0].SlotId != id || len(now.Waiters) != len(line), "slots are %v and waiters %v, want %s and %v", now.Slots, now.Waiters, id, line)
	}
}

// back cuts off one who waits, and lets him ask again for the same id, at any of the nodes:
// he keeps his place for as long as he asks, and has the slot when there is one.
func back(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	first := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	held, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, first)
	})
	if !ok {
		return
	}
	type answer struct {
		outcome v1.Outcome
		err     error
	}
	type waiter struct {
		id       string
		ask      func(ctx context.Context, n *node) (v1.Outcome, error)
		answered chan answer
		cut      func()
		at       *node
	}
	sends := func(w *waiter) {
		var ctx context.Context
		ctx, w.cut = context.WithCancel(s.ctx)
		at := s.nodes[s.rng.IntN(len(s.nodes))]
		w.answered, w.at = make(chan answer, 1), at
		go func() {
			outcome, err := w.ask(ctx, at)
			w.answered <- answer{outcome, err}
		}()
	}
	var line [2]*waiter
	defer func() {
		for _, w := range line {
			if w != nil {
				w.cut()
				<-w.answered
			}
		}
	}()
	stands := func(want int) bool {
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if !ok || len(res.Waiters) != want {
			return false
		}
		for i, w := range res.Waiters {
			s.wrong(w.SlotId != line[i].id, "in place %d waits %s, want %s", i+1, w.SlotId, line[i].id)
		}
		return !s.over
	}
	for i := range line {
		w := &waiter{id: s.id()}
		if s.rng.IntN(2) == 0 {
			req := &v1.AcquireSlotRequest{Pool: s.own, SlotId: w.id, Client: s.own, Ttl: long, Wait: durationpb.New(5 * time.Minute)}
			w.ask = func(ctx context.Context, n *node) (v1.Outcome, error) {
				res, err := n.slots.AcquireSlot(ctx, req)
				return res.GetOutcome(), err
			}
		} else {
			req := s.call("one")
			req.CallId, req.Pools, req.Ttl, req.Wait = w.id, []*v1.Want{{Pool: s.own}}, long, durationpb.New(5*time.Minute)
			w.ask = func(ctx context.Context, n *node) (v1.Outcome, error) {
				res, err := n.calls.BeginCall(ctx, req)
				return res.GetOutcome(), err
			}
		}
		sends(w)
		line[i] = w
		for !stands(i + 1) {
			if s.over || s.ctx.Err() != nil {
				return
			}
			time.Sleep(50 * time.Millisecond)
		}
	}
	a := line[0]
	a.cut()
	<-a.answered
	time.Sleep(time.Duration(s.rng.Int64N(int64(2 * time.Second))))
	sends(a)
	for begun := time.Now(); time.Since(begun) < 7*time.Second && len(a.answered) == 0; time.Sleep(time.Second) {
		reaches, cancel := context.WithTimeout(s.ctx, time.Second)
		_, err := a.at.slots.GetPool(reaches, &v1.GetPoolRequest{Pool: s.own})
		cancel()
		if err != nil { // his node can renew it for as long as it reaches the others, and no longer
			s.over = true
			return
		}
		if !stands(2) {
			time.Sleep(time.Second)                 // he is told of it
			s.over = s.over || len(a.answered) == 0 // he may have lost it where nobody could renew it
			break
		}
	}
	early := len(a.answered) > 0
	if !early && !s.over {
		req := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: first.SlotId, Client: s.own, Token: held.Token}
		if _, ok := done(s, "release", func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, req)
		}); !ok {
			return
		}
	}
	if s.over {
		return
	}
	got := <-a.answered
	a.answered <- got
	s.wrong(got.err != nil && refused(got.err) != "", "who came back was refused: %v", got.err)
	s.wrong(got.outcome == v1.Outcome_OUTCOME_CANCELLED, "he waits and nobody has given that up, and it is cancelled")
	s.wrong(got.outcome == v1.Outcome_OUTCOME_ADMITTED && early, "he has a slot that another holds")
	s.over = s.over || got.outcome != v1.Outcome_OUTCOME_ADMITTED // nobody could renew it for long, or his node is gone
}

// leave has a call wait in the queue of a pool, and gives it up.
func leave(s *script) {
	if !s.policy("max_tool_calls: 100\nmax_concurrent: 1\n") || !s.session(nil) {
		return
	}
	first := s.call("one")
	s.outcome(s.begin(first), v1.Outcome_OUTCOME_ADMITTED)
	req := s.call("one")
	req.Wait = durationpb.New(5 * time.Minute)
	s.good = time.Now().Add(9 * time.Second) // nobody renews its place
	res := s.batch("begin what waits", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
	if s.over {
		return
	}
	begun := res[0].GetBegin()
	s.wrong(begun.GetOutcome() != v1.Outcome_OUTCOME_QUEUED || begun.GetQueue().GetPosition() != 1, "the outcome is %v", res[0])
	cancel := &v1.CancelCallRequest{SessionId: s.own, CallId: req.CallId}
	left, ok := done(s, "cancel the call", func(ctx context.Context, n *node) (*v1.CancelCallResponse, error) {
		return n.calls.CancelCall(ctx, cancel)
	})
	if !ok {
		return
	}
	same(s, "the outcome", left.Outcome, v1.Outcome_OUTCOME_CANCELLED)
	s.good = time.Time{}
	want := &account{tools: map[string]int32{"one": 1}, open: []string{first.CallId}}
	want.Attempts, want.Calls = 2, 1
	s.see(want, v1.SessionState_SESSION_STATE_OPEN)
	s.outcome(s.begin(req), v1.Outcome_OUTCOME_CANCELLED)
	renew := &v1.RenewSlotsRequest{Client: s.own, Ttl: long, Slots: []*v1.SlotRef{{SessionId: s.own, SlotId: first.CallId}, {SessionId: s.own, SlotId: req.CallId}}}
	if again := s.begin(first); !s.over {
		renew.Slots[0].Token, renew.Slots[1].Token = again.Grants[0].Token, again.Grants[0].Token
	}
	if res, ok := done(s, "renew", func(ctx context.Context, n *node) (*v1.RenewSlotsResponse, error) {
		return n.slots.RenewSlots(ctx, renew)
	}); ok {
		s.wrong(len(res.Results) != 2 || res.Results[0].Outcome != v1.Outcome_OUTCOME_RENEWED || res.Results[1].Outcome == v1.Outcome_OUTCOME_RENEWED, "results are %v", res.Results)
	}
}
