package alone

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What the Go client makes of requests and answers that are lost, and of nodes that say no.

// risky holds a slot of which renewals fail: it is at risk then, held again when one is
// answered, and lost when it has run out.
func risky(s *script) {
	told := &losses{}
	c, g, ok := s.gated(2, client.Config{OnLost: told.onLost})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	const ttl = 1800 * time.Millisecond
	s.last, s.tries = "hold", 1
	slot, err := c.Acquire(s.ctx, s.own, client.TTL(ttl), client.Wait(client.NoWait), client.CancelOnLost())
	if err != nil {
		return
	}
	s.steps++
	if time.Until(slot.Deadline()) < ttl/2 {
		return // the answer came late, so that it may be lost before it is at risk
	}
	var lost <-chan struct{}
	if s.rng.IntN(2) == 0 {
		lost = slot.Lost()
	}
	// becomes waits for a state, behind which it is over; whoever is paused meanwhile does not see it.
	becomes := func(want client.State, within time.Duration, but ...client.State) bool {
		for beats := 0; ; beats++ {
			begun := time.Now()
			state := slot.State()
			if state == want {
				return true
			}
			s.wrong(slices.Contains(but, state), "it is %v and was not %v before", state, want)
			s.wrong(beats > int(within/(10*time.Millisecond)), "it is %v and not %v for %v, and good for %v more", state, want, within, time.Until(slot.Deadline()))
			if !s.idle(10*time.Millisecond) || time.Since(begun) > 200*time.Millisecond {
				return false
			}
		}
	}
	g.next("RenewSlots", []fate{cutOff, unheard, busied}[s.rng.IntN(3)])
	if !becomes(client.AtRisk, ttl, client.Lost) {
		return
	}
	s.wrong(slot.Context().Err() != nil || told.number() > 0, "it is at risk, its context says %v, and losses are told: %v", slot.Context().Err(), told.told)
	was := slot.Deadline()
	select {
	case <-slot.Lost():
		s.wrong(time.Now().Before(was), "it is at risk, and Lost says that it is lost")
	default:
	}
	g.came("RenewSlots")
	g.next("RenewSlots", passes)
	for answered := false; !answered && slot.State() != client.Lost; {
		for _, x := range g.came("RenewSlots") {
			answered = answered || x.status == http.StatusOK
		}
		if !s.idle(10 * time.Millisecond) {
			return
		}
	}
	if slot.State() == client.Lost { // nobody has answered
		return
	}
	for beats := 0; slot.State() == client.AtRisk; beats++ {
		for _, x := range g.came("RenewSlots") {
			s.over = s.over || x.status != http.StatusOK // and is at risk for that
		}
		s.wrong(beats > 100, "a renewal was answered, and it is at risk for a second more, and good for %v", time.Until(slot.Deadline()))
		if !s.idle(10 * time.Millisecond) {
			return
		}
	}
	if slot.State() != client.Held {
		return
	}
	s.wrong(!slot.Deadline().After(was), "it was renewed, and is good until the same time")
	s.steps++
	g.next("RenewSlots", cutOff)
	if !becomes(client.Lost, 2*ttl) {
		return
	}
	s.wrong(time.Until(slot.Deadline()) > 0, "it is lost, and good for %v more", time.Until(slot.Deadline()))
	for range 30 {
		if !s.idle(10 * time.Millisecond) {
			return
		}
	}
	for _, x := range []<-chan struct{}{lost, slot.Lost()} {
		select {
		case <-x:
		default:
			s.wrong(x != nil, "it has run out, and Lost does not tell it")
		}
	}
	s.wrong(!errors.Is(context.Cause(slot.Context()), client.ErrLeaseLost), "it has run out, and its context has ended for %v", context.Cause(slot.Context()))
	of := told.of(slot.ID())
	s.wrong(len(of) != 1 || of[0].Pool != s.own || of[0].Token != slot.Token() || of[0].Reason == "", "it has run out, and it is told %+v", of)
}

