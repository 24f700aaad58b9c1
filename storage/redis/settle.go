package redis

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// How what has run out is settled.

const (
	// tickKeys bounds what one Tick settles.
	tickKeys = 256
	// duePage is how much is read of what is due at once, and mostDue how much
	// of it one look takes up.
	duePage, mostDue = 4096, 1 << 17
	// settlers is how many namespaces are settled at once.
	settlers = 4
)

// settle settles what is due in a domain: all of it, a part of each namespace in
// turn, so that none waits for another that has much. A record that cannot be
// settled keeps none of the others from it.
func (r *Store) settle(d *domain) {
	due, err := r.due(d)
	if err != nil {
		return // the beat says why
	}
	n := 0
	for _, keys := range due {
		n += len(keys)
	}
	d.backlog.Store(int64(n))
	d.countAsides(r.ctx)
	if n > tickKeys && !r.takeHouse(d) {
		return // another node is at it
	}
	turns := make(chan []session.Key)
	var work sync.WaitGroup
	for range settlers {
		work.Go(func() {
			for keys := range turns {
				r.tick(keys)
				r.metrics.settled.Add(float64(len(keys)))
				d.backlog.Add(-int64(len(keys)))
			}
		})
	}
	taken := r.cfg.monotonic()
	for _, keys := range inTurn(due, tickKeys) {
		turns <- keys
		if now := r.cfg.monotonic(); n > tickKeys && now-taken > houseFor/4 {
			taken = now
			r.takeHouse(d)
		}
		if r.ctx.Err() != nil {
			break
		}
	}
	close(turns)
	work.Wait()
	if n > tickKeys {
		r.leaveHouse(d)
	}
}

// inTurn cuts what is due into pieces, first one of each namespace, then another.
func inTurn(due map[string][]session.Key, most int) (pieces [][]session.Key) {
	for len(due) > 0 {
		for ns, keys := range due { // order-free: each in turn
			n := min(len(keys), most)
			pieces = append(pieces, keys[:n])
			if due[ns] = keys[n:]; len(due[ns]) == 0 {
				delete(due, ns)
			}
		}
	}
	return pieces
}

// houseFor is how long others leave much work to the node that has begun it.
const houseFor = 4 * houseEvery

// takeHouse says that this node settles what is due, and reports whether it is
// the one: two would make each other's rounds void. It is a hint.
func (r *Store) takeHouse(d *domain) bool {
	ctx, cancel := r.trip()
	defer cancel()
	key := d.key("housekeeper")
	if ok, err := r.client.SetNX(ctx, key, r.name, houseFor).Result(); err != nil || ok {
		return ok
	}
	held, err := r.client.Get(ctx, key).Result()
	if err != nil || held != r.name {
		return false
	}
	return r.client.GetEx(ctx, key, houseFor).Err() == nil
}

func (r *Store) leaveHouse(d *domain) {
	ctx, cancel := r.trip()
	defer cancel()
	if held, err := r.client.Get(ctx, d.key("housekeeper")).Result(); err == nil && held == r.name {
		r.client.Del(ctx, d.key("housekeeper"))
	}
}

// due returns what is due in a domain, by namespace.
func (r *Store) due(d *domain) (map[string][]session.Key, error) {
	due := map[string][]session.Key{}
	now, _ := d.clock.now()
	for from := int64(0); from < mostDue; from += duePage {
		ctx, cancel := r.trip()
		_, err := d.serving(ctx)
		var members []string
		if err == nil {
			members, err = r.client.ZRangeByScore(ctx, d.key("due"), &redis.ZRangeBy{
				Min: "-inf", Max: wire.ScoreReached(now), Offset: from, Count: duePage,
			}).Result()
		}
		cancel()
		if err != nil {
			return nil, err
		}
		if from == 0 && (len(members) == 0 || members[0] != wire.DueMark) {
			r.dueGone(d)
		}
		for _, m := range members {
			k := session.Key(m)
			if m == wire.DueMark {
				continue
			}
			if !session.WellFormed(k) {
				r.log.Error("a name among what is due is none of govnode; remove it",
					"command", "ZREM", "key", d.key("due"), "member", m)
				continue
			}
			ns := k.Namespace()
			due[ns] = append(due[ns], k)
		}
		if len(members) < duePage {
			break
		}
	}
	return due, nil
}

// dueGone makes the list of what is due anew, since it was evicted or removed. What
// stands there all the same is settled meanwhile.
func (r *Store) dueGone(d *domain) {
	if !r.takeHouse(d) {
		return // another node is at it
	}
	defer r.leaveHouse(d)
	if err := r.remakeDue(r.ctx, d); err != nil {
		r.log.Debug("the list of what is due is gone, and cannot be made anew", "key", d.key("due"), "error", err)
		return
	}
	r.log.Error("the list of what is due was gone from Redis, and was made anew: what ran out meanwhile ends now, and nothing else was lost with it", "key", d.key("due"))
}

