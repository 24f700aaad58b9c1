package redis

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// How a state is restored: what is there is fenced off, removed and written anew.

// restoreFor bounds a restore once something is stopped for it.
const restoreFor = 15 * time.Minute

// Restore implements Store. All other nodes are fenced off by a new epoch while
// it works, and serve the new state afterwards. If it is cut off, or Redis loses a
// part of it, nothing is served until a snapshot was restored; who may do what is
// kept for that. That its caller goes away does not cut it off.
func (r *Store) Restore(ctx context.Context, in io.Reader) error {
	state, err := session.ReadSnapshot(in)
	if err != nil {
		return storage.Fail(storage.NotApplied, storage.Invalid(fmt.Errorf("snapshot: %w", err)))
	}
	if err = r.enterAll(ctx, state); err == nil {
		err = errors.Join(r.readableAccess(ctx), ctx.Err())
	}
	if err != nil {
		return storage.Fail(storage.NotApplied, err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), restoreFor)
	defer cancel()
	fenced, err := r.fence(ctx)
	if err != nil {
		if len(fenced) == 0 {
			return storage.Fail(storage.NotApplied, err)
		}
		return storage.Fail(storage.Unknown, err)
	}
	// From here on the data is neither the old nor the new until it is done.
	for d, e := range fenced { // order-free: the latest of all
		now, _ := d.clock.now()
		state.SetClock(now, e.generation)
	}
	if err = r.keepAccess(ctx, fenced, state); err == nil {
		err = r.replaceAll(ctx, fenced, state)
	}
	if err != nil {
		return storage.Fail(storage.Unknown, fmt.Errorf("the restore was cut off; nothing is served until it is repeated: %w", err))
	}
	for d, old := range fenced { // order-free: each for itself
		next := *old
		next.state, next.id, next.generation = epochOpen, drawID(), state.Generation()
		if err := d.replaceEpoch(ctx, old, next.with()); err != nil {
			return storage.Fail(storage.Unknown, err)
		}
	}
	r.tell()
	return nil
}

// A fenced is the domains that a restore has stopped, each under the epoch in which
// it alone works on it. What is not among them was begun after it, and left alone.
type fenced map[*domain]*epoch

