package redis

import (
	"context"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// Which namespaces there are, and how one comes to be.

// know reports whether anything was ever written in a namespace, without writing
// anything.
func (r *Store) know(ctx context.Context, ns string) (bool, error) {
	r.mu.Lock()
	known := r.listed[ns]
	r.mu.Unlock()
	if known {
		return true, nil
	}
	if err := r.refusal(); err != nil {
		return false, err
	}
	if ok, err := r.client.SIsMember(ctx, r.keys.Namespaces(), ns).Result(); err != nil || !ok {
		if err != nil {
			r.lookAround(ctx, err)
		}
		return false, err
	}
	// What is in the list had its counts before.
	p := r.place(ns)
	e, err := p.d.serving(ctx)
	if err != nil {
		return false, err
	}
	if n, err := r.client.Exists(ctx, p.Counts()).Result(); err != nil {
		return false, err
	} else if n == 0 {
		if err := p.d.lost(ctx, e, "the counts of a namespace are gone"); err != nil {
			return false, err
		}
		_, err := p.d.serving(ctx)
		return false, err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[ns] = true
	return true, nil
}

// list enters a namespace in the set of all, before anything is written in it.
func (r *Store) list(ctx context.Context, ns string) error {
	if known, err := r.know(ctx, ns); err != nil || known {
		return err
	}
	p := r.place(ns)
	if _, err := p.d.serving(ctx); err != nil {
		return err
	}
	if err := r.enter(ctx, p); err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.listed[ns] = true
	return nil
}

// enter writes the counts of a namespace, and then its name in the list of all.
func (r *Store) enter(ctx context.Context, p *place) error {
	if err := r.client.ZAddNX(ctx, p.Counts(), redis.Z{Member: wire.CountsMark}).Err(); err != nil {
		return err
	}
	return r.client.SAdd(ctx, r.keys.Namespaces(), p.NS).Err()
}

func (r *Store) forgetNamespaces() {
	r.mu.Lock()
	defer r.mu.Unlock()
	clear(r.listed)
}
