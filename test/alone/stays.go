package alone

import (
	"context"
	"slices"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// A stay is somebody who waits, follows or has a stream open at a node.
type stay struct {
	leave func()
	begun chan error    // nil when it is known to be let in; of who waits nothing is heard then
	ended chan struct{} // closed when it is over
}

func (x *stay) over() bool {
	select {
	case <-x.ended:
		return true
	default:
		return false
	}
}

// stays lets as many wait, follow or have streams open as may, and one more; and another
// when one of them has gone.
func (t *tenant) stays() {
	s, held := t.script, t.id()
	narrow := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	done(s, "put a pool there", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) {
		return n.slots.PutPool(t.in(ctx), narrow)
	})
	ask := &v1.ApprovalServiceRequestRequest{AgentId: s.own, Tool: "one", Timeout: durationpb.New(time.Hour), RequestId: s.id(), Client: s.own}
	asked, _ := done(s, "request an approval there", func(ctx context.Context, n *node) (*v1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(t.in(ctx), ask)
	})
	most := 1 + s.rng.Int64N(2)
	t.bound(most)
	var all []*stay
	defer func() {
		for _, x := range all {
			x.leave()
			<-x.ended
		}
	}()
	whole := func() bool { return !slices.ContainsFunc(all, (*stay).over) }
	// enter lets another one come, and returns the quota for which he is refused, if he is.
	enter := func() (quota string) {
		if s.over {
			return ""
		}
		x := t.stay(asked.GetApproval().GetId())
		all = append(all, x)
		s.last, s.tries = "come as one of the "+t.name, 1
		for range 2 * asks {
			select {
			case err := <-x.begun:
				if err == nil {
					s.steps++
					return ""
				}
				all = all[:len(all)-1]
				<-x.ended
				if s.over = !connect.IsWireError(err) || why(err) != "QUOTA_EXCEEDED"; !s.over {
					s.steps++
				}
				return metadata(err)["quota"]
			case <-time.After(300 * time.Millisecond):
			}
			if t.name == "waiters" && t.used() == int64(len(all)) {
				return ""
			}
		}
		s.over = true
		return ""
	}
	// full holds the node to have as many as may be, if it has lost none.
	full := func() {
		used := t.used()
		s.wrong(whole() && used != most, "%d of the %s are there, and %d are known", len(all), t.name, used)
		quota := enter()
		s.wrong(quota != t.name && whole(), "%d of %d %s are there, and one more is let in, or refused for the quota %q", most, most, t.name, quota)
		s.over = s.over || !whole()
	}
	for range most {
		quota := enter()
		s.wrong(quota != "", "there is room for %d of the %s, and number %d is refused for the quota %q", most, t.name, len(all)+1, quota)
	}
	if full(); s.over {
		return
	}
	if t.name == "waiters" { // who would have to wait is answered as one who does not want to
		for i, id := range []string{held, s.id()} {
			outcome := v1.Outcome_OUTCOME_UNSPECIFIED
			t.ask("acquire", func(ctx context.Context, n *node) error {
				res, err := n.slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Ttl: long, Wait: durationpb.New(time.Second)})
				outcome = res.GetOutcome()
				return err
			})
			want := []v1.Outcome{v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT}[i]
			s.wrong(!s.over && whole() && outcome != want, "as many wait as may, and the outcome is %v, want %v", outcome, want)
		}
	}
	all[0].leave()
	<-all[0].ended
	all = all[1:]
	for range asks {
		quota := enter()
		if s.over || quota == "" {
			break
		}
		s.pause(200 * time.Millisecond) // the node may not have heard that somebody is gone
	}
	if s.over = s.over || len(all) < int(most); !s.over {
		full()
	}
}

// stay begins one.
func (t *tenant) stay(approval string) *stay {
	ctx, leave := context.WithCancel(t.in(t.ctx))
	x := &stay{leave, make(chan error, 1), make(chan struct{})}
	at := t.at
	go func() {
		defer close(x.ended)
		defer leave()
		switch t.name {
		case "waiters":
			_, err := at.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: approval, Wait: durationpb.New(5 * time.Minute)})
			if err == nil {
				err = context.Canceled // it is over
			}
			x.begun <- err
		case "followers":
			stream, err := at.events.Follow(ctx, &v1.FollowRequest{})
			if err == nil {
				defer func() { _ = stream.Close() }()
				if !stream.Receive() {
					err = stream.Err()
				}
			}
			x.begun <- err
			for err == nil && stream.Receive() {
			}
		default:
			stream, err := at.calls.Exchange(ctx)
			if err == nil {
				defer context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })() // what is still to be said holds up its end
				defer func() { _, _ = stream.CloseRequest(), stream.CloseResponse() }()
				_, err = stream.Receive()
			}
			x.begun <- err
			for err == nil {
				_, err = stream.Receive()
			}
		}
	}()
	return x
}
