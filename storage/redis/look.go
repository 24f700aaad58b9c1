package redis

import (
	"context"
	"errors"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// How a small state is read whole, as it stands at one instant.

// wholeView is up to how many values a view has all of its state at one instant,
// which one script reads.
const wholeView = 8192

// lookTries is how often an area is looked at before changes are held up for it.
const lookTries = 3

// heldFor bounds a look for which changes are held up: others may be at it, one after
// the other.
const heldFor = time.Minute

// An area is what is looked at at once, by one clock: a namespace, or all of a Redis
// that is no cluster.
type area struct {
	d  *domain
	ns string // empty: all
}

// areas returns those of a namespace, of which there is none if nothing was ever
// written there, or all there are. One of a Redis Cluster is asked for without any
// other, which may be in quarantine or away.
func (r *Store) areas(ctx context.Context, ns string) ([]area, error) {
	if ns != "" {
		_, p, err := r.reads(ctx, ns)
		if err != nil || p == nil {
			return nil, err
		}
		return []area{{p.d, ns}}, nil
	}
	if r.clustered() {
		if err := r.discover(ctx); err != nil {
			return nil, err
		}
	}
	var all []area
	for _, d := range r.allDomains() {
		if _, err := d.serving(ctx); err != nil {
			return nil, err
		}
		all = append(all, area{d, d.ns})
	}
	return all, nil
}

// listings returns the listings of all kinds that an area has.
func (r *Store) listings(ctx context.Context, s area) ([]listing, error) {
	names := []string{s.ns}
	if s.ns == "" {
		var err error
		if names, err = r.namespaces(ctx, ""); err != nil {
			return nil, err
		}
	}
	return listingsOf(names), nil
}

// small reports whether what is seen is little enough to be read whole.
func (r *Store) small(ctx context.Context, areas []area) (bool, error) {
	n := int64(0)
	for _, s := range areas {
		lists, err := r.listings(ctx, s)
		if err != nil {
			return false, err
		}
		counts, err := r.count(ctx, lists)
		if err != nil {
			return false, err
		}
		for i, count := range counts {
			if session.HasParts(lists[i].prefix) {
				count *= 1 + session.ForgottenParts
			}
			if n += count; n > wholeView {
				return false, nil
			}
		}
	}
	return true, nil
}

// whole returns all that an area has, as of its own time.
func (r *Store) whole(ctx context.Context, s area) (*session.Snapshot, error) {
	for range 1 + lookTries {
		if seen, err := r.look(ctx, s); seen != nil || err != nil {
			return seen, err
		}
	}
	return r.heldUp(ctx, s)
}

// heldUp looks while the changes of a domain wait: of the others none does. All who come
// before it begins share it, so that changes go on between two looks however many look.
func (r *Store) heldUp(ctx context.Context, s area) (*session.Snapshot, error) {
	name := s.d.tag + " " + s.ns
	done := r.looks.DoChan(name, func() (any, error) {
		if !r.begin() {
			return nil, errClosed
		}
		defer r.work.Done()
		ctx, cancel := context.WithTimeout(r.ctx, heldFor) // who came first may be gone before the others
		defer cancel()
		frozen, err := r.freeze(ctx, s.d)
		if err != nil {
			return nil, err
		}
		defer frozen.thaw()
		r.looks.Forget(name) // who comes from here on waits for what is seen later
		seen, err := r.look(ctx, s)
		if err == nil && seen == nil {
			err = errors.New("changes went on though they were held up; try again")
		}
		return seen, errors.Join(err, frozen.hold(ctx))
	})
	select {
	case x := <-done:
		seen, _ := x.Val.(*session.Snapshot)
		return seen, x.Err
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// look reads all that an area has as of its own time, or nothing if something came between
// its lists and its records.
func (r *Store) look(ctx context.Context, s area) (*session.Snapshot, error) {
	state := session.New()
	read := r.readMany
	if s.ns != "" {
		read = r.readOne
	}
	if complete, err := read(ctx, s, state); err != nil || !complete {
		return nil, err
	}
	now, _ := s.d.clock.now()
	state.SetClock(now, 0)
	return state.Snapshot(), nil
}

// readOne reads a namespace, and reports whether that is all of it: what is read at one
// instant is then as many records as there are at it. What changes besides, here or in
// other namespaces, disturbs nobody.
func (r *Store) readOne(ctx context.Context, s area, into *session.State) (complete bool, err error) {
	p := r.place(s.ns)
	wants, err := r.records(ctx, s)
	if err != nil {
		return false, err
	}
	e, err := s.d.serving(ctx)
	if err != nil {
		return false, err
	}
	all := append(wants[p], indexes(s.ns)...) // else names that are gone would not be missed
	found, complete, err := r.loadAgainWith(ctx, p, e, all, wire.Complete)
	if err != nil || !complete {
		return false, err
	}
	r.put(p, e, all, found, into)
	return true, nil
}

// readMany reads all namespaces of one Redis, and reports whether nothing was swapped in
// meanwhile: what is listed before has to be all there is as it is read. It is listed
// behind the clock, what was empty a moment ago as well.
func (r *Store) readMany(ctx context.Context, s area, into *session.State) (complete bool, err error) {
	before, err := r.client.Get(ctx, s.d.key("clock")).Result()
	if err != nil {
		return false, err
	}
	_, seq, err := wire.ParseClock(before)
	if err != nil {
		return false, &wire.BadRecord{Key: s.d.key("clock"), Err: err}
	}
	wants, err := r.records(ctx, s)
	if err != nil {
		return false, err
	}
	for p, wants := range wants {
		e, err := s.d.serving(ctx)
		if err != nil {
			return false, err
		}
		found, err := r.loadAgain(ctx, p, e, wants, true)
		if err != nil {
			return false, err
		}
		r.put(p, e, wants, found, into)
	}
	after, err := r.client.Get(ctx, s.d.key("clock")).Result()
	if err != nil {
		return false, err
	}
	_, now, err := wire.ParseClock(after)
	return err == nil && now == seq, nil
}

// put puts what was read into a state, but for what is damaged.
func (r *Store) put(p *place, e *epoch, wants []wire.Want, found []wire.Entry, into *session.State) {
	for i, x := range found {
		if whole(p, wants[i].Key, &x); x.Bad != nil {
			r.setAside(p, e, wants[i].Key, x.Bad)
		} else if x.Record != nil {
			into.Put(wants[i].Key, x.Record)
		}
	}
}

// records returns what is to be read of an area: all that is listed, with all ids.
func (r *Store) records(ctx context.Context, s area) (map[*place][]wire.Want, error) {
	lists, err := r.listings(ctx, s)
	if err != nil {
		return nil, err
	}
	names := make([]*redis.StringSliceCmd, len(lists))
	_, _ = r.client.Pipelined(ctx, func(tx redis.Pipeliner) error {
		for i, l := range lists {
			names[i] = tx.ZRange(ctx, r.place(l.ns).Index(l.prefix.Kind()), 0, -1)
		}
		return nil
	})
	wants := map[*place][]wire.Want{}
	for i, l := range lists {
		p := r.place(l.ns)
		if err := names[i].Err(); err != nil {
			return nil, err
		}
		for _, name := range names[i].Val() {
			w := wire.Want{Key: l.prefix + session.Key(name)}
			if session.HasParts(w.Key) {
				w.Parts = wire.AllParts
			}
			wants[p] = append(wants[p], w)
		}
	}
	return wants, nil
}
