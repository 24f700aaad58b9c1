package redis

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// How a state is saved; see restore.go for the way back.

// frozenFor is how long changes are held up at most when a node that saves a
// snapshot dies; a node that lives says every so often that it is still at it.
const frozenFor = 5 * time.Second

// behindTold is by how much a namespace is behind others if that is said: beats that come
// late add up to less.
const behindTold = 10 * time.Second

// A freezing holds up all changes. Log time stands still meanwhile, since no lease
// can be renewed: a backup ends none.
type freezing struct {
	r       *Store
	domains []*domain
	token   string
}

// freeze holds up the changes of some domains, of all if none is named, until thaw is
// called.
func (r *Store) freeze(ctx context.Context, domains ...*domain) (*freezing, error) {
	if len(domains) == 0 {
		domains = r.allDomains()
	}
	f := &freezing{r: r, domains: domains, token: rand.Text()}
	for _, d := range f.domains {
		for ok := false; !ok; {
			var err error
			if ok, err = r.client.SetNX(ctx, d.key("frozen"), f.token, frozenFor).Result(); err == nil && !ok {
				rest(ctx, frozenPause) // another node is at it
				err = ctx.Err()
			}
			if err != nil {
				f.thaw()
				return nil, err
			}
		}
	}
	return f, nil
}

// hold says that changes are still to be held up, and fails if they have gone on
// meanwhile.
func (f *freezing) hold(ctx context.Context) error {
	for _, d := range f.domains {
		held, err := f.r.client.GetEx(ctx, d.key("frozen"), frozenFor).Result()
		if err != nil && !errors.Is(err, redis.Nil) {
			return err
		}
		if held != f.token {
			return errors.New("reading all records took too long and changes went on; try again")
		}
	}
	return nil
}

// thaw lets changes go on, unless it is another that holds them up.
func (f *freezing) thaw() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(f.r.ctx), f.r.cfg.Timeout)
	defer cancel()
	for _, d := range f.domains {
		err := f.r.client.Watch(ctx, func(tx *redis.Tx) error {
			held, err := tx.Get(ctx, d.key("frozen")).Result()
			if err != nil || held != f.token {
				return err
			}
			_, err = tx.TxPipelined(ctx, func(p redis.Pipeliner) error { return p.Del(ctx, d.key("frozen")).Err() })
			return err
		}, d.key("frozen"))
		if err != nil && !errors.Is(err, redis.Nil) {
			f.r.log.Warn("changes stay held up for some seconds after all records were read", "error", err)
		}
	}
}

// save returns the whole state as it stood at one instant. Changes wait
// meanwhile.
func (r *Store) save(ctx context.Context) (*session.State, error) {
	if r.clustered() {
		// Else it would be without what this node does not know.
		if err := errors.Join(r.enterUnlisted(ctx), r.discover(ctx)); err != nil {
			return nil, err
		}
	}
	epochs, generation := map[*domain]*epoch{}, uint32(0)
	for _, d := range r.allDomains() {
		e, err := d.serving(ctx)
		if err != nil {
			return nil, err
		}
		epochs[d], generation = e, max(generation, e.generation)
	}
	f, err := r.freeze(ctx)
	if err != nil {
		return nil, err
	}
	defer f.thaw()
	state := session.New()
	var without []string
	err = r.readAll(ctx, "", epochs, func(k session.Key, x wire.Entry) error {
		switch whole(r.place(k.Namespace()), k, &x); {
		case x.Bad != nil:
			without = append(without, string(k))
		case x.Record == nil:
			return fmt.Errorf("the record %s is listed and not there", k)
		default:
			state.Put(k, x.Record)
		}
		return nil
	}, func() error { return f.hold(ctx) })
	if err != nil {
		return nil, err
	}
	if len(without) > 0 {
		r.log.Error("the snapshot is without records that are damaged; bring them back or drop them, see docs/redis.md",
			"records", len(without), "the first", without[0])
	}
	state.SetClock(latest(f.domains), generation)
	f.tellBehind(state.Now())
	return state, nil
}

// tellBehind says of which namespaces of a Redis Cluster a snapshot of a time is worth less:
// it has one time, that of the latest, and their clocks stood still while others went on.
func (f *freezing) tellBehind(at time.Duration) {
	var names []string
	var by time.Duration
	for _, d := range f.domains {
		if now, _ := d.clock.now(); at-now > behindTold {
			names, by = append(names, d.ns), max(by, at-now)
		}
	}
	if len(names) > 0 {
		slices.Sort(names)
		f.r.log.Warn("the time of some namespaces is behind that of others, since a primary was away; what has less time left there than that is gone once this snapshot is restored",
			"by", by, "namespaces", names)
	}
}

// readAll visits every record of the domains whose key begins so, with all its ids.
// After each page it asks still whether to go on.
func (r *Store) readAll(ctx context.Context, prefix session.Key, epochs map[*domain]*epoch, visit func(session.Key, wire.Entry) error, still func() error) error {
	lists, err := r.lists(ctx, prefix)
	if err != nil {
		return err
	}
	for _, l := range lists {
		p := r.place(l.ns)
		e := epochs[p.d]
		if e == nil {
			continue // of another domain, or made since
		}
		from, more := "-", true
		for more {
			var failed error
			more, err = r.page(ctx, p, e, l, l.prefix, &from, wire.AllParts, false, func(_ *place, keys []session.Key, found []wire.Entry) bool {
				for i, x := range found {
					if failed = visit(keys[i], x); failed != nil {
						return false
					}
				}
				return true
			})
			if err = errors.Join(err, failed); err == nil && still != nil {
				err = still()
			}
			if err != nil {
				return err
			}
		}
	}
	return nil
}
