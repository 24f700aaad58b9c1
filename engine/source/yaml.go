package source

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// From a YAML document to nodes with lines, within bounds on what it can cost.

// maxElements bounds how many nodes a document can have. The parser spends
// some hundred bytes on each, so the cap on bytes alone would let one document
// of a mebibyte take a hundred on the heap.
const maxElements = 60_000

// Parse reads one YAML or JSON document, whichever the path names. Either
// a node or problems come back.
func Parse(path string, content []byte) (*Node, []Problem) {
	ps := &Problems{Path: path}
	if len(content) > MaxTreeBytes {
		ps.Add(0, "", "the document is larger than %d bytes", MaxTreeBytes)
		return nil, ps.List
	}
	if msg := encodingProblem(content); msg != "" {
		ps.Add(0, "", "%s", msg)
		return nil, ps.List
	}
	if line, ok := tooManyElements(content); ok {
		ps.Add(line, "", "the document has more than %d elements; split it", maxElements)
		return nil, ps.List
	}
	var n *Node
	if strings.HasSuffix(path, ".json") {
		n = parseJSON(content, ps)
	} else {
		n = parseYAML(content, ps)
	}
	if len(ps.List) > 0 {
		return nil, ps.List
	}
	return n, nil
}

func encodingProblem(content []byte) string {
	switch {
	case bytes.HasPrefix(content, []byte{0xef, 0xbb, 0xbf}),
		bytes.HasPrefix(content, []byte{0xfe, 0xff}),
		bytes.HasPrefix(content, []byte{0xff, 0xfe}):
		return "the file begins with a byte order mark; save it as UTF-8 without one"
	case !utf8.Valid(content):
		return "the file is not valid UTF-8"
	case bytes.IndexByte(content, 0) >= 0:
		return "the file holds a NUL byte"
	}
	return ""
}

// parseYAML parses one document. What the cheap scans refuse never reaches the
// parser, so that its cost is bounded by them.
func parseYAML(content []byte, ps *Problems) *Node {
	if line, ok := tooDeep(content); ok {
		ps.Add(line, "", "nesting is deeper than %d levels", maxDepth)
		return nil
	}
	root, err := decodeYAML(content)
	if err != nil {
		line, msg := yamlMessage(err)
		ps.Add(line, "", "%s", msg)
		return nil
	}
	if root == nil || len(root.Content) == 0 {
		ps.Add(0, "", "the file is empty; a policy file holds one YAML mapping")
		return nil
	}
	n := convertYAML(root.Content[0], "", 0, ps)
	return &n
}

// decodeYAML parses to yaml.Node alone, which resolves nothing: aliases stay
// references, so that nothing multiplies before it is refused.
func decodeYAML(content []byte) (root *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			root, err = nil, fmt.Errorf("yaml: the parser failed: %v", r)
		}
	}()
	// The parser knows the directive of YAML 1.1 alone. What differs in 1.2 are
	// the plain scalars, and those are resolved here.
	if rest, ok := bytes.CutPrefix(content, []byte("%YAML 1.2\n")); ok {
		content = append([]byte("%YAML 1.1\n"), rest...)
	}
	dec := yaml.NewDecoder(bytes.NewReader(content))
	var first, second yaml.Node
	if err := dec.Decode(&first); err != nil {
		if errors.Is(err, io.EOF) {
			return nil, nil
		}
		return nil, err
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, fmt.Errorf("yaml: line %d: a second document begins here; keep one document per file", second.Line)
	case !errors.Is(err, io.EOF):
		return nil, err
	}
	return &first, nil
}

var yamlLine = regexp.MustCompile(`^(?:yaml: )?(?:unmarshal errors:\s*)?line (\d+): (.*)$`)

func yamlMessage(err error) (line int, msg string) {
	text := strings.TrimSpace(err.Error())
	if m := yamlLine.FindStringSubmatch(text); m != nil {
		line, _ = strconv.Atoi(m[1])
		return line, "not valid YAML: " + m[2]
	}
	return 0, "not valid YAML: " + strings.TrimPrefix(text, "yaml: ")
}

