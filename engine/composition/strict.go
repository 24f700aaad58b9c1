package composition

import (
	"maps"
	"slices"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
)

// Strict composition: what one source denies stays denied, whatever the others
// say (policy engine spec 18.1). It is a stage of its own before any rule can
// allow. Merging drops no deny from it, and neither priorities, overrides,
// inherit: false nor a conflict strategy reach it.
//
// Two sorts of documents take part in it. Each of the own documents, those that
// hold for the call itself, speaks for itself: its first match by priority
// counts (7.1), so that an author may write an exception to a rule of the same
// file. Of all the others every deny that matches stands.
//
// An ask stands as a deny does, against what allows: a call that others would
// let pass is asked about. What others deny, also by default, stays denied.

// withDenials adds the strict stage to a ruleset. Under DENY_OVERRIDES a deny
// stands against an allow of its own document as well.
func (c *Documents) withDenials(s *Ruleset, own, others []*document.Document) *Ruleset {
	if c.Resolver != nil && c.Resolver.Strategy == document.DenyOverrides {
		own, others = nil, slices.Concat(others, own)
	}
	var denies []*matching.Rule
	for _, doc := range others {
		for _, r := range doc.Rules {
			if r.Action.Restricts() {
				denies = append(denies, c.compiled[r])
			}
		}
	}
	if len(denies) > 0 {
		s.Denials = append(s.Denials, matching.NewList(denies))
	}
	merged := map[*matching.Rule]bool{}
	for _, r := range s.Rules {
		merged[r] = true
	}
	for _, doc := range own {
		// An allow that was dropped on merging is no exception either.
		rules := slices.DeleteFunc(c.compiledOf(doc.Rules), func(r *matching.Rule) bool { return r.Action.Allows() && !merged[r] })
		denies := slices.ContainsFunc(rules, func(r *matching.Rule) bool { return r.Action.Restricts() })
		if denies && (len(own) > 1 || len(others) > 0 || len(rules) != len(s.Rules)) {
			s.Denials = append(s.Denials, matching.NewList(rules))
		}
	}
	return s
}

// standing is the strict stage: the rule that denies whatever else is said, else
// one that asks, or the one that cannot be judged.
func (s *Ruleset) standing(e matching.Evaluation) (asks *matching.Rule, err error) {
	for _, of := range s.Denials {
		rule, err := of.Decide(e)
		switch {
		case err != nil:
			return rule, err
		case rule == nil || rule.Action.Allows():
		case rule.Action.Denies():
			return rule, nil
		case asks == nil:
			asks = rule
		}
	}
	return asks, nil
}

// Standing are the denies and asks that stand against the rules of every document.
func (s *Ruleset) Standing() []*matching.Rule {
	if len(s.Denials) == 0 || slices.ContainsFunc(s.Denials[0].Rules, func(r *matching.Rule) bool { return r.Action.Allows() }) {
		return nil
	}
	return s.Denials[0].Rules
}

// tighten takes the strictest defaults of documents: one may tighten those of
// the others, never loosen them.
func (c *Documents) tighten(s *Ruleset, docs []*document.Document) {
	for _, doc := range docs {
		s.Confidence = max(s.Confidence, c.threshold(doc))
		if moreRestrictive(doc.Defaults.Action, s.Def) {
			s.Def, s.DefPolicy = doc.Defaults.Action, doc.Name
		}
	}
}

func moreRestrictive(a, b document.Action) bool {
	rank := func(a document.Action) int {
		switch a {
		case document.Allow:
			return 0
		case document.Audit:
			return 1
		}
		return 2
	}
	return rank(a) > rank(b)
}

// linkPathless makes the ruleset of calls that do not say which path they
// concern, in strict mode and in a tree with governance files: such a call may
// concern any of them. So every deny of every folder stands, and the strictest
// defaults of all hold; what allows is what would without strict mode.
func (c *Documents) linkPathless() {
	if !c.Strict || len(c.Folders) == 0 {
		return
	}
	var others []*document.Document
	var names []string
	own := c.Flat
	base := c.FlatSet
	if f := c.Folders["."]; len(own) == 0 && f != nil {
		own = []*document.Document{f.Doc}
		base = c.chainFor(f, ".")
	}
	for _, dir := range slices.Sorted(maps.Keys(c.Folders)) {
		doc := c.Folders[dir].Doc
		names = append(names, doc.Name)
		if !slices.Contains(own, doc) {
			others = append(others, doc)
		}
	}
	s := &Ruleset{List: &matching.List{}, Def: document.Allow, DefPolicy: c.Governance.Name, Confidence: c.threshold(nil)}
	if base != nil {
		s.Docs, s.List = base.Docs, base.List
		s.Def, s.DefPolicy, s.Confidence = base.Def, base.DefPolicy, base.Confidence
	}
	if len(c.Flat) == 0 {
		s.Scoped, s.Chain = true, names
	}
	c.tighten(s, slices.Concat(own, others)) // own ones too: their scope may leave them out of base
	c.pathless = c.withDenials(s, own, others)
}
