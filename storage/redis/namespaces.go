package redis

import (
	"context"
	"sync"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/storage/redis/internal/wire"
)

// Which namespaces there are, and how one comes to be.

// know reports whether anything was ever written in a namespace, without writing
// anything. In a Redis Cluster the list of all lies elsewhere than what it lists, and may
// have lost the name alone: what is not listed is looked for where it would be.
func (r *Store) know(ctx context.Context, ns string) (bool, error) {
	known, err := r.isListed(ctx, ns)
	if known || !r.clustered() {
		return known, err
	}
	place := wire.NewPlace("", ns, r.keys.Tag(ns))
	n, failed := r.client.Exists(ctx, place.Counts()).Result()
	if failed != nil {
		r.lookAround(ctx, failed)
		return false, failed
	}
	if n == 0 {
		return false, err // nobody can say of what is nowhere that it never was while the list is away
	}
	return true, nil
}

// isListed reports whether a namespace stands in the list of all.
func (r *Store) isListed(ctx context.Context, ns string) (bool, error) {
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
	if listed, err := r.isListed(ctx, ns); err != nil || listed {
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

// A seenList is the list of all namespaces of a Redis Cluster as it was when none was
// missing.
type seenList struct {
	mu    sync.Mutex
	run   string // the process that had it
	names int
}

// seeListed sees to it that the list of all namespaces of a Redis Cluster has them all.
// Where it lies it may be lost alone: it is evicted, or a replica that was behind is
// promoted. So it is made whole where this node has not done so yet, where another
// process has it than then, or where it is shorter: to look through all keys costs too
// much to do it again and again.
func (r *Store) seeListed(ctx context.Context) {
	cluster, ok := r.client.(*redis.ClusterClient)
	if !ok {
		return
	}
	r.seen.mu.Lock()
	defer r.seen.mu.Unlock()
	one, err := cluster.MasterForKey(ctx, r.keys.Namespaces())
	if err != nil {
		return // the next look tries again, here and below
	}
	info, err := one.Info(ctx, "server").Result()
	if err != nil {
		return
	}
	run := parseInfo(info)["run_id"]
	names, err := one.SMembers(ctx, r.keys.Namespaces()).Result()
	if err != nil || run == r.seen.run && len(names) >= r.seen.names {
		return
	}
	if err := r.enterUnlisted(ctx); err != nil {
		r.log.Warn("cannot look for namespaces that are missing in the list of all", "error", err)
		return
	}
	if names, err = one.SMembers(ctx, r.keys.Namespaces()).Result(); err == nil {
		r.seen.run, r.seen.names = run, len(names)
	}
}

// enterUnlisted finds the namespaces of a Redis Cluster by their counts, and enters those
// in the list of all that it lacks.
func (r *Store) enterUnlisted(ctx context.Context) error {
	cluster, ok := r.client.(*redis.ClusterClient)
	if !ok {
		return nil
	}
	return cluster.ForEachMaster(ctx, func(ctx context.Context, one *redis.Client) error {
		for cursor := uint64(0); ; {
			keys, next, err := one.Scan(ctx, cursor, "{"+r.cfg.Prefix+":*}:counts", 1000).Result()
			if err != nil {
				return err
			}
			for _, key := range keys {
				if ns, ok := r.keys.CountsOf(key); ok {
					if err := r.enterName(ctx, ns); err != nil {
						return err
					}
				}
			}
			if cursor = next; cursor == 0 {
				return nil
			}
		}
	})
}

// enterName enters a name in the list of all, and says so if it was missing.
func (r *Store) enterName(ctx context.Context, ns string) error {
	added, err := r.client.SAdd(ctx, r.keys.Namespaces(), ns).Result()
	if added > 0 {
		r.log.Error("a namespace was missing in the list of all, which was evicted, or is behind on a replica that was promoted; it was entered again", "namespace", ns)
	}
	return err
}
