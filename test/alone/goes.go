package alone

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	healthv1 "example.com/govnode/proto/grpc/health/v1"
)

// A node goes while others wait there. Unlike the scripts this is for a cluster with which
// nothing is wrong else: then it is known who comes when.

// A Going is how a node goes.
type Going struct {
	Node    int           // by its place among the URLs
	InOrder bool          // it is asked to end, and not killed
	Go      func()        // has it go, and returns when it is gone
	Keep    time.Duration // how long all wait on without it
}

const (
	// endsWithin is how long a node may take to end that is asked to.
	endsWithin = 10 * time.Second
	// handsWithin is how long it may take to send away who waits there.
	handsWithin = 2 * time.Second
	// waitsFor is for how long those wait.
	waitsFor = 5 * time.Minute
)

// Goes has a node go at which others wait, and at other nodes as well: whoever asks again
// has the place that he had. It reports whether it came to its end.
func (c *Client) Goes(outer context.Context, g Going) (whole bool) {
	ctx, cancel := context.WithTimeout(outer, 2*time.Minute)
	defer cancel()
	s := &script{
		Client: c, shown: c.shows(), ctx: ctx, outer: outer, single: true,
		own: strings.ToLower(Prefix + "-" + c.name + "-goes-" + ulid.Make().String()),
	}
	goes(s, g)
	return !s.over
}

// A place is somebody who waits.
type place struct {
	id    string
	what  string
	at    int        // the node that he asks first; -1: the Go client chooses
	away  chan error // why he was sent away; capacity 1
	token chan uint64
	wrong chan string // what he was told and must not be
	free  func(token uint64)
}

// asksOn asks a node, and once that has no answer one after another of those that stay.
func (p *place) asksOn(s *script, gone int, ask func(ctx context.Context, n *node) (outcome v1.Outcome, token uint64, err error)) {
	for at := p.at; s.ctx.Err() == nil; {
		outcome, token, err := ask(s.ctx, s.nodes[at])
		switch {
		case err == nil && outcome == v1.Outcome_OUTCOME_ADMITTED:
			p.token <- token
			return
		case err == nil:
			p.wrong <- fmt.Sprintf("was answered by %v", outcome)
			return
		case refused(err) != "":
			p.wrong <- fmt.Sprintf("was refused: %v", err)
			return
		}
		select {
		case p.away <- err:
		default:
			time.Sleep(50 * time.Millisecond)
		}
		if at = (at + 1) % len(s.nodes); at == gone {
			at = (at + 1) % len(s.nodes)
		}
	}
}

