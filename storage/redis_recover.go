package storage

import (
	"context"
	"crypto/rand"
	"time"

	"example.com/govnode/session"
)

// recoverFor is how long one node has to end a quarantine before another tries.
const recoverFor = time.Minute

// recoverDomain ends a quarantine: whoever held a lease that was lost holds it
// no more. The leases that are left end, and tokens go on in a new generation.
// The counts of sessions may have been lost, so all sessions from before are
// closed. Ids may have been forgotten, so those with a time are refused as
// stale unless they are newer than now. It can be cut off anywhere and done
// again.
func (r *Redis) recoverDomain(d *domain, e *epoch) {
	ctx, cancel := context.WithTimeout(r.ctx, recoverFor)
	defer cancel()
	token := rand.Text()
	ok, err := r.client.SetNX(ctx, d.key("recovering"), token, recoverFor).Result()
	if err != nil || !ok {
		return // another node is at it
	}
	if err := r.recover(ctx, d, e); err != nil {
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

func (r *Redis) recover(ctx context.Context, d *domain, e *epoch) error {
	generation := faultGeneration(e.generation)
	was := map[session.Key]entry{}
	state := session.New()
	err := r.readAll(ctx, map[*domain]*epoch{d: e}, func(k session.Key, x entry) error {
		was[k] = x
		if x.record == nil {
			return nil // listed, and gone
		}
		whole, err := session.Join(x.record)
		if err != nil {
			return err
		}
		state.Put(k, whole)
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
	endAll(state, was)
	if err := r.rewrite(ctx, e, now, state, was, before); err != nil {
		return err
	}
	next := *e
	next.state, next.id, next.generation, next.until = epochOpen, drawID(), generation, 0
	return d.replaceEpoch(ctx, e, next.with())
}

// endAll ends leases and waits, closes sessions, and forgets all ids with a
// time. What is remembered of others stays.
func endAll(state *session.State, was map[session.Key]entry) {
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
		n, _ := state.Stored(k).(*session.Namespace)
		next := session.Namespace{}
		if n != nil {
			next = *n
		}
		next.ForgotSessions, next.ForgotClients = max(next.ForgotSessions, forgot), max(next.ForgotClients, forgot)
		next.TokenFloor = max(next.TokenFloor, uint64(state.Generation())<<40)
		state.Put(k, &next)
		if _, ok := was[k]; !ok {
			was[k] = entry{}
		}
	}
}

// rewrite writes the records that differ from what was read.
func (r *Redis) rewrite(ctx context.Context, e *epoch, now time.Duration, state *session.State, was map[session.Key]entry, before map[session.Key]session.Record) error {
	pages := map[*place]*rewriting{}
	for k, x := range was {
		after := state.Stored(k)
		if after == before[k] && x.record != nil {
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
