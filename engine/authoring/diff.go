package authoring

import (
	"bytes"
	"fmt"
	"slices"
	"strings"

	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A Difference is one thing in which two policies differ and that may change a
// decision, or the text of one. Old or New is empty where there is none.
type Difference struct {
	Path  string // of the file; empty for what concerns the whole tree
	What  string // a field, a rule, or the file itself
	Old   string
	New   string
	Added bool // there was none before; Removed: there is none now
	// Removed and Added are both false for what has changed.
	Removed bool
}

// Diff lists in what two policies differ: settings of the tree, fields
// of the GovernancePolicy, documents with their fields and rules, files of other
// languages. Two trees of one document each are compared whatever their files
// are called.
func Diff(a, b Subject) []Difference {
	d := &differ{}
	for _, of := range [][2]string{
		{"mode", "standard"}, {"combining", "first match by priority"}, {"tie_break", "first"}, {"on_backend_error", "deny"},
	} {
		d.field("", of[0], a.setting(of[0], of[1]), b.setting(of[0], of[1]))
	}
	d.governance(a, b)
	d.documents(a, b)
	d.files(a, b)
	return d.list
}

// A Subject is what is compared of a policy.
type Subject struct {
	Docs        *composition.Documents
	DenyOnError bool          // when all backends failed
	External    []source.File // of the languages of backends
}

type differ struct{ list []Difference }

func (d *differ) field(path, what, was, now string) {
	if was != now {
		d.list = append(d.list, Difference{Path: path, What: what, Old: was, New: now})
	}
}

// setting is what holds for the whole tree.
func (p Subject) setting(name, usual string) string {
	switch {
	case name == "mode" && p.Docs.Strict:
		return "strict"
	case name == "combining" && p.Docs.Resolver != nil:
		return strings.ToLower(string(p.Docs.Resolver.Strategy))
	case name == "tie_break" && p.Docs.Resolver != nil && p.Docs.Resolver.TieBreakDeny:
		return "deny"
	case name == "on_backend_error" && !p.DenyOnError:
		return "default"
	}
	return usual
}

func (d *differ) governance(a, b Subject) {
	switch {
	case !a.Docs.Governance.Governed() && b.Docs.Governance.Governed():
		d.list = append(d.list, Difference{Path: b.Docs.Governance.Path, What: "the GovernancePolicy", Added: true})
	case a.Docs.Governance.Governed() && !b.Docs.Governance.Governed():
		d.list = append(d.list, Difference{Path: a.Docs.Governance.Path, What: "the GovernancePolicy", Removed: true})
	}
	for _, c := range a.Docs.Governance.Diff(b.Docs.Governance) {
		d.field("", c.Field, c.Old.Repr(), c.New.Repr())
	}
}

// documents compares documents by their paths, or where there is but one each.
func (d *differ) documents(a, b Subject) {
	was, now := a.Docs.All(), b.Docs.All()
	if len(was) == 1 && len(now) == 1 {
		d.document("", was[0], now[0])
		return
	}
	at := func(docs []*document.Document, path string) *document.Document {
		if i := slices.IndexFunc(docs, func(doc *document.Document) bool { return doc.Path == path }); i >= 0 {
			return docs[i]
		}
		return nil
	}
	for _, doc := range now {
		if old := at(was, doc.Path); old != nil {
			d.document(doc.Path, old, doc)
			continue
		}
		d.list = append(d.list, Difference{Path: doc.Path, What: "the document", New: doc.Name, Added: true})
		d.document(doc.Path, document.New(doc.Path), doc)
	}
	for _, doc := range was {
		if at(now, doc.Path) == nil {
			d.list = append(d.list, Difference{Path: doc.Path, What: "the document", Old: doc.Name, Removed: true})
			d.document(doc.Path, doc, document.New(doc.Path))
		}
	}
	names := func(docs []*document.Document) (paths []string) {
		for _, doc := range docs {
			paths = append(paths, doc.Path)
		}
		return paths
	}
	d.field("", "order of the flat list", strings.Join(names(a.Docs.Flat), ", "), strings.Join(names(b.Docs.Flat), ", "))
}

func (d *differ) document(path string, was, now *document.Document) {
	texts := func(doc *document.Document) [][2]string {
		scope, def := "none", doc.Defaults
		if doc.Scope != nil {
			scope = value.Quote(*doc.Scope)
		}
		stated := func(stated bool, of any) string {
			if !stated {
				return "not stated"
			}
			return fmt.Sprint(of)
		}
		holds := "every call, in the flat list"
		if composition.IsGovernanceFile(doc.Path) {
			holds = "its folder and those below"
		}
		return [][2]string{
			{"holds for", holds}, {"name", doc.Name}, {"version", doc.Version}, {"description", doc.Description},
			{"inherit", fmt.Sprint(doc.Inherit)}, {"scope", scope}, {"level", string(doc.Level)}, {"allow_cutoff", fmt.Sprint(doc.AllowCutoff)},
			{"defaults.action", string(def.Action)},
			{"defaults.max_tokens", stated(def.Stated.MaxTokens, def.MaxTokens)},
			{"defaults.max_tool_calls", stated(def.Stated.MaxToolCalls, def.MaxToolCalls)},
			{"defaults.confidence_threshold", stated(def.Stated.Confidence, def.ConfidenceThreshold)},
		}
	}
	before := texts(was)
	for i, f := range texts(now) {
		d.field(path, f[0], before[i][1], f[1])
	}
	d.rules(path, was.Rules, now.Rules)
}

// rules compares rules by their names. Their order counts too: it decides
// between equal priorities.
func (d *differ) rules(path string, was, now []*document.Rule) {
	named := func(rules []*document.Rule, name string) *document.Rule {
		if i := slices.IndexFunc(rules, func(r *document.Rule) bool { return r.Name == name }); i >= 0 {
			return rules[i]
		}
		return nil
	}
	var common, before []string
	for _, r := range now {
		what := "rule " + r.Name
		if old := named(was, r.Name); old != nil {
			common = append(common, r.Name)
			d.field(path, what, ruleText(old), ruleText(r))
			continue
		}
		d.list = append(d.list, Difference{Path: path, What: what, New: ruleText(r), Added: true})
	}
	for _, r := range was {
		if named(now, r.Name) == nil {
			d.list = append(d.list, Difference{Path: path, What: "rule " + r.Name, Old: ruleText(r), Removed: true})
			continue
		}
		before = append(before, r.Name)
	}
	d.field(path, "order of the rules", strings.Join(before, ", "), strings.Join(common, ", "))
}

// ruleText is all that a rule says.
func ruleText(r *document.Rule) string {
	return fmt.Sprintf("if %s %s %s then %s, priority %d, override %t, message %s",
		r.Condition.Field, r.Condition.Operator, r.Condition.Value.Repr(), r.Action, r.Priority, r.Override, value.Quote(r.Message))
}

// files compares what is judged by other languages, byte by byte.
func (d *differ) files(a, b Subject) {
	for _, f := range b.External {
		i := slices.IndexFunc(a.External, func(o source.File) bool { return o.Path == f.Path })
		switch {
		case i < 0:
			d.list = append(d.list, Difference{Path: f.Path, What: "the file", New: sizeText(f), Added: true})
		case !bytes.Equal(a.External[i].Content, f.Content):
			was, now := changedLines(a.External[i].Content, f.Content)
			d.list = append(d.list, Difference{Path: f.Path, What: "the file", Old: was, New: now})
		}
	}
	for _, f := range a.External {
		if !slices.ContainsFunc(b.External, func(o source.File) bool { return o.Path == f.Path }) {
			d.list = append(d.list, Difference{Path: f.Path, What: "the file", Old: sizeText(f), Removed: true})
		}
	}
}

func sizeText(f source.File) string { return fmt.Sprintf("%d bytes", len(f.Content)) }

// changedLines are the lines between what two texts have in common at their
// beginnings and their ends.
func changedLines(a, b []byte) (was, now string) {
	x, y := strings.Split(string(a), "\n"), strings.Split(string(b), "\n")
	from := 0
	for from < len(x) && from < len(y) && x[from] == y[from] {
		from++
	}
	for len(x) > from && len(y) > from && x[len(x)-1] == y[len(y)-1] {
		x, y = x[:len(x)-1], y[:len(y)-1]
	}
	show := func(lines []string) string {
		return fmt.Sprintf("from line %d: %s", from+1, strings.Join(lines[from:], "\n"))
	}
	return show(x), show(y)
}
