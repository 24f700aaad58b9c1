package edictum

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"

	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A Ruleset is a Document that is ready to judge. It does not change, and is safe for
// concurrent use.
type Ruleset struct {
	rules  []rule // in document order; those that are not enabled are left out
	tools  map[string]Tool
	limits Limits

	known atomic.Pointer[known]
}

// A rule is one that is compiled.
type rule struct {
	*Rule
	when     *test
	box      *sandbox.Box
	message  message
	exact    []string
	globs    []pattern.Name
	redacts  []redaction // of redact rules
	observes bool
}

// applicable are the rules that are for one tool.
type applicable struct{ pre, boxes, post, candidates []*rule }

// Compile prepares a Document.
func Compile(d *Document) (*Ruleset, error) {
	rs := &Ruleset{tools: d.Tools}
	numbers := map[string]int{} // of selectors
	var searches pattern.Searches
	for i := range d.Rules {
		r := &d.Rules[i]
		if !r.Enabled {
			continue
		}
		c := rule{Rule: r, message: messageOf(r.Message)}
		c.observes = r.Candidate || r.OwnMode && r.Mode == Observe || !r.OwnMode && d.Mode == Observe
		var err error
		if c.when, err = compile(r.When, numbers, &searches); err != nil {
			return nil, &Problem{Rule: r.ID, Message: fmt.Sprintf("Rule '%s': %v", r.ID, err)}
		}
		if r.Type == Sandbox {
			c.box = sandbox.New(sandbox.Spec{Within: r.Box.Within, NotWithin: r.Box.NotWithin, Commands: r.Box.Commands, Domains: r.Box.Domains, NotDomains: r.Box.NotDomains})
		}
		if r.Action == Redacts {
			c.redacts = c.when.redactions()
		}
		for _, t := range r.Tools {
			if strings.ContainsAny(t, "*?[") {
				c.globs = append(c.globs, pattern.Names(t))
			} else {
				c.exact = append(c.exact, t)
			}
		}
		rs.rules = append(rs.rules, c)
	}
	rs.limits = limitsOf(rs.rules)
	rs.known.Store(&known{})
	return rs, nil
}

// known are the rules of tools that were asked for.
type known struct {
	tools sync.Map // name -> *applicable
	count atomic.Int32
}

// mostKnown bounds the tools whose rules are remembered: names come from agents. Of
// more all are forgotten, so that names which nobody uses again keep no other out.
const mostKnown = 1024

// of are the rules for a tool.
func (rs *Ruleset) of(tool string) *applicable {
	k := rs.known.Load()
	if a, ok := k.tools.Load(tool); ok {
		return a.(*applicable)
	}
	a := rs.find(tool)
	if k.count.Add(1) > mostKnown {
		rs.known.CompareAndSwap(k, &known{})
		return a
	}
	k.tools.Store(tool, a)
	return a
}

func (rs *Ruleset) find(tool string) *applicable {
	a := &applicable{}
	for i := range rs.rules {
		r := &rs.rules[i]
		if r.Type == Session || !r.matches(tool) {
			continue
		}
		switch {
		case r.Candidate && r.Type != Post:
			a.candidates = append(a.candidates, r)
		case r.Type == Pre:
			a.pre = append(a.pre, r)
		case r.Type == Sandbox:
			a.boxes = append(a.boxes, r)
		default:
			a.post = append(a.post, r)
		}
	}
	return a
}

func (r *rule) matches(tool string) bool {
	if slices.Contains(r.exact, tool) {
		return true
	}
	return slices.ContainsFunc(r.globs, func(g pattern.Name) bool { return g.Match(tool) })
}

// SideEffect is what a call may change: what the ruleset says of the tool, and of Bash
// what its command may do.
func (rs *Ruleset) SideEffect(c *Call) SideEffect {
	if c.Tool == "Bash" {
		command, _, err := sandbox.Command(c.Args)
		if err != nil {
			return Irreversible
		}
		return sandbox.Classify(command)
	}
	return rs.tools[c.Tool].SideEffect
}

// A Record is what became of one rule.
type Record struct {
	Rule        string // its id
	Type        string // precondition, sandbox, session_contract or postcondition
	Passed      bool
	Message     string // where it has not passed
	Observed    bool   // it would have decided, and only says so
	Candidate   bool   // of a ruleset that stands beside those in force
	PolicyError bool   // it could not be judged
	Tags        []string
	Metadata    value.Value
}

// A Verdict is what a ruleset says of a call before it runs. What was counted is not
// in it.
type Verdict struct {
	Action      Action // Allow, Block or Ask
	Reason      string // of a block, and the message of an ask
	Source      string // yaml_precondition or yaml_sandbox
	Rule        string // that decided
	PolicyError bool
	SideEffect  SideEffect
	// Timeout is how many seconds people have, and AllowOnTimeout what becomes of the
	// call behind them; of an ask.
	Timeout        int64
	AllowOnTimeout bool
	Records        []Record // of rules that did not pass, or, with Explain, of all
	Candidates     []Record // of rules that stand beside others, where the call is allowed
	Evaluated      int      // how many rules were looked at
}

// Before judges a call: pre rules and sandboxes in the order of the document. The
// first block decides; an ask is kept, and decides where nothing blocks.
func (rs *Ruleset) Before(c *Call) Verdict {
	a := rs.of(c.Tool)
	s := &scene{call: c}
	v := Verdict{SideEffect: rs.SideEffect(c)}
	for _, stage := range [...][]*rule{a.pre, a.boxes} {
		for _, r := range stage {
			result := r.before(s)
			v.Evaluated++
			if result == no && !c.Explain {
				continue
			}
			record := r.record(result, s)
			v.Records = append(v.Records, record)
			if record.Passed || r.observes {
				continue
			}
			if r.Action == Block {
				v.decide(r, &record)
				return v
			}
			if v.Action == Allow {
				v.decide(r, &record)
			}
		}
	}
	if v.Action != Allow {
		return v
	}
	for _, r := range a.candidates {
		v.Evaluated++
		if result := r.before(s); result != no || c.Explain {
			v.Candidates = append(v.Candidates, r.record(result, s))
		}
	}
	return v
}

func (v *Verdict) decide(r *rule, record *Record) {
	v.Action, v.Reason, v.Rule, v.PolicyError = r.Action, record.Message, r.ID, record.PolicyError
	v.Source = "yaml_precondition"
	if r.Type == Sandbox {
		v.Source = "yaml_sandbox"
	}
	v.Timeout, v.AllowOnTimeout = 0, false
	if r.Action == Ask {
		v.Timeout, v.AllowOnTimeout = r.Timeout, r.AllowOnTimeout
	}
}

// before judges one rule.
func (r *rule) before(s *scene) truth {
	if r.Type != Sandbox {
		result, _ := r.when.judge(s)
		return result
	}
	switch _, inside, err := r.box.Check(s.call.Args, s.call.Metadata); {
	case err != nil:
		return failed
	case !inside:
		return yes
	}
	return no
}

// record is what became of a rule.
func (r *rule) record(result truth, s *scene) Record {
	if result == no {
		return Record{Rule: r.ID, Type: r.Type.record(), Passed: true, Candidate: r.Candidate}
	}
	return Record{
		Rule: r.ID, Type: r.Type.record(), Message: r.message.in(s), Observed: r.observes, Candidate: r.Candidate, PolicyError: result == failed, Tags: r.Tags, Metadata: r.Metadata,
	}
}
