package value

import (
	"iter"
	"strings"
	"unicode/utf8"
)

// Kind says what a Value is.
type Kind uint8

// The kinds of JSON. Null is the zero value.
const (
	Null Kind = iota
	Bool
	Number
	String
	List
	Map
)

// String returns the name that error messages use: "null", "bool", "number",
// "string", "list" or "map".
func (k Kind) String() string {
	switch k {
	case Null:
		return "null"
	case Bool:
		return "bool"
	case Number:
		return "number"
	case String:
		return "string"
	case List:
		return "list"
	default:
		return "map"
	}
}

// Value is one node of an immutable JSON tree. The zero Value is null. Copying
// a Value copies a few words and shares what hangs below it.
type Value struct {
	kind Kind
	form numberForm // how a Number is held; see number.go
	bits uint64     // Bool: 0 or 1; Number: an int64 or the bits of a float64
	text string     // String: the text; Number: its JSON text as received, "" if made from bits
	node *node      // List and Map: the children; Number: an integer beyond int64
}

// Pair is one entry of a map.
type Pair struct {
	Key   string
	Value Value
}

// OfBool returns a boolean.
func OfBool(b bool) Value {
	v := Value{kind: Bool}
	if b {
		v.bits = 1
	}
	return v
}

// OfString returns a string. Bytes that are no UTF-8 become U+FFFD, so that
// every text in a tree is valid.
func OfString(s string) Value {
	if utf8.ValidString(s) { // eight bytes at a time, where ToValidUTF8 takes one
		return Value{kind: String, text: s}
	}
	return Value{kind: String, text: strings.ToValidUTF8(s, "\uFFFD")}
}

// OfList returns a list of the given items. It keeps no reference to the slice.
func OfList(items ...Value) Value {
	return listOf(append([]Value(nil), items...))
}

// OfMap returns a map with the given pairs in their order. A key that occurs
// twice keeps its first place and takes its last value, as in a Python dict.
func OfMap(pairs ...Pair) Value {
	n := &node{keys: make([]string, 0, len(pairs)), items: make([]Value, 0, len(pairs))}
	if len(pairs) > linearKeys {
		n.index = make(map[string]int, len(pairs))
	}
	for _, p := range pairs {
		key := strings.ToValidUTF8(p.Key, "\uFFFD")
		if i := n.find(key); i >= 0 {
			n.items[i] = p.Value
			continue
		}
		if n.index != nil {
			n.index[key] = len(n.keys)
		}
		n.keys, n.items = append(n.keys, key), append(n.items, p.Value)
	}
	return Value{kind: Map, node: n}
}

// Kind reports what v is.
func (v Value) Kind() Kind { return v.kind }

// AsBool returns the boolean that v is; ok is false if it is none.
func (v Value) AsBool() (b, ok bool) { return v.kind == Bool && v.bits == 1, v.kind == Bool }

// AsString returns the string that v is; ok is false if it is none.
func (v Value) AsString() (s string, ok bool) {
	if v.kind != String {
		return "", false
	}
	return v.text, true
}

// Len returns the number of entries of a list or a map, the number of code
// points of a string, and 0 for anything else.
func (v Value) Len() int {
	switch v.kind {
	case String:
		n := 0
		for range v.text {
			n++
		}
		return n
	case List, Map:
		return len(v.node.items)
	default:
		return 0
	}
}

// Index returns item i of a list, and null if v is no list or i is out of range.
func (v Value) Index(i int) Value {
	if v.kind != List || i < 0 || i >= len(v.node.items) {
		return Value{}
	}
	return v.node.items[i]
}

// Get returns the value of a map's key. ok is false if v is no map or has no
// such key; a key that holds null is found.
func (v Value) Get(key string) (w Value, ok bool) {
	if v.kind != Map {
		return Value{}, false
	}
	i := v.node.find(key)
	if i < 0 {
		return Value{}, false
	}
	return v.node.items[i], true
}

// Find is Get without a copy: what it points to is shared and must not be
// written to. It is nil where Get finds nothing.
func (v *Value) Find(key string) *Value {
	if v.kind != Map {
		return nil
	}
	i := v.node.find(key)
	if i < 0 {
		return nil
	}
	return &v.node.items[i]
}

// Item is Index without a copy: what it points to is shared and must not be
// written to. It is nil where there is no such item.
func (v *Value) Item(i int) *Value {
	if v.kind != List || i < 0 || i >= len(v.node.items) {
		return nil
	}
	return &v.node.items[i]
}

// All yields the entries of a map in their order, and nothing for another kind.
func (v Value) All() iter.Seq2[string, Value] {
	return func(yield func(string, Value) bool) {
		if v.kind != Map {
			return
		}
		for i, key := range v.node.keys {
			if !yield(key, v.node.items[i]) {
				return
			}
		}
	}
}

// Items yields the items of a list in their order, and nothing for another kind.
func (v Value) Items() iter.Seq[Value] {
	return func(yield func(Value) bool) {
		if v.kind != List {
			return
		}
		for _, item := range v.node.items {
			if !yield(item) {
				return
			}
		}
	}
}

// With returns a copy of a map in which key has the value w: in its place if it
// is there, else at the end. Null counts as an empty map; v of another kind is
// returned as it is, because a caller cannot want a number to gain a key.
func (v Value) With(key string, w Value) Value {
	switch v.kind {
	case Null:
		return OfMap(Pair{key, w})
	case Map:
	default:
		return v
	}
	key = strings.ToValidUTF8(key, "\uFFFD")
	old := v.node
	if i := old.find(key); i >= 0 {
		items := append([]Value(nil), old.items...)
		items[i] = w
		// The keys stay the same, and with them the index.
		return Value{kind: Map, node: &node{keys: old.keys, items: items, index: old.index}}
	}
	keys := append(append(make([]string, 0, len(old.keys)+1), old.keys...), key)
	items := append(append(make([]Value, 0, len(old.items)+1), old.items...), w)
	return mapOf(keys, items)
}

// Leaves calls visit with every key and every string value, depth first, a key
// before its value, until visit returns false.
func (v Value) Leaves(visit func(string) bool) { v.leaves(visit) }

func (v Value) leaves(visit func(string) bool) bool {
	switch v.kind {
	case String:
		return visit(v.text)
	case List:
		for _, item := range v.node.items {
			if !item.leaves(visit) {
				return false
			}
		}
	case Map:
		for i, key := range v.node.keys {
			if !visit(key) || !v.node.items[i].leaves(visit) {
				return false
			}
		}
	}
	return true
}
