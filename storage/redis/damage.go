package redis

import (
	"context"
	"crypto/sha1" //nolint:gosec // as Redis knows it; nothing hangs on it
	"encoding/hex"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// A record that is damaged, or in whose place somebody has put something else,
// means nothing. It is set aside: what stood there goes under a key of its own,
// and a mark takes its place. Commands that need the record are refused, and
// lists, housekeeping and snapshots go on without it. It is for somebody to bring
// back what was good after all, or to drop it; see BringBack and Drop.

// setAside sets a record aside that was found damaged, and reports whether it is.
func (r *Store) setAside(p *place, e *epoch, k session.Key, bad *wire.BadRecord) bool {
	if errors.Is(bad.Err, wire.ErrAside) {
		return true
	}
	if errors.Is(bad.Err, wire.ErrPartGone) {
		return false
	}
	ctx, cancel := r.trip()
	defer cancel()
	sum := ""
	v, err := r.client.Get(ctx, p.Record(k)).Result()
	switch {
	case err == nil:
		b := sha1.Sum([]byte(v)) //nolint:gosec // as above
		sum = hex.EncodeToString(b[:])
	case errorKind(err, "WRONGTYPE"):
		err = nil
	}
	if err == nil {
		now, _ := p.d.clock.now()
		keys := append([]string{p.d.key("epoch"), p.Record(k), p.d.key("due"), p.d.key("aside")}, p.Asides(k)...)
		var reply []any
		reply, err = r.run(ctx, wire.AsideScript, keys, []any{e.text, e.replid, sum, wire.MarkOf(r.nextStamp(), e.generation), string(k), wire.ScoreReached(now)})
		switch {
		case err != nil:
		case reply[0] == wire.ReplyFull:
			err = errors.New("what was kept of it before takes all places; bring it back or drop it")
		case reply[0] != wire.ReplyOK:
			return false // it is another by now; whoever needs it finds out
		case len(reply) > 1 && reply[1] != "":
			r.log.Error("something was kept of this record already, and is kept on", "key", bad.Key, "moved to", reply[1])
		}
	}
	if err != nil {
		r.log.Error("a record in Redis is damaged: commands that need it are refused", "key", bad.Key, "why", bad.Err, "cannot set it aside", err)
		return false
	}
	r.metrics.damaged.Inc()
	p.d.asides.Add(1)
	r.log.Error("a record in Redis is damaged and was set aside: commands that need it are refused; bring it back or drop it, see docs/redis.md",
		"key", bad.Key, "why", bad.Err, "kept as", p.Aside(k))
	return true
}

// countAsides notes how many records of the domain are set aside.
func (d *domain) countAsides(ctx context.Context) {
	if n, err := d.r.client.ZCard(ctx, d.key("aside")).Result(); err == nil {
		d.asides.Store(n)
	}
}

// without sets aside what is damaged of what was found, and returns the places of
// the rest that is there.
func (r *Store) without(p *place, e *epoch, keys []session.Key, found []wire.Entry) (good []int) {
	for i := range found {
		switch bad := found[i].Bad; {
		case bad != nil:
			r.setAside(p, e, keys[i], bad)
		case found[i].Record != nil:
			good = append(good, i)
		}
	}
	return good
}

// An Aside is a record that was set aside.
type Aside struct {
	Key  session.Key
	Kept string // the Redis key under which it is kept
}

// Asides lists the records that were set aside because they are damaged.
func (r *Store) Asides(ctx context.Context) (all []Aside, err error) {
	defer func() { err = storage.Unread(err) }()
	if r.clustered() {
		if err := r.discover(ctx); err != nil {
			return nil, err
		}
	}
	for _, d := range r.allDomains() {
		names, err := r.client.ZRange(ctx, d.key("aside"), 0, -1).Result()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if k := session.Key(name); session.WellFormed(k) {
				all = append(all, Aside{k, r.place(k.Namespace()).Aside(k)})
			}
		}
	}
	slices.SortFunc(all, func(a, b Aside) int {
		if a.Key < b.Key {
			return -1
		}
		return 1
	})
	return all, nil
}

