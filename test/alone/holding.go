package alone

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
)

// What the Go client holds for long: it is renewed, whatever else the client does, and its
// holder is told of the loss of what is lost, once, and of nothing else.

const (
	beat   = 70 * time.Millisecond
	prompt = 150 * time.Millisecond // how soon who is well answers, and who is not paused goes on
)

// A pulse tells since when all that a client asked for was answered at once: for so long
// its renewals were too.
type pulse struct{ since, last time.Time }

// ask asks for something, and waits for the next beat.
func (p *pulse) ask(s *script, ask func() error) {
	begun := time.Now()
	if p.last.IsZero() || begun.Sub(p.last) > prompt+beat {
		p.since = begun
	}
	err := ask()
	if p.last = time.Now(); err != nil || p.last.Sub(begun) > prompt {
		p.since = p.last
	}
	s.idle(beat)
}

// well tells whether it goes on for so long.
func (p *pulse) well(d time.Duration) bool { return time.Since(p.since) > d }

// idle waits, and tells whether the script may go on.
func (s *script) idle(d time.Duration) bool {
	select {
	case <-s.ctx.Done():
		s.over = true
	case <-time.After(d):
	}
	return !s.over
}

// losses are those that a client was told of.
type losses struct {
	mu   sync.Mutex
	told []client.Loss
}

func (l *losses) onLost(loss client.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, loss)
}

// of are those of an id.
func (l *losses) of(id string) (of []client.Loss) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, x := range l.told {
		if x.ID == id {
			of = append(of, x)
		}
	}
	return of
}

// number is how many there are.
func (l *losses) number() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return len(l.told)
}

// also makes a client beside the one that all scripts share, for which there is a pool of
// slots. The script has to close it.
func (s *script) also(slots int32, cfg client.Config) (*client.Client, bool) {
	pool := &v1.PutPoolRequest{Pool: s.own, Slots: slots, RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "put a pool", func(ctx context.Context, n *node) (*v1.PutPoolResponse, error) { return n.slots.PutPool(ctx, pool) }); !ok {
		return nil, false
	}
	c, err := s.another(cfg)
	s.wrong(err != nil, "there is no client: %v", err)
	return c, !s.over
}

// opens opens a session under the script's own name by a client, of which each second one has
// a secret: then whatever its calls come to brings that.
func (s *script) opens(c *client.Client) (*client.OpenSession, bool) {
	s.last, s.tries = "create a session by the client", 1
	x, err := c.CreateSession(s.ctx, client.Session{ID: s.own, Agent: s.own, Policy: s.own, Secret: s.rng.IntN(2) == 0})
	s.wrong(errors.As(err, new(*client.Error)) && refused(err) != "", "it is refused: %v", err)
	return x, err == nil && !s.over
}

// busy holds a slot and a call for several of their TTLs, while its client takes and gives
// back others all the time: each is renewed at a third of its TTL, whatever comes and goes.
func busy(s *script) {
	if !s.policy("max_tool_calls: 100\n") {
		return
	}
	told := &losses{}
	c, ok := s.also(8, client.Config{Name: s.own, OnLost: told.onLost, DisableExchange: s.rng.IntN(2) == 0})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	x, ok := s.opens(c)
	if !ok {
		return
	}
	s.last, s.tries = "hold", 1
	ttl := time.Second + time.Duration(s.rng.Int64N(int64(500*time.Millisecond)))
	slot, err := c.Acquire(s.ctx, s.own, client.TTL(ttl), client.Wait(client.NoWait), client.CancelOnLost())
	if err != nil {
		return
	}
	more := ttl + time.Duration(s.rng.IntN(2))*time.Second
	call, err := x.Begin(s.ctx, client.Call{Tool: "one", Pools: []client.Want{{Pool: s.own}}, TTL: more, Wait: client.NoWait, CancelOnLost: true})
	if err != nil {
		return
	}
	held := []struct {
		*client.Lease
		ttl time.Duration
	}{{slot.Lease, ttl}, {call.Lease, more}}
	others := []time.Duration{ttl, ttl, more, time.Second, time.Minute}
	other, same := others[s.rng.IntN(len(others))], s.rng.IntN(3) > 0
	p := &pulse{}
	for until := time.Now().Add(3 * more); time.Now().Before(until); {
		if p.ask(s, func() error {
			x, err := c.Acquire(s.ctx, s.own, client.TTL(other), client.Wait(client.NoWait))
			if err != nil {
				return err
			}
			return x.ReleaseContext(s.ctx)
		}); !same {
			other = others[s.rng.IntN(len(others))]
		}
		s.steps++
		for _, h := range held {
			if s.over {
				return
			}
			state, left, well := h.State(), time.Until(h.Deadline()), p.well(h.ttl)
			s.wrong(state == client.Lost && (well || left > 0), "what is held for %v is lost, and was good for %v more, while the client takes and gives back others of %v", h.ttl, left, other)
			if state == client.Lost {
				return // nobody has answered
			}
			s.wrong(well && left < 2*h.ttl/5, "what is held for %v is good for %v more: it was not renewed at a third", h.ttl, left)
			s.wrong(left > h.ttl, "what is held for %v is believed in for %v", h.ttl, left)
			s.wrong(well && h.State() == client.Held && h.Context().Err() != nil, "it is held, and its context has ended")
		}
	}
	if s.over || !p.well(more) {
		return
	}
	given := time.Now()
	slow := func() bool { return s.over || time.Since(given) > ttl/4 } // what was not given back yet may run out meanwhile
	_, ok, err = through(s, "release", func(context.Context, *client.Client) (any, error) { return nil, slot.Release() })
	if slow() {
		return
	}
	s.wrong(ok && err != nil, "it was held, and released: %v", err)
	_, ok, err = through(s, "end", func(ctx context.Context, _ *client.Client) (any, error) { return nil, call.End(ctx, client.Succeeded) })
	if slow() {
		return
	}
	s.wrong(ok && err != nil, "it was open, and ended: %v", err)
	for _, h := range held {
		s.wrong(h.State() != client.Ended, "it was given back, and is %v", h.State())
		s.wrong(!errors.Is(h.Context().Err(), context.Canceled), "it was given back, and its context goes on")
	}
	s.wrong(told.number() > 0, "of what was given back losses are told: %v", told.told)
}