// unheardOf asks for slots of which the answers are lost, or which nobody is asked for: the
// errors say which, and the same id has the one answer there is.
func unheardOf(s *script) {
	const timeout = time.Second
	c, g, ok := s.gated(4, client.Config{Timeout: timeout, AttemptTimeout: 500 * time.Millisecond})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	const what = "AcquireSlot"
	ids := func() (ids []string, arrived bool) {
		for _, x := range g.came(what) {
			var r v1.AcquireSlotRequest
			_ = proto.Unmarshal(x.body, &r)
			ids, arrived = append(ids, r.SlotId), true
		}
		return slices.Compact(ids), arrived
	}
	s.last, s.tries = "acquire, and hear nothing", 1
	wait := client.NoWait
	if s.rng.IntN(2) == 0 {
		wait = 500 * time.Millisecond
	}
	how := []client.SlotOption{client.TTL(long.AsDuration()), client.Wait(wait)}
	begun := time.Now()
	// Nobody can be reached.
	g.next(what, cutOff)
	_, err := c.Acquire(s.ctx, s.own, how...)
	var not *client.Unavailable
	var unclear *client.Unknown
	took, most := time.Since(begun), timeout+max(wait, 0)
	s.wrong(s.ctx.Err() == nil && (!errors.As(err, &not) || errors.As(err, &unclear) || not.Operation != what || not.Err == nil || !errors.Is(err, context.DeadlineExceeded)),
		"nobody was reached, and it comes to %T: %v", err, err)
	s.wrong(s.ctx.Err() == nil && took < most-10*time.Millisecond, "it was given up after %v of %v", took, most)
	s.wrong(took > most+3*time.Second, "it was given up after %v; there are %v for it", took, most)
	if of, _ := ids(); len(of) != 1 {
		s.wrong(s.ctx.Err() == nil, "what is sent again has the ids %v", of)
	}
	// The answer is lost; the id is the script's, or the client's.
	for _, chosen := range []bool{true, false} {
		id, how := s.id(), how
		if chosen {
			how = append(slices.Clone(how), client.SlotID(id))
		}
		fates := []fate{unheard}
		if s.rng.IntN(2) == 0 {
			fates = []fate{unheard, object, passes} // which says nothing about the first
		}
		g.came(what)
		g.next(what, fates...)
		_, err := c.Acquire(s.ctx, s.own, how...)
		g.next(what, passes)
		of, arrived := ids()
		if s.ctx.Err() != nil || !arrived {
			s.over = true
			return
		}
		s.wrong(!errors.As(err, &unclear) || errors.As(err, new(*client.Unavailable)), "the answer was lost, and it comes to %T: %v", err, err)
		if s.over {
			return
		}
		s.wrong(unclear.Operation != what || unclear.Err == nil || len(of) > 0 && (unclear.ID != of[0] || chosen && unclear.ID != id), "it was asked for as %v, and it comes to %+v", of, unclear)
		s.wrong(chosen && len(of) != 1, "what is sent again has the ids %v", of)
		s.steps++
		if !chosen {
			break
		}
		var slot *client.Slot
		if slot, err = c.Acquire(s.ctx, s.own, how...); err != nil {
			s.wrong(errors.As(err, new(*client.Refused)), "it was asked for again, and refused: %v", err)
			s.over = true
			return
		}
		res, ok := done(s, "list slots", func(ctx context.Context, n *node) (*v1.ListSlotsResponse, error) {
			return n.slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: s.own})
		})
		if !ok {
			return
		}
		s.wrong(len(res.Slots) != 1 || res.Slots[0].SlotId != id || res.Slots[0].Token != slot.Token() || slot.ID() != id, "asked for again by its id it is %s with %d, and slots are %v", slot.ID(), slot.Token(), res.Slots)
		if slot.Release() != nil {
			s.over = true
			return
		}
	}
	// What was drawn is given back behind the scenes, within a few seconds or never: only who
	// was well from then on, and could write, knows that it could be.
	since := time.Now()
	for p := (&pulse{}); !s.over; {
		var in int32
		p.ask(s, func() error {
			put := &v1.SetRequest{Key: s.own, Value: "a", RequestId: s.id(), Client: s.own}
			if _, ok := done(s, "set a value", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, put) }); !ok {
				return errors.New("no answer")
			}
			res, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
				return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
			})
			if in = res.GetPool().GetInUse(); !ok {
				return errors.New("no answer")
			}
			return nil
		})
		if in == 0 {
			return
		}
		if p.since.After(since.Add(prompt)) {
			s.over = true
		}
		s.wrong(p.well(7*time.Second), "what was granted to who has heard nothing is not given back")
	}
}

