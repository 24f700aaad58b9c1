package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"iter"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/storage/redis/internal/wire"
)

// How a quarantine is ended.

// recoverFor is for how long others leave a quarantine to the node that has begun to
// end it, if that dies; while it lives it says every so often that it is still at it.
const recoverFor = time.Minute

// recoverDomain ends a quarantine: whoever held a lease that was lost holds it
// no more. The leases that are left end, and tokens go on in a new generation.
// The counts of sessions may have been lost, so all sessions from before are
// closed. Ids may have been forgotten, so those with a time are refused as
// stale unless they are newer than now. It can be cut off anywhere and done
// again.
func (r *Store) recoverDomain(ctx context.Context, d *domain, e *epoch) {
	token := rand.Text()
	ok, err := r.client.SetNX(ctx, d.key("recovering"), token, r.cfg.recoverFor).Result()
	if err != nil || !ok {
		return // another node is at it
	}
	work, end := context.WithCancelCause(ctx)
	var keeps sync.WaitGroup
	keeps.Go(func() { end(r.keepRecovering(work, d, token)) })
	err = r.recover(work, d, e)
	if err != nil && work.Err() != nil {
		err = context.Cause(work)
	}
	end(nil)
	keeps.Wait()
	if err != nil {
		d.stuck.Store(&err)
		r.metrics.recoveries.WithLabelValues("error").Inc()
		r.log.Error("cannot end the quarantine; trying again", "keys", d.tag, "error", err)
	} else {
		d.stuck.Store(nil)
		r.metrics.recoveries.WithLabelValues("ok").Inc()
		r.log.Info("the quarantine is over: leases and sessions from before have ended", "keys", d.tag)
		r.tell()
	}
	if held, err := r.client.Get(ctx, d.key("recovering")).Result(); err == nil && held == token {
		r.client.Del(ctx, d.key("recovering"))
	}
}

// keepRecovering says that this node is still at it, until it is not, and fails if it
// has been silent for so long that another may have begun.
func (r *Store) keepRecovering(ctx context.Context, d *domain, token string) error {
	for {
		if rest(ctx, r.cfg.recoverFor/4); ctx.Err() != nil {
			return nil
		}
		held, err := r.client.GetEx(ctx, d.key("recovering"), r.cfg.recoverFor).Result()
		if (err == nil || errors.Is(err, redis.Nil)) && held != token {
			return errors.New("this node was silent for too long, and another may be ending it")
		}
	}
}

func (r *Store) recover(ctx context.Context, d *domain, e *epoch) error {
	generation := faultGeneration(e.generation)
	if err := r.relist(ctx, d, e, wire.Kinds); err != nil {
		return err
	}
	was, aside := map[session.Key]wire.Entry{}, map[session.Key]bool{}
	state := session.New()
	err := r.readAll(ctx, "", map[*domain]*epoch{d: e}, func(k session.Key, x wire.Entry) error {
		p := r.place(k.Namespace())
		switch whole(p, k, &x); {
		case x.Bad != nil && errors.Is(x.Bad.Err, wire.ErrPartGone):
			x.Record, x.Bad = withoutIDs(x.Record), nil
		case x.Bad != nil:
			// It stays set aside, as of before the generation that begins.
			if !r.setAside(p, e, k, x.Bad) {
				return x.Bad
			}
			aside[k] = true
			return nil
		}
		was[k] = x
		if x.Record != nil { // else it is listed, and gone
			state.Put(k, x.Record)
		}
		return nil
	}, nil)
	if err != nil {
		return err
	}
	now, _ := d.clock.now()
	state.SetClock(now, generation-1) // Restore raises it
	before := map[session.Key]session.Record{}
	for k := range was {
		before[k] = state.Stored(k)
	}
	endAll(state, was, aside)
	if err := r.standAgain(ctx, d, e, maps.All(was)); err != nil {
		return err
	}
	err = d.under(ctx, e, func(tx redis.Pipeliner) {
		tx.ZAdd(ctx, d.key("due"), redis.Z{Score: wire.DueWhole, Member: wire.DueMark})
	})
	if err != nil {
		return err
	}
	if err := r.rewrite(ctx, e, now, state, was, before); err != nil {
		return err
	}
	next := *e
	next.state, next.id, next.generation, next.until = epochOpen, drawID(), generation, 0
	return d.replaceEpoch(ctx, e, next.with())
}