// throng holds more than go into one request of renewal, or of giving back.
func throng(s *script) {
	const ttl = 3 * time.Second
	many := 40
	if s.rng.IntN(3) == 0 { // which takes a while
		many = 270
	}
	told := &losses{}
	c, ok := s.also(int32(many)+1, client.Config{Name: s.own, OnLost: told.onLost})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	s.last, s.tries = "hold many", 1
	held := make([]*client.Slot, many)
	var under sync.WaitGroup
	for first := range 16 {
		under.Go(func() {
			for i := first; i < many; i += 16 {
				slot, err := c.Acquire(s.ctx, s.own, client.TTL(ttl), client.Wait(client.NoWait))
				if err != nil {
					return
				}
				held[i] = slot
			}
		})
	}
	under.Wait()
	p := &pulse{}
	for until := time.Now().Add(ttl + ttl/2); time.Now().Before(until); {
		p.ask(s, func() error {
			x, err := c.Acquire(s.ctx, s.own, client.TTL(time.Minute), client.Wait(client.NoWait))
			if err != nil {
				return err
			}
			return x.ReleaseContext(s.ctx)
		})
		s.steps++
		for i, slot := range held {
			if s.over || slot == nil {
				return
			}
			state, left, well := slot.State(), time.Until(slot.Deadline()), p.well(ttl)
			s.wrong(state == client.Lost && well, "the slot %d of %d that are held is lost", i, many)
			if state == client.Lost {
				return // nobody has answered
			}
			s.wrong(well && left < 2*ttl/5, "the slot %d of %d that are held for %v is good for %v more: it was not renewed at a third", i, many, ttl, left)
		}
	}
	s.last = "close"
	if err := c.Close(); err != nil {
		return
	}
	got, ok := done(s, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(ctx, &v1.GetPoolRequest{Pool: s.own})
	})
	s.wrong(ok && got.Pool.InUse != 0, "all was given back, and the pool is %v", got.GetPool())
	s.wrong(told.number() > 0, "of what was given back losses are told: %v", told.told)
}