func convertYAML(y *yaml.Node, field string, depth int, ps *Problems) Node {
	n := Node{Line: y.Line}
	switch {
	case depth > maxDepth:
		ps.Add(y.Line, field, "nesting is deeper than %d levels", maxDepth)
		return n
	case y.Kind == yaml.AliasNode:
		ps.Add(y.Line, field, "aliases are not accepted; write the value out")
		return n
	case y.Anchor != "":
		ps.Add(y.Line, field, "anchors are not accepted; write the value where it is used")
		return n
	}
	switch y.Kind {
	case yaml.ScalarNode:
		convertScalar(y, &n)
	case yaml.SequenceNode:
		n.Kind = List
		n.Items = make([]Node, 0, len(y.Content))
		for i, item := range y.Content {
			n.Items = append(n.Items, convertYAML(item, field+"["+strconv.Itoa(i)+"]", depth+1, ps))
		}
	case yaml.MappingNode:
		n.Kind = Map
		convertMapping(y, &n, field, depth, ps)
	}
	checkTag(y, &n, field, ps)
	return n
}

func convertScalar(y *yaml.Node, n *Node) {
	n.Text = y.Value
	n.Kind = String
	if y.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle|yaml.LiteralStyle|yaml.FoldedStyle) == 0 {
		n.plain = true
		n.Kind = resolvePlain(y.Value)
	}
}

func convertMapping(y *yaml.Node, n *Node, field string, depth int, ps *Problems) {
	seen := make(map[string]bool, len(y.Content)/2)
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		name := Join(field, k.Value)
		switch {
		case k.Kind != yaml.ScalarNode || k.Anchor != "":
			ps.Add(k.Line, field, "a key must be a plain name, without an anchor or alias")
			continue
		case k.Tag == "!!merge" || k.Value == "<<":
			ps.Add(k.Line, name, "merge keys are not accepted; write the fields out")
			continue
		case k.Style&yaml.TaggedStyle != 0 && k.Tag != "!!str":
			ps.Add(k.Line, name, "a key must not carry the tag %s", Clip(k.Tag, 60))
			continue
		case seen[k.Value]:
			ps.Add(k.Line, name, "the key appears twice; keep one of them")
			continue
		}
		seen[k.Value] = true
		n.Keys = append(n.Keys, key{Text: k.Value, Line: k.Line, plain: k.Style == 0})
		n.Items = append(n.Items, convertYAML(v, name, depth+1, ps))
	}
}

// checkTag accepts an explicit tag only where it says what the value is
// anyway, and !!str, which makes a string of a plain scalar.
func checkTag(y *yaml.Node, n *Node, field string, ps *Problems) {
	if y.Style&yaml.TaggedStyle == 0 {
		return
	}
	want, known := map[string]Kind{
		"!!null": Null, "!!bool": Bool, "!!int": Int, "!!float": Float,
		"!!str": String, "!!seq": List, "!!map": Map,
	}[y.ShortTag()]
	switch {
	case known && want == String && y.Kind == yaml.ScalarNode:
		n.Kind, n.plain = String, false
	case !known || want != n.Kind:
		ps.Add(y.Line, field, "the tag %s is not accepted; write the value without a tag", Clip(y.Tag, 60))
	}
}

// Join appends a name to the dotted path of a field.
func Join(field, name string) string {
	if field == "" {
		return name
	}
	return field + "." + name
}

// tooManyElements counts the characters that can begin another node, quoted or
// not. It may overcount in text full of punctuation, never undercount.
func tooManyElements(content []byte) (line int, over bool) {
	line, count := 1, 0
	for i, c := range content {
		switch c {
		case '\n':
			line++
			count++
		case ',', '[', '{', '?':
			count++
		case ':', '-':
			// An indicator only before white space, a quote or a bracket; in
			// the middle of a word it is text.
			if i+1 == len(content) || strings.IndexByte(" \t\r\n\"'[{", content[i+1]) >= 0 {
				count++
			}
		}
		if count > maxElements {
			return line, true
		}
	}
	return 0, false
}

// tooDeep refuses what can only be nesting: a run of opening brackets, or of
// dashes, longer than the cap on depth. The exact depth is checked on the
// parsed nodes; this keeps the parser from recursing first.
func tooDeep(content []byte) (line int, over bool) {
	line = 1
	run := 0
	for _, c := range content {
		switch c {
		case '[', '{', '-', '?':
			run++
		case ' ', '\t', '\r':
		case '\n':
			line++
		case ':':
		default:
			run = 0
		}
		if run > 2048 {
			return line, true
		}
	}
	return 0, false
}