// remakeDue makes the list of what is due anew from the records, each of which knows
// when it is: nothing is lost with the list but that anybody looks. It serves on
// meanwhile; what is settled or put off under it and entered all the same is found
// astray. The mark is put in its place at the end, if it was not lost again.
func (r *Store) remakeDue(ctx context.Context, d *domain) error {
	e := d.current()
	mark := redis.Z{Score: wire.DueBroken, Member: wire.DueMark}
	if err := r.client.ZAddNX(ctx, d.key("due"), mark).Err(); err != nil {
		return err
	}
	names := []string{d.ns} // in a Redis Cluster, where the list of all lies elsewhere
	if !r.clustered() {
		var err error
		if names, err = r.namespaces(ctx, ""); err != nil {
			return err
		}
	}
	for _, ns := range names {
		for _, kind := range []byte(wire.Kinds) {
			var failed error
			l := listing{session.Prefix(kind, ns), ns}
			err := r.walk(ctx, l, l.prefix, "", 0, func(_ *place, keys []session.Key, found []wire.Entry) bool {
				failed = r.standAgain(ctx, d, e, func(yield func(session.Key, wire.Entry) bool) {
					for i := range found {
						if !yield(keys[i], found[i]) {
							return
						}
					}
				})
				return failed == nil
			})
			if err := errors.Join(err, failed); err != nil {
				return err
			}
		}
	}
	mark.Score = wire.DueWhole
	return r.client.ZAddXX(ctx, d.key("due"), mark).Err()
}

