package composition

import (
	"errors"
	"maps"
	"path"
	"slices"
	"strings"
	"sync/atomic"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/value"
)

// Documents are those of a tree and how they go together: which of
// them count for a call, and which of their rules decides it.
type Documents struct {
	Flat    []*document.Document // in load order
	Folders map[string]*folder   // by directory, "." for the root
	Rules   []*document.Rule     // numbered: files by path, rules as written

	Strict     bool
	Resolver   *Resolver // nil without combining
	Governance *governance.Policy

	FlatSet   *Ruleset
	pathless  *Ruleset // of calls without a path, in strict mode and with folders; else nil
	deepest   int      // segments of the deepest folder
	compiled  map[*document.Rule]*matching.Rule
	keptRules atomic.Int64
}

// A Ruleset is what holds for a call: rules, and what follows when none of them
// matches. It is immutable and shared by evaluations.
type Ruleset struct {
	*matching.List
	Docs      []*document.Document // flat: in load order; scoped: root first
	Chain     []string             // names of docs; scoped only
	Scoped    bool
	Def       document.Action
	DefPolicy string // whose default it is
	// Confidence is what a call must at least have, by the same defaults.
	Confidence float64
	Denials    []*matching.List // what denies or asks whatever rules say; strict mode only
	trace      []string         // how a chain came to be
}

// New links documents, which come in the order of their paths. Governance
// files hold for their folders, one for each; all others make the flat list.
func New(documents []*document.Document, g *governance.Policy, strict bool, resolver *Resolver) *Documents {
	c := &Documents{Strict: strict, Resolver: resolver, Governance: g, compiled: map[*document.Rule]*matching.Rule{}}
	fields := matching.Fields{}
	inFolders := map[string]*document.Document{}
	for _, d := range documents {
		if IsGovernanceFile(d.Path) {
			inFolders[path.Dir(d.Path)] = d
		}
		for _, r := range d.Rules {
			r.Number = uint16(len(c.Rules))
			c.Rules = append(c.Rules, r)
			c.compiled[r] = matching.Compile(r, fields, strict)
		}
	}
	c.linkFlat(documents)
	c.Folders = newFolders(inFolders, strict)
	for dir := range c.Folders {
		c.deepest = max(c.deepest, depthOf(dir))
	}
	c.linkPathless()
	return c
}

// All lists all in the order of their paths.
func (c *Documents) All() []*document.Document {
	docs := slices.Clone(c.Flat)
	for _, f := range c.Folders {
		docs = append(docs, f.Doc)
	}
	slices.SortFunc(docs, func(a, b *document.Document) int { return strings.Compare(a.Path, b.Path) })
	return docs
}

// Name is the name in the GovernancePolicy, else in the first document of the
// flat list, else in the governance file nearest to the root.
func (c *Documents) Name() string {
	switch {
	case c.Governance.Governed():
		return c.Governance.Name
	case len(c.Flat) > 0:
		return c.Flat[0].Name
	}
	dirs := slices.Sorted(maps.Keys(c.Folders))
	if len(dirs) == 0 {
		return c.Governance.Name
	}
	nearest := slices.MinFunc(dirs, func(a, b string) int { return depthOf(a) - depthOf(b) })
	return c.Folders[nearest].Doc.Name
}

// IsGovernanceFile reports whether a file holds for its folder.
func IsGovernanceFile(p string) bool {
	base := path.Base(p)
	return base == "governance.yaml" || base == "governance.yml"
}

// linkFlat orders the flat list: *.yaml by path, then *.yml, then *.json. The
// order decides ties and whose default holds (policy engine spec 7.3).
func (c *Documents) linkFlat(documents []*document.Document) {
	for _, ext := range []string{".yaml", ".yml", ".json"} {
		for _, d := range documents {
			if path.Ext(d.Path) == ext && !IsGovernanceFile(d.Path) {
				c.Flat = append(c.Flat, d)
			}
		}
	}
	var rules []*matching.Rule
	for _, d := range c.Flat {
		rules = append(rules, c.compiledOf(d.Rules)...)
	}
	c.FlatSet = &Ruleset{
		List: matching.NewList(rules), Docs: c.Flat,
		Def: document.Allow, DefPolicy: c.Governance.Name, Confidence: c.threshold(nil),
	}
	if len(c.Flat) > 0 {
		c.FlatSet.Confidence = c.threshold(c.Flat[0])
		c.FlatSet.Def, c.FlatSet.DefPolicy = c.Flat[0].Defaults.Action, c.Flat[0].Name
	}
	if c.Strict {
		c.tighten(c.FlatSet, c.Flat)
		c.withDenials(c.FlatSet, c.Flat, nil)
	}
}

