package redis

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// A domain is what has one epoch and one clock: everything, or in a Redis
// Cluster one namespace, since a script may touch the keys of one slot alone.
type domain struct {
	r     *Store
	tag   string
	ns    string // in a cluster
	clock *logClock

	gate atomic.Pointer[gate]

	turn       chan struct{}         // one place: one looks at a time
	looks      atomic.Uint64         // begun
	failed     failedLook            // the last that has
	known      atomic.Pointer[epoch] // that was found last; nil: none so far
	blind      bool                  // the last look failed
	beating    atomic.Bool
	settling   atomic.Bool
	asides     atomic.Int64 // records that are set aside
	backlog    atomic.Int64 // records that are due
	recovering atomic.Bool
	trouble    atomic.Pointer[error] // why the last beat failed
	stuck      atomic.Pointer[error] // why a quarantine could not be ended
}

// A gate tells whether the data is served.
type gate struct {
	epoch *epoch
	err   error // why it is not
}

// A failedLook is one whose error holds for all who came before it began.
type failedLook struct {
	look uint64
	err  error
}

// A place is where the records of a namespace are, and what they share.
type place struct {
	wire.Place
	d *domain
}

func (r *Store) newDomain(tag, ns string) *domain {
	return &domain{r: r, tag: tag, ns: ns, turn: make(chan struct{}, 1), clock: &logClock{
		monotonic: r.cfg.monotonic, fixed: r.cfg.logTime, heard: r.cfg.monotonic(),
	}}
}

func (d *domain) key(name string) string { return d.tag + ":" + name }

// serving returns the epoch under which to send, or an error that says why
// nothing is served.
func (d *domain) serving(ctx context.Context) (*epoch, error) {
	if err := d.r.refusal(); err != nil {
		return nil, err
	}
	g := d.gate.Load()
	if g == nil {
		if err := d.inspect(ctx, nil); err != nil {
			return nil, err
		}
		g = d.gate.Load()
	}
	// A restore takes moments, and whoever waits for it comes back at once. Who has looked
	// meanwhile may have begun before it was over, so that one looks twice at most.
	for range 2 {
		if g.err == nil || g.epoch == nil || g.epoch.state != epochRestore {
			break
		}
		if err := d.inspect(ctx, g); err != nil {
			return nil, err
		}
		g = d.gate.Load()
	}
	return g.epoch, g.err
}

// current returns the epoch that was found last, served or not; that of nothing
// if what answers is no primary.
func (d *domain) current() *epoch {
	if g := d.gate.Load(); g != nil && g.epoch != nil {
		return g.epoch
	}
	return &epoch{}
}

// inspect looks whose data there is and notes whether it is served, unless
// somebody has done so since the caller saw the gate as seen. The error is that
// of looking; then what was noted before still holds, since every script looks
// again. Where looking fails, it has failed for all who stand in line for it: it may
// take as long as Redis is given, for each of them.
func (d *domain) inspect(ctx context.Context, seen *gate) error {
	came := d.looks.Load()
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	if d.gate.Load() != seen {
		return nil
	}
	if d.failed.look > came {
		return d.failed.err
	}
	look := d.looks.Add(1)
	for {
		err := d.r.client.Watch(ctx, func(tx *redis.Tx) error { return d.rule(ctx, tx) }, d.key("epoch"))
		if errors.Is(err, redis.TxFailedErr) && ctx.Err() == nil {
			continue
		}
		if err == nil {
			d.blind = false
			return nil
		}
		if !d.blind {
			d.r.log.Warn("cannot look whose data is in Redis", "keys", d.tag, "error", err)
		}
		d.blind = true        // it is told once
		if ctx.Err() == nil { // else it is his own
			d.failed = failedLook{look, err}
		}
		return err
	}
}

