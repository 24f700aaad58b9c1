package engine

import (
	"fmt"
	"math/big"
	"regexp"
	"strconv"
	"strings"

	"example.com/govnode/engine/value"
)

// A node is a parsed value with the line it stands on: what YAML and JSON have
// in common, and all that the loaders of documents look at.
type node struct {
	kind  nodeKind
	text  string // scalars: the source text, unquoted
	plain bool   // scalars: written without quotes in YAML
	line  int
	keys  []key  // maps: one per item
	items []node // maps and lists
}

type key struct {
	text string
	line int
}

type nodeKind uint8

const (
	nodeNull nodeKind = iota
	nodeBool
	nodeInt
	nodeFloat
	nodeString
	nodeList
	nodeMap
)

// maxDepth bounds nesting in every document; real policies use four levels.
const maxDepth = 32

// get finds a field of a map.
func (n *node) get(name string) (*node, bool) {
	for i := range n.keys {
		if n.keys[i].text == name {
			return &n.items[i], true
		}
	}
	return nil, false
}

// present finds a field that is there and not null.
func present(n *node, name string) (*node, bool) {
	f, ok := n.get(name)
	if !ok || f.kind == nodeNull {
		return nil, false
	}
	return f, true
}

// typeName is the word for the kind in error texts, which keep the reference
// implementation's vocabulary.
func (n *node) typeName() string {
	switch n.kind {
	case nodeNull:
		return "NoneType"
	case nodeBool:
		return "bool"
	case nodeInt:
		return "int"
	case nodeFloat:
		return "float"
	case nodeString:
		return "str"
	case nodeList:
		return "list"
	default:
		return "dict"
	}
}

// kindName is the same word for a value.
func kindName(v value.Value) string {
	n := node{}
	switch v.Kind() {
	case value.Bool:
		n.kind = nodeBool
	case value.Number:
		if n.kind = nodeFloat; v.IsInteger() {
			n.kind = nodeInt
		}
	case value.String:
		n.kind = nodeString
	case value.List:
		n.kind = nodeList
	case value.Map:
		n.kind = nodeMap
	}
	return n.typeName()
}

// repr prints the node for an error text, shortened.
func (n *node) repr() string {
	v, err := n.value()
	if err != nil {
		return clip(n.text, 100)
	}
	return clip(v.Repr(), 100)
}

// integer returns the value of an integer that fits 64 bits.
func (n *node) integer() (int64, bool) {
	if n.kind != nodeInt {
		return 0, false
	}
	i, ok := parseInt(n.text)
	if !ok || !i.IsInt64() {
		return 0, false
	}
	return i.Int64(), true
}

// beyondInt64 reports whether the node is a positive integer that is too large
// for integer.
func (n *node) beyondInt64() bool {
	if n.kind != nodeInt {
		return false
	}
	i, ok := parseInt(n.text)
	return ok && i.Sign() > 0 && !i.IsInt64()
}

// number returns the value of an integer or float that is finite.
func (n *node) number() (float64, bool) {
	switch n.kind {
	case nodeInt:
		i, ok := parseInt(n.text)
		if !ok {
			return 0, false
		}
		f, _ := new(big.Float).SetInt(i).Float64()
		return f, true
	case nodeFloat:
		f, err := strconv.ParseFloat(n.text, 64)
		return f, err == nil
	}
	return 0, false
}

// value converts the node to the tree that rules compare with.
func (n *node) value() (value.Value, error) {
	switch n.kind {
	case nodeNull:
		return value.Value{}, nil
	case nodeBool:
		return value.OfBool(strings.EqualFold(n.text, "true")), nil
	case nodeInt:
		i, ok := parseInt(n.text)
		if !ok {
			return value.Value{}, fmt.Errorf("%q is not an integer", clip(n.text, 40))
		}
		return value.OfNumber(i.String())
	case nodeFloat:
		f, err := strconv.ParseFloat(n.text, 64)
		if err != nil || strings.ContainsAny(n.text, "nNfF") {
			return value.Value{}, fmt.Errorf("%s is not a finite number", clip(n.text, 40))
		}
		if jsonNumber.MatchString(n.text) {
			return value.OfNumber(n.text)
		}
		return value.OfFloat(f), nil
	case nodeString:
		return value.OfString(n.text), nil
	case nodeList:
		list := make([]value.Value, len(n.items))
		for i := range n.items {
			v, err := n.items[i].value()
			if err != nil {
				return value.Value{}, err
			}
			list[i] = v
		}
		return value.OfList(list...), nil
	}
	pairs := make([]value.Pair, len(n.items))
	for i := range n.items {
		v, err := n.items[i].value()
		if err != nil {
			return value.Value{}, err
		}
		pairs[i] = value.Pair{Key: n.keys[i].text, Value: v}
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
func resolvePlain(s string) nodeKind {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nodeNull
	case "true", "True", "TRUE", "false", "False", "FALSE":
		return nodeBool
	}
	switch {
	case coreInt.MatchString(s):
		return nodeInt
	case coreFloat.MatchString(s), coreSpec.MatchString(s):
		return nodeFloat
	}
	return nodeString
}

// Scalars that YAML 1.1 and 1.2 read differently. As the value of a condition
// they are refused: an author who wrote them for one reading would silently
// get the other.
var (
	oldBool   = regexp.MustCompile(`^(?:yes|Yes|YES|no|No|NO|on|On|ON|off|Off|OFF)$`)
	oldNumber = regexp.MustCompile(`^[-+]?(?:0[0-9]+|0o[0-7]+|0b[01_]+|[0-9][0-9_]*_[0-9_.]*|[0-9]+(?::[0-5]?[0-9])+(?:\.[0-9]*)?)$`)
	oldDate   = regexp.MustCompile(`^[0-9]{4}-[0-9]{1,2}-[0-9]{1,2}(?:[Tt \t].*)?$`)
)

// ambiguous reports whether a plain scalar means different things to
// different YAML versions.
func (n *node) ambiguous() bool {
	if !n.plain {
		return false
	}
	switch n.kind {
	case nodeString, nodeInt, nodeFloat:
		return oldBool.MatchString(n.text) || oldNumber.MatchString(n.text) || oldDate.MatchString(n.text)
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
