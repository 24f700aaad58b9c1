package alone

import (
	"context"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// ousted revokes a token while its bearer follows events, has a stream open and waits for a
// decision and for a slot, at one node. Once that node has heard of it all of them come to their end.
func ousted(s *script) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) })
	take := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, take)
	})
	ask := &v1.ApprovalServiceRequestRequest{AgentId: s.own, Tool: "tool", Timeout: durationpb.New(10 * time.Minute), RequestId: s.id(), Client: s.own}
	asked, _ := done(s, "request an approval", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(ctx, ask)
	})
	b := s.bearer(&v1.CreateTokenRequest{Roles: everything[:1]})
	defer s.leave(b)
	if s.over {
		return
	}
	at := s.nodes[s.rng.IntN(len(s.nodes))]
	wait := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long, Wait: durationpb.New(5 * time.Minute)}
	cluster := s.rng.IntN(2) == 0
	type guest struct {
		what  string
		begun chan struct{}
		ended chan error
	}
	ctx, stop := context.WithCancel(s.ctx)
	var under []guest
	defer func() {
		stop()
		for _, g := range under {
			<-g.ended
		}
	}()
	come := func(what string, stay func(begun func()) error) {
		g := guest{what, make(chan struct{}), make(chan error, 1)}
		go func() {
			defer close(g.ended)
			g.ended <- stay(func() { close(g.begun) })
		}()
		under = append(under, g)
	}
	come("who follows", func(begun func()) error {
		stream, err := at.events.Follow(b.as(ctx), &v1.FollowRequest{Cluster: cluster})
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		if stream.Receive() {
			begun()
		}
		for stream.Receive() {
		}
		return stream.Err()
	})
	come("who has a stream", func(begun func()) error {
		stream, err := at.calls.Exchange(b.as(ctx))
		if err != nil {
			return err
		}
		defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })()
		defer func() { _, _ = stream.CloseRequest(), stream.CloseResponse() }()
		if _, err = stream.Receive(); err == nil {
			begun()
		}
		for err == nil {
			_, err = stream.Receive()
		}
		return err
	})
	come("who waits for a decision", func(begun func()) error {
		begun()
		res, err := at.approvals.Get(b.as(ctx), &v1.ApprovalServiceGetRequest{Id: asked.Approval.Id, Wait: durationpb.New(5 * time.Minute)})
		if err == nil && res.Approval.State == v1.ApprovalState_APPROVAL_STATE_PENDING {
			return context.Canceled // its node has left it
		}
		return err
	})
	come("who waits", func(begun func()) error {
		begun()
		res, err := at.slots.AcquireSlot(b.as(ctx), wait)
		if err == nil && res.Outcome != v1.Outcome_OUTCOME_ADMITTED {
			return context.Canceled // its node has left it
		}
		return err
	})
	for _, g := range under {
		select {
		case <-g.begun:
		case <-time.After(3 * time.Second):
			s.over = true
			return
		}
	}
	for { // until it stands in the queue
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if s.over = !ok || len(under[3].ended) > 0; s.over {
			return
		}
		if len(res.Waiters) == 1 {
			break
		}
		s.pause(100 * time.Millisecond)
	}
	revoke := &v1.RevokeTokenRequest{RequestId: s.id(), Client: s.own, TokenId: b.id}
	if _, ok := done(s, "revoke the token", func(ctx context.Context, n *node) (*v1.RevokeTokenResponse, error) {
		return n.access.RevokeToken(ctx, revoke)
	}); !ok {
		return
	}
	// Whatever the node reads from here on it reads behind the revocation, if it is well.
	for reads := 0; len(under) > 0 && !s.over; {
		g := under[0]
		select {
		case <-s.ctx.Done():
			s.over = true
		case err := <-g.ended:
			if under = under[1:]; s.ctx.Err() == nil {
				s.last = "stay as " + g.what
				s.wrong(err == nil || refused(err) != "", "the token is revoked, and %s is answered %v", g.what, err)
			}
			continue
		case <-time.After(250 * time.Millisecond):
		}
		asking, cancel := context.WithTimeout(s.ctx, swift)
		_, err := at.slots.GetPool(asking, &v1.GetPoolRequest{Pool: s.own})
		if cancel(); err != nil {
			continue
		}
		s.last, s.tries, s.steps = "read behind the revocation", 1, s.steps+1
		reads++
		s.wrong(reads > 12, "its node has read behind the revocation for %d times, and %s is still there", reads, g.what)
	}
	turned(s, "wait with it", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(b.as(ctx), wait)
	})
}
