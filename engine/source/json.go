package source

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
func parseJSON(content []byte, ps *Problems) *Node {
	r := &jsonReader{dec: json.NewDecoder(bytes.NewReader(content)), content: content, ps: ps}
	r.dec.UseNumber()
	n, ok := r.value("", 0)
	if !ok {
		return nil
	}
	if _, err := r.dec.Token(); !errors.Is(err, io.EOF) {
		ps.Add(r.line(), "", "something follows the JSON value; keep one value per file")
		return nil
	}
	return &n
}

type jsonReader struct {
	dec     *json.Decoder
	content []byte
	ps      *Problems
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
		r.ps.Add(0, "", "the file is empty; a policy file holds one JSON object")
	case errors.Is(err, io.EOF), errors.Is(err, io.ErrUnexpectedEOF):
		r.ps.Add(r.line(), field, "not valid JSON: the file ends in the middle of a value")
	default:
		r.ps.Add(r.line(), field, "not valid JSON: %v", err)
	}
	return nil, false
}

func (r *jsonReader) value(field string, depth int) (Node, bool) {
	tok, ok := r.token(field)
	if !ok {
		return Node{}, false
	}
	n := Node{Line: r.line()}
	switch t := tok.(type) {
	case nil:
	case bool:
		n.Kind, n.Text = Bool, strconv.FormatBool(t)
	case string:
		n.Kind, n.Text = String, t
	case json.Number:
		return r.number(n, t.String(), field)
	case json.Delim:
		if depth >= maxDepth {
			r.ps.Add(n.Line, field, "nesting is deeper than %d levels", maxDepth)
			return Node{}, false
		}
		if t == '[' {
			return r.list(n, field, depth)
		}
		return r.object(n, field, depth)
	}
	return n, true
}

func (r *jsonReader) number(n Node, text, field string) (Node, bool) {
	n.Kind, n.Text = Float, text
	if coreInt.MatchString(text) {
		n.Kind = Int
	}
	if _, ok := n.Number(); !ok {
		r.ps.Add(n.Line, field, "the number %s is beyond what can be represented", Clip(text, 40))
		return Node{}, false
	}
	return n, true
}

func (r *jsonReader) list(n Node, field string, depth int) (Node, bool) {
	n.Kind = List
	for i := 0; r.dec.More(); i++ {
		item, ok := r.value(field+"["+strconv.Itoa(i)+"]", depth+1)
		if !ok {
			return Node{}, false
		}
		n.Items = append(n.Items, item)
	}
	_, ok := r.token(field)
	return n, ok
}

func (r *jsonReader) object(n Node, field string, depth int) (Node, bool) {
	n.Kind = Map
	seen := map[string]bool{}
	for r.dec.More() {
		tok, ok := r.token(field)
		if !ok {
			return Node{}, false
		}
		name, _ := tok.(string)
		line := r.line()
		if seen[name] {
			r.ps.Add(line, Join(field, name), "the key appears twice; keep one of them")
			return Node{}, false
		}
		seen[name] = true
		item, ok := r.value(Join(field, name), depth+1)
		if !ok {
			return Node{}, false
		}
		n.Keys = append(n.Keys, key{Text: name, Line: line})
		n.Items = append(n.Items, item)
	}
	_, ok := r.token(field)
	return n, ok
}