func goes(s *script, g Going) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: 1, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return
	}
	rate := &v1.PutRateRequest{Rate: s.own, Limit: 1, Per: durationpb.New(15 * time.Second), RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a rate", func(ctx context.Context, n *node) (*v1.PutRateResponse, error) { return n.limits.PutRate(ctx, rate) }); !ok {
		return
	}
	if !s.policy("max_concurrent: 64\nmax_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	s.behind = nil
	stopped := &v1.CreateSessionRequest{SessionId: s.own + "-held", AgentId: s.own, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: s.own}}}
	if _, ok := done(s, "create a session", func(ctx context.Context, n *node) (*v1.CreateSessionResponse, error) {
		return n.sessions.CreateSession(ctx, stopped)
	}); !ok {
		return
	}
	signal := func(signal string) bool {
		req := &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: stopped.SessionId}, Signal: signal, RequestId: s.id(), Client: s.own}
		_, ok := done(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, req) })
		return ok
	}
	if !signal("STOP") {
		return
	}
	first := &v1.AcquireSlotRequest{Pool: s.own, SlotId: s.id(), Client: s.own, Ttl: long}
	held, ok := done(s, "acquire", func(ctx context.Context, n *node) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(ctx, first)
	})
	if !ok {
		return
	}
	taken := &v1.TakeRateRequest{Rate: s.own, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "take", func(ctx context.Context, n *node) (*v1.TakeRateResponse, error) {
		return n.limits.TakeRate(ctx, taken)
	}); !ok {
		return
	}
	ctx, stop := context.WithCancel(s.ctx) // of those who are no part of the end
	defer stop()
	line, ok := s.line(ctx, g)
	if !ok {
		return
	}
	inLine := func(when string) {
		res, ok := done(s, "list slots "+when, func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if !ok {
			return
		}
		same := len(res.Waiters) == len(line)
		for i, w := range res.Waiters {
			same = same && w.SlotId == line[i].id && w.Position == int32(i+1)
		}
		s.wrong(!same, "the waiters are %v, want %s", res.Waiters, describe(line))
	}
	inLine("before a node goes")
	late := s.others(g, stopped.SessionId)
	watched, followed := make(chan string, 1), make(chan string, 1)
	following, watching := make(chan bool, 1), make(chan bool, 1)
	go func() { watched <- s.watch(ctx, g.Node, watching) }()
	go func() { followed <- s.listens(ctx, g.Node, following) }()
	for _, begun := range []chan bool{watching, following} {
		select {
		case ok := <-begun:
			s.over = s.over || !ok
		case <-time.After(5 * time.Second):
			s.over = true
		}
	}
	time.Sleep(500 * time.Millisecond) // until those stand at their node who have no place
	if s.over {
		return
	}

	s.last, s.tries = "a node goes", 1
	gone, began := make(chan struct{}), time.Now()
	go func() { g.Go(); close(gone) }()
	for _, p := range slices.Concat(line, late) {
		if p.at != g.Node {
			continue
		}
		select {
		case err := <-p.away:
			took := time.Since(began)
			s.wrong(g.InOrder && (connect.CodeOf(err) != connect.CodeUnavailable || reasonOf(err) != "OUTCOME_UNKNOWN"), "%s was sent away by %v", p, err)
			s.wrong(g.InOrder && took > handsWithin, "%s was sent away after %v: %v", p, took, err)
		case text := <-p.wrong:
			s.wrong(true, "%s %s", p, text)
		case token := <-p.token:
			p.token <- token // whoever waits for a rate may come to his turn at any time
			s.wrong(p.free != nil, "%s was admitted although another holds the slot", p)
		case <-time.After(2 * endsWithin):
			s.wrong(true, "%s hears nothing of it", p)
		}
		if s.over {
			<-gone
			return
		}
	}
	<-gone
	took := time.Since(began)
	s.wrong(g.InOrder && took > endsWithin+time.Second, "it took %v", took)
	if text := <-watched; g.InOrder {
		s.wrong(text != "", "who watches its health %s", text)
	}
	if text := <-followed; g.InOrder {
		s.wrong(text != "", "who follows its events %s", text)
	}
	s.settles(line)
	if s.over {
		return
	}
	inLine("after a node has gone")
	time.Sleep(g.Keep)
	inLine("long after a node has gone")
	if !signal("CONTINUE") {
		return
	}
	token, id := held.Token, first.SlotId
	release := func(token uint64) {
		req := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: id, Client: s.own, Token: token}
		_, _ = done(s, "release "+id, func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
			return n.slots.ReleaseSlot(ctx, req)
		})
	}
	release(token)
	for i, p := range line {
		next, ok := s.admitted(p)
		if !ok {
			return
		}
		s.wrong(next <= token, "%s has token %d, and the one before had %d", p, next, token)
		for _, q := range line[i+1:] {
			select {
			case <-q.token:
				s.wrong(true, "%s was admitted before %s", q, p)
			default:
			}
		}
		token, id = next, p.id
		p.free(token)
	}
	for _, p := range late {
		if _, ok := s.admitted(p); !ok {
			return
		}
	}
}

// admitted waits until somebody has what he waits for.
func (s *script) admitted(p *place) (token uint64, ok bool) {
	if s.over {
		return 0, false
	}
	s.last = "wait"
	select {
	case token = <-p.token:
		s.steps++
		return token, true
	case text := <-p.wrong:
		s.wrong(true, "%s %s", p, text)
	case <-time.After(30 * time.Second):
		s.wrong(s.ctx.Err() == nil, "%s waits on although it is his turn", p)
		s.over = true
	}
	return 0, false
}

func (p *place) String() string { return fmt.Sprintf("%s %s at %d", p.what, p.id, p.at) }

func describe(line []*place) (text string) {
	for _, p := range line {
		text += p.String() + "; "
	}
	return text
}

func (s *script) waits(what string, at int) *place {
	return &place{id: s.id(), what: what, at: at, away: make(chan error, 1), token: make(chan uint64, 1), wrong: make(chan string, 1)}
}