// taken holds slots and calls, of which some are given back, and some are taken away: who
// holds these is told so, once, with all that a loss tells.
func taken(s *script) {
	if !s.policy("max_tool_calls: 100\n") || !s.session(nil) {
		return
	}
	told := &losses{}
	c, ok := s.also(16, client.Config{Name: s.own, OnLost: told.onLost})
	if !ok {
		return
	}
	defer func() { _ = c.Close() }()
	const kept, back, forced, capped = "kept", "given back", "forced away", "held for as long as it may be"
	type lease struct {
		*client.Lease
		client.Loss // that there will be
		fate        string
		cancels     bool
		early       <-chan struct{} // Lost, if it was asked for before
		giveBack    func() error
	}
	ttl := time.Second + time.Duration(s.rng.Int64N(int64(500*time.Millisecond)))
	s.last, s.tries = "hold", 1
	var all []*lease
	for _, fate := range []string{kept, back, forced, capped} {
		for _, of := range []string{"slot", "call"} {
			x := &lease{fate: fate, cancels: s.rng.IntN(2) == 0}
			hold := time.Duration(0)
			if fate == capped {
				hold = ttl + ttl/2
			}
			if of == "slot" {
				options := []client.SlotOption{client.TTL(ttl), client.Wait(client.NoWait), client.MaxHold(hold)}
				if x.cancels {
					options = append(options, client.CancelOnLost())
				}
				slot, err := c.Acquire(s.ctx, s.own, options...)
				if err != nil {
					return
				}
				x.Lease, x.giveBack = slot.Lease, slot.Release
				x.Loss = client.Loss{Pool: s.own, ID: slot.ID(), Token: slot.Token()}
			} else {
				call, err := c.Session(s.own).Begin(s.ctx, client.Call{Tool: "one", TTL: ttl, MaxHold: hold, Wait: client.NoWait, CancelOnLost: x.cancels})
				if err != nil {
					return
				}
				x.Lease, x.giveBack = call.Lease, func() error { return call.End(s.ctx, client.Succeeded) }
				x.Loss = client.Loss{Session: s.own, ID: call.ID()}
				for _, g := range call.Begun().GetGrants() {
					x.Token = g.Token
				}
			}
			if s.rng.IntN(2) == 0 {
				x.early = x.Lost()
			}
			all = append(all, x)
		}
	}
	s.steps++
	for _, x := range all {
		switch x.fate {
		case back:
			if err := x.giveBack(); err != nil {
				return
			}
		case forced:
			force := &v1.ForceReleaseRequest{Pool: x.Pool, SessionId: x.Session, SlotId: x.ID, RequestId: s.id(), Client: s.own + "-other", HolderClient: s.own}
			if x.Pool == "" {
				force.HolderClient = ""
			}
			if _, ok := done(s, "force it away", func(ctx context.Context, n *node) (*v1.ForceReleaseResponse, error) {
				return n.slots.ForceRelease(ctx, force)
			}); !ok {
				return
			}
		}
	}
	s.last, s.tries = "wait until it is lost", 1
	for _, x := range all {
		if x.fate != forced && x.fate != capped {
			continue
		}
		// By the service's clock it may be held for longer, where nobody led for a time; what was
		// taken away is not renewed any more.
		for beats := 0; x.State() != client.Lost; beats++ {
			s.wrong(x.fate == forced && beats > int((ttl+3*time.Second)/beat), "%+v was forced away, and is %v", x.Loss, x.State())
			if !s.idle(beat) {
				return
			}
		}
	}
	for range 50 { // more than it takes to tell it
		if !s.idle(10 * time.Millisecond) {
			return
		}
	}
	for _, x := range all {
		state := x.State() // what is kept may be lost, where nobody answers
		of := told.of(x.ID)
		if state == client.Lost {
			want := x.Loss
			if len(of) > 0 {
				want.Reason = of[0].Reason
			}
			if x.fate == kept && len(of) == 0 {
				continue // just now
			}
			s.wrong(len(of) != 1 || of[0] != want || want.Reason == "", "%+v was %s and lost, and it is told %+v", x.Loss, x.fate, of)
			for _, lost := range []<-chan struct{}{x.early, x.Lost()} {
				select {
				case <-lost:
				default:
					s.wrong(lost != nil, "%+v was %s and lost, and Lost does not tell it", x.Loss, x.fate)
				}
			}
			s.wrong(x.cancels && !errors.Is(context.Cause(x.Context()), client.ErrLeaseLost), "it is lost, and its context has ended for %v", context.Cause(x.Context()))
		} else {
			s.wrong(len(of) > 0, "%+v was %s and is %v, and it is told %+v", x.Loss, x.fate, state, of)
			select {
			case <-x.Lost():
				s.wrong(x.fate == back, "%+v was %s, and Lost says that it is lost", x.Loss, x.fate)
			default:
			}
			s.wrong(x.fate == back && state != client.Ended, "it was given back, and is %v", state)
			s.wrong(x.fate == back && x.cancels && !errors.Is(context.Cause(x.Context()), context.Canceled), "it was given back, and its context has ended for %v", context.Cause(x.Context()))
		}
		s.wrong(!x.cancels && s.ctx.Err() == nil && x.Context().Err() != nil, "a context has ended that nobody wanted to end: %v", context.Cause(x.Context()))
	}
	for _, x := range all {
		if x.fate == forced || x.fate == capped {
			_, ok, err := through(s, "give back what is lost", func(context.Context, *client.Client) (any, error) { return nil, x.giveBack() })
			s.wrong(ok && x.fate == forced && !errors.Is(err, client.ErrLeaseLost), "%+v was %s, and is given back: %v", x.Loss, x.fate, err)
		}
	}
	if s.over {
		return
	}
	lost := told.number()
	s.last = "close"
	if err := c.Close(); err != nil {
		return
	}
	for _, x := range all {
		if x.fate == kept && x.State() != client.Lost {
			s.wrong(x.State() != client.Ended || len(told.of(x.ID)) > 0, "%s was given back by Close, and is %v", fmt.Sprint(x.Loss), x.State())
			s.wrong(x.cancels && !errors.Is(context.Cause(x.Context()), client.ErrClosed) && s.ctx.Err() == nil, "the client is closed, and a context has ended for %v", context.Cause(x.Context()))
		}
	}
	s.wrong(told.number() > lost+2, "Close has lost %v", told.told)
}