// SelectFor finds the documents that apply to the call (policy engine spec
// 7.2) in a tree with governance files. One without them has no root, and a
// path in the context is a field like any other.
func (c *Documents) SelectFor(e matching.Evaluation) (*Ruleset, error) {
	if len(c.Folders) == 0 {
		return c.FlatSet, nil
	}
	clean, given := ".", false
	e.Chain = nil
	if v, ok := e.In.Context.Get("path"); ok && v.Kind() != value.Null {
		raw, isString := v.AsString()
		e.Chain = []string{} // a refusal is scoped as well (17.1)
		if !isString {
			return nil, errPathType
		}
		given = true
		if clean, ok = cleanPath(raw); !ok {
			return nil, ErrPathEscape
		}
	}
	switch {
	case !given && c.pathless != nil:
		if e.In.Explain {
			e.Explain("no path is given: in strict mode the denies of every folder stand")
		}
		return c.pathless, nil
	case !given && len(c.Flat) > 0:
		return c.FlatSet, nil
	}
	if f := c.findFolder(clean); f != nil {
		if set := c.chainFor(f, clean); set != nil {
			if e.In.Explain {
				e.Explain("path %s: the documents %s apply, root first", value.Quote(clean), strings.Join(set.Chain, ", "))
				e.Trace = append(e.Trace, set.trace...)
			}
			return set, nil
		}
	}
	if e.In.Explain {
		e.Explain("path %s: no governance file applies, the flat list holds", value.Quote(clean))
	}
	return c.FlatSet, nil
}

// Why no documents are selected.
var (
	errPathType   = errors.New("context.path must be a string")
	ErrPathEscape = errors.New("path outside governance root")
)

// Decide picks the rule that decides, or none. Where asks is not nil, it turns
// what would be allowed into a question, whatever allows it.
func (c *Documents) Decide(set *Ruleset, e matching.Evaluation) (rule, asks *matching.Rule, err error) {
	stands, err := set.standing(e)
	if err != nil {
		return stands, nil, err
	}
	if stands != nil && stands.Action.Denies() {
		if e.In.Explain {
			e.Explain("rule '%s' of %s denies: %s, which in strict mode nothing overrules", stands.Name, stands.Doc.Path, stands.Action)
		}
		return stands, nil, nil
	}
	if stands != nil && e.In.Explain {
		e.Explain("rule '%s' of %s asks, which in strict mode no allow overrules", stands.Name, stands.Doc.Path)
	}
	rule, err = c.choose(set, e)
	return rule, stands, err
}

// choose picks a rule of the list that holds for the call.
func (c *Documents) choose(set *Ruleset, e matching.Evaluation) (*matching.Rule, error) {
	if c.Resolver != nil {
		return c.combine(set, e)
	}
	rule, err := set.Decide(e)
	if e.In.Explain && err == nil {
		if rule == nil {
			e.Explain("none of %d rules matches", len(set.Rules))
		} else {
			e.Explain("rule '%s' of %s matches: %s (priority %d)", rule.Name, rule.Doc.Path, rule.Action, rule.Priority)
		}
	}
	return rule, err
}

// combine lets each document name its decision and resolves between them
// (policy engine spec 13). Under DENY_OVERRIDES a document's first deny stands
// beside its first match, so that a deny also overrides inside one document; so do
// its asks. Whatever asks in the end, a deny of any document wins.
func (c *Documents) combine(set *Ruleset, e matching.Evaluation) (*matching.Rule, error) {
	var candidates []Candidate
	var rules []*matching.Rule
	for _, doc := range set.Docs {
		matched, denied := false, c.Resolver.Strategy != document.DenyOverrides
		for _, r := range set.Rules {
			if r.Doc != doc || (matched && (denied || r.Action.Allows())) {
				continue
			}
			hit, err := r.Matches(e)
			if err != nil {
				return r, err
			}
			if !hit {
				continue
			}
			matched = true
			denied = denied || r.Action.Denies()
			rules = append(rules, r)
			candidates = append(candidates, Candidate{
				Action: r.Action, Priority: r.Priority, Level: doc.Level, Rule: r.Name,
			})
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	res, err := c.Resolver.Resolve(candidates)
	if err != nil {
		return nil, err
	}
	if e.In.Explain {
		e.Trace = append(e.Trace, res.Trace...)
	}
	return set.OrDenial(e, rules[res.Index])
}

// threshold is the confidence that calls need under the defaults of a document:
// its own where it states one and there is no GovernancePolicy, else the
// stricter of both.
func (c *Documents) threshold(d *document.Document) float64 {
	switch {
	case d == nil || c.Governance.Governed() && !d.Defaults.Stated.Confidence:
		return c.Governance.ConfidenceThreshold
	case c.Governance.Governed():
		return max(c.Governance.ConfidenceThreshold, d.Defaults.ConfidenceThreshold)
	}
	return d.Defaults.ConfidenceThreshold
}

func depthOf(dir string) int {
	if dir == "." {
		return 0
	}
	return strings.Count(dir, "/") + 1
}

// compiledOf returns rules as they are evaluated.
func (c *Documents) compiledOf(rules []*document.Rule) []*matching.Rule {
	out := make([]*matching.Rule, len(rules))
	for i, r := range rules {
		out[i] = c.compiled[r]
	}
	return out
}
