package workflow

import (
	"fmt"
	"slices"

	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/sandbox"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A Verdict is what a workflow says of a call.
type Verdict struct {
	Action edictum.Action // Allow, Block or Ask
	Reason string
	// Stage is where the call is judged; of an Ask the stage that people have to approve.
	// It is empty where the workflow is over.
	Stage string
	Left  []string // stages that were left on the way
}

const (
	textComplete = "workflow complete — no further tool calls are accepted"
	textTool     = "Tool is not allowed in this workflow stage"
)

// Judge judges a call, and takes the State to the stage in which that is. Only an error
// leaves the State as it was: then the State is not one of this workflow.
func (d *Definition) Judge(s *State, c *Call) (Verdict, error) {
	var left []string
	for s.Active != "" {
		i := d.stage(s.Active)
		if i < 0 {
			return Verdict{}, fmt.Errorf("the workflow %s has no stage %q, where its state stands", d.Name, s.Active)
		}
		v, leave := d.judgeIn(i, s, c)
		if !leave {
			v.Left = append(left, v.Left...)
			return v, nil
		}
		left = append(left, s.Active)
		d.leave(i, s)
	}
	return Verdict{Left: left}, nil
}

// leave completes a stage and enters the next, if there is one.
func (d *Definition) leave(i int, s *State) {
	if !slices.Contains(s.Completed, d.Stages[i].ID) {
		s.Completed = append(s.Completed, d.Stages[i].ID)
	}
	if s.Active = ""; i+1 < len(d.Stages) {
		s.Active = d.Stages[i+1].ID
	}
}

// judgeIn judges a call in one stage: what comes of it there, or that the stage is left.
func (d *Definition) judgeIn(i int, s *State, c *Call) (v Verdict, leave bool) {
	stage := &d.Stages[i]
	block := func(reason string) (Verdict, bool) {
		return Verdict{Action: edictum.Block, Reason: reason, Stage: stage.ID}, false
	}
	if stage.Terminal && unmet(stage.Exit, s, stage.ID) == nil {
		return block(textComplete)
	}
	fault := stage.objection(c)
	if fault == nil {
		return Verdict{Stage: stage.ID}, false
	}
	last := i+1 == len(d.Stages) || stage.Terminal
	if last && fault.reason != "" {
		return block(fault.reason)
	}
	if g := unmet(stage.Exit, s, stage.ID); g != nil {
		return block(fault.unless(g))
	}
	if stage.Approval != "" && s.Approvals[stage.ID] != approved {
		return Verdict{Action: edictum.Ask, Reason: stage.Approval, Stage: stage.ID}, false
	}
	if last { // a boundary, of which nothing is left to be met
		return Verdict{}, true
	}
	next, then := &d.Stages[i+1], s.Clone()
	d.leave(i, then)
	if g := unmet(next.Entry, then, next.ID); g != nil {
		return block(fault.unless(g))
	}
	switch {
	case len(stage.Exit) > 0 || stage.Approval != "":
		return Verdict{}, true
	case fault.check != nil:
		if !next.asksFor(c) {
			return block(fault.reason)
		}
	case !next.Terminal:
		if stage.wild() {
			return block(fault.reason)
		}
		onward, err := d.Judge(then, c)
		if err != nil || onward.Action == edictum.Block {
			return block(fault.reason)
		}
		// That is the answer. To judge the call again from there on would double the
		// work at each stage.
		*s, onward.Left = *then, append([]string{stage.ID}, onward.Left...)
		return onward, false
	}
	return Verdict{}, true
}

// An objection is why a stage does not take a call. A stage that is no more than a
// boundary takes none, and has no reason of its own.
type objection struct {
	reason string
	check  *Check // that failed
}

// unless is what is said of a call where a gate is not met: what the gate says, unless
// the call is one that must not be.
func (o *objection) unless(g *Gate) string {
	switch {
	case o.check != nil && o.check.Not:
		return o.reason
	case g.Message != "":
		return g.Message
	case o.reason != "":
		return o.reason
	}
	return g.Condition + " does not hold yet"
}

func (s *Stage) objection(c *Call) *objection {
	if len(s.tools) == 0 && len(s.Checks) == 0 && (s.Approval != "" || len(s.Exit) > 0) && !s.Terminal {
		return &objection{}
	}
	if !s.takes(c.Tool) {
		return &objection{reason: textTool}
	}
	for i := range s.Checks {
		if k := &s.Checks[i]; !k.passes(c) {
			return &objection{reason: k.Message, check: k}
		}
	}
	return nil
}

func (s *Stage) takes(tool string) bool {
	if len(s.tools) == 0 {
		return !s.Terminal
	}
	return slices.ContainsFunc(s.tools, func(n pattern.Name) bool { return n.Match(tool) })
}

// asksFor reports whether a stage takes a call, and has a check that names its command.
func (s *Stage) asksFor(c *Call) bool {
	return s.objection(c) == nil && slices.ContainsFunc(s.Checks, func(k Check) bool { return !k.Not })
}

func (k *Check) passes(c *Call) bool { return !c.Unknown && k.search.Match(c.Command) != k.Not }

// unmet is the first gate that is not met; nil if there is none.
func unmet(gates []Gate, s *State, stage string) *Gate {
	for i := range gates {
		if !gates[i].met(s, stage) {
			return &gates[i]
		}
	}
	return nil
}

// A Call is a call as workflows see it.
type Call struct {
	Tool    string
	Command string // of Bash
	Unknown bool   // the command of Bash is no text: it passes no check
	File    string // of tools that read and write one
}

// CallOf reads a call.
func CallOf(tool string, args value.Value) *Call {
	c := &Call{Tool: tool}
	if tool == "Bash" {
		command, _, err := sandbox.Command(args)
		c.Command, c.Unknown = command, err != nil
	}
	c.File, _ = sandbox.FilePath(tool, args)
	return c
}