// line has some wait for the slot, one after the other: by themselves and by the Go client,
// at the node that goes and at another one.
func (s *script) line(ctx context.Context, g Going) (line []*place, ok bool) {
	kinds := []string{"slot", "call", "stream", "slot of the client", "call of the client", "slot elsewhere"}
	s.rng.Shuffle(len(kinds), func(i, j int) { kinds[i], kinds[j] = kinds[j], kinds[i] })
	for i, kind := range kinds {
		p := s.waits(kind, g.Node)
		line = append(line, p)
		acquire := &v1.AcquireSlotRequest{Pool: s.own, SlotId: p.id, Client: s.own, Ttl: long, Wait: durationpb.New(waitsFor)}
		slot := func(ctx context.Context, n *node) (v1.Outcome, uint64, error) {
			res, err := n.slots.AcquireSlot(ctx, acquire)
			return res.GetOutcome(), res.GetToken(), err
		}
		p.free = func(token uint64) {
			req := &v1.ReleaseSlotRequest{Pool: s.own, SlotId: p.id, Client: s.own, Token: token}
			_, _ = done(s, "release "+p.id, func(ctx context.Context, n *node) (*v1.ReleaseSlotResponse, error) {
				return n.slots.ReleaseSlot(ctx, req)
			})
		}
		switch kind {
		case "slot elsewhere":
			p.at = (g.Node + 1) % len(s.nodes)
			fallthrough
		case "slot":
			go p.asksOn(s, g.Node, slot)
		case "call":
			req := &v1.BeginCallRequest{SessionId: s.own, CallId: p.id, Tool: "one", Ttl: long, Wait: durationpb.New(waitsFor), Pools: []*v1.Want{{Pool: s.own}}}
			go p.asksOn(s, g.Node, func(ctx context.Context, n *node) (v1.Outcome, uint64, error) {
				res, err := n.calls.BeginCall(ctx, req)
				return res.GetOutcome(), tokenOf(res, s.own), err
			})
			p.free = func(uint64) {
				_ = s.end(&v1.EndCallRequest{SessionId: s.own, CallId: p.id, Status: v1.Status_STATUS_SUCCEEDED})
			}
		case "stream":
			streamed := false
			go p.asksOn(s, g.Node, func(ctx context.Context, n *node) (v1.Outcome, uint64, error) {
				if streamed {
					return slot(ctx, n)
				}
				streamed = true
				return overStream(ctx, n, acquire, g.InOrder)
			})
		case "slot of the client":
			p.at = -1
			var slot *client.Slot
			go func() {
				var err error
				if slot, err = s.shipped.Acquire(ctx, s.own, client.SlotID(p.id), client.TTL(long.AsDuration()), client.Wait(waitsFor)); err != nil {
					p.wrong <- fmt.Sprintf("was told %v", err)
					return
				}
				p.token <- slot.Token()
			}()
			p.free = func(uint64) { _ = slot.ReleaseContext(s.ctx) }
		case "call of the client":
			p.at = -1
			var call *client.OpenCall
			go func() {
				var err error
				if call, err = s.shipped.Session(s.own).Begin(ctx, client.Call{ID: p.id, Tool: "one", TTL: long.AsDuration(), Wait: waitsFor, Pools: []client.Want{{Pool: s.own}}}); err != nil {
					p.wrong <- fmt.Sprintf("was told %v", err)
					return
				}
				p.token <- tokenOf(call.Begun(), s.own)
			}()
			p.free = func(uint64) { _ = call.End(s.ctx, client.Succeeded) }
		}
		for { // until he stands there
			res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
				return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
			})
			if !ok {
				return line, false
			}
			if len(res.Waiters) == i+1 {
				break
			}
			select {
			case text := <-p.wrong:
				s.wrong(true, "%s %s", p, text)
			case <-time.After(50 * time.Millisecond):
			}
			if s.over || s.ctx.Err() != nil || len(p.away) > 0 {
				s.over = true
				return line, false
			}
		}
	}
	return line, true
}

func tokenOf(res *v1.BeginCallResponse, pool string) uint64 {
	for _, x := range res.GetGrants() {
		if x.Pool == pool {
			return x.Token
		}
	}
	return 0
}

// others wait at the node that goes for what has another line: a rate, and the end of a STOP.
func (s *script) others(g Going, held string) []*place {
	rate, call := s.waits("rate", g.Node), s.waits("call that is kept out", g.Node)
	take := &v1.TakeRateRequest{Rate: s.own, RequestId: rate.id, Client: s.own, Wait: durationpb.New(waitsFor)}
	go rate.asksOn(s, g.Node, func(ctx context.Context, n *node) (v1.Outcome, uint64, error) {
		res, err := n.limits.TakeRate(ctx, take)
		return res.GetOutcome(), 0, err
	})
	req := &v1.BeginCallRequest{SessionId: held, CallId: call.id, Tool: "one", Ttl: long, Wait: durationpb.New(waitsFor)}
	go call.asksOn(s, g.Node, func(ctx context.Context, n *node) (v1.Outcome, uint64, error) {
		res, err := n.calls.BeginCall(ctx, req)
		return res.GetOutcome(), 0, err
	})
	return []*place{call, rate}
}

