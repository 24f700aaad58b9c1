package edictum

import (
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// From a file to a Document. The first thing that is wrong refuses the file.

// MaxBytes bounds a file.
const MaxBytes = 1 << 20

// Parse reads a ruleset. The error is a *[Problem].
func Parse(name string, raw []byte) (*Document, error) {
	return ParseWithin(name, raw, new(pattern.Searches))
}

// ParseWithin is Parse of one of several files, whose expressions are bounded together.
func ParseWithin(name string, raw []byte, searches *pattern.Searches) (*Document, error) {
	if len(raw) > MaxBytes {
		return nil, &Problem{Message: fmt.Sprintf("Bundle file too large (%d bytes, max %d)", len(raw), MaxBytes)}
	}
	node, problems := source.Parse("ruleset.yaml", raw)
	if len(problems) > 0 {
		p := problems[0]
		return nil, &Problem{Field: p.Field, Line: p.Line, Message: "YAML parse error: " + said(p)}
	}
	if node == nil || node.Kind != source.Map {
		return nil, &Problem{Message: "YAML document must be a mapping"}
	}
	r := &reader{searches: searches, doc: &Document{source: name, hash: hashOf(raw), given: fields{}, Tools: map[string]Tool{}}}
	if err := r.document(node); err != nil {
		return nil, err
	}
	for _, check := range []func() error{r.ids, r.patterns, r.selectors, r.sandboxes, r.operators} {
		if err := check(); err != nil {
			return nil, err
		}
	}
	return r.doc, nil
}

// said is a problem of the parser with its line.
func said(p source.Problem) string {
	text := p.Message
	if p.Field != "" && !strings.HasPrefix(text, p.Field) {
		text = p.Field + ": " + text
	}
	if p.Line > 0 {
		return fmt.Sprintf("line %d: %s", p.Line, text)
	}
	return text
}

// A reader reads one document. Its first error ends it.
type reader struct {
	doc *Document
	old bool // the vocabulary is that of kind ContractBundle
	at  string

	searches *pattern.Searches
}

// wrong is a failure of the schema.
func (r *reader) wrong(n *source.Node, field, format string, args ...any) error {
	line := 0
	if n != nil {
		line = n.Line
	}
	return &Problem{Rule: r.at, Field: field, Line: line, Message: "Schema validation failed: " + field + ": " + fmt.Sprintf(format, args...)}
}

// only refuses a map with other keys than these.
func (r *reader) only(n *source.Node, field string, known ...string) error {
	if n.Kind != source.Map {
		return r.wrong(n, field, "must be a mapping, got %s", n.Repr())
	}
	for i := range n.Keys {
		if !slices.Contains(known, n.Keys[i].Text) {
			name := source.Join(field, n.Keys[i].Text)
			return r.wrong(&n.Items[i], name, "is not known; the keys here are %s", strings.Join(known, ", "))
		}
	}
	return nil
}

// need finds a field that must be there.
func (r *reader) need(n *source.Node, field, name string) (*source.Node, error) {
	if f, ok := n.Get(name); ok {
		return f, nil
	}
	return nil, r.wrong(n, source.Join(field, name), "is required")
}

// text reads a text of 1 to most characters that matches a form, if there is one.
func (r *reader) text(n *source.Node, field string, most int, form *regexp.Regexp) (string, error) {
	switch {
	case n.Ambiguous():
		return "", r.wrong(n, field, "%s means different things to YAML 1.1 and 1.2; put it in quotes", n.Text)
	case n.Kind != source.String:
		return "", r.wrong(n, field, "must be a text, got %s", n.Repr())
	case n.Text == "":
		return "", r.wrong(n, field, "must not be empty")
	case most > 0 && len([]rune(n.Text)) > most:
		return "", r.wrong(n, field, "has %d characters, the most is %d", len([]rune(n.Text)), most)
	case form != nil && !form.MatchString(n.Text):
		return "", r.wrong(n, field, "must match %s, got %s", form, n.Repr())
	}
	return n.Text, nil
}

// certain refuses what means different things to different versions of YAML, names
// among it, wherever it stands in a value that is taken as it is.
func (r *reader) certain(n *source.Node, field string) error {
	if n.Ambiguous() {
		return r.wrong(n, field, "%s means different things to YAML 1.1 and 1.2; put it in quotes", n.Text)
	}
	if err := r.certainNames(n, field); err != nil {
		return err
	}
	for i := range n.Items {
		name := field
		if i < len(n.Keys) {
			name = source.Join(field, n.Keys[i].Text)
		}
		if err := r.certain(&n.Items[i], name); err != nil {
			return err
		}
	}
	return nil
}

// certainNames is certain for the names of a mapping alone.
func (r *reader) certainNames(n *source.Node, field string) error {
	for i := range n.Keys {
		if k := &n.Keys[i]; k.Ambiguous() {
			return r.wrong(n, source.Join(field, k.Text), "the name %s means different things to YAML 1.1 and 1.2; put it in quotes", k.Text)
		}
	}
	return nil
}

// A choice is a word, and what it stands for.
type choice[T any] struct {
	word  string
	means T
}

// word reads one of some words.
func word[T any](r *reader, n *source.Node, field string, choices []choice[T]) (T, error) {
	var names []string
	for _, c := range choices {
		if n.Kind == source.String && n.Text == c.word {
			return c.means, nil
		}
		names = append(names, c.word)
	}
	got := n.Repr()
	if n.Kind == source.String {
		got = fmt.Sprintf("%q", n.Text)
	}
	var none T
	return none, r.wrong(n, field, "must be %s, got %s", strings.Join(names, " or "), got)
}

func (r *reader) boolean(n *source.Node, field string) (bool, error) {
	if n.Kind != source.Bool {
		return false, r.wrong(n, field, "must be true or false, got %s", n.Repr())
	}
	return strings.EqualFold(n.Text, "true"), nil
}

// count reads an integer of 1 and more. 2.0 is one.
func (r *reader) count(n *source.Node, field string) (int64, error) {
	f, ok := n.Number()
	if !ok || f != float64(int64(f)) || f < 1 || f > 1<<53 {
		return 0, r.wrong(n, field, "must be a whole number of at least 1, got %s", n.Repr())
	}
	return int64(f), nil
}

// texts reads a list of one or more texts.
func (r *reader) texts(n *source.Node, field string) ([]string, error) {
	if n.Kind != source.List || len(n.Items) == 0 {
		return nil, r.wrong(n, field, "must be a list of one or more texts, got %s", n.Repr())
	}
	var all []string
	for i := range n.Items {
		t, err := r.text(&n.Items[i], fmt.Sprintf("%s[%d]", field, i), 0, nil)
		if err != nil {
			return nil, err
		}
		all = append(all, t)
	}
	return all, nil
}

var (
	nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)
	idForm   = regexp.MustCompile(`^[a-z0-9][a-z0-9_-]*$`)
)

