package document

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// How a document is read.

// Fields of a document by mapping. What is not here is unknown: ignored with a
// warning, refused in strict mode (policy engine spec 19.3).
var (
	documentFields = []string{"version", "name", "description", "rules", "defaults", "inherit", "scope",
		"mode", "combining", "tie_break", "on_backend_error", "level", "allow_cutoff"}
	defaultsFields = []string{"action", "max_tokens", "max_tool_calls", "confidence_threshold",
		"max_cpu", "max_memory_mb", "timeout_seconds", "network_default"}
	ruleFields      = []string{"name", "condition", "action", "priority", "message", "override"}
	conditionFields = []string{"field", "operator", "value"}
)

// MaxRules bounds the rules of a tree.
const MaxRules = 1000

// reader builds a Document from nodes. Types are exact: an integer
// comes from an integer, null counts as absent, enums are lower case.
type reader struct {
	*source.Problems
	searches *pattern.Searches // shared by the documents of a tree
	unknown  []source.Problem  // fields nobody knows
}

// Read reads a document, what is wrong with it, and the fields that nobody
// knows.
func Read(n *source.Node, path string, compiled *pattern.Searches) (d *Document, wrong, unknown []source.Problem) {
	r := &reader{Problems: &source.Problems{Path: path}, searches: compiled}
	d = r.document(n, path)
	return d, r.List, r.unknown
}

func (r *reader) document(n *source.Node, path string) *Document {
	d := New(path)
	r.unknownFields(n, "", documentFields)
	if f, ok := source.Present(n, "version"); ok {
		text, isText := versionText(f)
		if !isText {
			r.wrongType(f, "version", "a non-empty string")
		}
		d.Version = text
	}
	r.named(n, "", "name", &d.Name)
	r.str(n, "", "description", &d.Description)
	r.boolean(n, "", "inherit", &d.Inherit)
	r.boolean(n, "", "allow_cutoff", &d.AllowCutoff)
	if f, ok := source.Present(n, "scope"); ok {
		if f.Kind != source.String {
			r.wrongType(f, "scope", "a glob or null")
		} else {
			d.Scope = &f.Text
		}
	}
	if f, ok := source.Present(n, "level"); ok {
		d.Level = Level(f.Text)
		if f.Kind != source.String || !d.Level.Valid() {
			r.Add(f.Line, "level", "level must be global, tenant, organization or agent, got %s", f.Repr())
		}
	}
	d.Settings = ReadSettings(n, r.Problems)
	r.defaults(n, d)
	r.rules(n, d)
	return d
}

func (r *reader) defaults(n *source.Node, d *Document) {
	f, ok := source.Present(n, "defaults")
	if !ok {
		return
	}
	d.Defaults.Stated.Any = true
	if f.Kind != source.Map {
		r.wrongType(f, "defaults", "a mapping")
		return
	}
	r.unknownFields(f, "defaults", defaultsFields)
	def := &d.Defaults
	if r.action(f, "defaults", "allow, deny, audit or block", &def.Action); def.Action == Ask {
		r.Add(f.Line, "defaults.action", "defaults.action cannot be ask; to ask about what no other rule matches, write a rule with a low priority")
	}
	if v, ok := source.Present(f, "max_tokens"); ok {
		def.MaxTokens, def.Stated.MaxTokens = r.Count(v, "defaults.max_tokens", 1, governance.MaxTokenLimit), true
	}
	if v, ok := source.Present(f, "max_tool_calls"); ok {
		def.MaxToolCalls, def.Stated.MaxToolCalls = r.Count(v, "defaults.max_tool_calls", 0, math.MaxInt64), true
	}
	if v, ok := source.Present(f, "confidence_threshold"); ok {
		def.ConfidenceThreshold, def.Stated.Confidence = r.Threshold(v, "defaults.confidence_threshold"), true
	}
}

