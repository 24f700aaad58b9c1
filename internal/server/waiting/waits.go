package waiting

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Those who wait for slots at this node: their places are kept, and what they
// are handed is claimed for them.

const (
	// renewWaits is how often the places of the waiters of this node are
	// renewed: three times before limiter.TicketTTL has passed.
	renewWaits = 3 * time.Second
	// pollWaits bounds how long a waiter stays unaware of what Changed did not
	// tell.
	pollWaits = 500 * time.Millisecond
	// pollHeld does so for those who are kept out by a STOP, of which a node over
	// Redis may have a record in its cache that is as old.
	pollHeld = 250 * time.Millisecond
	// waitWork bounds one claim, renewal or cancellation; a claim has to come
	// within limiter.ClaimTTL to be worth anything.
	waitWork = 5 * time.Second
	// longLook is from when on a look at all pools is followed by a rest of the
	// same length: with waiters for many thousands of pools each change would else
	// cost the node a core.
	longLook = 2 * time.Millisecond
	// waitBatch is how many waiters are renewed or claimed in one go.
	waitBatch = 1024
)

// A Wait is a request that stands in the queue of a pool while its caller is
// connected to this node.
type Wait struct {
	NS     string
	Pool   session.Key // in whose queue it stands now
	Holder string      // its name there
	Claim  session.Command
	Renew  *session.Renew
	Cancel *session.Cancel
	Length time.Duration
	Held   *Held // it stands in no queue, and only Length counts
	// Gone reports whether its caller may not have it any more: nothing is claimed for it
	// then. Nil: he may always.
	Gone   func() bool
	Answer *storage.Answer // where the final answer goes

	done     chan storage.Answer // capacity 1
	listed   bool                // among the waits of this node; guarded by Waiters.mu
	asked    bool                // it is to be asked for again; guarded by Waiters.mu
	answered bool                // a final answer is in done; guarded by Waiters.mu
	warned   bool                // it was logged that a claim had no answer; guarded by Waiters.mu
}

// Waiters claims for the waiters of a node what the queues hand them. Queues are
// part of the replicated state, which hands freed room to the head at once:
// that is a lease of five seconds. The node that serves the waiter sees it
// there, and proposes the same command again, which is the claim. Claims go
// out in the order of their tokens.
type Waiters struct {
	store   storage.Store
	log     *slog.Logger
	waiting prometheus.Gauge    // how many wait
	stopped prometheus.Gauge    // how many are held until a STOP is over
	waited  prometheus.Observer // for how long, in seconds
	drained <-chan struct{}     // closed when the node drains

	stop    chan struct{}
	running sync.WaitGroup
	once    sync.Once
	due     chan struct{} // capacity 1: somebody is to be asked for again

	work  sync.WaitGroup // places being given up
	mu    sync.Mutex
	done  bool // nothing more is given up
	pools map[session.Key]*queue
	clock clock
	over  []*Wait // to be asked for again: their time is over, or they have no place
	n     int
	held  map[session.Key]*keptOut
	empty []chan struct{} // closed when n comes to 0
}

// A queue is those who wait for one pool at this node. A caller may ask twice
// for the same call; both get the answer.
type queue struct {
	seen    session.Record // the pool when it was last looked at
	holders map[string][]*Wait
	turn    turn // of a rate
}

// New claims for those who join until it is closed.
func New(store storage.Store, log *slog.Logger, waiting, stopped prometheus.Gauge, waited prometheus.Observer, drained <-chan struct{}) *Waiters {
	w := &Waiters{
		store: store, log: log, waiting: waiting, stopped: stopped, waited: waited, drained: drained,
		stop: make(chan struct{}), due: make(chan struct{}, 1),
		pools: make(map[session.Key]*queue), held: make(map[session.Key]*keptOut),
	}
	if h, ok := store.(storage.Handing); ok {
		h.ClaimBy(w.claims)
	}
	ctx, cancel := context.WithCancel(context.Background())
	w.running.Go(func() { w.run(ctx) })
	w.running.Go(func() { w.keep(ctx) })
	go func() {
		<-w.stop
		cancel()
	}()
	return w
}

// Await stands in the queue until what was joined is admitted or given up, and
// leaves the answer in x. The caller may go, and the node may shut down: a caller
// that went gives its place up, a node that goes keeps it for the next one.
func (w *Waiters) Await(ctx context.Context, x *Wait) error {
	start := time.Now()
	defer w.remove(x)
	timer := time.NewTimer(x.Length)
	defer timer.Stop()
	for {
		select {
		case a := <-x.done:
			if errors.Is(a.Err, errNodeRemoved) {
				return errRemovedHere()
			}
			*x.Answer = a
			w.waited.Observe(time.Since(start).Seconds())
			return fault.OfAnswer(&a)
		case <-timer.C:
			w.ask(x) // asking once more ends it
			timer.Reset(pollWaits / 2)
		case <-w.drained:
			return errHandedOver()
		case <-ctx.Done():
			w.remove(x)
			if !errors.Is(context.Cause(ctx), ErrStreamEnded) {
				w.Abandon(x)
			}
			return fault.GaveUp(ctx)
		}
	}
}