// lock waits for the turn of who looks, or changes what is found.
func (d *domain) lock(ctx context.Context) error {
	select {
	case d.turn <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

func (d *domain) unlock() { <-d.turn }

// rule decides with the epoch watched, so that two nodes do not write two.
func (d *domain) rule(ctx context.Context, tx *redis.Tx) error {
	// What is known is taken before the look: others go on meanwhile.
	know := knowledge{d.known.Load(), d.clock.swaps(), d.clock.marked()}
	f, err := d.look(ctx, tx)
	if err != nil {
		return err
	}
	if d.r.clustered() && f.epoch == nil && know.epoch == nil && !f.other {
		// A namespace is listed once it has an epoch, and the list may lie on
		// another primary than what is lost.
		if f.other, err = d.r.client.SIsMember(ctx, d.r.keys.Namespaces(), d.ns).Result(); err != nil {
			return err
		}
	}
	now, _ := d.clock.now()
	if d.r.clustered() && f.epoch == nil && know.epoch == nil {
		now = max(now, d.r.othersTime(ctx))
	}
	v := judge(f, know, now, d.r.cfg.Quarantine)
	if v.err != nil {
		d.gate.Store(&gate{err: v.err})
		return nil
	}
	if v.write {
		_, err := tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, d.key("epoch"), v.epoch.text, 0)
			if f.epoch == nil { // nor a clock that is worth anything
				p.Set(ctx, d.key("clock"), fmt.Sprint(wire.ClockText(max(now, f.clock)), " ", max(f.seq, know.swaps)), 0)
			}
			if f.epoch == nil && v.why == "" {
				p.ZAdd(ctx, d.key("due"), redis.Z{Score: wire.DueWhole, Member: wire.DueMark})
			}
			if v.why != "" {
				p.Del(ctx, d.key("marks"))
			}
			return nil
		})
		if err != nil {
			return err
		}
		if f.epoch == nil {
			f.clock = max(now, f.clock)
		}
	}
	if v.why != "" {
		d.r.metrics.faults.Inc()
		if v.epoch.state == epochRestore {
			d.r.log.Error("there is half of a restore, and a part of that may be lost: commands are refused until a snapshot is restored again",
				"why", v.why, "keys", d.tag, "epoch", v.epoch.id)
		} else {
			d.r.log.Error("acknowledged changes may be lost: commands are refused until nobody can hold a lease from before",
				"why", v.why, "keys", d.tag, "quarantine", max(d.r.cfg.Quarantine, 0), "epoch", v.epoch.id)
		}
	}
	d.adopt(v.epoch, f)
	return nil
}

// othersTime returns the latest time of all namespaces of a Redis Cluster that can
// be asked. One that begins takes it for its own: a snapshot has one time for all,
// and at that of the oldest what a younger one has would have run out.
func (r *Store) othersTime(ctx context.Context) (at time.Duration) {
	_ = r.discover(ctx) // those that can be asked
	all := r.allDomains()
	clocks := make([]*redis.StringCmd, len(all))
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, d := range all {
			clocks[i] = p.Get(ctx, d.key("clock"))
		}
		return nil
	})
	at = latest(all)
	for _, c := range clocks {
		if v, err := c.Result(); err == nil {
			if stored, _, err := wire.ParseClock(v); err == nil {
				at = max(at, stored)
			}
		}
	}
	return at
}

// adopt notes the epoch that stands in Redis.
func (d *domain) adopt(e *epoch, f found) {
	known := d.known.Load()
	if known != nil && known.id != e.id {
		d.r.metrics.epochs.Inc()
	}
	if known == nil || known.id != e.id {
		d.r.cache.purge()
		d.r.forgetNamespaces()
		d.clock.begin(e.id, f.seq)
	}
	d.known.Store(e)
	d.clock.read(f.clock, f.seq, e.id)
	g := &gate{epoch: e}
	switch e.state {
	case epochShut:
		g.err = d.quarantined(e)
	case epochRestore:
		g.err = errors.New("a snapshot is being restored; if that was cut off, restore it again")
	}
	d.gate.Store(g)
}

// refresh tells those who are refused how long it still takes.
func (d *domain) refresh(e *epoch) {
	_ = d.lock(context.Background())
	defer d.unlock()
	if d.known.Load() == e && e.state == epochShut {
		d.gate.Store(&gate{e, d.quarantined(e)})
	}
}

