package storage

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
)

// A record that is damaged, or in whose place somebody has put something else,
// means nothing. It is set aside: what stood there goes under a key of its own,
// and a mark takes its place. Commands that need the record are refused, and
// lists, housekeeping and snapshots go on without it. It is for somebody to bring
// back what was good after all, or to drop it; see BringBack and Drop.

// asideMark stands behind the stamp in the place of a record that was set aside.
const asideMark = "aside"

var errAside = errors.New("it was damaged and was set aside; bring it back or drop it, see docs/redis.md")

// isAside reports whether a value is the mark of a record that was set aside.
func isAside(v string) bool { return len(v) == stampLen+len(asideMark) && v[stampLen:] == asideMark }

// A badRecord reports what stands under a key and is no record of govnode. It is
// never taken for an absent one.
type badRecord struct {
	key string
	err error
}

func (e *badRecord) Error() string {
	if errors.Is(e.err, errAside) {
		return fmt.Sprintf("the record under Redis key %q cannot be used: %v", e.key, e.err)
	}
	return fmt.Sprintf("the value of Redis key %q is damaged or not of govnode: %v", e.key, e.err)
}

// Unwrap returns the reason.
func (e *badRecord) Unwrap() error { return e.err }

// setAside sets a record aside that was found damaged, unless it was already.
func (r *Redis) setAside(p *place, e *epoch, k session.Key, bad *badRecord) {
	if errors.Is(bad.err, errAside) || errors.Is(bad.err, errPartGone) {
		return
	}
	ctx, cancel := r.trip()
	defer cancel()
	sum := ""
	v, err := r.client.Get(ctx, p.record(k)).Result()
	switch {
	case err == nil:
		b := sha1.Sum([]byte(v)) //nolint:gosec // as above
		sum = hex.EncodeToString(b[:])
	case redisErrorKind(err, "WRONGTYPE"):
		err = nil
	}
	if err == nil {
		now, _ := p.d.clock.now()
		keys := []string{p.d.key("epoch"), p.record(k), p.aside(k), p.d.key("due"), p.d.key("aside")}
		var reply []any
		reply, err = r.run(ctx, asideScript, keys, []any{e.text, e.replid, sum, string(r.nextStamp()) + asideMark, string(k), scoreReached(now)})
		if err == nil && reply[0] != replyOK {
			return // it is another by now; whoever needs it finds out
		}
	}
	if err != nil {
		r.log.Error("a record in Redis is damaged: commands that need it are refused", "key", bad.key, "why", bad.err, "cannot set it aside", err)
		return
	}
	r.metrics.damaged.Inc()
	p.d.asides.Add(1)
	r.log.Error("a record in Redis is damaged and was set aside: commands that need it are refused; bring it back or drop it, see docs/redis.md",
		"key", bad.key, "why", bad.err, "kept as", p.aside(k))
}

// countAsides notes how many records of the domain are set aside.
func (d *domain) countAsides(ctx context.Context) {
	if n, err := d.r.client.ZCard(ctx, d.key("aside")).Result(); err == nil {
		d.asides.Store(n)
	}
}

