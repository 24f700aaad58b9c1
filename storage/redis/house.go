package redis

import (
	"context"
	"math/rand/v2"
	"strings"
	"sync/atomic"
	"time"

	"example.com/govnode/session"
)

// What a node does beside the commands of callers, and how often.

const (
	// houseEvery is how often, on average, each node looks for what has run
	// out; by a jitter nodes seldom look at once, and doing it twice is
	// harmless.
	houseEvery = 500 * time.Millisecond
	// checkEvery is how often the settings of Redis are checked, and
	// repairEvery how often while they are refused: somebody is at it.
	checkEvery  = 30 * time.Second
	repairEvery = time.Second
	// listEvery is how often a node of a cluster looks for namespaces that it
	// does not know.
	listEvery = 2 * time.Second
)

// every calls f after each pause until the store is closed.
func (r *Store) every(pause func() time.Duration, f func()) {
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
func (r *Store) keepTime() {
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
func (r *Store) noteWaits(cmds []session.Command, results []session.Result) {
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
		case *session.TakeRate:
			wait = c.Wait
		}
		until := int64(r.cfg.monotonic() + wait)
		for old := r.waits.Load(); until > old && !r.waits.CompareAndSwap(old, until); old = r.waits.Load() {
		}
	}
}

// keepHouse settles what has run out, likewise; see settle.
func (r *Store) keepHouse() {
	var listed time.Duration
	jitter := func() time.Duration { return houseEvery/2 + rand.N(houseEvery) }
	r.every(jitter, func() {
		if r.clustered() && r.cfg.monotonic()-listed > listEvery {
			listed = r.cfg.monotonic()
			ctx, cancel := r.trip()
			_ = r.discover(ctx) // logged there, and done again
			cancel()
		}
		for _, d := range r.allDomains() {
			r.alone(&d.settling, func(context.Context) { r.settle(d) })
		}
	})
}

// alone does something beside all else, unless it is still being done.
func (r *Store) alone(busy *atomic.Bool, f func(context.Context)) {
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
func (r *Store) discover(ctx context.Context) error {
	names, err := r.client.SMembers(ctx, r.keys.Namespaces()).Result()
	if err != nil {
		r.lookAround(ctx, err)
		r.log.Debug("cannot list namespaces", "error", err)
		return err
	}
	for _, ns := range names {
		r.place(ns)
	}
	return nil
}

// keepChecking looks at the settings of Redis again and again: somebody may
// change them under a running service.
func (r *Store) keepChecking() {
	r.seeListed(r.ctx)
	r.every(r.untilCheck, func() {
		ctx, cancel := context.WithTimeout(r.ctx, r.cfg.Timeout)
		defer cancel()
		_ = r.check(ctx, false) // noted and logged there
		r.verify(ctx)
		r.seeListed(r.ctx)
	})
}

func (r *Store) untilCheck() time.Duration {
	if r.refused.Load() != nil {
		return repairEvery
	}
	return checkEvery
}

// listen hears from other nodes that somebody's turn may have come. What it
// misses is found by looking every 250 ms.
func (r *Store) listen() {
	sub := r.client.Subscribe(r.ctx, r.keys.Hints())
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
			if ns != "" && !strings.HasPrefix(m.Payload, r.name+" ") && !r.inLine(ns) {
				r.hinted.Store(int64(r.cfg.monotonic()))
				r.tell()
			}
		}
	}
}