// Join has what is handed to a wait claimed for it from now on. An await ends that.
func (w *Waiters) Join(x *Wait) {
	x.done = make(chan storage.Answer, 1)
	w.mu.Lock()
	defer w.mu.Unlock()
	w.enqueue(x)
	x.listed = true
	w.n++
	w.waiting.Set(float64(w.n))
}

func (w *Waiters) enqueue(x *Wait) {
	q := w.pools[x.Pool]
	if q == nil {
		q = &queue{holders: make(map[string][]*Wait)}
		w.pools[x.Pool] = q
	}
	q.holders[x.Holder] = append(q.holders[x.Holder], x)
	q.seen = nil // the pool may have changed before it was looked at for x
}

// remove ends a wait; it may have ended already.
func (w *Waiters) remove(x *Wait) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !x.listed {
		return
	}
	x.listed = false
	w.dequeue(x)
	w.n--
	w.waiting.Set(float64(w.n))
	w.tellIdle()
}

// tellIdle tells who waits for that, once nobody waits here. w.mu is held.
func (w *Waiters) tellIdle() {
	if w.n == 0 && len(w.held) == 0 {
		for _, c := range w.empty {
			close(c)
		}
		w.empty = nil
	}
}

func (w *Waiters) dequeue(x *Wait) bool {
	q := w.pools[x.Pool]
	if q == nil {
		return false
	}
	same := q.holders[x.Holder]
	i := slices.Index(same, x)
	if i < 0 {
		return false
	}
	if same = slices.Delete(same, i, i+1); len(same) > 0 {
		q.holders[x.Holder] = same
		return true
	}
	delete(q.holders, x.Holder)
	if len(q.holders) == 0 {
		delete(w.pools, x.Pool)
	}
	return true
}

// ask has waiters asked for again soon, each once: while nobody answers they come again and
// again.
func (w *Waiters) ask(waiting ...*Wait) {
	w.mu.Lock()
	for _, x := range waiting {
		if !x.asked {
			x.asked, w.over = true, append(w.over, x)
		}
	}
	w.mu.Unlock()
	select {
	case w.due <- struct{}{}:
	default:
	}
}

// Close ends the work; places are kept for another node.
func (w *Waiters) Close() {
	w.once.Do(func() { close(w.stop) })
	w.running.Wait()
	w.mu.Lock()
	w.done = true
	w.mu.Unlock()
	w.work.Wait()
}

// keep renews the places of who waits here. With many it takes a while, which
// nobody whose turn has come should wait for.
func (w *Waiters) keep(ctx context.Context) {
	renew := time.NewTicker(renewWaits)
	defer renew.Stop()
	for {
		select {
		case <-w.stop:
			return
		case <-renew.C:
			if lost := w.renew(ctx); len(lost) > 0 {
				w.ask(lost...)
			}
		}
	}
}

func (w *Waiters) run(ctx context.Context) {
	poll, held := time.NewTicker(pollWaits), time.NewTicker(pollHeld)
	defer poll.Stop()
	defer held.Stop()
	turns := time.NewTimer(pollWaits)
	defer turns.Stop()
	var rest <-chan time.Time // until then changes are not looked at; nil: they are
	for {
		turns.Reset(w.untilTurn())
		changed := w.store.Changed()
		if rest != nil {
			changed = nil
		}
		select {
		case <-w.stop:
			return
		case <-rest:
			rest = nil
		case <-changed:
			begun := time.Now()
			w.free(ctx)
			w.claim(ctx, w.handed(ctx, false))
			if took := time.Since(begun); took > longLook {
				rest = time.After(took)
			}
		case <-poll.C:
			if w.removed() {
				w.handOver()
				continue
			}
			w.claim(ctx, w.handed(ctx, true))
		case <-held.C:
			w.free(ctx)
		case <-w.due:
			w.claim(ctx, w.expired())
		case <-turns.C:
			w.takeTurns(ctx)
		}
	}
}

// handed returns the waiters to whom a slot was handed, in the order of its
// tokens. A thorough look also finds those who have lost their place.
func (w *Waiters) handed(ctx context.Context, thorough bool) []*Wait {
	w.mu.Lock()
	keys := slices.Sorted(maps.Keys(w.pools))
	w.mu.Unlock()
	var turns []*Wait
	for _, k := range keys {
		found, err := w.store.Get(ctx, k, storage.Nearby)
		if err != nil {
			continue // looked at again within pollWaits
		}
		p, _ := found.Record.(*session.Pool)
		if p == nil {
			p = &session.Pool{} // was deleted: nobody has a place in it
		}
		w.mu.Lock()
		if q := w.pools[k]; q != nil {
			turns = append(turns, q.handed(p, thorough)...)
			w.clock.see(found.Now)
			q.noteTurn(p)
		}
		w.mu.Unlock()
	}
	return turns
}

