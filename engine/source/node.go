package source

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"example.com/govnode/engine/value"
)

// A Node is a parsed value with the line it stands on: what YAML and JSON have
// in common, and all that the loaders of documents look at.
type Node struct {
	Kind  Kind
	Text  string // scalars: the source text, unquoted
	plain bool   // scalars: written without quotes in YAML
	Line  int
	Keys  []key  // maps: one per item
	Items []Node // maps and lists
}

type key struct {
	Text string
	Line int

	plain bool // without quotes
}

// Ambiguous reports whether YAML 1.1 takes the name for something else.
func (k *key) Ambiguous() bool {
	return k.plain && (oldBool.MatchString(k.Text) || oldNumber.MatchString(k.Text) || oldDate.MatchString(k.Text))
}

// A Kind is what a node is.
type Kind uint8

// The kinds of nodes.
const (
	Null Kind = iota
	Bool
	Int
	Float
	String
	List
	Map
)

// maxDepth bounds nesting in every document; real policies use four levels.
const maxDepth = 32

// Get finds a field of a map.
func (n *Node) Get(name string) (*Node, bool) {
	for i := range n.Keys {
		if n.Keys[i].Text == name {
			return &n.Items[i], true
		}
	}
	return nil, false
}

// Present finds a field that is there and not null.
func Present(n *Node, name string) (*Node, bool) {
	f, ok := n.Get(name)
	if !ok || f.Kind == Null {
		return nil, false
	}
	return f, true
}

// TypeName is the word for the kind in error texts, which keep the reference
// implementation's vocabulary.
func (n *Node) TypeName() string {
	switch n.Kind {
	case Null:
		return "NoneType"
	case Bool:
		return "bool"
	case Int:
		return "int"
	case Float:
		return "float"
	case String:
		return "str"
	case List:
		return "list"
	default:
		return "dict"
	}
}

// TypeName is the same word for a value.
func TypeName(v value.Value) string {
	n := Node{}
	switch v.Kind() {
	case value.Bool:
		n.Kind = Bool
	case value.Number:
		if n.Kind = Float; v.IsInteger() {
			n.Kind = Int
		}
	case value.String:
		n.Kind = String
	case value.List:
		n.Kind = List
	case value.Map:
		n.Kind = Map
	}
	return n.TypeName()
}

// Repr prints the node for an error text, shortened.
func (n *Node) Repr() string {
	v, err := n.Value()
	if err != nil {
		return Clip(n.Text, 100)
	}
	return Clip(v.Repr(), 100)
}

// Integer returns the value of an integer that fits 64 bits.
func (n *Node) Integer() (int64, bool) {
	if n.Kind != Int {
		return 0, false
	}
	i, ok := parseInt(n.Text)
	if !ok || !i.IsInt64() {
		return 0, false
	}
	return i.Int64(), true
}

// beyondInt64 reports whether the node is a positive integer that is too large
// for integer.
func (n *Node) beyondInt64() bool {
	if n.Kind != Int {
		return false
	}
	i, ok := parseInt(n.Text)
	return ok && i.Sign() > 0 && !i.IsInt64()
}

// Number returns the value of an integer or float that is finite.
func (n *Node) Number() (float64, bool) {
	switch n.Kind {
	case Int:
		i, ok := parseInt(n.Text)
		if !ok {
			return 0, false
		}
		f, _ := new(big.Float).SetInt(i).Float64()
		return f, true
	case Float:
		f, err := strconv.ParseFloat(n.Text, 64)
		return f, err == nil
	}
	return 0, false
}

// Value converts the node to the tree that rules compare with.
func (n *Node) Value() (value.Value, error) {
	switch n.Kind {
	case Null:
		return value.Value{}, nil
	case Bool:
		return value.OfBool(strings.EqualFold(n.Text, "true")), nil
	case Int:
		i, ok := parseInt(n.Text)
		if !ok {
			return value.Value{}, fmt.Errorf("%q is not an integer", Clip(n.Text, 40))
		}
		return value.OfNumber(i.String())
	case Float:
		f, err := strconv.ParseFloat(n.Text, 64)
		if err != nil || strings.ContainsAny(n.Text, "nNfF") {
			return value.Value{}, fmt.Errorf("%s is not a finite number", Clip(n.Text, 40))
		}
		if jsonNumber.MatchString(n.Text) {
			return value.OfNumber(n.Text)
		}
		return value.OfFloat(f), nil
	case String:
		return value.OfString(n.Text), nil
	case List:
		list := make([]value.Value, len(n.Items))
		for i := range n.Items {
			v, err := n.Items[i].Value()
			if err != nil {
				return value.Value{}, err
			}
			list[i] = v
		}
		return value.OfList(list...), nil
	}
	pairs := make([]value.Pair, len(n.Items))
	for i := range n.Items {
		v, err := n.Items[i].Value()
		if err != nil {
			return value.Value{}, err
		}
		pairs[i] = value.Pair{Key: n.Keys[i].Text, Value: v}
	}
	return value.OfMap(pairs...), nil
}

// The YAML 1.2 core schema. Anything else that is not quoted is a string.
var (
	coreInt    = regexp.MustCompile(`^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	coreFloat  = regexp.MustCompile(`^[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?$`)
	coreSpec   = regexp.MustCompile(`^(?:[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$`)
	jsonNumber = regexp.MustCompile(`^-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]+)?$`)
)

// resolvePlain gives an unquoted YAML scalar its kind.
func resolvePlain(s string) Kind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return Null
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return Bool
	}
	switch {
	case coreInt.MatchString(s):
		return Int
	case coreFloat.MatchString(s), coreSpec.MatchString(s):
		return Float
	}
	return String
}

// Scalars that YAML 1.1 and 1.2 read differently. As the value of a condition
// they are refused: an author who wrote them for one reading would silently
// get the other.
var (
	oldBool   = regexp.MustCompile(`^(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$`)
	oldNumber = regexp.MustCompile(`^[-+]?(?:0[0-9]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*_[0-9_.]*|[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?)$`)
	oldDate   = regexp.MustCompile(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?$`)
)

// Ambiguous reports whether a plain scalar means different things to
// different YAML versions.
func (n *Node) Ambiguous() bool {
	if !n.plain {
		return false
	}
	switch n.Kind {
	case String, Int, Float:
		return oldBool.MatchString(n.Text) || oldNumber.MatchString(n.Text) || oldDate.MatchString(n.Text)
	}
	return false
}

// parseInt reads an integer of the core schema. A leading zero is refused,
// because YAML 1.1 would take it for octal.
func parseInt(s string) (*big.Int, bool) {
	body, base := s, 10
	switch {
	case strings.HasPrefix(s, "0x"):
		body, base = s[2:], 16
	case strings.HasPrefix(s, "0o"):
		body, base = s[2:], 8
	default:
		digits := strings.TrimLeft(s, "+-")
		if len(digits) > 1 && digits[0] == '0' {
			return nil, false
		}
		// A thousand digits are far beyond any limit and below any cost.
		if len(digits) > 1000 {
			return nil, false
		}
		body = strings.TrimPrefix(s, "+")
	}
	return new(big.Int).SetString(body, base)
}
