package pattern

// automaton finds all of many literals in one pass over a text (Aho and
// Corasick, 1975). Literals are bytes of loosely folded text. States are the
// prefixes of literals; the empty one, where a text spends most of its time,
// has a table, the others a short list of bytes that lead on.
type automaton struct {
	root    [256]int32 // where each byte leads from state 0
	edges   []int32    // per state: where its list begins; one more at the end
	label   []byte     // per edge: the byte
	target  []int32    // per edge: the state it leads to
	suffix  []int32    // per state: the longest other state that it ends in
	ends    []int32    // per state: the longest literal that ends here, or -1
	shorter []int32    // per literal: the longest other one that is its suffix, or -1
	count   int        // how many literals there are
}

// step returns the state after reading b in state.
func (a *automaton) step(state int32, b byte) int32 {
	for state != 0 {
		for e := a.edges[state]; e < a.edges[state+1]; e++ {
			if a.label[e] == b {
				return a.target[e]
			}
		}
		state = a.suffix[state]
	}
	return a.root[b]
}

// maxStates bounds the memory of an automaton, of 20 bytes per state. All
// patterns of the corpus together need some 87,000.
const maxStates = 1 << 18

// trie gathers literals for an automaton and numbers them.
type trie struct {
	nodes   []trieNode
	numbers map[string]int32
}

// trieNode is a prefix of literals. Prefixes one byte longer hang below it, as a
// list; 0 ends it, since the root hangs below nothing.
type trieNode struct {
	below, beside int32
	literal       int32 // the literal that this is, or -1
	label         byte  // its last byte
}

func newTrie() *trie {
	return &trie{nodes: []trieNode{{literal: -1}}, numbers: make(map[string]int32)}
}

// fits reports whether these literals can be added without too many states.
func (t *trie) fits(literals []string) bool {
	n := len(t.nodes)
	for _, s := range literals {
		n += len(s)
	}
	return n <= maxStates
}

// number returns the number of a literal, which it adds if it is new.
func (t *trie) number(literal string) int32 {
	if n, ok := t.numbers[literal]; ok {
		return n
	}
	at := int32(0)
	for i := range len(literal) {
		at = t.child(at, literal[i])
	}
	n := int32(len(t.numbers))
	t.numbers[literal] = n
	t.nodes[at].literal = n
	return n
}

// child returns the node that b leads to, which it adds if it is new.
func (t *trie) child(at int32, b byte) int32 {
	for c := t.nodes[at].below; c != 0; c = t.nodes[c].beside {
		if t.nodes[c].label == b {
			return c
		}
	}
	c := int32(len(t.nodes))
	t.nodes = append(t.nodes, trieNode{beside: t.nodes[at].below, literal: -1, label: b})
	t.nodes[at].below = c
	return c
}

// automaton turns the trie into an automaton: breadth first, so that the state
// of the longest proper suffix is complete when it is needed. States are
// numbered in that order.
func (t *trie) automaton() *automaton {
	n := len(t.nodes)
	a := &automaton{
		edges: make([]int32, 1, n+1), suffix: make([]int32, n), ends: make([]int32, n),
		count: len(t.numbers), shorter: make([]int32, len(t.numbers)),
	}
	queue := make([]int32, 1, n) // queue[s] is the node that becomes state s
	for state := int32(0); int(state) < len(queue); state++ {
		node := t.nodes[queue[state]]
		a.setEnd(state, node.literal)
		for c := node.below; c != 0; c = t.nodes[c].beside {
			b, to := t.nodes[c].label, int32(len(queue))
			queue = append(queue, c)
			a.label, a.target = append(a.label, b), append(a.target, to)
			if state == 0 {
				a.root[b] = to
			} else {
				a.suffix[to] = a.step(a.suffix[state], b)
			}
		}
		a.edges = append(a.edges, int32(len(a.label)))
	}
	return a
}

func (a *automaton) setEnd(state, literal int32) {
	inherited := int32(-1)
	if state != 0 {
		inherited = a.ends[a.suffix[state]]
	}
	if a.ends[state] = inherited; literal >= 0 {
		a.ends[state] = literal
		a.shorter[literal] = inherited
	}
}
