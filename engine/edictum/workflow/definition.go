package workflow

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
)

// A Definition is a workflow that is read and ready to judge. It does not change.
type Definition struct {
	Name, Version, Description string
	Stages                     []Stage

	digest  string          // of the raw bytes, hexadecimal
	results map[string]bool // tools at whose results a gate looks
}

// Digest is the SHA-256 of the raw bytes.
func (d *Definition) Digest() string { return d.digest }

// A Stage is one step.
type Stage struct {
	ID, Description string
	Entry           []Gate   // before it can be entered
	Tools           []string // patterns; none is all of them
	Checks          []Check
	Exit            []Gate // before it is left
	// Approval is what people are asked before the stage is left; empty where they are
	// not.
	Approval string
	Terminal bool // nothing follows: behind its exit no call is taken any more

	tools []pattern.Name
}

// A Check is a condition on the command of each call in a stage.
type Check struct {
	Expr    string
	Not     bool // the command must not match
	Message string

	search *pattern.Searcher
}

// A Gate is a condition on what was done so far.
type Gate struct {
	Condition string
	Message   string

	met condition
}

// Bounds of a file.
const (
	mostStages = 100
	mostOfEach = 100 // gates, checks and tools of a stage
)

var nameForm = regexp.MustCompile(`^[a-z0-9][a-z0-9._-]*$`)

// IsWorkflow reports whether a file of Edictum is a workflow.
func IsWorkflow(n *source.Node) bool {
	kind, _ := n.Get("kind")
	return kind != nil && kind.Text == "Workflow"
}

// Parse reads a workflow. The error is a *[edictum.Problem].
func Parse(raw []byte) (*Definition, error) {
	if len(raw) > edictum.MaxBytes {
		return nil, &edictum.Problem{Message: fmt.Sprintf("workflow: the file has %d bytes, the most is %d", len(raw), edictum.MaxBytes)}
	}
	node, problems := source.Parse("workflow.yaml", raw)
	if len(problems) > 0 {
		p := problems[0]
		return nil, &edictum.Problem{Field: p.Field, Line: p.Line, Message: "workflow: " + p.Message}
	}
	if node == nil || node.Kind != source.Map {
		return nil, &edictum.Problem{Message: "workflow: the document must be a mapping"}
	}
	sum := sha256.Sum256(raw)
	r := &reader{d: &Definition{digest: hex.EncodeToString(sum[:]), results: map[string]bool{}}}
	r.document(node)
	if r.err != nil {
		return nil, r.err
	}
	return r.d, nil
}

// A reader reads one file and keeps its first problem.
type reader struct {
	d     *Definition
	stage string
	err   *edictum.Problem

	searches pattern.Searches
}

func (r *reader) refuse(n *source.Node, field, format string, args ...any) {
	if r.err != nil {
		return
	}
	r.err = &edictum.Problem{Rule: r.stage, Field: field, Message: "workflow: " + field + ": " + fmt.Sprintf(format, args...)}
	if n != nil {
		r.err.Line = n.Line
	}
}

// fields reads a mapping whose keys are known.
func (r *reader) fields(n *source.Node, field string, known map[string]func(*source.Node, string)) {
	if n.Kind != source.Map {
		r.refuse(n, field, "must be a mapping, got %s", n.Repr())
		return
	}
	for i := range n.Keys {
		key := n.Keys[i].Text
		read, ok := known[key]
		if !ok {
			r.refuse(&n.Items[i], source.Join(field, key), "is not known here")
			return
		}
		read(&n.Items[i], source.Join(field, key))
	}
}

// text reads a text that may be empty.
func (r *reader) text(to *string) func(*source.Node, string) {
	return func(n *source.Node, field string) {
		if n.Ambiguous() || n.Kind != source.String {
			r.refuse(n, field, "must be a text, got %s; put it in quotes", n.Repr())
			return
		}
		*to = n.Text
	}
}

func (r *reader) flag(to *bool) func(*source.Node, string) {
	return func(n *source.Node, field string) {
		if n.Kind != source.Bool {
			r.refuse(n, field, "must be true or false, got %s", n.Repr())
			return
		}
		*to = strings.EqualFold(n.Text, "true")
	}
}

// list reads the items of a list.
func (r *reader) list(most int, item func(*source.Node, string)) func(*source.Node, string) {
	return func(n *source.Node, field string) {
		if n.Kind != source.List || len(n.Items) > most {
			r.refuse(n, field, "must be a list of at most %d items, got %s", most, n.TypeName())
			return
		}
		for i := range n.Items {
			item(&n.Items[i], fmt.Sprintf("%s[%d]", field, i))
		}
	}
}

