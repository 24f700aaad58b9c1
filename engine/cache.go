package engine

import (
	"container/list"
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
	once   sync.Once
	policy *Policy
	err    error
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
// what was pinned, or nothing. Failures are not kept.
func (c *Cache) Policy(digest source.Digest, load func() (*source.Tree, error)) (*Policy, error) {
	entry := c.entry(digest)
	entry.once.Do(func() {
		t, err := load()
		switch {
		case err != nil:
			entry.err = err
		case t.Digest() != digest:
			entry.err = fmt.Errorf("the stored tree has the digest %s and not %s; it was altered", t.Digest(), digest)
		default:
			entry.policy, entry.err = Compile(t, c.opts...)
		}
	})
	if entry.err != nil {
		c.drop(entry)
	}
	return entry.policy, entry.err
}

// Len returns how many policies are held.
func (c *Cache) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.recent.Len()
}

func (c *Cache) entry(digest source.Digest) *cacheEntry {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[digest]; ok {
		c.recent.MoveToFront(el)
		return el.Value.(*cacheEntry)
	}
	entry := &cacheEntry{digest: digest}
	c.entries[digest] = c.recent.PushFront(entry)
	if c.recent.Len() > c.max {
		oldest := c.recent.Remove(c.recent.Back()).(*cacheEntry)
		delete(c.entries, oldest.digest)
	}
	return entry
}

func (c *Cache) drop(entry *cacheEntry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if el, ok := c.entries[entry.digest]; ok && el.Value == entry {
		c.recent.Remove(el)
		delete(c.entries, entry.digest)
	}
}