const mostMessage = 500

func (r *reader) document(n *source.Node) error {
	kind, err := r.need(n, "", "kind")
	if err != nil {
		return err
	}
	if r.old, err = word(r, kind, "kind", []choice[bool]{{"Ruleset", false}, {"ContractBundle", true}}); err != nil {
		return err
	}
	list := "rules"
	if r.old {
		list = "contracts"
	}
	if err := r.only(n, "", "apiVersion", "kind", "metadata", "defaults", list, "tools", "observability", "observe_alongside", "extends"); err != nil {
		return err
	}
	for _, k := range n.Keys {
		r.doc.given[k.Text] = true
	}
	api, err := r.need(n, "", "apiVersion")
	if err != nil {
		return err
	}
	if _, err := word(r, api, "apiVersion", []choice[bool]{{"edictum/v1", true}}); err != nil {
		return err
	}
	for _, part := range []func(*source.Node) error{r.metadata, r.defaults, r.tools, r.observability, r.relations} {
		if err := part(n); err != nil {
			return err
		}
	}
	rules, ok := n.Get(list)
	if !ok && r.doc.Extends != "" {
		return nil
	}
	if !ok {
		return r.wrong(n, list, "is required")
	}
	if rules.Kind != source.List || len(rules.Items) == 0 && r.doc.Extends == "" {
		return r.wrong(rules, list, "must be a list of one or more rules, got %s", rules.Repr())
	}
	for i := range rules.Items {
		if err := r.rule(&rules.Items[i], fmt.Sprintf("%s[%d]", list, i)); err != nil {
			return err
		}
	}
	return nil
}

