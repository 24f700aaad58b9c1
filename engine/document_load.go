package engine

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"example.com/govnode/engine/value"
)

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

// documentReader builds a Document from nodes. Types are exact: an integer
// comes from an integer, null counts as absent, enums are lower case.
type documentReader struct {
	*problems
	searches *searches // shared by the documents of a tree
	unknown  []Problem // fields nobody knows
}

func (r *documentReader) document(n *node, path string) *Document {
	d := newDocument(path)
	r.unknownFields(n, "", documentFields)
	if f, ok := present(n, "version"); ok {
		text, isText := versionText(f)
		if !isText {
			r.wrongType(f, "version", "a non-empty string")
		}
		d.Version = text
	}
	r.str(n, "", "name", &d.Name)
	if d.Name == "" {
		r.add(n.line, "name", "name must be a non-empty string, got ''")
	}
	r.str(n, "", "description", &d.Description)
	r.boolean(n, "", "inherit", &d.Inherit)
	r.boolean(n, "", "allow_cutoff", &d.AllowCutoff)
	if f, ok := present(n, "scope"); ok {
		if f.kind != nodeString {
			r.wrongType(f, "scope", "a glob or null")
		} else {
			d.Scope = &f.text
		}
	}
	if f, ok := present(n, "level"); ok {
		d.Level = Level(f.text)
		if f.kind != nodeString || !d.Level.valid() {
			r.add(f.line, "level", "level must be global, tenant, organization or agent, got %s", f.repr())
		}
	}
	d.settings = readSettings(n, r.problems)
	r.defaults(n, d)
	r.rules(n, d)
	return d
}

func (r *documentReader) defaults(n *node, d *Document) {
	f, ok := present(n, "defaults")
	if !ok {
		return
	}
	d.Defaults.stated.any = true
	if f.kind != nodeMap {
		r.wrongType(f, "defaults", "a mapping")
		return
	}
	r.unknownFields(f, "defaults", defaultsFields)
	def := &d.Defaults
	def.stated.action = r.action(f, "defaults", &def.Action)
	if v, ok := present(f, "max_tokens"); ok {
		def.MaxTokens, def.stated.maxTokens = r.count(v, "defaults.max_tokens", 1, MaxTokenLimit), true
	}
	if v, ok := present(f, "max_tool_calls"); ok {
		def.MaxToolCalls, def.stated.maxToolCalls = r.count(v, "defaults.max_tool_calls", 0, math.MaxInt64), true
	}
	if v, ok := present(f, "confidence_threshold"); ok {
		def.ConfidenceThreshold, def.stated.confidence = r.threshold(v, "defaults.confidence_threshold"), true
	}
}

func (r *documentReader) rules(n *node, d *Document) {
	f, ok := present(n, "rules")
	if !ok {
		return
	}
	if f.kind != nodeList {
		r.wrongType(f, "rules", "a list")
		return
	}
	lines := map[string]int{}
	for i := range f.items {
		field := fmt.Sprintf("rules[%d]", i)
		rule := r.rule(&f.items[i], field)
		if rule == nil {
			continue
		}
		if first, twice := lines[rule.Name]; twice {
			r.add(rule.line, field+".name", "the name %s is taken by the rule in line %d; names are unique within a document", value.Quote(rule.Name), first)
			continue
		}
		lines[rule.Name] = rule.line
		rule.doc = d
		d.Rules = append(d.Rules, rule)
	}
}

func (r *documentReader) rule(n *node, field string) *Rule {
	if n.kind != nodeMap {
		r.wrongType(n, field, "a mapping")
		return nil
	}
	before := len(r.list)
	r.unknownFields(n, field, ruleFields)
	rule := &Rule{line: n.line}
	r.required(n, field, "name")
	r.str(n, field, "name", &rule.Name)
	if f, ok := present(n, "name"); ok && f.kind == nodeString && f.text == "" {
		r.add(f.line, field+".name", "name must be a non-empty string, got ''")
	}
	if cond, ok := present(n, "condition"); ok {
		r.condition(cond, field+".condition", &rule.Condition)
	} else {
		r.required(n, field, "condition")
	}
	r.required(n, field, "action")
	r.action(n, field, &rule.Action)
	if f, ok := present(n, "priority"); ok {
		v, isInt := f.integer()
		if !isInt {
			r.wrongType(f, field+".priority", "an integer")
		}
		rule.Priority = v
	}
	r.str(n, field, "message", &rule.Message)
	r.boolean(n, field, "override", &rule.Override)
	if len(r.list) > before {
		return nil
	}
	rule.reason = rule.Message
	if rule.reason == "" {
		rule.reason = "Matched rule '" + rule.Name + "'"
	}
	return rule
}

// action reads an action and reports whether it stood there.
func (r *documentReader) action(n *node, field string, into *Action) bool {
	f, ok := present(n, "action")
	if !ok {
		return false
	}
	a := Action(f.text)
	if f.kind != nodeString || !a.valid() {
		r.add(f.line, join(field, "action"), "action must be allow, deny, audit or block, got %s", f.repr())
		return true
	}
	*into = a
	return true
}

func (r *documentReader) str(n *node, field, name string, into *string) {
	f, ok := present(n, name)
	if !ok {
		return
	}
	if f.kind != nodeString {
		r.wrongType(f, join(field, name), "a string")
		return
	}
	*into = f.text
}

func (r *documentReader) boolean(n *node, field, name string, into *bool) {
	f, ok := present(n, name)
	if !ok {
		return
	}
	if f.kind != nodeBool {
		r.wrongType(f, join(field, name), "true or false")
		return
	}
	*into = strings.EqualFold(f.text, "true")
}

func (r *documentReader) required(n *node, field, name string) {
	if _, ok := present(n, name); !ok {
		r.add(n.line, join(field, name), "%s is missing", name)
	}
}

func (r *documentReader) wrongType(f *node, field, want string) {
	r.add(f.line, field, "%s must be %s, got %s: %s", field, want, f.typeName(), f.repr())
}

func (r *documentReader) unknownFields(n *node, field string, known []string) {
	for _, k := range n.keys {
		if slices.Contains(known, k.text) {
			continue
		}
		r.unknown = append(r.unknown, Problem{
			Path: r.path, Line: k.line, Field: join(field, k.text),
			Message: fmt.Sprintf("unknown field, ignored; known are %s", strings.Join(known, ", ")),
		})
	}
}

// versionText accepts a number as well, as its source text: authors of
// documents write 1.0.
func versionText(f *node) (string, bool) {
	switch f.kind {
	case nodeString, nodeInt, nodeFloat:
		return f.text, f.text != ""
	}
	return "", false
}
