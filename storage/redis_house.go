package storage

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
)

const (
	// houseEvery is how often, on average, each node looks for what has run
	// out; by a jitter nodes seldom look at once, and doing it twice is
	// harmless.
	houseEvery = 500 * time.Millisecond
	// tickKeys bounds what one look settles.
	tickKeys = 256
	// checkEvery is how often the settings of Redis are checked, and
	// repairEvery how often while they are refused: somebody is at it.
	checkEvery  = 30 * time.Second
	repairEvery = time.Second
	// listEvery is how often a node of a cluster looks for namespaces that it
	// does not know.
	listEvery = 2 * time.Second
)

// every calls f after each pause until the store is closed.
func (r *Redis) every(pause func() time.Duration, f func()) {
	for r.ctx.Err() == nil {
		rest(r.ctx, pause())
		if r.ctx.Err() == nil {
			f()
		}
	}
}

func always(d time.Duration) func() time.Duration { return func() time.Duration { return d } }

// keepTime lets log time go on, notices other data, and wakes those who wait.
// No domain waits for another: in a Redis Cluster some primary may be silent.
func (r *Redis) keepTime() {
	r.every(always(beatEvery), func() {
		for _, d := range r.allDomains() {
			r.alone(&d.beating, d.beat)
		}
		if time.Duration(r.waits.Load()) > r.cfg.monotonic() {
			r.tell()
		}
	})
}

// noteWaits notes until when somebody on this node may wait.
func (r *Redis) noteWaits(cmds []session.Command, results []session.Result) {
	for i := range results {
		if results[i].Code != session.Queued {
			continue
		}
		var wait time.Duration
		switch c := cmds[i].(type) {
		case *session.Begin:
			wait = c.Wait
		case *session.Acquire:
			wait = c.Wait
		}
		until := int64(r.cfg.monotonic() + wait)
		for old := r.waits.Load(); until > old && !r.waits.CompareAndSwap(old, until); old = r.waits.Load() {
		}
	}
}

// keepHouse settles what has run out, likewise.
func (r *Redis) keepHouse() {
	var listed time.Duration
	jitter := func() time.Duration { return houseEvery/2 + rand.N(houseEvery) }
	r.every(jitter, func() {
		if r.clustered() && r.cfg.monotonic()-listed > listEvery {
			listed = r.cfg.monotonic()
			ctx, cancel := r.trip()
			r.discover(ctx)
			cancel()
		}
		for _, d := range r.allDomains() {
			r.alone(&d.settling, func(ctx context.Context) { r.settle(ctx, d) })
		}
	})
}

// alone does something beside all else, unless it is still being done.
func (r *Redis) alone(busy *atomic.Bool, f func(context.Context)) {
	if !busy.CompareAndSwap(false, true) {
		return
	}
	r.goWork(func() {
		defer busy.Store(false)
		ctx, cancel := r.trip()
		defer cancel()
		f(ctx)
	})
}

// discover makes this node keep the time of namespaces that others have made.
func (r *Redis) discover(ctx context.Context) {
	names, err := r.client.SMembers(ctx, r.cfg.namespacesKey()).Result()
	if err != nil {
		r.lookAround(ctx, err)
		r.log.Debug("cannot list namespaces", "error", err)
		return
	}
	for _, ns := range names {
		r.place(ns)
	}
}

// settle proposes a Tick of what is due in a domain.
func (r *Redis) settle(ctx context.Context, d *domain) {
	e, err := d.serving(ctx)
	if err != nil {
		return
	}
	now, _ := d.clock.now()
	members, err := r.client.ZRangeByScore(ctx, d.key("due"), &redis.ZRangeBy{
		Min: "-inf", Max: scoreReached(now), Count: tickKeys,
	}).Result()
	if err != nil || len(members) == 0 {
		return
	}
	byNS := map[string][]session.Key{}
	for _, m := range members {
		k := session.Key(m)
		if !session.WellFormed(k) {
			r.log.Error("a name among what is due is none of govnode; remove it",
				"command", "ZREM", "key", d.key("due"), "member", m)
			continue
		}
		byNS[k.Namespace()] = append(byNS[k.Namespace()], k)
	}
	for ns, keys := range byNS {
		r.tick(ctx, r.place(ns), e, keys)
	}
}

func (r *Redis) tick(ctx context.Context, p *place, e *epoch, keys []session.Key) {
	wants := make([]want, len(keys))
	for i, k := range keys {
		wants[i].key = k
	}
	since := r.cfg.monotonic()
	found, err := r.loadAgain(ctx, p, e, wants, true)
	if err != nil {
		r.log.Debug("cannot settle what has run out", "namespace", p.ns, "error", err)
		return
	}
	t := &session.Tick{}
	for i, x := range found {
		if x.record == nil {
			r.removeDue(ctx, p, e, keys[i])
			continue
		}
		r.cache.putRead(keys[i], x, since)
		if len(t.Keys) < session.MaxTick-4 {
			t.Keys = append(t.Keys, session.TickKeys(keys[i], x.record)...)
		}
	}
	if len(t.Keys) > 0 {
		if a := r.Apply(ctx, t); a[0].Err != nil {
			r.log.Debug("cannot settle what has run out", "namespace", p.ns, "error", a[0].Err)
		}
	}
}

// removeDue removes a record that is not there from what is due: somebody has
// removed it by hand. It is done as a swap, since it may come back meanwhile.
func (r *Redis) removeDue(ctx context.Context, p *place, e *epoch, k session.Key) {
	s := r.beginSwap(p, e, []want{{key: k}})
	s.ops = append(s.ops, "R", string(k))
	now, mono := p.d.clock.now()
	if _, _, err := r.send(unwatch(ctx), s, []entry{{}}, now, mono); err != nil {
		r.log.Debug("cannot remove a record that is gone from what is due", "key", string(k), "error", err)
	}
}

// keepChecking looks at the settings of Redis again and again: somebody may
// change them under a running service.
func (r *Redis) keepChecking() {
	r.every(r.untilCheck, func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Timeout)
		defer cancel()
		_ = r.check(ctx, false) // noted and logged there
	})
}

func (r *Redis) untilCheck() time.Duration {
	if r.refused.Load() != nil {
		return repairEvery
	}
	return checkEvery
}

// listen hears from other nodes that somebody's turn may have come. What it
// misses is found by looking every 250 ms.
func (r *Redis) listen() {
	sub := r.client.Subscribe(r.ctx, r.cfg.hintsChannel())
	defer sub.Close()
	messages := sub.Channel()
	for {
		select {
		case <-r.ctx.Done():
			return
		case m, ok := <-messages:
			if !ok {
				return
			}
			ns := m.Payload[strings.LastIndexByte(m.Payload, ' ')+1:]
			if !strings.HasPrefix(m.Payload, r.name+" ") && !r.inLine(ns) {
				r.hinted.Store(int64(r.cfg.monotonic()))
				r.tell()
			}
		}
	}
}