// keepAccess leaves who may do what as it is, see session.State.KeepAccess, has the
// state begin anew, and writes its records of who may do what in the place of those that
// there are. That is done before anything is removed, and they are not: a restore that
// follows one which was cut off finds what was revoked there.
func (r *Store) keepAccess(ctx context.Context, epochs fenced, state *session.State) error {
	kind := string(rune(session.KindAccess))
	for d, e := range epochs { // order-free: each for itself
		if err := r.relist(ctx, d, e, kind); err != nil {
			return err
		}
	}
	present, was := session.NewPartial(), map[session.Key]wire.Entry{}
	err := r.readAll(ctx, session.Key(kind), epochs, func(k session.Key, x wire.Entry) error {
		if x.Bad != nil {
			return accessDamaged(k, x.Bad)
		}
		if x.Record != nil {
			present.Put(k, x.Record)
			was[k] = x
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	state.KeepAccess(present)
	state.ApplyAll(state.Now(), []session.Command{&session.Restore{}})
	lists, err := r.lists(ctx, session.Key(kind))
	if err != nil {
		return err
	}
	for _, l := range lists { // what is listed there and gone
		if e := epochs[r.place(l.ns).d]; e != nil {
			if err := r.removeListed(ctx, e, l, func(k session.Key) bool { return was[k].Record != nil }); err != nil {
				return err
			}
		}
	}
	return r.writeAll(ctx, epochs, state, was, isAccess)
}

// readableAccess refuses a restore that would come to a stop behind the fence, where nothing
// is served any more: what was revoked since the snapshot stands in no other place than in
// a record of who may do what, so none is replaced that cannot be read. What else is in
// the way of the look the restore finds by itself.
func (r *Store) readableAccess(ctx context.Context) error {
	epochs := map[*domain]*epoch{}
	for _, d := range r.allDomains() {
		epochs[d] = d.current()
	}
	var damaged error
	_ = r.readAll(ctx, session.Key(rune(session.KindAccess)), epochs, func(k session.Key, x wire.Entry) error {
		if x.Bad != nil {
			damaged = accessDamaged(k, x.Bad)
		}
		return damaged
	}, nil)
	return damaged
}

func accessDamaged(k session.Key, bad *wire.BadRecord) error {
	return fmt.Errorf("who may do what in the namespace %s is damaged, and with it what was revoked there since the snapshot; "+
		"bring the record %q back, or drop it, which gives that up, and restore then (see docs/redis.md): %w", k.Namespace(), k, bad.Err)
}

func isAccess(k session.Key) bool { return k.Kind() == session.KindAccess }

// enterAll makes the namespaces of a state known before anything is stopped.
func (r *Store) enterAll(ctx context.Context, state *session.State) error {
	listed := map[string]bool{}
	for k := range state.Snapshot().All() {
		ns := k.Namespace()
		if listed[ns] {
			continue
		}
		listed[ns] = true
		if err := r.place(ns).d.ready(ctx); err != nil {
			return err
		}
		if err := r.enter(ctx, r.place(ns)); err != nil {
			return err
		}
	}
	return nil
}

// fence stops all nodes from serving, this one included. Where it fails it tells
// which may have stopped. In a Redis Cluster other nodes may make namespaces meanwhile:
// it has stopped all that it finds once it has stopped all others, so that whatever
// is begun behind its back is begun when nothing else is served any more.
func (r *Store) fence(ctx context.Context) (fenced, error) {
	stopped := fenced{}
	if err := r.enterUnlisted(ctx); err != nil {
		return stopped, err
	}
	for {
		before := len(stopped)
		if r.clustered() {
			if err := r.discover(ctx); err != nil {
				return stopped, err
			}
		}
		for _, d := range r.allDomains() {
			if stopped[d] != nil {
				continue
			}
			if err := d.ready(ctx); err != nil {
				return stopped, err
			}
			old := d.current()
			next := *old
			next.state, next.id = epochRestore, drawID()
			if old.state != epochOpen { // tokens of a later generation may be lost with what was
				next.generation = faultGeneration(old.generation)
			}
			e := next.with()
			err := d.replaceEpoch(ctx, old, e)
			if !errors.Is(err, errMoved) {
				stopped[d] = e
			}
			if err == nil && d.ns != "" { // its name may be gone from the list, which lies elsewhere
				err = r.enter(ctx, r.place(d.ns))
			}
			if err != nil {
				return stopped, err
			}
		}
		if len(stopped) == before {
			return stopped, nil
		}
	}
}

// ready makes sure that the domain has an epoch, whatever it is, and that this node
// knows it: another may have changed it a moment ago.
func (d *domain) ready(ctx context.Context) error {
	if err := d.inspect(ctx, d.gate.Load()); err != nil {
		return err
	}
	g := d.gate.Load()
	if g.epoch == nil {
		return g.err
	}
	return nil
}

// replaceAll puts the records of a state in the place of all there are, but for those of
// who may do what, which stand there. What is in the way and cannot be read is removed
// all the same.
func (r *Store) replaceAll(ctx context.Context, epochs fenced, state *session.State) error {
	lists, err := r.lists(ctx, "")
	if err != nil {
		return err
	}
	for _, l := range lists {
		if e := epochs[r.place(l.ns).d]; e != nil {
			if err := r.removeListed(ctx, e, l, isAccess); err != nil {
				return err
			}
		}
	}
	for d, e := range epochs { // order-free: each for itself
		if err := r.removeUnlisted(ctx, d, e); err != nil {
			return err
		}
		if err := r.removeAsides(ctx, d, e); err != nil {
			return err
		}
	}
	for d, e := range epochs { // order-free: each for itself
		// Nothing may be written in it below, and it would stay behind the others.
		if err := d.bringUp(ctx, e, state.Now()); err != nil {
			return err
		}
	}
	return r.writeAll(ctx, epochs, state, nil, func(k session.Key) bool { return !isAccess(k) })
}

// bringUp sees to it that the clock which is stored is not behind a time.
func (d *domain) bringUp(ctx context.Context, e *epoch, at time.Duration) error {
	for ctx.Err() == nil {
		s := d.r.beginSwap(&place{wire.NewPlace(d.tag, "", ""), d}, e, nil)
		s.Ops = append(s.Ops, "C")
		now, mono := d.clock.now()
		trip, cancel := context.WithTimeout(ctx, d.r.cfg.Timeout)
		_, status, err := d.r.send(unwatch(trip), s, nil, max(now, at), mono)
		cancel()
		switch {
		case err != nil:
			return err
		case status == wire.ReplyOK || status == wire.ReplyLost: // which says that it is further
			return nil
		case status != wire.ReplyFrozen:
			return fmt.Errorf("the data changed under the rewriting (%s)", status)
		}
		rest(ctx, frozenPause)
	}
	return ctx.Err()
}

// writeAll writes those records of a state that are to be written, in the place of what was
// there.
func (r *Store) writeAll(ctx context.Context, epochs fenced, state *session.State, was map[session.Key]wire.Entry, which func(session.Key) bool) error {
	pages := map[*place]*rewriting{}
	for k, rec := range state.Snapshot().All() {
		if !which(k) {
			continue
		}
		p := r.place(k.Namespace())
		w := pages[p]
		if w == nil {
			w = &rewriting{r: r, p: p, e: epochs[p.d], now: state.Now()}
			pages[p] = w
		}
		if err := w.add(ctx, k, was[k], rec); err != nil {
			return err
		}
	}
	for _, w := range pages {
		if err := w.flush(ctx); err != nil {
			return err
		}
	}
	return nil
}

// removeAsides removes what was kept of records that were set aside, and begins the
// list of what is due.
func (r *Store) removeAsides(ctx context.Context, d *domain, e *epoch) error {
	names, err := r.client.ZRange(ctx, d.key("aside"), 0, -1).Result()
	if err != nil && !errorKind(err, "WRONGTYPE") {
		return err
	}
	err = d.under(ctx, e, func(tx redis.Pipeliner) {
		for _, name := range names {
			if k := session.Key(name); session.WellFormed(k) && (d.ns == "" || k.Namespace() == d.ns) {
				tx.Unlink(ctx, r.place(k.Namespace()).Asides(k)...)
			}
		}
		tx.Del(ctx, d.key("due"), d.key("aside"))
		tx.ZAdd(ctx, d.key("due"), redis.Z{Score: wire.DueWhole, Member: wire.DueMark})
	})
	d.countAsides(ctx)
	return err
}

// under does something if an epoch still holds, and as long as it does: another node
// may have begun a restore of its own, and what that writes is not removed by this one.
func (d *domain) under(ctx context.Context, e *epoch, f func(redis.Pipeliner)) error {
	return d.r.client.Watch(ctx, func(tx *redis.Tx) error {
		text, err := tx.Get(ctx, d.key("epoch")).Result()
		if err == nil && text != e.text {
			err = errMoved
		}
		if err != nil {
			return err
		}
		_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error {
			f(p)
			return nil
		})
		return err
	}, d.key("epoch"))
}

// removeListed removes all records of a listing but those to be kept.
func (r *Store) removeListed(ctx context.Context, e *epoch, l listing, keep func(session.Key) bool) error {
	p := r.place(l.ns)
	index := p.Index(l.prefix.Kind())
	kept := 0
	for from := "-"; ; {
		names, err := r.client.ZRangeByLex(ctx, index, &redis.ZRangeBy{Min: from, Max: "+", Count: pageKeys}).Result()
		if err != nil {
			return err
		}
		if len(names) == 0 {
			return p.d.under(ctx, e, func(tx redis.Pipeliner) {
				if kept == 0 {
					tx.Unlink(ctx, index)
				}
				tx.ZAdd(ctx, p.Counts(), redis.Z{Member: wire.CountsMark}, redis.Z{Score: float64(kept), Member: string(l.prefix.Kind())})
			})
		}
		from = "(" + names[len(names)-1]
		var keys []string
		var members []any
		for _, name := range names {
			if k := l.prefix + session.Key(name); keep(k) {
				kept++
			} else {
				keys, members = appendAll(keys, p, k), append(members, name)
			}
		}
		if len(keys) == 0 {
			continue
		}
		err = p.d.under(ctx, e, func(tx redis.Pipeliner) {
			tx.Unlink(ctx, keys...)
			tx.ZRem(ctx, index, members...)
		})
		if err != nil {
			return err
		}
	}
}

// removeUnlisted removes records that are in no list, or in that of a namespace that is in
// none: lists may be what was lost, and a record that is left would be in the way.
func (r *Store) removeUnlisted(ctx context.Context, d *domain, e *epoch) error {
	unlisted, err := r.scanRecords(ctx, d, strings.ReplaceAll(wire.Kinds, string(rune(session.KindAccess)), ""))
	if err != nil {
		return err
	}
	for ns, records := range unlisted { // order-free: each for itself
		for _, kind := range []byte(wire.Kinds) {
			if err := r.removeListed(ctx, e, listing{session.Prefix(kind, ns), ns}, isAccess); err != nil {
				return err
			}
		}
		for some := range slices.Chunk(records, pageKeys) {
			var keys []string
			for _, k := range some {
				keys = appendAll(keys, r.place(ns), k)
			}
			if err := d.under(ctx, e, func(tx redis.Pipeliner) { tx.Unlink(ctx, keys...) }); err != nil {
				return err
			}
		}
	}
	return nil
}

// appendAll appends the keys of all that there may be of a record.
func appendAll(keys []string, p *place, k session.Key) []string {
	keys = append(keys, p.Record(k), p.Aside(k))
	if session.HasParts(k) {
		keys = wire.AppendParts(keys, &p.Place, []wire.Want{{Key: k, Parts: wire.AllParts}})
	}
	return keys
}

// A rewriting writes many records of a namespace that is not served, in swaps of
// a page each.
type rewriting struct {
	r     *Store
	p     *place
	e     *epoch
	now   time.Duration
	wants []wire.Want
	was   []wire.Entry
	after []session.Record
	size  int
}

// add lets a record be written in the place of another, which may be absent.
func (w *rewriting) add(ctx context.Context, k session.Key, was wire.Entry, after session.Record) error {
	w.wants, w.was, w.after = append(w.wants, wire.Want{Key: k}), append(w.was, was), append(w.after, after)
	if p, ok := after.(*session.Policy); ok {
		w.size += len(p.Tree)
	}
	if len(w.wants) < pageKeys && w.size < maxRoundBytes {
		return nil
	}
	return w.flush(ctx)
}

// flush writes what was added. Who holds changes up meanwhile reads a state that is not
// served any more, and soon finds that out.
func (w *rewriting) flush(ctx context.Context) error {
	if len(w.wants) == 0 {
		return nil
	}
	status, err := w.write(ctx)
	for err == nil && status == wire.ReplyFrozen {
		if rest(ctx, frozenPause); ctx.Err() != nil {
			return ctx.Err()
		}
		status, err = w.write(ctx)
	}
	if err != nil {
		return err
	}
	if status != wire.ReplyOK {
		return fmt.Errorf("the data changed under the rewriting (%s)", status)
	}
	w.wants, w.was, w.after, w.size = nil, nil, nil, 0
	return nil
}

func (w *rewriting) write(ctx context.Context) (status string, err error) {
	s := w.r.beginSwap(w.p, w.e, w.wants)
	for i := range w.was {
		s.Put(i, w.was[i], w.after[i], w.now)
	}
	now, mono := w.p.d.clock.now()
	trip, cancel := context.WithTimeout(ctx, w.r.cfg.Timeout)
	defer cancel()
	_, status, err = w.r.send(unwatch(trip), s, w.was, max(now, w.now), mono)
	return status, err
}