// without sets aside what is damaged of what was found, and returns the places of
// the rest that is there.
func (r *Redis) without(p *place, e *epoch, keys []session.Key, found []entry) (good []int) {
	for i := range found {
		switch bad := found[i].bad; {
		case bad != nil:
			r.setAside(p, e, keys[i], bad)
		case found[i].record != nil:
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
func (r *Redis) Asides(ctx context.Context) (all []Aside, err error) {
	defer func() { err = Unread(err) }()
	if r.clustered() {
		r.discover(ctx)
	}
	for _, d := range r.allDomains() {
		names, err := r.client.ZRange(ctx, d.key("aside"), 0, -1).Result()
		if err != nil {
			return nil, err
		}
		for _, name := range names {
			if k := session.Key(name); session.WellFormed(k) {
				all = append(all, Aside{k, r.place(k.Namespace()).aside(k)})
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
// stored. Its error is a *Failure.
func (r *Redis) BringBack(ctx context.Context, k session.Key) error {
	p, e, mark, err := r.markOf(ctx, k)
	if err != nil {
		return Fail(NotApplied, err)
	}
	w := want{key: k}
	if session.HasParts(k) {
		w.parts = allParts
	}
	keys := appendParts([]string{p.aside(k)}, p, []want{w})
	values, err := r.client.MGet(ctx, keys...).Result()
	if err != nil {
		return Fail(NotApplied, err)
	}
	if values[0] == nil {
		return Fail(NotApplied, fmt.Errorf("what is kept of it is gone or no string: Redis key %q", p.aside(k)))
	}
	x := p.entry(w, values[0], values[1:])
	if x.bad != nil {
		return Fail(NotApplied, fmt.Errorf("what is kept of it under Redis key %q is damaged: %w", p.aside(k), x.bad.err))
	}
	now, mono := p.d.clock.now()
	s := r.beginSwap(p, e, []want{{key: k}})
	s.put(0, entry{stamp: mark}, x.record, now)
	if err := r.sendOnce(ctx, s, mark, now, mono); err != nil {
		return err
	}
	return r.unlistAside(ctx, p, k)
}

// Drop gives a record up that was set aside. A counter, a baseline or a hash is as
// if it had never been. Of a session, a pool or a client, and what else nothing
// can be admitted without, it is a loss of acknowledged changes: quarantine
// follows. Its error is a *Failure.
func (r *Redis) Drop(ctx context.Context, k session.Key) error {
	p, e, mark, err := r.markOf(ctx, k)
	if err != nil {
		return Fail(NotApplied, err)
	}
	switch k.Kind() {
	case session.KindCounter, session.KindBaseline, session.KindHash:
		now, mono := p.d.clock.now()
		s := r.beginSwap(p, e, []want{{key: k}})
		s.remove(0, entry{stamp: mark, due: 1})
		if err := r.sendOnce(ctx, s, mark, now, mono); err != nil {
			return err
		}
	default:
		// The next look finds that it is listed and not there.
		if err := r.client.Del(ctx, p.record(k)).Err(); err != nil {
			return Fail(Unknown, err)
		}
		if err := p.d.lost(ctx, e, "a damaged record was dropped"); err != nil {
			return Fail(Unknown, err)
		}
	}
	return r.unlistAside(ctx, p, k)
}

// markOf returns the stamp of the mark in the place of a record.
func (r *Redis) markOf(ctx context.Context, k session.Key) (p *place, e *epoch, mark stamp, err error) {
	if !session.WellFormed(k) {
		return nil, nil, "", Invalid(fmt.Errorf("%q is no key of a record; take one from the list of those set aside", k))
	}
	if known, err := r.know(ctx, k.Namespace()); err != nil || !known {
		return nil, nil, "", errors.Join(Invalid(fmt.Errorf("there is no namespace %q", k.Namespace())), err)
	}
	p = r.place(k.Namespace())
	if e, err = p.d.serving(ctx); err != nil {
		return nil, nil, "", err
	}
	v, err := r.client.Get(ctx, p.record(k)).Result()
	if err != nil && !errors.Is(err, redis.Nil) {
		return nil, nil, "", err
	}
	if !isAside(v) {
		return nil, nil, "", Invalid(fmt.Errorf("the record %q is not set aside", k))
	}
	return p, e, stamp(v[:stampLen]), nil
}

// sendOnce carries out a swap of one record that has a stamp.
func (r *Redis) sendOnce(ctx context.Context, s *swapping, mark stamp, now, mono time.Duration) error {
	trip, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	_, status, err := r.send(unwatch(trip), s, []entry{{stamp: mark}}, now, mono)
	switch {
	case err != nil && !notSent(err):
		return Fail(Unknown, err)
	case err != nil:
		return Fail(NotApplied, err)
	case status != replyOK:
		return Fail(NotApplied, fmt.Errorf("somebody was faster (%s); try again", status))
	}
	r.tell()
	return nil
}

func (r *Redis) unlistAside(ctx context.Context, p *place, k session.Key) error {
	err := r.client.ZRem(ctx, p.d.key("aside"), string(k)).Err()
	err = errors.Join(err, r.client.Unlink(ctx, p.aside(k)).Err())
	p.d.countAsides(ctx)
	if err != nil {
		r.log.Warn("a record is no longer set aside, and what was kept of it still stands there; remove it", "key", p.aside(k), "error", err)
	}
	return nil
}