// retried asks for something that is sent again: with the same id, to another node, as often as
// the budget has it, and not before a node wants it.
func retried(s *script) {
	const burst = 3
	c, g, ok := s.gated(4, client.Config{Timeout: 3 * time.Second, Budget: client.Budget{Ratio: 1e-9, Burst: burst, PerSecond: 1e-9}})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	const what = "Increment"
	key := s.own
	count := func() error {
		_, err := c.Increment(s.ctx, key, "1")
		return err
	}
	// Where nodes are busy it is sent again when they want it.
	for _, x := range []struct {
		fate
		says, least time.Duration
	}{{busied, 600 * time.Millisecond, 600 * time.Millisecond}, {busied, 0, time.Second}, {rationed, 500 * time.Millisecond, 500 * time.Millisecond}} {
		if s.rng.IntN(2) == 0 {
			continue
		}
		c, g, ok := s.gated(4, client.Config{Timeout: 8 * time.Second})
		if !ok {
			return
		}
		s.last, s.tries = "add where nodes are busy", 1
		g.after = map[string]time.Duration{what: x.says}
		g.next(what, x.fate, passes)
		_, err := c.Increment(s.ctx, key+"-busy", "1")
		came := g.came(what)
		_ = c.Close()
		s.wrong(errors.As(err, new(*client.Error)) || err != nil && len(came) < 2 && s.ctx.Err() == nil, "a node had no room, and after %d requests it comes to %v", len(came), err)
		if s.over || len(came) < 2 {
			return
		}
		s.wrong(came[1].at.Sub(came[0].at) < x.least, "a node wants to be left alone for %v, and is asked again after %v", x.least, came[1].at.Sub(came[0].at))
		s.wrong(!bytes.Equal(came[0].body, came[1].body), "what is sent again is another request")
		s.steps++
	}
	// What the service objects to is not sent again, and the error says what it says.
	for _, x := range []struct {
		fate
		code   string
		reason client.Reason
	}{{spent, "resource_exhausted", client.ReasonQuotaExceeded}, {object, "invalid_argument", client.ReasonInvalidField}} {
		s.last, s.tries = "add what is objected to", 1
		g.next(what, x.fate)
		err := count()
		var no *client.Error
		came := g.came(what)
		s.wrong(s.ctx.Err() == nil && (!errors.As(err, &no) || no.Operation != what || no.Code.String() != x.code || no.Reason != x.reason || no.Err == nil), "it says %s (%s), and that comes to %T: %v", x.code, x.reason, err, err)
		s.wrong(s.ctx.Err() == nil && len(came) != 1, "what is objected to is sent %d times", len(came))
	}
	// The budget bounds what is sent again.
	s.last, s.tries = "add where nobody is reached", 1
	g.next(what, cutOff)
	err := count()
	came := g.came(what)
	if s.ctx.Err() != nil {
		return
	}
	s.wrong(!errors.As(err, new(*client.Unavailable)), "nobody was reached, and it comes to %T: %v", err, err)
	s.wrong(len(came) > burst+1, "there is a budget for %d repetitions, and it is sent %d times", burst, len(came))
	s.wrong(len(came) < 2, "where nobody is reached it is sent once")
	hosts := map[string]bool{}
	for _, x := range came {
		hosts[x.host] = true
		s.wrong(!bytes.Equal(x.body, came[0].body), "what is sent again is another request")
	}
	s.wrong(len(came) > 1 && len(s.nodes) > 1 && len(hosts) < 2, "what is sent again goes to the same node")
	s.steps++
	// Nothing of all this has counted.
	g.next(what, passes)
	if err := count(); err != nil {
		return
	}
	got, ok := given(s, "get the value", func(ctx context.Context, c *client.Client) (client.Value, error) { return c.Get(ctx, key) })
	s.wrong(ok && got.Text != "1", "it was added to once, and is %+v", got)
}