// claims returns what claims the slots of a pool that were handed to waiters of
// this node. Others ask again as soon as they see it.
func (w *Waiters) claims(k session.Key, p *session.Pool) []storage.Claim {
	w.mu.Lock()
	defer w.mu.Unlock()
	q := w.pools[k]
	if q == nil || w.done {
		return nil
	}
	var claims []storage.Claim
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Claim {
			for _, x := range q.holders[l.Holder] {
				if x.gone() {
					continue
				}
				claims = append(claims, storage.Claim{Command: x.Claim, Answered: func(a storage.Answer) { w.answered(x, a) }})
			}
		}
	}
	return claims
}

// handed looks at the pool. Leases stand in the order of their tokens.
func (q *queue) handed(p *session.Pool, thorough bool) []*Wait {
	if q.seen == session.Record(p) && !thorough {
		return nil
	}
	q.seen = p
	var turns []*Wait
	placed := make(map[string]bool)
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Claim {
			turns = append(turns, q.holders[l.Holder]...)
			placed[l.Holder] = true
		}
	}
	if !thorough {
		return turns
	}
	for i := range p.Queue {
		placed[p.Queue[i].Holder] = true
	}
	for _, holder := range slices.Sorted(maps.Keys(q.holders)) {
		if !placed[holder] {
			turns = append(turns, q.holders[holder]...)
		}
	}
	return turns
}

// expired returns the waiters that are to be asked for again.
func (w *Waiters) expired() []*Wait {
	w.mu.Lock()
	defer w.mu.Unlock()
	over := w.over
	w.over = nil
	for _, x := range over {
		x.asked = false
	}
	return over
}

// claim asks for the waiters again, and hands on the answers that are final.
func (w *Waiters) claim(ctx context.Context, waiting []*Wait) {
	waiting = slices.DeleteFunc(waiting, (*Wait).gone)
	w.each(ctx, waiting, func(x *Wait) session.Command { return x.Claim }, w.answered)
}

func (x *Wait) gone() bool { return x.Gone != nil && x.Gone() }

// each proposes a command for each waiter who waits still, some at a time: they may leave
// while others are asked for, and a slot that is claimed for nobody is lost until its TTL.
func (w *Waiters) each(ctx context.Context, waiting []*Wait, command func(*Wait) session.Command, answered func(*Wait, storage.Answer)) {
	for now := range slices.Chunk(waiting, waitBatch) {
		w.mu.Lock()
		now = slices.DeleteFunc(now, func(x *Wait) bool { return !x.listed || x.answered })
		w.mu.Unlock()
		if len(now) == 0 {
			continue
		}
		cmds := make([]session.Command, len(now))
		for i, x := range now {
			cmds[i] = command(x)
		}
		for i, a := range w.apply(ctx, cmds) {
			answered(now[i], a)
		}
	}
}

func (w *Waiters) apply(ctx context.Context, cmds []session.Command) []storage.Answer {
	ctx, cancel := context.WithTimeout(ctx, waitWork)
	defer cancel()
	return w.store.Apply(ctx, cmds...)
}

// answered hands on an answer that is final. A claim that was not answered is
// made again: the queue keeps the place. One that a leader has no room for has
// lost its place, and is its caller's to make again.
func (w *Waiters) answered(x *Wait, a storage.Answer) {
	if a.Outcome != storage.Applied && !(a.Outcome == storage.NotApplied && fault.OverloadedElsewhere(a.Err)) {
		w.unanswered(x, a.Err)
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	if x.answered {
		return // twice in one batch: handed, and over
	}
	if a.Result.Code != session.Queued {
		x.answered = true
		x.done <- a
		w.dequeue(x) // so that it is not claimed again
		return
	}
	if k := session.PoolKey(x.NS, a.Result.Queue.Pool); k != x.Pool && w.dequeue(x) {
		x.Pool = k // it has the first slot, and waits for the next
		w.enqueue(x)
	}
}

// unanswered logs the first claim of a wait that had no answer: while there is
// none it is made every half second.
func (w *Waiters) unanswered(x *Wait, err error) {
	w.mu.Lock()
	first := !x.warned
	x.warned = true
	w.mu.Unlock()
	if first {
		w.log.Warn("a claim was not answered; it is made again until it is", slog.String("holder", x.Holder), slog.Any("error", err))
	}
}

// renew keeps the places of all who wait here, and returns those who have
// none.
func (w *Waiters) renew(ctx context.Context) []*Wait {
	w.mu.Lock()
	var all []*Wait
	for _, q := range w.pools {
		for _, same := range q.holders {
			all = append(all, same[0])
		}
	}
	w.mu.Unlock()
	slices.SortFunc(all, func(a, b *Wait) int { return cmp.Compare(a.Holder, b.Holder) })
	var lost []*Wait
	w.each(ctx, all, func(x *Wait) session.Command { return x.Renew }, func(x *Wait, a storage.Answer) {
		if a.Outcome == storage.Applied && a.Result.Code != session.Renewed {
			lost = append(lost, x)
		}
	})
	return lost
}
