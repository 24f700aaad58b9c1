package engine

import "example.com/govnode/engine/call"

// decideDirectly is the short way of Decide for the most common policies and
// calls: a flat list whose rules are all found through the index, by what a call
// says in so many words, and beside them no more than a threshold of confidence.
// There is no state to keep then, and ten rules take a third of the time. It reports false, and has written nothing,
// where the call has to be judged the long way; where it decides, the long way
// would decide the same.
func (p *Policy) decideDirectly(in *call.Input, d *Decision) bool {
	if len(p.answers) == 0 || in.Explain || in.CheckLimits {
		return false
	}
	best := p.directly.Direct(in)
	if best < 0 {
		return false
	}
	answer := &p.answers[best]
	if answer.Ask != nil { // rules behind it may deny, and so may a low confidence
		return false
	}
	if answer.Allowed && (in.Context.Find("confidence") != nil || in.ContentHash != nil && hashed(in)) {
		return false
	}
	*d = *answer
	return true
}

// hashed reports whether a hash is registered for the tool of a call, or may be.
func hashed(in *call.Input) bool {
	if in.Tool == "" {
		return true // the context may name one
	}
	_, known := in.ContentHash(in.Tool)
	return known
}

// linkDirect prepares decideDirectly for the policies that it is for, once
// everything else is known of them.
func (p *Policy) linkDirect() {
	set := p.docs.FlatSet
	if len(p.docs.Folders) > 0 || p.docs.Resolver != nil || len(p.backends) > 0 || p.guardrails != nil || p.ruleset != nil || p.sensitive != nil || p.hashes != nil ||
		!p.unchecked || p.docs.Strict && len(set.Docs) == 0 || set.Denials != nil || !set.Complete() {
		return
	}
	p.directly = set.List
	p.answers = make([]Decision, len(set.Rules)+1)
	for i, r := range set.Rules {
		p.decideByRule(set, r.Rule, &p.answers[i])
	}
	byDefault(set, &p.answers[len(set.Rules)])
}
