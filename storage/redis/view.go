package redis

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// How many records are read: as a view, or as lists in pages.

// pageKeys is how many records are loaded at once where many are read.
const pageKeys = 128

// View implements Store. A small state, of the namespace or of all, is read whole, as it
// stands at one instant. Of a larger one, more than some hundred sessions or some thousand
// other records, only what is asked for is read, when it is asked for: each page is of
// one instant, two pages may be of two, and records come without the ids that
// they remember. In a Redis Cluster a namespace is seen at an instant and as of a time of
// its own: whatever has become of others, it is there.
func (r *Store) View(ctx context.Context, ns string, _ storage.Read) (_ storage.View, err error) {
	defer func() { err = storage.Unread(err) }()
	areas, err := r.areas(ctx, ns)
	if err != nil {
		return storage.View{}, err
	}
	small, err := r.small(ctx, areas)
	if err != nil {
		return storage.View{}, err
	}
	if !small {
		return storage.View{Now: r.timeOf(areas),
			Find: func(prefix, after session.Key, limit int, keep func(session.Key, session.Record) bool) ([]session.Entry, error) {
				found, err := r.find(ctx, prefix, after, limit, keep)
				return found, storage.Unread(err)
			}}, nil
	}
	seen := make([]*session.Snapshot, len(areas))
	for i, s := range areas {
		if seen[i], err = r.whole(ctx, s); err != nil {
			return storage.View{}, err
		}
	}
	if len(seen) == 1 {
		return storage.ViewOf(seen[0], 0), nil
	}
	return storage.View{Now: r.timeOf(areas),
		Find: func(prefix, after session.Key, limit int, keep func(session.Key, session.Record) bool) ([]session.Entry, error) {
			var found []session.Entry
			for _, s := range seen {
				found = append(found, s.Find(prefix, after, limit, keep)...)
			}
			slices.SortFunc(found, func(a, b session.Entry) int { return strings.Compare(string(a.Key), string(b.Key)) })
			return found[:min(len(found), limit)], nil
		}}, nil
}

// timeOf returns the time as of which something is seen: of several namespaces of a Redis
// Cluster, and of none, the latest.
func (r *Store) timeOf(areas []area) time.Duration {
	domains := make([]*domain, len(areas))
	for i, s := range areas {
		domains[i] = s.d
	}
	if len(domains) == 0 {
		domains = r.allDomains()
	}
	return latest(domains)
}

// Unswept implements storage.Sweeping: every node sees to KILLs, of all namespaces that
// are served.
func (r *Store) Unswept(ctx context.Context) (keys []session.Key) {
	names, err := r.client.SMembers(ctx, r.keys.Namespaces()).Result()
	if err != nil { // the beat says why
		names = nil
		for _, d := range r.allDomains() { // in a Redis Cluster, where the list of all lies elsewhere
			if d.ns != "" {
				names = append(names, d.ns)
			}
		}
	}
	for _, ns := range names {
		if !session.WellFormed(session.SignalsKey(ns)) {
			continue // the names are looked at elsewhere
		}
		if d := r.domainOf(ns); d != nil && d.unserved() != nil {
			continue // each might keep the others waiting for as long as Redis is given
		}
		found, err := r.Get(ctx, session.SignalsKey(ns), storage.Nearby)
		if err != nil {
			continue
		}
		if x, _ := found.Record.(*session.Signals); x != nil && x.Unswept() {
			keys = append(keys, session.SignalsKey(ns))
		}
	}
	return keys
}

// countEvery is how old a count may be.
const countEvery = time.Second

// tallied is what a namespace held, and when it was counted.
type tallied struct {
	at    time.Time
	tally session.Tally
}

// Count implements storage.Counting: what is listed, whatever of it has lapsed.
func (r *Store) Count(ctx context.Context, ns string) (session.Tally, error) {
	if c, ok := r.counts.Load(ns); ok && time.Since(c.(*tallied).at) <= countEvery {
		return c.(*tallied).tally, nil
	}
	t, err := r.countNow(ctx, ns)
	if err == nil {
		r.counts.Store(ns, &tallied{time.Now(), t})
	}
	return t, err
}