// settles waits until all who were sent away have been taken in again.
func (s *script) settles(line []*place) {
	for end := time.Now().Add(5 * time.Second); time.Now().Before(end) && !s.over; time.Sleep(50 * time.Millisecond) {
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		for _, p := range line {
			select {
			case text := <-p.wrong:
				s.wrong(true, "%s %s", p, text)
			default:
			}
		}
		if ok && len(res.Waiters) == len(line) {
			return
		}
	}
}

func reasonOf(err error) string {
	if e := (sentAway{}); errors.As(err, &e) {
		return e.Reason
	}
	if !connect.IsWireError(err) {
		return ""
	}
	return why(err)
}

// sentAway is what the answer of a frame says, as of a request by itself.
type sentAway struct{ *v1.OperationError }

func (e sentAway) Error() string { return e.String() }

// overStream waits over a stream until that ends.
func overStream(ctx context.Context, n *node, req *v1.AcquireSlotRequest, inOrder bool) (v1.Outcome, uint64, error) {
	stream, err := n.calls.Exchange(ctx)
	if err != nil {
		return 0, 0, err
	}
	if err := stream.Send(&v1.ExchangeRequest{Frames: []*v1.Operation{{Tag: 1, Op: &v1.Operation_Acquire{Acquire: req}}}}); err != nil {
		return 0, 0, err
	}
	defer func() { _ = stream.CloseRequest(); _ = stream.CloseResponse() }()
	goAway := false
	var why error
	for {
		m, err := stream.Receive()
		if err != nil {
			switch {
			case !inOrder:
			case !goAway:
				return 0, 0, fmt.Errorf("the stream has ended, and nobody was told to go: %w", err)
			case !errors.Is(err, io.EOF):
				return 0, 0, fmt.Errorf("who was told to go has no end of the stream: %w", err)
			case why == nil:
				return 0, 0, errors.New("who waits has no answer over the stream, and it was said that what has none was not taken on")
			}
			if why == nil {
				why = err
			}
			return 0, 0, why
		}
		goAway = goAway || m.GoAway
		for _, a := range m.Answers {
			switch e := a.GetError(); {
			case e.GetCode() == "unavailable" && e.GetReason() == "OUTCOME_UNKNOWN":
				why = connect.NewError(connect.CodeUnavailable, sentAway{e})
			case e != nil:
				return 0, 0, fmt.Errorf("over the stream: %v", e)
			case a.GetAcquire().GetOutcome() == v1.Outcome_OUTCOME_QUEUED: // a notice
			default:
				return a.GetAcquire().GetOutcome(), a.GetAcquire().GetToken(), nil
			}
		}
	}
}

// watch watches the health of a node until that goes, and says what is wrong with the end.
func (s *script) watch(ctx context.Context, at int, begun chan<- bool) string {
	stream, err := s.nodes[at].health.Watch(ctx, &healthv1.HealthCheckRequest{})
	if err != nil {
		begun <- false
		return ""
	}
	defer func() { _ = stream.Close() }()
	last := healthv1.HealthCheckResponse_UNKNOWN
	for stream.Receive() {
		if last = stream.Msg().Status; last == healthv1.HealthCheckResponse_SERVING {
			select {
			case begun <- true:
			default:
			}
		}
	}
	if err := stream.Err(); last != healthv1.HealthCheckResponse_NOT_SERVING || connect.CodeOf(err) != connect.CodeUnavailable {
		return fmt.Sprintf("was told %v last, and %v", last, err)
	}
	return ""
}

// listens follows the events of a node until that goes.
func (s *script) listens(ctx context.Context, at int, begun chan<- bool) string {
	stream, err := s.nodes[at].events.Follow(ctx, &v1.FollowRequest{SessionId: s.own})
	if err != nil {
		begun <- false
		return ""
	}
	defer func() { _ = stream.Close() }()
	for stream.Receive() {
		select {
		case begun <- true:
		default:
		}
	}
	if err := stream.Err(); connect.CodeOf(err) != connect.CodeUnavailable || !connect.IsWireError(err) {
		return fmt.Sprintf("was told %v", err)
	}
	return ""
}
