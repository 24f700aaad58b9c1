package redis

import (
	"context"
	"fmt"
	"sync"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How commands reach the lanes of their namespaces, and their answers the
// caller.

// Apply implements Store. The commands of one namespace keep their order; those
// of several namespaces have no record in common.
func (r *Store) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if len(cmds) == 1 {
		if answers := r.applyOne(ctx, cmds); answers != nil {
			r.metrics.answered(answers)
			return answers
		}
	}
	answers := make([]storage.Answer, len(cmds))
	defer r.metrics.answered(answers)
	var groups []*sameNamespace
	byName := map[string]*sameNamespace{}
	for i, c := range cmds {
		parts, err := partition(c)
		if err != nil {
			answers[i] = storage.Refused(err)
			continue
		}
		for ns, c := range parts {
			g := byName[ns]
			if g == nil {
				g = &sameNamespace{ns: ns}
				byName[ns] = g
				groups = append(groups, g)
			}
			g.cmds, g.at = append(g.cmds, c), append(g.at, i)
		}
	}
	var wait sync.WaitGroup
	for i, g := range groups {
		if i == len(groups)-1 {
			g.answers = r.applyIn(ctx, g.ns, g.cmds)
			break
		}
		wait.Add(1)
		go func() {
			defer wait.Done()
			g.answers = r.applyIn(ctx, g.ns, g.cmds)
		}()
	}
	wait.Wait()
	for _, g := range groups {
		for j, a := range g.answers {
			if was := &answers[g.at[j]]; was.Err == nil { // a Tick has one of each namespace
				*was = a
			}
		}
	}
	return answers
}

// Settled implements storage.Settling: what became of a round is found out, though its
// callers may be gone by then.
func (r *Store) Settled() *storage.Settled { return &r.settled }

// applyOne applies a command of one namespace, as most are; nil if it is not.
func (r *Store) applyOne(ctx context.Context, cmds []session.Command) []storage.Answer {
	if _, ok := cmds[0].(*session.Tick); ok || session.Validate(cmds[0]) != nil {
		return nil
	}
	keys := session.Footprint(cmds[0])
	if len(keys) == 0 {
		return nil
	}
	return r.applyIn(ctx, keys[0].Namespace(), cmds)
}

// sameNamespace is what of a request is in one namespace.
type sameNamespace struct {
	ns      string
	cmds    []session.Command
	at      []int // in the request
	answers []storage.Answer
}

// partition validates a command and returns what of it is in each namespace: a
// Tick may name records of many.
func partition(c session.Command) (map[string]session.Command, error) {
	if err := session.Validate(c); err != nil {
		return nil, storage.Invalid(err)
	}
	if t, ok := c.(*session.Tick); ok {
		parts := map[string]session.Command{}
		for _, k := range t.Keys {
			ns := k.Namespace()
			if parts[ns] == nil {
				parts[ns] = &session.Tick{}
			}
			part := parts[ns].(*session.Tick)
			part.Keys = append(part.Keys, k)
		}
		return parts, nil
	}
	keys := session.Footprint(c)
	if len(keys) == 0 {
		return nil, storage.Invalid(fmt.Errorf("%T is a part of Store.Restore", c))
	}
	return map[string]session.Command{keys[0].Namespace(): c}, nil
}

// applyIn applies commands of one namespace, as many at once as a round takes.
func (r *Store) applyIn(ctx context.Context, ns string, cmds []session.Command) []storage.Answer {
	if err := ctx.Err(); err != nil {
		return failed(len(cmds), storage.Refused(err))
	}
	if err := r.list(ctx, ns); err != nil {
		return failed(len(cmds), storage.Refused(err))
	}
	l := r.lane(ns)
	if len(cmds) <= r.cfg.RoundSize {
		return l.submit(ctx, cmds)
	}
	var answers []storage.Answer
	for len(cmds) > 0 {
		n := min(len(cmds), r.cfg.RoundSize)
		some := l.submit(ctx, cmds[:n])
		answers, cmds = append(answers, some...), cmds[n:]
		if some[0].Err != nil {
			return append(answers, failed(len(cmds), storage.Refused(errFailedFirst))...)
		}
	}
	return answers
}
