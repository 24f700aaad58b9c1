package engine

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

// A composition is the documents of a tree and how they go together: which of
// them count for a call, and which of their rules decides it.
type composition struct {
	flat    []*document.Document // in load order
	folders map[string]*folder   // by directory, "." for the root
	rules   []*document.Rule     // numbered: files by path, rules as written

	strict     bool
	resolver   *Resolver // nil without combining
	governance *governance.Policy

	flatSet   *ruleset
	pathless  *ruleset // of calls without a path, in strict mode and with folders; else nil
	deepest   int      // segments of the deepest folder
	compiled  map[*document.Rule]*matching.Rule
	keptRules atomic.Int64
}

// A ruleset is what holds for a call: rules, and what follows when none of them
// matches. It is immutable and shared by evaluations.
type ruleset struct {
	*matching.List
	docs      []*document.Document // flat: in load order; scoped: root first
	chain     []string             // names of docs; scoped only
	scoped    bool
	def       document.Action
	defPolicy string // whose default it is
	// confidence is what a call must at least have, by the same defaults.
	confidence float64
	denials    []*matching.List // what denies whatever rules say; strict mode only
	trace      []string         // how a chain came to be
}

// compose links documents, which come in the order of their paths. Governance
// files hold for their folders, one for each; all others make the flat list.
func compose(documents []*document.Document, g *governance.Policy, strict bool, resolver *Resolver) *composition {
	c := &composition{strict: strict, resolver: resolver, governance: g, compiled: map[*document.Rule]*matching.Rule{}}
	fields := matching.Fields{}
	inFolders := map[string]*document.Document{}
	for _, d := range documents {
		if isGovernanceFile(d.Path) {
			inFolders[path.Dir(d.Path)] = d
		}
		for _, r := range d.Rules {
			r.Number = uint16(len(c.rules))
			c.rules = append(c.rules, r)
			c.compiled[r] = matching.Compile(r, fields, strict)
		}
	}
	c.linkFlat(documents)
	c.folders = newFolders(inFolders, strict)
	for dir := range c.folders {
		c.deepest = max(c.deepest, depthOf(dir))
	}
	c.linkPathless()
	return c
}

// documents lists all in the order of their paths.
func (c *composition) documents() []*document.Document {
	docs := slices.Clone(c.flat)
	for _, f := range c.folders {
		docs = append(docs, f.doc)
	}
	slices.SortFunc(docs, func(a, b *document.Document) int { return strings.Compare(a.Path, b.Path) })
	return docs
}

// name is the name in the GovernancePolicy, else in the first document of the
// flat list, else in the governance file nearest to the root.
func (c *composition) name() string {
	switch {
	case c.governance.Governed():
		return c.governance.Name
	case len(c.flat) > 0:
		return c.flat[0].Name
	}
	dirs := slices.Sorted(maps.Keys(c.folders))
	if len(dirs) == 0 {
		return c.governance.Name
	}
	nearest := slices.MinFunc(dirs, func(a, b string) int { return depthOf(a) - depthOf(b) })
	return c.folders[nearest].doc.Name
}

func isGovernanceFile(p string) bool {
	base := path.Base(p)
	return base == "governance.yaml" || base == "governance.yml"
}

// linkFlat orders the flat list: *.yaml by path, then *.yml, then *.json. The
// order decides ties and whose default holds (policy engine spec 7.3).
func (c *composition) linkFlat(documents []*document.Document) {
	for _, ext := range []string{".yaml", ".yml", ".json"} {
		for _, d := range documents {
			if path.Ext(d.Path) == ext && !isGovernanceFile(d.Path) {
				c.flat = append(c.flat, d)
			}
		}
	}
	var rules []*matching.Rule
	for _, d := range c.flat {
		rules = append(rules, c.compiledOf(d.Rules)...)
	}
	c.flatSet = &ruleset{
		List: matching.NewList(rules), docs: c.flat,
		def: document.Allow, defPolicy: c.governance.Name, confidence: c.threshold(nil),
	}
	if len(c.flat) > 0 {
		c.flatSet.confidence = c.threshold(c.flat[0])
		c.flatSet.def, c.flatSet.defPolicy = c.flat[0].Defaults.Action, c.flat[0].Name
	}
	if c.strict {
		c.tighten(c.flatSet, c.flat)
		c.withDenials(c.flatSet, c.flat, nil)
	}
}

// selectFor finds the documents that apply to the call (policy engine spec
// 7.2) in a tree with governance files. One without them has no root, and a
// path in the context is a field like any other.
func (c *composition) selectFor(e matching.Evaluation) (*ruleset, error) {
	if len(c.folders) == 0 {
		return c.flatSet, nil
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
			return nil, errPathEscape
		}
	}
	switch {
	case !given && c.pathless != nil:
		if e.In.Explain {
			e.Explain("no path is given: in strict mode the denies of every folder stand")
		}
		return c.pathless, nil
	case !given && len(c.flat) > 0:
		return c.flatSet, nil
	}
	if f := c.findFolder(clean); f != nil {
		if set := c.chainFor(f, clean); set != nil {
			if e.In.Explain {
				e.Explain("path %s: the documents %s apply, root first", value.Quote(clean), strings.Join(set.chain, ", "))
				e.Trace = append(e.Trace, set.trace...)
			}
			return set, nil
		}
	}
	if e.In.Explain {
		e.Explain("path %s: no governance file applies, the flat list holds", value.Quote(clean))
	}
	return c.flatSet, nil
}

// Why no documents are selected.
var (
	errPathType   = errors.New("context.path must be a string")
	errPathEscape = errors.New("path outside governance root")
)

// decide picks the rule that decides, or none.
func (c *composition) decide(set *ruleset, e matching.Evaluation) (*matching.Rule, error) {
	if rule, err := set.denial(e); rule != nil || err != nil {
		if e.In.Explain && err == nil {
			e.Explain("rule '%s' of %s denies: %s, which in strict mode nothing overrules", rule.Name, rule.Doc.Path, rule.Action)
		}
		return rule, err
	}
	if c.resolver != nil {
		return c.combine(set, e)
	}
	rule, err := set.First(e)
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
// beside its first match, so that a deny also overrides inside one document.
func (c *composition) combine(set *ruleset, e matching.Evaluation) (*matching.Rule, error) {
	var candidates []Candidate
	var rules []*matching.Rule
	for _, doc := range set.docs {
		matched, denied := false, c.resolver.Strategy != document.DenyOverrides
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
				Action: r.Action, Priority: r.Priority, Level: doc.Level,
				Policy: doc.Name, Rule: r.Name, Reason: r.Reason,
			})
		}
	}
	if len(candidates) == 0 {
		return nil, nil
	}
	res, err := c.resolver.Resolve(candidates)
	if err != nil {
		return nil, err
	}
	if e.In.Explain {
		e.Trace = append(e.Trace, res.Trace...)
	}
	return rules[res.Index], nil
}

// threshold is the confidence that calls need under the defaults of a document:
// its own where it states one and there is no GovernancePolicy, else the
// stricter of both.
func (c *composition) threshold(d *document.Document) float64 {
	switch {
	case d == nil || c.governance.Governed() && !d.Defaults.Stated.Confidence:
		return c.governance.ConfidenceThreshold
	case c.governance.Governed():
		return max(c.governance.ConfidenceThreshold, d.Defaults.ConfidenceThreshold)
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
func (c *composition) compiledOf(rules []*document.Rule) []*matching.Rule {
	out := make([]*matching.Rule, len(rules))
	for i, r := range rules {
		out[i] = c.compiled[r]
	}
	return out
}
