package value

import (
	"encoding/binary"
	"iter"
	"strings"
	"unicode/utf8"
)

// Value is one node of an immutable JSON tree. The zero Value is null. Copying
// a Value copies a few words and shares what hangs below it.
type Value struct {
	kind Kind
	form numberForm // how a Number is held; see number.go
	bits uint64     // Bool: 0 or 1; Number: an int64 or the bits of a float64
	text string     // String: the text; Number: its JSON text as received, "" if made from bits
	node *node      // List and Map: the children; Number: an integer beyond int64
}

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
func OfString(s string) Value { return Value{kind: String, text: Text(s)} }

// Text returns a text as a tree holds it: bytes that are no UTF-8 become U+FFFD.
func Text(s string) string {
	if isASCII(s) || utf8.ValidString(s) { // ToValidUTF8 takes one byte at a time
		return s
	}
	return strings.ToValidUTF8(s, "\uFFFD")
}

// isASCII looks at eight bytes at a time, the last of which overlap, because the
// names that calls are full of have a few bytes more than eight or less.
func isASCII(s string) bool {
	const high = 0x8080808080808080
	n := len(s)
	switch {
	case n >= 8:
		bits := eightBytes(s, n-8)
		for i := 0; i+8 < n; i += 8 {
			bits |= eightBytes(s, i)
		}
		return bits&high == 0
	case n >= 4:
		return (fourBytes(s, 0)|fourBytes(s, n-4))&(high>>32) == 0
	case n > 0:
		return s[0]|s[n/2]|s[n-1] < 0x80
	}
	return true
}

// eightBytes and fourBytes are one load each; the conversion copies nothing.
func eightBytes(s string, i int) uint64 { return binary.LittleEndian.Uint64([]byte(s[i : i+8])) }

func fourBytes(s string, i int) uint32 { return binary.LittleEndian.Uint32([]byte(s[i : i+4])) }

// OfList returns a list of the given items. It keeps no reference to the slice.
func OfList(items ...Value) Value {
	return listOf(append([]Value(nil), items...))
}

// ListOf makes a list of what convert makes of each item.
func ListOf[T any](list []T, convert func(T) Value) Value {
	items := make([]Value, len(list))
	for i, item := range list {
		items[i] = convert(item)
	}
	return OfList(items...)
}

// OfMap returns a map with the given pairs in their order. A key that occurs
// twice keeps its first place and takes its last value, as in a Python dict.
func OfMap(pairs ...Pair) Value {
	n := newMap(len(pairs))
	for i := range pairs {
		p := &pairs[i]
		key := Text(p.Key)
		if i := n.find(key); i >= 0 {
			n.pairs[i].Value = p.Value
			continue
		}
		if len(pairs) > linearKeys {
			n.index[key] = len(n.pairs)
		}
		n.pairs = append(n.pairs, Pair{key, p.Value})
	}
	return Value{kind: Map, node: n}
}

// Kind reports what v is.
func (v Value) Kind() Kind { return v.kind }

// Is reports whether v is of kind k. It is Kind without a copy.
func (v *Value) Is(k Kind) bool { return v.kind == k }

// AsBool returns the boolean that v is; ok is false if it is none.
func (v Value) AsBool() (b, ok bool) { return v.kind == Bool && v.bits == 1, v.kind == Bool }

// AsString returns the string that v is; ok is false if it is none.
func (v Value) AsString() (s string, ok bool) {
	if v.kind != String {
		return "", false
	}
	return v.text, true
}

// Text is AsString without a copy.
func (v *Value) Text() (s string, ok bool) {
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
	case List:
		return len(v.node.items)
	case Map:
		return len(v.node.pairs)
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
	return v.node.pairs[i].Value, true
}

// TextAt is the string under a key of a map; empty if there is none.
func (v Value) TextAt(key string) string {
	w, _ := v.Get(key)
	s, _ := w.AsString()
	return s
}

// Find is Get without a copy: what it points to is shared and must not be
// written to. It is nil where Get finds nothing.
func (v *Value) Find(key string) *Value {
	if v.kind != Map {
		return nil
	}
	pairs := v.node.pairs
	if len(pairs) > linearKeys {
		if i, ok := v.node.index[key]; ok {
			return &pairs[i].Value
		}
		return nil
	}
	for i := range pairs {
		if pairs[i].Key == key {
			return &pairs[i].Value
		}
	}
	return nil
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
		for i := range v.node.pairs {
			if p := &v.node.pairs[i]; !yield(p.Key, p.Value) {
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
	key = Text(key)
	old := v.node
	if i := old.find(key); i >= 0 {
		return old.replaced(i, w)
	}
	n := newMap(len(old.pairs) + 1)
	n.pairs = append(append(n.pairs, old.pairs...), Pair{key, w})
	n.indexPairs()
	return Value{kind: Map, node: n}
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
		for i := range v.node.pairs {
			if p := &v.node.pairs[i]; !visit(p.Key) || !p.Value.leaves(visit) {
				return false
			}
		}
	}
	return true
}