// BringBack puts a record that was set aside in its place again, if what is kept
// of it is good: somebody has repaired it, or memory was bad and not what is
// stored. If a quarantine has ended since, it comes back with what that has ended: a
// session is closed, a pool has no leases. Its error is a *Failure.
func (r *Store) BringBack(ctx context.Context, k session.Key) error {
	p, e, mark, generation, err := r.markOf(ctx, k)
	if err != nil {
		return storage.Fail(storage.NotApplied, err)
	}
	w := wire.Want{Key: k}
	if session.HasParts(k) {
		w.Parts = wire.AllParts
	}
	keys := wire.AppendParts([]string{p.Aside(k)}, &p.Place, []wire.Want{w})
	values, err := r.client.MGet(ctx, keys...).Result()
	if err != nil {
		return storage.Fail(storage.NotApplied, err)
	}
	if values[0] == nil {
		return storage.Fail(storage.NotApplied, fmt.Errorf("what is kept of it is gone or no string: Redis key %q", p.Aside(k)))
	}
	x := p.Entry(w, values[0], values[1:])
	if x.Bad != nil {
		return storage.Fail(storage.NotApplied, fmt.Errorf("what is kept of it under Redis key %q cannot be read: %w", p.Aside(k), x.Bad.Err))
	}
	now, mono := p.d.clock.now()
	if generation != e.generation {
		if whole(p, k, &x); x.Bad != nil {
			return storage.Fail(storage.NotApplied, fmt.Errorf("what is kept of it under Redis key %q cannot be read: %w", p.Aside(k), x.Bad.Err))
		}
		x.Record = ended(k, x, now, e.generation)
	}
	s := r.beginSwap(p, e, []wire.Want{{Key: k}})
	s.Put(0, wire.Entry{Stamp: mark}, x.Record, now)
	s.Decided(0, p.d.key("aside"))
	return r.sendOnce(ctx, s, mark, now, mono)
}

// ended returns what a quarantine that has ended makes of a record that it did not
// come to.
func ended(k session.Key, x wire.Entry, now time.Duration, generation uint32) session.Record {
	state := session.New()
	state.Put(k, x.Record)
	state.SetClock(now, generation-1) // Restore raises it
	endAll(state, map[session.Key]wire.Entry{k: x}, nil)
	return state.Stored(k)
}

// Drop gives a record up that was set aside. A counter, a list, a baseline or a hash is as
// if it had never been. Of a session, a pool or a client, and what else nothing
// can be admitted without, it is a loss of acknowledged changes: quarantine
// follows. Its error is a *Failure.
func (r *Store) Drop(ctx context.Context, k session.Key) error {
	p, e, mark, _, err := r.markOf(ctx, k)
	if err != nil {
		return storage.Fail(storage.NotApplied, err)
	}
	now, mono := p.d.clock.now()
	s := r.beginSwap(p, e, []wire.Want{{Key: k}})
	s.Decided(0, p.d.key("aside"))
	switch k.Kind() {
	case session.KindCounter, session.KindList, session.KindBaseline, session.KindHash:
		s.Remove(0, wire.Entry{Stamp: mark, Due: 1})
		return r.sendOnce(ctx, s, mark, now, mono)
	}
	// The next look finds that it is listed and not there.
	s.Lose(0)
	if err := r.sendOnce(ctx, s, mark, now, mono); err != nil {
		return err
	}
	if err := p.d.lost(ctx, e, "a damaged record was dropped"); err != nil {
		return storage.Fail(storage.Unknown, err)
	}
	return nil
}

// markOf returns the stamp of the mark in the place of a record, and in which
// generation it was put there.
func (r *Store) markOf(ctx context.Context, k session.Key) (p *place, e *epoch, mark wire.Stamp, generation uint32, err error) {
	fail := func(err error) (*place, *epoch, wire.Stamp, uint32, error) { return nil, nil, "", 0, err }
	if !session.WellFormed(k) {
		return fail(storage.Invalid(fmt.Errorf("%q is no key of a record; take one from the list of those set aside", k)))
	}
	if known, err := r.know(ctx, k.Namespace()); err != nil || !known {
		return fail(errors.Join(storage.Invalid(fmt.Errorf("there is no namespace %q", k.Namespace())), err))
	}
	p = r.place(k.Namespace())
	if e, err = p.d.serving(ctx); err != nil {
		return fail(err)
	}
	v, err := r.client.Get(ctx, p.Record(k)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return fail(err)
	}
	generation, yes := wire.IsAside(v)
	if !yes {
		return fail(storage.Invalid(fmt.Errorf("the record %q is not set aside", k)))
	}
	return p, e, wire.Stamp(v[:wire.StampLen]), generation, nil
}

// sendOnce carries out a swap of one record that has a stamp, which is that of the
// mark: of two who decide what becomes of the record, one comes first, and the other
// is told.
func (r *Store) sendOnce(ctx context.Context, s *swapping, mark wire.Stamp, now, mono time.Duration) error {
	trip, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	_, status, err := r.send(unwatch(trip), s, []wire.Entry{{Stamp: mark}}, now, mono)
	switch {
	case err != nil && !notSent(err):
		return storage.Fail(storage.Unknown, err)
	case err != nil:
		return storage.Fail(storage.NotApplied, err)
	case status != wire.ReplyOK:
		return storage.Fail(storage.NotApplied, fmt.Errorf("somebody was faster (%s); try again", status))
	}
	s.p.d.countAsides(ctx)
	r.tell()
	return nil
}