func (r *Store) countNow(ctx context.Context, ns string) (t session.Tally, err error) {
	into := []struct {
		kind byte
		n    *int64
	}{
		{session.KindSession, &t.Sessions}, {session.KindClient, &t.Clients}, {session.KindPool, &t.Pools}, {session.KindName, &t.Policies},
		{session.KindCounter, &t.Keys}, {session.KindList, &t.Keys}, {session.KindBudget, &t.Keys}, {session.KindHash, &t.Keys}, {session.KindApproval, &t.Keys}, {session.KindStanding, &t.Keys},
	}
	lists := make([]listing, len(into))
	for i, x := range into {
		lists[i] = listing{session.Prefix(x.kind, ns), ns}
	}
	counts, err := r.count(ctx, lists)
	for i, n := range counts {
		*into[i].n += n
	}
	if err == nil && t.Pools > 0 {
		var of int64
		of, err = r.policyPools(ctx, ns)
		t.Pools = max(t.Pools-of, 0)
	}
	return t, err
}

// policyPools returns how many pools come with calls. Their names are fetched for it: the
// user that a Redis is asked as has no right to ZLEXCOUNT.
func (r *Store) policyPools(ctx context.Context, ns string) (n int64, err error) {
	index := r.place(ns).Index(session.KindPool)
	for _, prefix := range session.PolicyPools() {
		behind := prefix[:len(prefix)-1] + string(prefix[len(prefix)-1]+1)
		names, err := r.client.ZRangeByLex(ctx, index, &redis.ZRangeBy{Min: "[" + prefix, Max: "(" + behind}).Result()
		if err != nil {
			return 0, fmt.Errorf("listing %s: %w", index, err)
		}
		n += int64(len(names))
	}
	return n, nil
}

// count returns how many records each listing has, asked for in one go.
func (r *Store) count(ctx context.Context, lists []listing) ([]int64, error) {
	counts := make([]*redis.IntCmd, len(lists))
	_, _ = r.client.Pipelined(ctx, func(p redis.Pipeliner) error {
		for i, l := range lists {
			counts[i] = p.ZCard(ctx, r.place(l.ns).Index(l.prefix.Kind()))
		}
		return nil
	})
	out := make([]int64, len(lists))
	for i, c := range counts {
		if err := c.Err(); err != nil {
			return nil, fmt.Errorf("listing %s: %w", r.place(lists[i].ns).Index(lists[i].prefix.Kind()), err)
		}
		out[i] = c.Val()
	}
	return out, nil
}

// find lists records in the order of their keys.
func (r *Store) find(ctx context.Context, prefix, after session.Key, limit int, keep func(session.Key, session.Record) bool) ([]session.Entry, error) {
	lists, err := r.lists(ctx, prefix)
	if err != nil {
		return nil, err
	}
	var all []session.Entry
	for _, l := range lists {
		if len(all) >= limit {
			break
		}
		err := r.walk(ctx, l, prefix, after, 0, func(p *place, keys []session.Key, found []wire.Entry) bool {
			now, _ := p.d.clock.now()
			for _, i := range r.without(p, p.d.current(), keys, found) {
				x := found[i]
				if rec := x.Record.At(now); rec != nil && (keep == nil || keep(keys[i], rec)) && len(all) < limit {
					all = append(all, session.Entry{Key: keys[i], Record: rec})
				}
			}
			return len(all) < limit
		})
		if err != nil {
			return nil, err
		}
	}
	return all, nil
}

// A listing is the index of a kind of records in a namespace.
type listing struct {
	prefix session.Key // of all its keys
	ns     string
}

// lists returns the listings that may have keys with a prefix, in the order of
// their keys.
func (r *Store) lists(ctx context.Context, prefix session.Key) ([]listing, error) {
	names, err := r.namespaces(ctx, prefix)
	if err != nil {
		return nil, err
	}
	all := slices.DeleteFunc(listingsOf(names), func(l listing) bool {
		return !strings.HasPrefix(string(l.prefix), string(prefix)) && !strings.HasPrefix(string(prefix), string(l.prefix))
	})
	slices.SortFunc(all, func(a, b listing) int { return strings.Compare(string(a.prefix), string(b.prefix)) })
	return all, nil
}

