package redis

import (
	"container/list"
	"sync"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// A cache has the records that this node saw last, the least recently used
// dropped first. What it has may be behind; a swap finds that out.
type cache struct {
	max int // bytes

	mu     sync.Mutex
	size   int
	items  map[session.Key]*list.Element
	recent *list.List // of *cached, most recently used first
}

type cached struct {
	key session.Key
	wire.Entry
}

// entryCost is what an entry takes beside its value, roughly; decoded, a value
// takes about twice its bytes.
const entryCost = 512

func newCache(maxBytes int) *cache {
	return &cache{max: maxBytes, items: map[session.Key]*list.Element{}, recent: list.New()}
}

func (c *cache) get(k session.Key) (wire.Entry, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e, ok := c.items[k]
	if !ok {
		return wire.Entry{}, false
	}
	c.recent.MoveToFront(e)
	return e.Value.(*cached).Entry, true
}

// getAll finds the records wanted, and says which are there with the parts that
// are wanted of them.
func (c *cache) getAll(wants []wire.Want, found []wire.Entry) (known []bool) {
	known = make([]bool, len(wants))
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wants {
		if e, ok := c.items[wants[i].Key]; ok {
			c.recent.MoveToFront(e)
			found[i] = e.Value.(*cached).Entry
			known[i] = knows(found[i], wants[i].Parts)
		}
	}
	return known
}

func (c *cache) putAll(wants []wire.Want, found []wire.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for i := range wants {
		c.putLocked(wants[i].Key, found[i])
	}
}

func (c *cache) put(k session.Key, x wire.Entry) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.putLocked(k, x)
}

func (c *cache) putLocked(k session.Key, x wire.Entry) {
	if x.Bad != nil {
		if e, ok := c.items[k]; ok {
			c.drop(e)
		}
		return
	}
	if e, ok := c.items[k]; ok {
		old := e.Value.(*cached)
		c.size += cost(x) - cost(old.Entry)
		old.Entry = x
		c.recent.MoveToFront(e)
	} else {
		c.items[k] = c.recent.PushFront(&cached{k, x})
		c.size += cost(x)
	}
	for c.size > c.max && c.recent.Len() > 1 {
		c.drop(c.recent.Back())
	}
}

// putRead keeps what a read found, unless a round has seen it later than since.
func (c *cache) putRead(k session.Key, x wire.Entry, since time.Duration) {
	if old, ok := c.get(k); ok && old.Seen >= since {
		return
	}
	c.put(k, x)
}

func (c *cache) drop(e *list.Element) {
	x := c.recent.Remove(e).(*cached)
	delete(c.items, x.key)
	c.size -= cost(x.Entry)
}

func (c *cache) forget(keys []session.Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, k := range keys {
		if e, ok := c.items[k]; ok {
			c.drop(e)
		}
	}
}

func (c *cache) purge() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.items)
	c.recent.Init()
	c.size = 0
}

func cost(x wire.Entry) int { return entryCost + 2*x.Size }
