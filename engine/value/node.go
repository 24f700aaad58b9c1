package value

import (
	"math/big"
	"slices"
)

// node is what hangs below a Value. It never changes once a Value points to it.
// It is as small as can be, because maps of a few keys are what calls are made
// of.
type node struct {
	pairs []Pair // maps
	*rest        // nil for a map without an index
}

// linearKeys is how many keys a map may have before it gets an index. Comparing
// a handful of short strings is quicker than hashing one, and needs no memory.
const linearKeys = 8

// rest is what a node of another kind, or a large map, has beside it.
type rest struct {
	items []Value        // lists
	index map[string]int // maps with more than linearKeys keys: places in pairs
	big   *big.Int       // numbers beyond int64
}

// withRest makes a node that has a rest, in one piece of memory.
func withRest() *node {
	n := &struct {
		node
		rest
	}{}
	n.node.rest = &n.rest
	return &n.node
}

// newMap makes a node with room for n pairs, none of which is there yet. A map
// of a few is one piece of memory.
func newMap(n int) *node {
	switch {
	case n > linearKeys:
		m := withRest()
		m.pairs, m.index = make([]Pair, 0, n), make(map[string]int, n)
		return m
	case n == 1:
		m := &struct {
			node
			room [1]Pair
		}{}
		m.pairs = m.room[:0]
		return &m.node
	case n == 2:
		m := &struct {
			node
			room [2]Pair
		}{}
		m.pairs = m.room[:0]
		return &m.node
	case n == 3 || n == 4:
		m := &struct {
			node
			room [4]Pair
		}{}
		m.pairs = m.room[:0]
		return &m.node
	}
	return &node{pairs: make([]Pair, 0, n)}
}

// listOf makes a list of items, which it keeps.
func listOf(items []Value) Value {
	n := withRest()
	n.items = items
	return Value{kind: List, node: n}
}

// bigNode holds an integer, which it keeps.
func bigNode(b *big.Int) *node {
	n := withRest()
	n.big = b
	return n
}

// mapOf makes a map of pairs, which it copies. The keys are distinct and valid
// UTF-8.
func mapOf(pairs []Pair) Value {
	n := newMap(len(pairs))
	n.pairs = append(n.pairs, pairs...)
	n.indexPairs()
	return Value{kind: Map, node: n}
}

func (n *node) indexPairs() {
	if len(n.pairs) <= linearKeys {
		return
	}
	for i := range n.pairs {
		n.index[n.pairs[i].Key] = i
	}
}

// replaced is a map with another value in one place.
func (n *node) replaced(i int, w Value) Value {
	// The keys stay the same, and with them the index.
	m := &node{pairs: slices.Clone(n.pairs), rest: n.rest}
	m.pairs[i].Value = w
	return Value{kind: Map, node: m}
}

// find returns the place of key in a map, or -1.
func (n *node) find(key string) int {
	if len(n.pairs) > linearKeys {
		if i, ok := n.index[key]; ok {
			return i
		}
		return -1
	}
	for i := range n.pairs {
		if n.pairs[i].Key == key {
			return i
		}
	}
	return -1
}
