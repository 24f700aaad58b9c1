package order

import (
	"context"
	"errors"
	"time"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Reads: how recent one is to be, many records at one instant, and pages of lists.

// reads are the kinds of reads that a request may ask for.
var reads = map[v1.Consistency]storage.Read{
	v1.Consistency_CONSISTENCY_UNSPECIFIED:  storage.Latest,
	v1.Consistency_CONSISTENCY_LINEARIZABLE: storage.Latest,
	v1.Consistency_CONSISTENCY_STALE:        storage.Nearby,
}

// ReadOf is the read that a request asks for.
func ReadOf(f *input.Fields, c v1.Consistency) storage.Read {
	input.Enum(f, "consistency", c, v1.Consistency_name)
	return reads[c]
}

// ErrTakesLong is why something was not done under a quick context: it would have asked
// somebody beyond this node.
var ErrTakesLong = errors.New("server: this needs more than what is on this node")

// QuickKey is the key of a bool, which is true in a quick context.
type QuickKey struct{}

// Quick reports whether ErrTakesLong is wanted instead of what takes long.
func Quick(ctx context.Context) bool {
	q, _ := ctx.Value(QuickKey{}).(bool)
	return q
}

// A Page is a part of a list: so many records after a name.
type Page struct {
	Size  int
	After string
}

// PageOf is the page that a request asks for.
func PageOf(f *input.Fields, size int32, token string) Page {
	f.Text("pageToken", token, input.Bound{Max: input.Caps.CounterKey.Max})
	return Page{int(f.Number("pageSize", int64(size), input.Caps.Page)), token}
}

// List returns one page of the records of a kind that keep accepts, and the
// token of the next page.
func (s *Store) List(ctx context.Context, kind byte, p Page, read storage.Read, keep func(session.Key, session.Record) bool) ([]session.Entry, string, storage.View, error) {
	view, err := s.View(ctx, input.Namespace(ctx), read)
	if err != nil {
		return nil, "", view, fault.OfRead(err)
	}
	if who := access.From(ctx); who.Scoped() {
		wanted := keep
		keep = func(k session.Key, r session.Record) bool { return who.Visible(r) && (wanted == nil || wanted(k, r)) }
	}
	prefix := session.Prefix(kind, input.Namespace(ctx))
	entries, err := view.Find(prefix, prefix+session.Key(p.After), p.Size+1, keep)
	if err != nil {
		return nil, "", view, fault.OfRead(err)
	}
	if len(entries) <= p.Size {
		return entries, "", view, nil
	}
	entries = entries[:p.Size]
	return entries, entries[p.Size-1].Key.Name(), view, nil
}

// ReadAll returns records of one namespace as they stood at one instant, in the order
// of their keys; nil for what is absent.
func (s *Store) ReadAll(ctx context.Context, keys []session.Key, read storage.Read) (found []session.Record, index uint64, err error) {
	if store, ok := s.Reader.(storage.Gatherer); ok {
		return readAtOnce(ctx, store, keys)
	}
	found, index, ok, err := s.readTogether(ctx, keys, read)
	if ok || err != nil {
		return found, index, err
	}
	view, err := s.View(ctx, keys[0].Namespace(), read) // with none they would have been read together
	if err != nil {
		return nil, 0, fault.OfRead(err)
	}
	found, err = readView(view, keys)
	return found, view.Index, err
}

// ReadBeside returns more records of that namespace as they stood in the view of a list,
// likewise. A store that gathers has no such view, and they are as of now.
func (s *Store) ReadBeside(ctx context.Context, view storage.View, keys []session.Key) (found []session.Record, err error) {
	if store, ok := s.Reader.(storage.Gatherer); ok {
		found, _, err = readAtOnce(ctx, store, keys)
		return found, err
	}
	return readView(view, keys)
}

// readAtOnce reads the keys from a store that can read them at one instant. It
// reads as of now, whatever consistency was asked for.
func readAtOnce(ctx context.Context, store storage.Gatherer, keys []session.Key) (found []session.Record, index uint64, err error) {
	all, err := store.GetAll(ctx, keys...)
	if err != nil {
		return nil, 0, fault.OfRead(err)
	}
	for _, x := range all {
		found, index = append(found, x.Record), x.Index
	}
	return found, index, nil
}

// readTogether reads the keys one by one. If nothing was ordered between the
// first and the last, and time stood still, they stand as they stood at one
// instant; ok is false where that cannot be said.
func (s *Store) readTogether(ctx context.Context, keys []session.Key, read storage.Read) (found []session.Record, index uint64, ok bool, err error) {
	const tries = 3
	for range tries {
		read := read
		found, ok = make([]session.Record, 0, len(keys)), true
		var now time.Duration // log time
		for i, key := range keys {
			x, err := s.Get(ctx, key, read)
			if err != nil {
				return nil, 0, false, fault.OfRead(err)
			}
			if i == 0 {
				index, now = x.Index, x.Now
			} else if x.Index != index || x.Index == 0 || x.Now != now {
				ok = false
				break
			}
			found = append(found, x.Record)
			read = storage.Nearby // the first read has brought this node up to date
		}
		if ok {
			return found, index, true, nil
		}
	}
	return nil, 0, false, nil
}

// readView reads keys from a view.
func readView(view storage.View, keys []session.Key) (found []session.Record, err error) {
	wanted, prefixes := make(map[session.Key]session.Record, len(keys)), map[session.Key]bool{}
	for _, key := range keys {
		wanted[key] = nil
		prefixes[session.Prefix(key.Kind(), key.Namespace())] = true
	}
	for prefix := range prefixes { // order-free: they are put where they belong
		entries, err := view.Find(prefix, prefix, len(wanted), func(k session.Key, _ session.Record) bool { _, ok := wanted[k]; return ok })
		if err != nil {
			return nil, fault.OfRead(err)
		}
		for _, e := range entries {
			wanted[e.Key] = e.Record
		}
	}
	found = make([]session.Record, len(keys))
	for i, key := range keys {
		found[i] = wanted[key]
	}
	return found, nil
}