func (r *reader) metadata(n *source.Node) error {
	m, err := r.need(n, "", "metadata")
	if err != nil {
		return err
	}
	if err := r.only(m, "metadata", "name", "description"); err != nil {
		return err
	}
	name, err := r.need(m, "metadata", "name")
	if err != nil {
		return err
	}
	if r.doc.Name, err = r.text(name, "metadata.name", 0, nameForm); err != nil {
		return err
	}
	if d, ok := m.Get("description"); ok {
		if d.Kind != source.String {
			return r.wrong(d, "metadata.description", "must be a text, got %s", d.Repr())
		}
		r.doc.Description = d.Text
	}
	return nil
}

var modes = []choice[Mode]{{"enforce", Enforce}, {"observe", Observe}}

func (r *reader) defaults(n *source.Node) error {
	d, err := r.need(n, "", "defaults")
	if err != nil {
		return err
	}
	if err := r.only(d, "defaults", "mode"); err != nil {
		return err
	}
	mode, err := r.need(d, "defaults", "mode")
	if err != nil {
		return err
	}
	r.doc.Mode, err = word(r, mode, "defaults.mode", modes)
	return err
}

var sideEffects = []choice[SideEffect]{{"pure", Pure}, {"read", Read}, {"write", Write}, {"irreversible", Irreversible}}

func (r *reader) tools(n *source.Node) error {
	tools, ok := n.Get("tools")
	if !ok {
		return nil
	}
	if tools.Kind != source.Map {
		return r.wrong(tools, "tools", "must be a mapping of names, got %s", tools.Repr())
	}
	if err := r.certainNames(tools, "tools"); err != nil {
		return err
	}
	for i := range tools.Keys {
		field, t := source.Join("tools", tools.Keys[i].Text), &tools.Items[i]
		if err := r.only(t, field, "side_effect", "idempotent"); err != nil {
			return err
		}
		effect, err := r.need(t, field, "side_effect")
		if err != nil {
			return err
		}
		tool := Tool{}
		if tool.SideEffect, err = word(r, effect, source.Join(field, "side_effect"), sideEffects); err != nil {
			return err
		}
		if b, ok := t.Get("idempotent"); ok {
			if tool.Idempotent, err = r.boolean(b, source.Join(field, "idempotent")); err != nil {
				return err
			}
		}
		r.doc.Tools[tools.Keys[i].Text] = tool
	}
	return nil
}

// observability is checked and has no effect: telemetry is the SDK's.
func (r *reader) observability(n *source.Node) error {
	o, ok := n.Get("observability")
	if !ok {
		return nil
	}
	if err := r.only(o, "observability", "otel", "stdout", "file"); err != nil {
		return err
	}
	if otel, ok := o.Get("otel"); ok && otel.Kind != source.Map {
		return r.wrong(otel, "observability.otel", "must be a mapping, got %s", otel.Repr())
	}
	if s, ok := o.Get("stdout"); ok && s.Kind != source.Bool {
		return r.wrong(s, "observability.stdout", "must be true or false, got %s", s.Repr())
	}
	if f, ok := o.Get("file"); ok && f.Kind != source.String && f.Kind != source.Null {
		return r.wrong(f, "observability.file", "must be a text, got %s", f.Repr())
	}
	return nil
}

func (r *reader) relations(n *source.Node) (err error) {
	if e, ok := n.Get("extends"); ok {
		if r.doc.Extends, err = r.text(e, "extends", 0, nil); err != nil {
			return err
		}
	}
	if a, ok := n.Get("observe_alongside"); ok {
		r.doc.Alongside, err = r.boolean(a, "observe_alongside")
	}
	return err
}

// ParseValue reads a file of YAML or JSON that belongs to a ruleset, such as one of
// cases.
func ParseValue(raw []byte) (value.Value, error) {
	node, problems := source.Parse("file.yaml", raw)
	if len(problems) > 0 {
		return value.Value{}, errors.New(said(problems[0]))
	}
	return node.Value()
}