// worded has each option of a request go where it says, and what is not given be as it is
// promised.
func worded(s *script) {
	drawn := 0
	c, g, ok := s.gated(8, client.Config{TokenSource: func() (string, error) {
		drawn++
		return fmt.Sprint(Prefix, drawn), nil
	}, Namespace: "default"})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	x := c.Session(s.own)
	of := func(what string, into proto.Message) (sighting, bool) {
		came := g.came(what)
		if s.ctx.Err() != nil || len(came) == 0 {
			s.over = true
			return sighting{}, false
		}
		s.wrong(proto.Unmarshal(came[0].body, into) != nil, "%s is not its message", what)
		return came[0], !s.over
	}
	within := func(what string, got, want time.Duration) {
		s.wrong(got > want || got < want-500*time.Millisecond, "%s is %v, want %v", what, got, want)
	}
	// The node is told when it is given up.
	patience := func(h http.Header, want time.Duration) {
		if end, ok := s.ctx.Deadline(); ok && time.Until(end) < max(want, 10*time.Second) {
			return // what the script has left bounds it as well
		}
		ms, err := strconv.Atoi(h.Get("Connect-Timeout-Ms"))
		s.wrong(err != nil, "the node is not told for how long it is waited for: %v", h)
		within("the time that a node has", time.Duration(ms)*time.Millisecond, want)
	}
	s.last, s.tries = "acquire", 1
	for _, x := range []struct {
		options []client.SlotOption
		want    *v1.AcquireSlotRequest
		wait    time.Duration
		lasts   time.Duration
	}{
		{nil, &v1.AcquireSlotRequest{}, 10 * time.Second, 30 * time.Second},
		{
			[]client.SlotOption{client.SlotID(s.id()), client.Weight(3), client.TTL(40 * time.Second), client.MaxHold(time.Hour), client.Wait(client.NoWait), client.Priority(-4), client.Label("a label")},
			&v1.AcquireSlotRequest{Weight: 3, Ttl: durationpb.New(40 * time.Second), MaxHold: durationpb.New(time.Hour), Priority: -4, Label: "a label"}, 0, 40 * time.Second,
		},
		{[]client.SlotOption{client.Wait(3 * time.Second)}, &v1.AcquireSlotRequest{}, 3 * time.Second, 30 * time.Second},
	} {
		g.came("AcquireSlot")
		begun := time.Now()
		slot, err := c.Acquire(s.ctx, s.own, x.options...)
		seen := &v1.AcquireSlotRequest{}
		first, ok := of("AcquireSlot", seen)
		if !ok {
			return
		}
		x.want.Pool, x.want.SlotId, x.want.Client, x.want.Wait = s.own, seen.SlotId, s.own, seen.Wait
		s.alike("the request", seen, x.want)
		s.wrong(seen.SlotId == "", "no id is drawn")
		if first.at.Sub(begun) < 200*time.Millisecond { // else something has held it up
			s.wrong((seen.Wait != nil) != (x.wait > 0), "the wait is %v, want %v", seen.Wait, x.wait)
			if x.wait > 0 {
				within("the wait", seen.Wait.AsDuration(), x.wait)
			}
			patience(first.header, 5*time.Second+x.wait)
		}
		s.wrong(first.header.Get("Govnode-Namespace") != "default", "the namespace is %q", first.header.Get("Govnode-Namespace"))
		s.wrong(!strings.HasPrefix(first.header.Get("Authorization"), "Bearer "+Prefix), "the token of the source is not shown: %v", first.header)
		if s.over || err != nil {
			return
		}
		left := time.Until(slot.Deadline())
		s.wrong(left > x.lasts || left < x.lasts/2 && time.Since(begun) < time.Second, "a lease of %v is believed in for %v", x.lasts, left)
		s.wrong(slot.Pool() != s.own || slot.ID() != seen.SlotId || slot.Token() == 0, "the slot is %s of %s with %d", slot.ID(), slot.Pool(), slot.Token())
		if slot.Release() != nil {
			return
		}
		gone := &v1.ReleaseSlotRequest{}
		if _, ok := of("ReleaseSlot", gone); !ok {
			return
		}
		s.alike("the request", gone, &v1.ReleaseSlotRequest{Pool: s.own, SlotId: slot.ID(), Client: s.own, Token: slot.Token()})
		s.steps++
	}
	// A call, of a session that there is not.
	s.last = "begin"
	for _, y := range []struct {
		call client.Call
		want *v1.BeginCallRequest
		wait time.Duration
	}{
		{client.Call{Tool: "one"}, &v1.BeginCallRequest{Tool: "one", Ttl: nil}, 10 * time.Second},
		{client.Call{
			ID: s.id(), Kind: client.KindModel, Tool: "two", ArgumentsJSON: `{"n":1}`, ContextJSON: `{"m": 2}`, Metadata: map[string]string{"a": "b"}, Pools: []client.Want{{Pool: "p", Weight: 2}, {Pool: "q"}},
			Rates: []client.RateWant{{Rate: "r", Cost: 3}, {Rate: "t", Tokens: true}}, Costs: []client.Cost{{Budget: "b", Amount: "1.5"}}, ServerLabel: "server", TTL: 40 * time.Second,
			MaxHold: time.Hour, Wait: client.NoWait, Priority: 7, Tokens: 50, Order: v1.Order_ORDER_PRE_EXECUTE,
		}, &v1.BeginCallRequest{
			Kind: v1.Kind_KIND_MODEL, Tool: "two", ArgumentsJson: `{"n":1}`, ContextJson: `{"m": 2}`, Metadata: map[string]string{"a": "b"}, Pools: []*v1.Want{{Pool: "p", Weight: 2}, {Pool: "q"}},
			Rates: []*v1.RateWant{{Rate: "r", Cost: 3}, {Rate: "t", By: v1.Cost_COST_TOKENS}}, Budgets: []*v1.BudgetAmount{{Budget: "b", Amount: "1.5"}}, ServerLabel: "server", Ttl: durationpb.New(40 * time.Second),
			MaxHold: durationpb.New(time.Hour), Priority: 7, Tokens: 50, Order: v1.Order_ORDER_PRE_EXECUTE,
		}, 0},
	} {
		begun := time.Now()
		_, err := x.Begin(s.ctx, y.call)
		seen := &v1.BeginCallRequest{}
		first, ok := of("BeginCall", seen)
		if !ok {
			return
		}
		y.want.SessionId, y.want.CallId, y.want.Wait = s.own, seen.CallId, seen.Wait
		s.alike("the request", seen, y.want)
		s.wrong(seen.CallId == "" || y.call.ID != "" && seen.CallId != y.call.ID, "the id of the call is %q", seen.CallId)
		if first.at.Sub(begun) < 200*time.Millisecond {
			s.wrong((seen.Wait != nil) != (y.wait > 0), "the wait is %v, want %v", seen.Wait, y.wait)
			if y.wait > 0 {
				within("the wait", seen.Wait.AsDuration(), y.wait)
			}
		}
		var no *client.Error
		s.wrong(errors.As(err, &no) && refused(err) != "" && no.Reason != client.ReasonNotFound, "there is no such session, and it comes to %v", err)
		s.wrong(err == nil, "there is no such session, and it began")
	}
	s.last = "read"
	if _, err := c.Get(s.ctx, s.own); err == nil {
		if first, ok := of("Get", &v1.GetRequest{}); ok {
			patience(first.header, 5*time.Second)
		}
	}
	s.wrong(len(g.came("Exchange")) > 0, "there are streams, though they were not wanted")
	s.wrong(!strings.Contains(c.Leader(), "://"), "requests go to %q", c.Leader())
}