// errMoved says that an epoch was not replaced.
var errMoved = errors.New("another node has changed the epoch; try again")

// replaceEpoch writes an epoch in the place of another, and reports whether that
// one still stood.
func (d *domain) replaceEpoch(ctx context.Context, old, next *epoch) error {
	if err := d.lock(ctx); err != nil {
		return err
	}
	defer d.unlock()
	err := d.r.client.Watch(ctx, func(tx *redis.Tx) error {
		text, err := tx.Get(ctx, d.key("epoch")).Result()
		if err != nil {
			return err
		}
		if text != old.text {
			return errMoved
		}
		f, err := d.look(ctx, tx)
		if err != nil {
			return err
		}
		if f.replid != next.replid || f.role != "master" {
			return errors.New("the primary has changed")
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			p.Set(ctx, d.key("epoch"), next.text, 0)
			return nil
		})
		if err == nil {
			d.adopt(next, f)
		}
		return err
	}, d.key("epoch"))
	if err != nil {
		return err
	}
	return nil
}

// note answers what a script found wrong. It returns an error if that is the
// last word.
func (d *domain) note(ctx context.Context, e *epoch, status string) error {
	switch status {
	case wire.ReplyEpoch, wire.ReplyServer, wire.ReplyBehind:
		g := d.gate.Load()
		if g != nil && g.epoch != e {
			return nil // somebody has looked since
		}
		return d.inspect(ctx, g)
	case wire.ReplyAbsent:
		return d.lost(ctx, e, "a record, a part of its ids, an index or the clock is gone, or names of an index")
	}
	return nil
}

// lost begins a quarantine: something that was acknowledged in an epoch is gone.
func (d *domain) lost(ctx context.Context, old *epoch, why string) error {
	g := d.gate.Load()
	if g == nil || g.epoch != old {
		return nil // this was noticed
	}
	if old.state != epochOpen {
		return d.inspect(ctx, g)
	}
	now, _ := d.clock.now()
	next := *old
	next.state, next.id, next.until = epochShut, drawID(), now+max(d.r.cfg.Quarantine, 0)
	if err := d.replaceEpoch(ctx, old, next.with()); err != nil {
		return d.inspect(ctx, g)
	}
	d.r.metrics.faults.Inc()
	d.r.log.Error("acknowledged changes are lost: commands are refused until nobody can hold a lease from before",
		"why", why, "keys", d.tag, "quarantine", max(d.r.cfg.Quarantine, 0), "epoch", next.id)
	return nil
}

// beat brings the stored clock up to this node's, finds out whether the data is
// still what it was, and ends a quarantine that is over.
func (d *domain) beat(ctx context.Context) {
	g := d.gate.Load()
	if g == nil || g.epoch == nil {
		d.noteTrouble(d.inspect(ctx, g)) // logged there; the next beat tries again
		return
	}
	s := d.r.beginSwap(&place{wire.NewPlace(d.tag, "", ""), d}, g.epoch, nil)
	s.Ops = append(s.Ops, "C")
	now, mono := d.clock.now()
	_, status, err := d.r.send(unwatch(ctx), s, nil, now, mono)
	d.noteTrouble(err)
	switch {
	case errors.Is(err, errOlder):
		_ = d.lost(ctx, g.epoch, err.Error()) // logged there
	case err != nil:
		d.r.log.Debug("no beat", "keys", d.tag, "error", err)
	case status == wire.ReplyLost:
		// Another node is further; its time was noted.
	case status == wire.ReplyFrozen:
		// Changes are held up, renewals among them: time stands still until they go on.
	case status != wire.ReplyOK:
		_ = d.note(ctx, g.epoch, status) // logged there
	case g.epoch.state == epochShut:
		d.refresh(g.epoch)
		if now >= g.epoch.until && d.recovering.CompareAndSwap(false, true) {
			d.r.goWork(func() {
				defer d.recovering.Store(false)
				d.r.recoverDomain(d.r.ctx, d, g.epoch)
			})
		}
	}
}
