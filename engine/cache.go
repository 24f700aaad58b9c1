package engine

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"sync"

	"example.com/govnode/engine/source"
)

// A Cache keeps compiled policies by digest, the least recently used one
// leaving first. A tree is compiled once even when many ask for it at once.
type Cache struct {
	opts []Option
	max  int

	mu      sync.Mutex
	entries map[source.Digest]*list.Element
	recent  *list.List // of *cacheEntry, most recently used first
}

type cacheEntry struct {
	digest source.Digest
	filled chan struct{} // closed when the rest is there, which does not change then
	policy *Policy
	err    error
	left   bool // who was to fill it had no more time
}

// NewCache returns a cache of at most max policies, compiled with opts. Max
// must be positive.
func NewCache(max int, opts ...Option) *Cache {
	if max <= 0 {
		panic(fmt.Sprintf("engine: a cache needs room for at least one policy, got %d", max))
	}
	return &Cache{opts: opts, max: max, entries: map[source.Digest]*list.Element{}, recent: list.New()}
}

// Policy returns the policy of a digest, compiling what load returns if it is
// not in the cache. A tree of another digest is refused: what is evaluated is
// what was pinned, or nothing. Failures are not kept. Nobody waits for longer than ctx
// for another who loads the same.
func (c *Cache) Policy(ctx context.Context, digest source.Digest, load func(context.Context) (*source.Tree, error)) (*Policy, error) {
	for {
		entry, own := c.entry(digest)
		if own {
			c.fill(ctx, entry, load)
			return entry.policy, entry.err
		}
		select {
		case <-entry.filled:
		default: // seldom
			select {
			case <-entry.filled:
			case <-ctx.Done():
				return nil, ctx.Err()
			}
		}
		if !entry.left {
			return entry.policy, entry.err
		}
	}
}

// fill loads and compiles what an entry is of.
func (c *Cache) fill(ctx context.Context, entry *cacheEntry, load func(context.Context) (*source.Tree, error)) {
	entry.err = errors.New("it was not compiled") // as where that panics
	defer func() {
		if entry.err != nil {
			entry.left = ctx.Err() != nil
			c.drop(entry)
		}
		close(entry.filled)
	}()
	t, err := load(ctx)
	switch {
	case err != nil:
		entry.err = err
	case t.Digest() != entry.digest:
		entry.err = fmt.Errorf("the stored tree has the digest %s and not %s; it was altered", t.Digest(), entry.digest)
	default:
		entry.policy, entry.err = Compile(t, c.opts...)
	}
}

// Len returns how many policies are held.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len()
}

// entry returns that of a digest, and whether it is new: then it is to be filled.
func (c *Cache) entry(digest source.Digest) (entry *cacheEntry, own bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[digest]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*cacheEntry), false
	}
	entry = &cacheEntry{digest: digest, filled: make(chan struct{})}
	c.entries[digest] = c.recent.PushFront(entry)
	if c.recent.Len() > c.max {
		oldest := c.recent.Remove(c.recent.Back()).(*cacheEntry)
		delete(c.entries, oldest.digest)
	}
	return entry, true
}

func (c *Cache) drop(entry *cacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[entry.digest]; ok && el.Value == entry {
		c.recent.Remove(el)
		delete(c.entries, entry.digest)
	}
}
