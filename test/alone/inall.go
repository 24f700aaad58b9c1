package alone

import (
	"context"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// swift is how long a node may take to answer that is not disturbed.
const swift = 400 * time.Millisecond

// probed asks a node for something all the time, until stop is called, which tells whether
// each answer came soon. Else nobody knows how long it may have taken for another one.
func (s *script) probed(n *node) (stop func() (quick bool)) {
	ctx, cancel := context.WithCancel(s.ctx)
	ended, slow := make(chan struct{}), false
	go func() {
		defer close(ended)
		for ctx.Err() == nil {
			asking, done := context.WithTimeout(s.ctx, swift)
			_, err := n.counters.Increment(asking, &v1.IncrementRequest{Key: s.own + "-probe", Amount: "1", RequestId: s.id(), Client: s.own})
			if err == nil { // and this node itself has heard of it, the leader being another
				_, err = n.counters.Get(asking, &v1.GetRequest{Key: s.own + "-probe"})
			}
			if done(); err != nil {
				slow = true
				return
			}
			select {
			case <-ctx.Done():
			case <-time.After(swift / 4):
			}
		}
	}()
	return func() bool {
		cancel()
		<-ended
		return !slow
	}
}

// inAll has a call wait for one thing after another: the end of a STOP, what people say, and
// room. It waits no longer in all than it said at first.
func inAll(s *script) {
	const wait, lifted, latest = 4 * time.Second, 3 * time.Second, 6 * time.Second
	stopped, full := s.rng.IntN(2) == 0, s.rng.IntN(2) == 0
	asked := !stopped || s.rng.IntN(2) == 0
	goesOn := s.rng.IntN(4) > 0 // else it is kept out for all of its time
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 1, Per: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
	done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) })
	text := "max_tool_calls: 100\n"
	if asked {
		text += "require_human_approval: true\napproval: {required: 1, denials: 1, timeout: 10m, max_pending: 8}\n"
	}
	if !s.policy(text) || !s.session(nil) {
		return
	}
	req := s.call("one")
	if full {
		req.Pools = []*v1.Want{{Pool: s.own}}
		take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
		done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
			return n.slots.AcquireSlot(ctx, take)
		})
	} else {
		req.Rates = []*v1.RateWant{{Rate: s.own}}
		take := &v1.TakeRateRequest{Rate: s.own, RequestId: s.id(), Client: s.own}
		done(s, "take", func(ctx context.Context, n *node) (*v1.TakeRateResponse, error) { return n.limits.TakeRate(ctx, take) })
	}
	approval := ""
	if asked && !s.over {
		res := s.batch("begin what is asked about", &v1.Operation{Op: &v1.Operation_Begin{Begin: req}, Timeout: durationpb.New(20 * time.Millisecond)})
		if s.over {
			return
		}
		if approval = res[0].GetBegin().GetApproval().GetId(); approval == "" {
			s.wrong(true, "people are not asked: %v", res[0])
			return
		}
	}
	req.Wait = durationpb.New(wait)
	target := []*v1.SignalRequest{
		{Target: &v1.SignalRequest_SessionId{SessionId: s.own}}, {Target: &v1.SignalRequest_AgentId{AgentId: s.own}},
		{Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}},
	}[s.rng.IntN(3)].Target
	if stopped {
		s.send(&v1.SignalRequest{Target: target, Signal: "STOP"})
	}
	if s.over {
		return
	}
	at := s.nodes[s.rng.IntN(len(s.nodes))]
	quick := s.probed(at)
	var res *v1.BeginCallResponse
	var took time.Duration
	var under sync.WaitGroup
	begun := time.Now()
	under.Go(func() {
		ctx, cancel := context.WithTimeout(s.ctx, 12*time.Second)
		defer cancel()
		res, _ = at.calls.BeginCall(ctx, req)
		took = time.Since(begun)
	})
	ways := []func(){}
	if stopped {
		ways = append(ways, func() { s.send(&v1.SignalRequest{Target: target, Signal: "CONTINUE"}) })
	}
	if asked {
		ways = append(ways, func() { s.vote(s.rng.IntN(2), approval, v1.Vote_VOTE_APPROVE) })
	}
	s.rng.Shuffle(len(ways), func(i, j int) { ways[i], ways[j] = ways[j], ways[i] })
	if !goesOn {
		ways = ways[:len(ways)-1]
	}
	for i, free := range ways {
		s.pause(time.Until(begun.Add(lifted * time.Duration(i+1) / time.Duration(len(ways)))))
		free()
	}
	late := time.Since(begun) > wait-2*swift
	under.Wait()
	if !quick() || late || res == nil || s.over {
		s.over = true
		return
	}
	keptOut := res.Outcome == v1.Outcome_OUTCOME_STOPPED || res.Outcome == v1.Outcome_OUTCOME_APPROVAL_REQUIRED
	if s.over = s.Hasty && keptOut && took < wait-swift; s.over { // its time may have been up, by the clock of its node
		return
	}
	s.last = fmt.Sprintf("begin with a wait of %v", wait)
	s.wrong(res.Outcome == v1.Outcome_OUTCOME_ADMITTED || took > latest, "it is answered after %v, of a wait of %v: %v", took, wait, res)
	s.wrong(!goesOn && (!keptOut || took < wait/2), "it is kept out, and answered after %v: %v", took, res)
	s.wrong(goesOn && full && res.Outcome != v1.Outcome_OUTCOME_WAIT_TIMEOUT, "it goes on where there is no room, and is answered after %v: %v", took, res)
	s.wrong(goesOn && !full && res.Outcome != v1.Outcome_OUTCOME_WAIT_TIMEOUT && res.Outcome != v1.Outcome_OUTCOME_RATE_LIMITED, "it goes on where no rate admits it, and is answered after %v: %v", took, res)
}