// tick settles records of one namespace that are due.
func (r *Store) tick(keys []session.Key) {
	ctx, cancel := r.trip()
	defer cancel()
	p := r.place(keys[0].Namespace())
	e, err := p.d.serving(ctx)
	if err != nil {
		return
	}
	wants := make([]wire.Want, len(keys))
	for i, k := range keys {
		wants[i].Key = k
	}
	since := r.cfg.monotonic()
	found, err := r.loadAgain(ctx, p, e, wants, true)
	if err != nil {
		r.log.Debug("cannot settle what has run out", "namespace", p.NS, "error", err)
		return
	}
	now, _ := p.d.clock.now()
	var astray []int
	for i := range found {
		if x := &found[i]; x.Bad == nil && (x.Due == 0 || wire.ScoreOf(x.Due) > int64(now/time.Millisecond)) {
			astray = append(astray, i)
		}
	}
	r.putRight(ctx, p, e, now, keys, found, astray)
	t := &session.Tick{}
	for _, i := range r.without(p, e, keys, found) {
		r.cache.putRead(keys[i], found[i], since)
		if needs := session.TickKeys(keys[i], found[i].Record); len(t.Keys)+len(needs) <= session.MaxTick {
			t.Keys = append(t.Keys, needs...)
		}
	}
	if len(t.Keys) == 0 {
		return
	}
	a := r.Apply(ctx, t)[0]
	if errors.As(a.Err, new(*wire.BadRecord)) && len(keys) > 1 {
		// What one of them holds elsewhere is damaged: each alone.
		for _, k := range keys {
			r.tick([]session.Key{k})
		}
	} else if a.Err != nil {
		r.log.Debug("cannot settle what has run out", "namespace", p.NS, "error", a.Err)
	}
}

// putRight puts records that are not due where they belong among what is, if they
// are still where they were found: somebody has removed them by hand, or put
// them there. It is done as a swap, since they may change meanwhile.
func (r *Store) putRight(ctx context.Context, p *place, e *epoch, now time.Duration, keys []session.Key, found []wire.Entry, astray []int) {
	if len(astray) == 0 {
		return
	}
	scores := make([]*redis.FloatCmd, len(astray))
	_, _ = r.client.Pipelined(ctx, func(tx redis.Pipeliner) error {
		for n, i := range astray {
			scores[n] = tx.ZScore(ctx, p.d.key("due"), string(keys[i]))
		}
		return nil
	})
	var wants []wire.Want
	var was []wire.Entry
	var ops []any
	for n, i := range astray {
		if at, err := scores[n].Result(); err != nil || at > float64(now/time.Millisecond) {
			continue // another node has settled it
		}
		wants, was = append(wants, wire.Want{Key: keys[i]}), append(was, found[i])
		if found[i].Due == 0 {
			ops = append(ops, "R", string(keys[i]))
		} else {
			ops = append(ops, "Z", wire.Score(found[i].Due), string(keys[i]))
		}
	}
	if len(wants) == 0 {
		return
	}
	s := r.beginSwap(p, e, wants)
	s.Ops = ops
	at, mono := p.d.clock.now()
	if _, _, err := r.send(unwatch(ctx), s, was, at, mono); err != nil {
		r.log.Debug("cannot put right what is due", "namespace", p.NS, "error", err)
	}
}

// mostMarks is how many marks of nodes are kept. A node whose mark was dropped
// and that is still there takes that for a loss.
const mostMarks = 4096

// verify looks whether the lists of names are whole, which nothing else may look
// at for long, and drops the marks of nodes that are long gone.
func (r *Store) verify(ctx context.Context) {
	r.mu.Lock()
	var places []*place
	for ns := range r.listed { // order-free: each for itself
		if p := r.places[ns]; p != nil {
			places = append(places, p)
		}
	}
	r.mu.Unlock()
	for _, p := range places {
		e, err := p.d.serving(ctx)
		if err != nil {
			continue
		}
		if n, err := r.client.SIsMember(ctx, r.keys.Namespaces(), p.NS).Result(); err == nil && !n && r.clustered() {
			// The list lies elsewhere, and tells nothing of what is here.
			r.client.SAdd(ctx, r.keys.Namespaces(), p.NS)
		} else if err == nil && !n {
			_ = p.d.lost(ctx, e, "the list of all namespaces is gone, or a name of it") // logged there
			continue
		}
		if _, err := r.loadAgain(unwatch(ctx), p, e, indexes(p.NS), true); err != nil {
			r.log.Debug("cannot look whether the indexes are whole", "namespace", p.NS, "error", err)
		}
	}
	for _, d := range r.allDomains() {
		if n, err := r.client.ZCard(ctx, d.key("marks")).Result(); err == nil && n > mostMarks {
			if old, err := r.client.ZRange(ctx, d.key("marks"), 0, n-mostMarks-1).Result(); err == nil {
				members := make([]any, len(old))
				for i := range old {
					members[i] = old[i]
				}
				r.client.ZRem(ctx, d.key("marks"), members...)
			}
		}
	}
}

// indexes has all indexes of a namespace looked at: it wants records that there are not,
// one of each kind.
func indexes(ns string) (wants []wire.Want) {
	for _, kind := range []byte(wire.Kinds) {
		wants = append(wants, wire.Want{Key: session.Prefix(kind, ns) + nowhere})
	}
	return wants
}

// nowhere is the name of a record that there cannot be.
const nowhere = "\x00"