func (r *reader) document(n *source.Node) {
	var api, kind string
	r.fields(n, "", map[string]func(*source.Node, string){
		"apiVersion": r.text(&api), "kind": r.text(&kind),
		"metadata": func(n *source.Node, field string) {
			r.fields(n, field, map[string]func(*source.Node, string){
				"name": r.text(&r.d.Name), "version": r.text(&r.d.Version), "description": r.text(&r.d.Description),
			})
		},
		"stages": r.list(mostStages, r.readStage),
	})
	switch {
	case api != "edictum/v1":
		r.refuse(n, "apiVersion", "must be edictum/v1")
	case kind != "Workflow":
		r.refuse(n, "kind", "must be Workflow")
	case !nameForm.MatchString(r.d.Name):
		r.refuse(n, "metadata.name", "must match %s", nameForm)
	case len(r.d.Stages) == 0:
		r.refuse(n, "stages", "must hold one stage or more")
	}
}

func (r *reader) readStage(n *source.Node, field string) {
	s := Stage{}
	if id, ok := n.Get("id"); ok && n.Kind == source.Map {
		r.stage = id.Text
	}
	r.fields(n, field, map[string]func(*source.Node, string){
		"id": r.text(&s.ID), "description": r.text(&s.Description), "terminal": r.flag(&s.Terminal),
		"entry": r.list(mostOfEach, r.gate(&s.Entry)), "exit": r.list(mostOfEach, r.gate(&s.Exit)),
		"tools": r.list(mostOfEach, func(n *source.Node, field string) {
			var tool string
			if r.text(&tool)(n, field); r.err == nil && tool == "" {
				r.refuse(n, field, "must not be empty")
			}
			s.Tools, s.tools = append(s.Tools, tool), append(s.tools, pattern.Names(tool))
		}),
		"checks": r.list(mostOfEach, func(n *source.Node, field string) { s.Checks = append(s.Checks, r.check(n, field)) }),
		"approval": func(n *source.Node, field string) {
			r.fields(n, field, map[string]func(*source.Node, string){"message": r.text(&s.Approval)})
			if s.Approval == "" {
				r.refuse(n, field+".message", "is required")
			}
		},
	})
	switch {
	case !nameForm.MatchString(s.ID):
		r.refuse(n, field+".id", "must match %s", nameForm)
	case r.d.stage(s.ID) >= 0:
		r.refuse(n, field+".id", "%q stands twice", s.ID)
	}
	r.d.Stages = append(r.d.Stages, s)
	r.stage = ""
}

func (r *reader) gate(to *[]Gate) func(*source.Node, string) {
	return func(n *source.Node, field string) {
		var g Gate
		r.fields(n, field, map[string]func(*source.Node, string){"condition": r.text(&g.Condition), "message": r.text(&g.Message)})
		var err error
		var tool string
		if g.met, tool, err = conditionOf(g.Condition, &r.searches); err != nil {
			r.refuse(n, field+".condition", "%v", err)
		}
		r.d.results[tool] = tool != ""
		*to = append(*to, g)
	}
}

func (r *reader) check(n *source.Node, field string) (c Check) {
	var is, not string
	r.fields(n, field, map[string]func(*source.Node, string){
		"command_matches": r.text(&is), "command_not_matches": r.text(&not), "message": r.text(&c.Message),
	})
	switch {
	case (is == "") == (not == ""):
		r.refuse(n, field, "must have either command_matches or command_not_matches")
	case c.Message == "":
		r.refuse(n, field+".message", "is required")
	}
	c.Expr, c.Not = is+not, not != ""
	var err error
	if c.search, err = r.searches.Compile(c.Expr); err != nil {
		r.refuse(n, field, "invalid expression %q: %v", c.Expr, err)
	}
	return c
}

// stage is the place of a stage; -1 if there is none of that id.
func (d *Definition) stage(id string) int {
	return slices.IndexFunc(d.Stages, func(s Stage) bool { return s.ID == id })
}

// Has reports whether there is a stage.
func (d *Definition) Has(stage string) bool { return d.stage(stage) >= 0 }

// wild reports whether a pattern among the tools is for more than one.
func (s *Stage) wild() bool {
	return slices.ContainsFunc(s.Tools, func(t string) bool { return strings.ContainsAny(t, "*?[") })
}
