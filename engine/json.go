package engine

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"strconv"
)

// parseJSON reads one JSON document into the same nodes as YAML. The tokens
// come from encoding/json; what it lets pass and a policy must not (duplicate
// keys, depth, infinite numbers, a second value) is refused here, with the
// line.
func parseJSON(content []byte, ps *problems) *node {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(content)), content: content, ps: ps}
	r.dec.UseNumber()
	n, ok := r.value("", 0)
	if !ok {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		ps.add(r.line(), "", "something follows the JSON value; keep one value per file")
		return nil
	}
	return &n
}

type jsonReader struct {
	dec     *json.Decoder
	content []byte
	ps      *problems
	counted int // bytes of content whose newlines are counted
	lines   int
}

// line is the line of the byte after the last token.
func (r *jsonReader) line() int {
	upTo := min(int(r.dec.InputOffset()), len(r.content))
	r.lines += bytes.Count(r.content[r.counted:upTo], []byte{'\n'})
	r.counted = upTo
	return r.lines + 1
}

func (r *jsonReader) token(field string) (json.Token, bool) {
	tok, err := r.dec.Token()
	if err == nil {
		return tok, true
	}
	switch {
	case errors.Is(err, io.EOF) && r.dec.InputOffset() == 0:
		r.ps.add(0, "", "the file is empty; a policy file holds one JSON object")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		r.ps.add(r.line(), field, "not valid JSON: the file ends in the middle of a value")
	default:
		r.ps.add(r.line(), field, "not valid JSON: %v", err)
	}
	return nil, false
}

func (r *jsonReader) value(field string, depth int) (node, bool) {
	tok, ok := r.token(field)
	if !ok {
		return node{}, false
	}
	n := node{line: r.line()}
	switch t := tok.(type) {
	case nil:
	case bool:
		n.kind, n.text = nodeBool, strconv.FormatBool(t)
	case string:
		n.kind, n.text = nodeString, t
	case json.Number:
		return r.number(n, t.String(), field)
	case json.Delim:
		if depth >= maxDepth {
			r.ps.add(n.line, field, "nesting is deeper than %d levels", maxDepth)
			return node{}, false
		}
		if t == '[' {
			return r.list(n, field, depth)
		}
		return r.object(n, field, depth)
	}
	return n, true
}

func (r *jsonReader) number(n node, text, field string) (node, bool) {
	n.kind, n.text = nodeFloat, text
	if coreInt.MatchString(text) {
		n.kind = nodeInt
	}
	if _, ok := n.number(); !ok {
		r.ps.add(n.line, field, "the number %s is beyond what can be represented", clip(text, 40))
		return node{}, false
	}
	return n, true
}

func (r *jsonReader) list(n node, field string, depth int) (node, bool) {
	n.kind = nodeList
	for i := 0; r.dec.More(); i++ {
		item, ok := r.value(field+"["+strconv.Itoa(i)+"]", depth+1)
		if !ok {
			return node{}, false
		}
		n.items = append(n.items, item)
	}
	_, ok := r.token(field)
	return n, ok
}

func (r *jsonReader) object(n node, field string, depth int) (node, bool) {
	n.kind = nodeMap
	seen := map[string]bool{}
	for r.dec.More() {
		tok, ok := r.token(field)
		if !ok {
			return node{}, false
		}
		name, _ := tok.(string)
		line := r.line()
		if seen[name] {
			r.ps.add(line, join(field, name), "the key appears twice; keep one of them")
			return node{}, false
		}
		seen[name] = true
		item, ok := r.value(join(field, name), depth+1)
		if !ok {
			return node{}, false
		}
		n.keys = append(n.keys, key{text: name, line: line})
		n.items = append(n.items, item)
	}
	_, ok := r.token(field)
	return n, ok
}
