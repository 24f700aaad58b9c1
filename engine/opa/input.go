//go:build !noopa

package opa

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"path"
	"strings"

	"github.com/open-policy-agent/opa/v1/ast"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

// inputOf maps the context of a call to the document input, numbers as they
// were received.
func inputOf(v value.Value) (ast.Value, error) {
	switch v.Kind() {
	case value.Null:
		return ast.NullValue, nil
	case value.Bool:
		b, _ := v.AsBool()
		return ast.Boolean(b), nil
	case value.String:
		s, _ := v.AsString()
		return ast.String(s), nil
	case value.Number:
		text := v.JSON()
		if text == "null" { // what a NaN or an infinity becomes in JSON
			return nil, fmt.Errorf("the context holds %s, which Rego has no number for", v.Repr())
		}
		return ast.Number(json.Number(text)), nil
	case value.List:
		items := make([]*ast.Term, 0, v.Len())
		for item := range v.Items() {
			x, err := inputOf(item)
			if err != nil {
				return nil, err
			}
			items = append(items, ast.NewTerm(x))
		}
		return ast.NewArray(items...), nil
	default:
		pairs := make([][2]*ast.Term, 0, v.Len())
		for key, item := range v.All() {
			x, err := inputOf(item)
			if err != nil {
				return nil, err
			}
			pairs = append(pairs, [2]*ast.Term{ast.StringTerm(key), ast.NewTerm(x)})
		}
		return ast.NewObject(pairs...), nil
	}
}

// addData puts the object of a data.json below the path of its folder.
func (l *loader) addData(f engine.File) {
	tree, err := value.Parse(f.Content)
	if err != nil {
		var at *value.SyntaxError
		errors.As(err, &at)
		l.problem(f.Path, lineOf(f.Content, at.Offset), at.Reason)
		return
	}
	if tree.Kind() != value.Map {
		l.problem(f.Path, 1, fmt.Sprintf("an object is expected, not a %s", tree.Kind()))
		return
	}
	into := l.data
	if folder := path.Dir(f.Path); folder != "." {
		for name := range strings.SplitSeq(folder, "/") {
			below, ok := into[name].(map[string]any)
			if _, taken := into[name]; taken && !ok {
				l.problem(f.Path, 0, fmt.Sprintf("the data.json of a folder above holds %q, which is no object, where this file's data belong", name))
				return
			}
			if !ok {
				below = make(map[string]any)
				into[name] = below
			}
			into = below
		}
	}
	for key, item := range tree.All() {
		if _, taken := into[key]; taken {
			l.problem(f.Path, 0, fmt.Sprintf("another data.json holds %q already", key))
			return
		}
		into[key] = plain(item)
	}
}

// plain returns the tree as the library's store wants it.
func plain(v value.Value) any {
	switch v.Kind() {
	case value.Bool:
		b, _ := v.AsBool()
		return b
	case value.String:
		s, _ := v.AsString()
		return s
	case value.Number:
		return json.Number(v.JSON())
	case value.List:
		items := make([]any, 0, v.Len())
		for item := range v.Items() {
			items = append(items, plain(item))
		}
		return items
	case value.Map:
		m := make(map[string]any, v.Len())
		for key, item := range v.All() {
			m[key] = plain(item)
		}
		return m
	default:
		return nil
	}
}

// lineOf returns the line, from 1, of a byte.
func lineOf(text []byte, offset int64) int {
	return 1 + bytes.Count(text[:min(int(offset), len(text))], []byte("\n"))
}
