package engine

import "example.com/govnode/engine/value"

// decideDirectly is the short way of Decide for the most common policies and
// calls: a flat list whose rules are all found through the index, by what a call
// says in so many words, and beside them no more than a threshold of confidence.
// There is no state to keep then. It reports false, and has written nothing,
// where the call has to be judged the long way; where it decides, the long way
// would decide the same.
func (p *Policy) decideDirectly(in *Input, d *Decision) bool {
	if !p.direct || in.Explain || in.CheckLimits {
		return false
	}
	set := p.flatSet
	best, ok := set.index.direct(in, set.rules)
	if !ok {
		return false
	}
	allowed := set.def.Allows()
	if int(best) < len(set.rules) {
		allowed = set.rules[best].Action.Allows()
	}
	if allowed && !p.passesDirectly(in) {
		return false
	}
	*d = Decision{}
	if int(best) < len(set.rules) {
		decideByRule(set, set.rules[best], d)
	} else {
		set.decideByDefault(d)
	}
	return true
}

// passesDirectly reports whether there is nothing left to judge of a call that
// the documents allow.
func (p *Policy) passesDirectly(in *Input) bool {
	if in.Context.Find("confidence") != nil {
		return false
	}
	if in.ContentHash == nil || in.Kind != KindTool {
		return true
	}
	if in.Tool == "" {
		return false
	}
	_, known := in.ContentHash(in.Tool)
	return !known
}

// linkDirect works out which policies decideDirectly is for, once everything
// else is known of them.
func (p *Policy) linkDirect() {
	p.direct = len(p.folders) == 0 && p.resolver == nil && len(p.backends) == 0 && p.guardrails == nil &&
		p.hashes == nil && p.unchecked && !(p.strict && len(p.flatSet.docs) == 0) && p.flatSet.index.complete()
}

// complete reports whether the index finds every rule, each by a field that a
// call states itself.
func (x *ruleIndex) complete() bool {
	for i := range x.groups {
		if f := x.groups[i].field; f.segments != nil || f.root != contextField && f.root != toolNameField {
			return false
		}
	}
	return len(x.rest) == 0
}

// direct is first without an evaluation, for an index that is complete. It
// reports false where that takes one.
func (x *ruleIndex) direct(in *Input, rules []*compiledRule) (best int32, ok bool) {
	best = int32(len(rules))
	for i := range x.groups {
		g := &x.groups[i]
		var text string
		if g.field.root == toolNameField && in.Tool != "" {
			text = value.Text(in.Tool)
		} else {
			v := orMissing(in.Context.Find(g.field.name))
			switch {
			case v == nil && g.strict:
				return 0, false
			case v == nil:
				continue
			case v.Kind() == value.Number && len(g.prefix.texts) == 0:
				best = g.firstNumber(v, best)
				continue
			case v.Kind() != value.String:
				return 0, false
			}
			text, _ = v.AsString()
		}
		if g.ordered() || len(text) >= longText {
			return 0, false
		}
		if rank, found := g.byValue.find(text); found && rank < best {
			best = rank
		}
		if g.prefix.mayBegin(text) {
			best = g.prefix.direct(text, rules, best)
		}
	}
	return best, true
}