// standAgain enters among what is due what has fallen out of it, as long as the epoch
// holds: else it would be what a restore has removed.
func (r *Store) standAgain(ctx context.Context, d *domain, e *epoch, all iter.Seq2[session.Key, wire.Entry]) error {
	var stand []redis.Z
	flush := func() error {
		if len(stand) == 0 {
			return nil
		}
		err := d.under(ctx, e, func(tx redis.Pipeliner) { tx.ZAddNX(ctx, d.key("due"), stand...) })
		stand = stand[:0]
		return err
	}
	for k, x := range all { // order-free: each for itself
		if x.Due == 0 {
			continue
		}
		if stand = append(stand, redis.Z{Score: float64(wire.ScoreOf(x.Due)), Member: string(k)}); len(stand) == pageKeys {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

// withoutIDs returns what is left of a record that has lost ids which it
// remembered. A client has nothing else that outlives quarantine.
func withoutIDs(r session.Record) session.Record {
	if x, ok := r.(*session.Session); ok {
		next := *x
		next.IDs = ids.Set{}
		return &next
	}
	return nil
}

// relist enters in the indexes of some kinds what has fallen out of them, and counts
// their names anew: a list that was lost must not hide from recovery what it had. It does
// so as long as the epoch holds: a restore that has begun meanwhile removes what
// would be listed.
func (r *Store) relist(ctx context.Context, d *domain, e *epoch, kinds string) error {
	names, err := r.scanRecords(ctx, d, kinds)
	if err != nil {
		return err
	}
	for ns, keys := range names {
		p := r.place(ns)
		if err := r.enter(ctx, p); err != nil {
			return err
		}
		for some := range slices.Chunk(keys, pageKeys) {
			err := d.under(ctx, e, func(tx redis.Pipeliner) {
				for _, k := range some {
					tx.ZAddNX(ctx, p.Index(k.Kind()), redis.Z{Member: k.Name()})
				}
			})
			if err != nil {
				return err
			}
		}
	}
	all, err := r.namespaces(ctx, "")
	if err != nil {
		return err
	}
	if len(all) == 0 && !r.clustered() {
		// A list that is not there would be taken for one that was lost.
		all = append(all, session.ClusterNamespace)
	}
	for _, ns := range all {
		p := r.place(ns)
		if p.d != d {
			continue
		}
		if err := r.enter(ctx, p); err != nil {
			return err
		}
		var lists []listing
		for _, kind := range []byte(kinds) {
			lists = append(lists, listing{session.Prefix(kind, ns), ns})
		}
		counts, err := r.count(ctx, lists)
		if err != nil {
			return err
		}
		err = d.under(ctx, e, func(tx redis.Pipeliner) { // which held when they were counted, as none comes back
			for i, n := range counts {
				tx.ZAdd(ctx, p.Counts(), redis.Z{Score: float64(n), Member: string(lists[i].prefix.Kind())})
			}
		})
		if err != nil {
			return err
		}
	}
	return nil
}

// scanRecords finds the keys of all records of some kinds in a domain, by namespace,
// listed or not.
func (r *Store) scanRecords(ctx context.Context, d *domain, kinds string) (map[string][]session.Key, error) {
	var c redis.Cmdable = r.client
	pattern := "{" + r.cfg.Prefix + ":*}:r:*"
	if cluster, ok := r.client.(*redis.ClusterClient); ok {
		one, err := cluster.MasterForKey(ctx, d.key("epoch"))
		if err != nil {
			return nil, err
		}
		c, pattern = one, d.tag+":r:*"
	}
	found := map[string][]session.Key{}
	for cursor := uint64(0); ; {
		keys, next, err := c.Scan(ctx, cursor, pattern, 1000).Result()
		if err != nil {
			return nil, err
		}
		for _, key := range keys {
			_, name, _ := strings.Cut(key, "}:r:")
			k := session.Key(name)
			if session.WellFormed(k) && strings.IndexByte(kinds, k.Kind()) >= 0 && r.keys.Tag(k.Namespace())+":r:"+name == key {
				found[k.Namespace()] = append(found[k.Namespace()], k)
			}
		}
		if cursor = next; cursor == 0 {
			return found, nil
		}
	}
}

// endAll ends leases and waits, closes sessions, and forgets all ids with a
// time. What is remembered of others stays. What is set aside is left alone.
func endAll(state *session.State, was map[session.Key]wire.Entry, aside map[session.Key]bool) {
	now := state.Now()
	state.ApplyAll(now, []session.Command{&session.Restore{}})
	forgot := uint64(max(time.Now().UnixMilli(), 0))
	namespaces := map[string]bool{}
	for k := range was {
		namespaces[k.Namespace()] = true
		switch x := state.Get(k).(type) {
		case *session.Session:
			if x.Phase == session.PhaseOpen {
				state.ApplyAll(now, []session.Command{&session.Close{NS: k.Namespace(), Session: k.Name(), Digest: x.Pin.Digest}})
			}
		case *session.Client: // is there, and has lost ids that it finished
			next := *x
			next.Born = max(next.Born, forgot)
			state.Put(k, &next)
		}
	}
	for ns := range namespaces {
		k := session.NamespaceKey(ns)
		if aside[k] {
			continue
		}
		n, _ := state.Stored(k).(*session.Namespace)
		next := session.Namespace{}
		if n != nil {
			next = *n
		}
		next.ForgotSessions, next.ForgotClients = max(next.ForgotSessions, forgot), max(next.ForgotClients, forgot)
		next.TokenFloor = max(next.TokenFloor, uint64(state.Generation())<<40)
		state.Put(k, &next)
		if _, ok := was[k]; !ok {
			was[k] = wire.Entry{}
		}
	}
}

// rewrite writes the records that differ from what was read.
func (r *Store) rewrite(ctx context.Context, e *epoch, now time.Duration, state *session.State, was map[session.Key]wire.Entry, before map[session.Key]session.Record) error {
	pages := map[*place]*rewriting{}
	for k, x := range was {
		after := state.Stored(k)
		if after == before[k] && x.Record != nil {
			continue
		}
		p := r.place(k.Namespace())
		w := pages[p]
		if w == nil {
			w = &rewriting{r: r, p: p, e: e, now: now}
			pages[p] = w
		}
		if err := w.add(ctx, k, x, after); err != nil {
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