func (r *reader) rules(n *source.Node, d *Document) {
	f, ok := source.Present(n, "rules")
	if !ok {
		return
	}
	if f.Kind != source.List {
		r.wrongType(f, "rules", "a list")
		return
	}
	lines := map[string]int{}
	for i := range f.Items {
		field := fmt.Sprintf("rules[%d]", i)
		rule := r.rule(&f.Items[i], field)
		if rule == nil {
			continue
		}
		if first, twice := lines[rule.Name]; twice {
			r.Add(rule.Line, field+".name", "the name %s is taken by the rule in line %d; names are unique within a document", value.Quote(rule.Name), first)
			continue
		}
		lines[rule.Name] = rule.Line
		rule.Doc = d
		d.Rules = append(d.Rules, rule)
	}
}

func (r *reader) rule(n *source.Node, field string) *Rule {
	if n.Kind != source.Map {
		r.wrongType(n, field, "a mapping")
		return nil
	}
	before := len(r.List)
	r.unknownFields(n, field, ruleFields)
	rule := &Rule{Line: n.Line}
	r.required(n, field, "name")
	r.named(n, field, "name", &rule.Name)
	r.required(n, field, "condition")
	if cond, ok := source.Present(n, "condition"); ok {
		r.condition(cond, field+".condition", &rule.Condition)
	}
	r.required(n, field, "action")
	r.action(n, field, "allow, deny, audit, block or ask", &rule.Action)
	if f, ok := source.Present(n, "priority"); ok {
		v, isInt := f.Integer()
		if !isInt {
			r.wrongType(f, field+".priority", "an integer")
		}
		rule.Priority = v
	}
	r.str(n, field, "message", &rule.Message)
	r.boolean(n, field, "override", &rule.Override)
	if len(r.List) > before {
		return nil
	}
	rule.Reason = rule.Message
	if rule.Reason == "" {
		rule.Reason = "Matched rule '" + rule.Name + "'"
	}
	return rule
}

func (r *reader) action(n *source.Node, field, words string, into *Action) {
	if f, ok := source.Present(n, "action"); ok {
		if *into = Action(f.Text); f.Kind != source.String || !into.Valid() {
			r.Add(f.Line, source.Join(field, "action"), "action must be %s, got %s", words, f.Repr())
		}
	}
}

func (r *reader) str(n *source.Node, field, name string, into *string) {
	if f, ok := source.Present(n, name); ok {
		if *into = f.Text; f.Kind != source.String {
			r.wrongType(f, source.Join(field, name), "a string")
		}
	}
}

// named is str for what must not be empty.
func (r *reader) named(n *source.Node, field, name string, into *string) {
	r.str(n, field, name, into)
	if f, ok := source.Present(n, name); ok && f.Kind == source.String && f.Text == "" {
		r.Add(f.Line, source.Join(field, name), "%s must be a non-empty string, got ''", name)
	}
}

func (r *reader) boolean(n *source.Node, field, name string, into *bool) {
	if f, ok := source.Present(n, name); ok {
		if *into = strings.EqualFold(f.Text, "true"); f.Kind != source.Bool {
			r.wrongType(f, source.Join(field, name), "true or false")
		}
	}
}

func (r *reader) required(n *source.Node, field, name string) {
	if _, ok := source.Present(n, name); !ok {
		hint := ""
		for _, k := range n.Keys {
			if k.Text != name && nearest.Of(k.Text, []string{name}) != "" {
				hint = fmt.Sprintf("; did you mean it by %s in line %d?", value.Quote(k.Text), k.Line)
			}
		}
		r.Add(n.Line, source.Join(field, name), "%s is missing%s", name, hint)
	}
}

func (r *reader) wrongType(f *source.Node, field, want string) {
	r.Add(f.Line, field, "%s must be %s, got %s: %s", field, want, f.TypeName(), f.Repr())
}

func (r *reader) unknownFields(n *source.Node, field string, known []string) {
	for _, k := range n.Keys {
		if slices.Contains(known, k.Text) {
			continue
		}
		r.unknown = append(r.unknown, source.Problem{
			Path: r.Path, Line: k.Line, Field: source.Join(field, k.Text),
			Message: fmt.Sprintf("unknown field, ignored%s; known are %s", nearest.Hint(k.Text, "", known), strings.Join(known, ", ")),
		})
	}
}

// versionText accepts a number as well, as its source text: authors of
// documents write 1.0.
func versionText(f *source.Node) (string, bool) {
	switch f.Kind {
	case source.String, source.Int, source.Float:
		return f.Text, f.Text != ""
	}
	return "", false
}