// listingsOf returns the listings of all kinds in some namespaces.
func listingsOf(names []string) (all []listing) {
	for _, ns := range names {
		for _, kind := range []byte(wire.Kinds) {
			all = append(all, listing{session.Prefix(kind, ns), ns})
		}
	}
	return all
}

// namespaces returns all, or the one that the prefix names.
func (r *Store) namespaces(ctx context.Context, prefix session.Key) ([]string, error) {
	if strings.Contains(string(prefix), "/") {
		ns := prefix.Namespace()
		if known, err := r.know(ctx, ns); err != nil || !known {
			return nil, err
		}
		return []string{ns}, nil
	}
	names, err := r.client.SMembers(ctx, r.keys.Namespaces()).Result()
	if err != nil {
		return nil, err
	}
	return names, nil
}

// walk loads the records of a listing, page by page, until f has enough.
func (r *Store) walk(ctx context.Context, l listing, prefix, after session.Key, parts uint16, f func(*place, []session.Key, []wire.Entry) bool) error {
	p := r.place(l.ns)
	from := "-"
	if len(prefix) > len(l.prefix) {
		from = "[" + string(prefix[len(l.prefix):])
	}
	if after >= l.prefix && strings.HasPrefix(string(after), string(l.prefix)) && after >= prefix {
		from = "(" + string(after[len(l.prefix):])
	} else if after > l.prefix && !strings.HasPrefix(string(after), string(l.prefix)) {
		return nil // all of it comes before
	}
	for {
		e, err := p.d.serving(ctx)
		if err != nil {
			return err
		}
		more, err := r.page(ctx, p, e, l, prefix, &from, parts, true, f)
		if err != nil || !more {
			return err
		}
	}
}

// page loads the next records of a listing, and reports whether there may be
// more.
func (r *Store) page(ctx context.Context, p *place, e *epoch, l listing, prefix session.Key, from *string, parts uint16, strict bool, f func(*place, []session.Key, []wire.Entry) bool) (bool, error) {
	names, err := r.client.ZRangeByLex(ctx, p.Index(l.prefix.Kind()), &redis.ZRangeBy{Min: *from, Max: "+", Count: pageKeys}).Result()
	if err != nil {
		return false, fmt.Errorf("listing %s: %w", p.Index(l.prefix.Kind()), err)
	}
	full := len(names) == pageKeys
	var keys []session.Key
	var wants []wire.Want
	for _, name := range names {
		k := l.prefix + session.Key(name)
		if !strings.HasPrefix(string(k), string(prefix)) {
			full = false
			break
		}
		w := wire.Want{Key: k}
		if session.HasParts(k) {
			w.Parts = parts
		}
		keys, wants = append(keys, k), append(wants, w)
	}
	if len(keys) == 0 {
		return false, nil
	}
	// What is listed and gone was removed between the list and the look, or it
	// is lost; the look itself tells which.
	var found []wire.Entry
	if strict {
		found, err = r.loadAgain(ctx, p, e, wants, true)
	} else {
		found, err = r.loadUnder(ctx, p, e, wants)
	}
	if err != nil {
		return false, err
	}
	*from = "(" + names[len(names)-1]
	return f(p, keys, found) && full, nil
}

// loadUnder loads under one epoch and no other, of what is not served.
func (r *Store) loadUnder(ctx context.Context, p *place, e *epoch, wants []wire.Want) ([]wire.Entry, error) {
	trip, cancel := context.WithTimeout(ctx, r.cfg.Timeout)
	defer cancel()
	found, status, err := r.load(trip, p, e, wants, false)
	if err != nil {
		return nil, err
	}
	if status != wire.ReplyOK {
		return nil, fmt.Errorf("the data changed under the look (%s)", status)
	}
	return found, nil
}

// latest returns the latest time of all clocks.
func latest(domains []*domain) (at time.Duration) {
	for _, d := range domains {
		now, _ := d.clock.now()
		at = max(at, now)
	}
	return at
}
