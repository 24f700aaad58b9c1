package value

import "math/big"

// linearKeys is how many keys a map may have before it gets an index. Comparing
// a handful of short strings is quicker than hashing one, and needs no memory.
const linearKeys = 8

// node is what hangs below a Value. It never changes once a Value points to it.
type node struct {
	keys  []string       // maps only, parallel to items
	items []Value        // lists and maps
	index map[string]int // maps with more than linearKeys keys
	big   *big.Int       // numbers beyond int64 only
}

// listOf makes a list of items, which it keeps.
func listOf(items []Value) Value {
	return Value{kind: List, node: &node{items: items}}
}

// mapOf makes a map of parallel slices, which it keeps. The keys are distinct.
func mapOf(keys []string, items []Value) Value {
	n := &node{keys: keys, items: items}
	if len(keys) > linearKeys {
		n.buildIndex()
	}
	return Value{kind: Map, node: n}
}

func (n *node) buildIndex() {
	n.index = make(map[string]int, len(n.keys))
	for i, key := range n.keys {
		n.index[key] = i
	}
}

// find returns the place of key, or -1.
func (n *node) find(key string) int {
	if n.index != nil {
		if i, ok := n.index[key]; ok {
			return i
		}
		return -1
	}
	for i, k := range n.keys {
		if k == key {
			return i
		}
	}
	return -1
}
