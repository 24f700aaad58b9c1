package engine

import (
	"fmt"
	"log/slog"
	"maps"
	"path"
	"slices"
	"strings"
	"time"

	"example.com/govnode/engine/composition"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// A Policy is a compiled tree. It is immutable and evaluated without locks.
type Policy struct {
	digest     source.Digest
	digestText string
	governance *governance.Policy // never nil
	limits     Limits
	unchecked  bool // the GovernancePolicy denies nothing but a low confidence

	docs     *composition.Documents
	answers  []Decision           // of the rules of the flat list, then of its default; nil where decideDirectly does not decide
	directly *matching.List       // these rules
	asking   *governance.Approval // how it asks, where it does

	denyOnError bool // when all backends failed
	backends    []loadedBackend
	external    []source.File // of the languages of backends
	hashes      *hashTable    // nil without content hashes
	guardrails  *external.GuardrailChain
	ruleset     *edictum.Ruleset // nil without one
	rulesetDoc  *edictum.Document
	workflow    *workflow.Definition // nil without one
	sensitive   *edictum.Sensitive   // nil where reads of secrets are not looked for
	spellings   spellings            // of tools
	warnings    []source.Problem
	budget      time.Duration
	ceiling     time.Duration // of an evaluation without backends
	log         *slog.Logger
	missing     bool // nothing of it is there: see Missing
}

// Missing stands for a policy of which there is nothing but its digest. It denies every
// call.
func Missing(d source.Digest) *Policy {
	g := governance.Default()
	return &Policy{digest: d, digestText: d.String(), governance: g, docs: composition.New(nil, g, true, nil), log: slog.Default(), missing: true}
}

// Missing reports whether the policy is one of which nothing is there.
func (p *Policy) Missing() bool { return p.missing }

// Compile checks every file of a tree and builds its policy. A tree with one
// bad file is refused whole; the error is a [*LoadError].
func Compile(t *source.Tree, opts ...Option) (*Policy, error) {
	o := options{budget: external.DefaultBudget, ceiling: DefaultCeiling, log: slog.Default()}
	for _, opt := range opts {
		opt(&o)
	}
	c := &compiler{
		options: o,
		policy: &Policy{
			digest: t.Digest(), digestText: t.Digest().String(), governance: governance.Default(),
			denyOnError: true, budget: o.budget, ceiling: o.ceiling, log: o.log,
		},
	}
	c.sortFiles(t.Files())
	c.checkSettings()
	c.checkCaps()
	if len(c.problems) == 0 {
		c.link()
	}
	if len(c.problems) > 0 {
		return nil, &source.LoadError{Problems: c.problems}
	}
	return c.policy, nil
}

// compiler gathers the files of a tree by what they are.
type compiler struct {
	options
	policy   *Policy
	problems []source.Problem
	unknown  []source.Problem // unknown fields

	documents  []*document.Document  // all, by path
	resolver   *composition.Resolver // nil without combining
	settings   []fileSettings
	searches   pattern.Searches
	cedarFiles []source.File
	regoFiles  []source.File
	rulesets   []*edictum.Document
}

type fileSettings struct {
	path string
	document.Settings
}

func (c *compiler) addf(path string, line int, field, format string, args ...any) {
	c.problems = append(c.problems, source.Problem{Path: path, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

func (c *compiler) warnf(path string, line int, field, format string, args ...any) {
	c.policy.warnings = append(c.policy.warnings, source.Problem{Path: path, Line: line, Field: field, Message: fmt.Sprintf(format, args...)})
}

// sortFiles decides by name and content what each file is.
func (c *compiler) sortFiles(files []source.File) {
	has := func(ext string) bool {
		return slices.ContainsFunc(files, func(f source.File) bool { return path.Ext(f.Path) == ext })
	}
	cedar, rego := has(".cedar"), has(".rego")
	for _, f := range files {
		switch base := path.Base(f.Path); {
		case path.Ext(base) == ".cedar", cedar && base == "entities.json":
			c.cedarFiles = append(c.cedarFiles, f)
		case path.Ext(base) == ".rego", rego && base == "data.json":
			c.regoFiles = append(c.regoFiles, f)
		case path.Ext(base) == ".yaml", path.Ext(base) == ".yml", path.Ext(base) == ".json":
			c.load(f)
		default:
			c.addf(f.Path, 0, "", "a policy tree holds .yaml, .yml, .json, .cedar and .rego files; remove this one")
		}
	}
}

func (c *compiler) load(f source.File) {
	n, probs := source.Parse(f.Path, f.Content)
	if probs != nil {
		c.problems = append(c.problems, probs...)
		return
	}
	if n.Kind != source.Map {
		c.addf(f.Path, n.Line, "", "Expected a YAML mapping, got %s", n.TypeName())
		return
	}
	switch {
	case isRuleset(n) && workflow.IsWorkflow(n):
		c.loadWorkflow(f)
		return
	case isRuleset(n):
		c.loadRuleset(f)
		return
	}
	isDocument, isGovernance := classify(n)
	cases, tested := n.Get("cases")
	switch {
	case tested && (isDocument || isGovernance):
		c.addf(f.Path, cases.Line, "cases", "the file has fields of a policy and cases of a table of tests; split it into two files")
	case isDocument && isGovernance:
		c.addf(f.Path, n.Line, "", "the file has fields of a PolicyDocument (rules, defaults) and of a GovernancePolicy; split it into two files")
	case isDocument:
		c.loadDocument(f, n)
	case isGovernance:
		c.loadGovernance(f, n)
	case len(n.Keys) == 0:
		c.addf(f.Path, n.Line, "", "the mapping is empty; a policy file has rules or defaults, or fields of a GovernancePolicy")
	default:
		hint := ""
		if tested {
			hint = "; tables of tests lie beside a tree, in files named *_test.yaml, and are no part of it"
		}
		fields := append(slices.Collect(maps.Keys(governance.Fields)), "rules", "defaults")
		for _, k := range n.Keys {
			if word := nearest.Of(k.Text, fields); word != "" && !slices.Contains(sharedFields, k.Text) {
				hint += fmt.Sprintf("; did you mean %s by %s in line %d?", word, value.Quote(k.Text), k.Line)
			}
		}
		c.addf(f.Path, n.Line, "", "the file is neither a PolicyDocument (it has no rules and no defaults) nor a GovernancePolicy (it has none of its fields)%s", hint)
	}
}

// sharedFields may stand in every file of a policy.
var sharedFields = []string{"name", "version", "mode", "combining", "tie_break", "on_backend_error"}

func classify(n *source.Node) (isDocument, isGovernance bool) {
	for _, k := range n.Keys {
		isDocument = isDocument || k.Text == "rules" || k.Text == "defaults"
		isGovernance = isGovernance || governance.Fields[k.Text]
	}
	return isDocument, isGovernance
}

func (c *compiler) loadDocument(f source.File, n *source.Node) {
	d, wrong, unknown := document.Read(n, f.Path, &c.searches)
	c.problems = append(c.problems, wrong...)
	c.unknown = append(c.unknown, unknown...)
	if composition.IsGovernanceFile(f.Path) {
		// Files come sorted, so governance.yaml is met before .yml.
		beside := strings.TrimSuffix(f.Path, ".yml") + ".yaml"
		if slices.ContainsFunc(c.documents, func(o *document.Document) bool { return o.Path == beside }) {
			c.warnf(f.Path, 0, "", "not used: %s lies beside it and is looked for first", beside)
			return
		}
	}
	c.settings = append(c.settings, fileSettings{f.Path, d.Settings})
	c.documents = append(c.documents, d)
}

func (c *compiler) loadGovernance(f source.File, n *source.Node) {
	ps := &source.Problems{Path: f.Path}
	g := governance.Read(n, ps)
	s := document.ReadSettings(n, ps)
	c.settings = append(c.settings, fileSettings{f.Path, s})
	for _, k := range n.Keys {
		known := slices.AppendSeq(slices.Clone(sharedFields), maps.Keys(governance.Fields))
		if !slices.Contains(known, k.Text) {
			c.unknown = append(c.unknown, source.Problem{Path: f.Path, Line: k.Line, Field: k.Text, Message: "unknown field, ignored" + nearest.Hint(k.Text, "", known)})
		}
	}
	if p := c.policy.governance; p.Governed() {
		ps.Add(n.Line, "", "%s holds a GovernancePolicy already; a tree has at most one", p.Path)
	}
	c.problems = append(c.problems, ps.List...)
	if len(ps.List) > 0 {
		return
	}
	c.policy.governance = g
	for _, w := range g.DetectConflicts() {
		field, _, _ := strings.Cut(w, " ")
		c.warnf(f.Path, g.Line(field), field, "%s", w)
	}
}

// checkSettings joins the options that files state; two that differ are
// refused, because either reading would be a guess.
func (c *compiler) checkSettings() {
	p := c.policy
	stated := map[string]string{}
	state := func(f fileSettings, name, value string) bool {
		if value == "" {
			return false
		}
		if have, ok := stated[name]; ok && have != value {
			c.addf(f.path, f.Lines[name], name, "another file of the tree says %s; a tree has one", have)
			return false
		}
		stated[name] = value
		return true
	}
	var strategy document.Strategy
	strict, tieBreakDeny := false, false
	for _, f := range c.settings {
		if f.Strict != nil && state(f, "mode", map[bool]string{true: "strict", false: "standard"}[*f.Strict]) {
			strict = *f.Strict
		}
		if state(f, "combining", strings.ToLower(string(f.Combining))) {
			strategy = f.Combining
		}
		if f.TieBreakDeny != nil && state(f, "tie_break", map[bool]string{true: "deny", false: "first"}[*f.TieBreakDeny]) {
			tieBreakDeny = *f.TieBreakDeny
		}
		if state(f, "on_backend_error", f.OnBackendError) {
			p.denyOnError = f.OnBackendError == "deny"
		}
	}
	if c.strict = c.strict || strict; c.strict && !p.denyOnError {
		p.denyOnError = true
		for _, f := range c.settings {
			if f.OnBackendError == "default" {
				c.warnf(f.path, f.Lines["on_backend_error"], "on_backend_error", "on_backend_error has no effect in strict mode: where all backends err, the call is denied; remove it")
			}
		}
	}
	if strategy != "" {
		c.resolver = &composition.Resolver{Strategy: strategy, TieBreakDeny: tieBreakDeny}
	}
	if c.strict && strategy != "" && strategy != document.DenyOverrides {
		for _, f := range c.settings {
			if f.Combining != "" {
				c.warnf(f.path, f.Lines["combining"], "combining", "%s allows nothing in strict mode that one of the documents denies; it only picks among those that allow", strings.ToLower(string(strategy)))
			}
		}
	}
	for _, u := range c.unknown {
		if c.strict {
			u.Message = strings.Replace(u.Message, "unknown field, ignored", "unknown field, refused in strict mode", 1)
			c.problems = append(c.problems, u)
		} else {
			p.warnings = append(p.warnings, u)
		}
	}
}

func (c *compiler) checkCaps() {
	rules := 0
	for _, d := range c.documents {
		rules += len(d.Rules)
	}
	if rules > document.MaxRules {
		c.addf("", 0, "", "the tree has %d rules; the most is %d", rules, document.MaxRules)
	}
}

// link builds the policy of files that are all sound.
func (c *compiler) link() {
	p := c.policy
	for _, d := range c.documents {
		for _, r := range d.Rules {
			if r.Condition.Operator == document.OpEq && r.Condition.Value.Kind() == value.Null {
				c.warnf(d.Path, r.Line, r.Name, "eq null never matches: a null field counts as missing")
			}
		}
	}
	c.linkRulesets()
	p.sensitive = sensitiveReads(p.governance.SensitiveReads)
	p.docs = composition.New(c.documents, p.governance, c.strict, c.resolver)
	c.warnDefaults()
	c.linkLimits()
	c.linkApproval()
	p.external = slices.Concat(c.cedarFiles, c.regoFiles)
	c.linkBackend(c.cedarFiles, "cedar", c.cedar)
	c.linkBackend(c.regoFiles, "opa", c.rego)
	c.linkInterceptors()
	p.linkDirect()
	c.linkSpellings()
	slices.SortStableFunc(p.warnings, func(a, b source.Problem) int { return strings.Compare(a.Path, b.Path) })
}

// linkApproval settles how the policy asks. A yes that nobody gave is refused in
// strict mode.
func (c *compiler) linkApproval() {
	p, g := c.policy, c.policy.governance
	p.asking = new(g.Asking())
	if g.Approval == nil {
		return
	}
	const field = "approval.on_timeout"
	switch {
	case !g.Approval.AllowOnTimeout:
	case c.strict:
		c.addf(g.Path, g.Line(field), field, "approval.on_timeout must be deny in strict mode, got 'allow'")
	default:
		c.warnf(g.Path, g.Line(field), field, "a call that nobody has decided on after %s is allowed; remove on_timeout: allow to deny it", g.Approval.Timeout)
	}
	asks := func(r *document.Rule) bool { return r.Action == document.Ask }
	if !g.RequireHumanApproval && !slices.ContainsFunc(p.docs.Rules, asks) {
		c.warnf(g.Path, g.Line("approval"), "approval", "approval has no effect, since nothing asks; add require_human_approval: true, or a rule with action: ask")
	}
}

// warnDefaults points at documents that reset their parents' default without
// saying so (policy engine spec 11.3).
func (c *compiler) warnDefaults() {
	for dir, f := range c.policy.docs.Folders {
		if len(f.Chain) < 2 || f.Doc.Defaults.Stated.Any {
			continue
		}
		for _, parent := range f.Chain[:len(f.Chain)-1] {
			if parent.Defaults.Action.Denies() && !c.strict {
				c.warnf(f.Doc.Path, 0, "defaults", "the document states no defaults, so below %s/ the default is allow, although %s denies by default", dir, parent.Path)
				break
			}
		}
	}
}
