package engine

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// How an evaluation asks the backends of other languages.

// loadedBackend is a Backend with the facts that its files mention.
type loadedBackend struct {
	external.Backend
	facts []call.FactKind
}

// decideByBackends asks the backends in order; the first without an error
// decides (policy engine spec 14.3). It reports false where the default action
// is to decide.
func (p *Policy) decideByBackends(ctx context.Context, e matching.Evaluation, d *Decision) bool {
	ctx, cancel := context.WithTimeout(ctx, p.budget)
	defer cancel()
	var failed error
	for _, b := range p.backends {
		start := time.Now()
		said, err := external.AskBackend(ctx, b.Backend, p.backendInput(e, b), p.log)
		if err != nil {
			if e.In.Explain {
				e.Explain("backend %s: error: %v", b.Name(), err)
			}
			if err = fmt.Errorf("%s: %w", b.Name(), err); failed != nil {
				err = fmt.Errorf("%w; %w", failed, err)
			}
			failed = err
			continue
		}
		if e.In.Explain {
			e.Explain("backend %s: %s %s", b.Name(), said.Action, said.Reason)
			e.Trace = append(e.Trace, said.Trace...)
		}
		d.Allowed, d.Action, d.Reason = said.Allowed, string(said.Action), said.Reason
		d.Policy = "external:" + b.Name()
		d.Backend, d.BackendTime = b.Name(), time.Since(start)
		if !d.Allowed {
			d.Category, d.PublicMessage = CategoryBackend, publicNotPermitted
			d.Reason = cmp.Or(d.Reason, textNoReason)
		}
		return true
	}
	if !p.denyOnError {
		p.logFailure(e, "", "all policy backends failed, the tree asks for the default action", failed)
		return false
	}
	*d = p.errorDecision(e, "", failed)
	d.Rule = ruleNone
	d.Reason = source.Clip("Policy evaluation error (fail-closed): "+d.Error, external.MaxReason)
	d.Backend = p.backends[len(p.backends)-1].Name()
	return true
}

// backendInput builds what a backend sees. Each fact in it is a premise on the
// exact value, because nobody knows what the backend compares it with.
func (p *Policy) backendInput(e matching.Evaluation, b loadedBackend) external.BackendInput {
	in := e.In
	out := external.BackendInput{
		AgentID:    in.AgentID,
		ActionType: in.Kind.String(),
		Tool:       e.Tool,
		Arguments:  e.Arguments(),
	}
	if in.SessionID == "" {
		if out.AgentID == "" {
			out.AgentID = in.Context.TextAt("agent_id")
		}
		if said := in.Context.TextAt("action_type"); said != "" {
			out.ActionType = said
		}
	}
	if out.Arguments.Kind() != value.Map {
		out.Arguments = emptyArguments
	}
	ctx := in.Context
	if ctx.Kind() != value.Map {
		ctx = emptyArguments
	}
	ctx = ctx.With("agent_id", value.OfString(out.AgentID)).
		With("action_type", value.OfString(out.ActionType)).
		With("tool_name", value.OfString(out.Tool)).
		With("tool_args", out.Arguments).
		With("arguments", out.Arguments)
	if in.SessionID != "" {
		ctx = ctx.With("session_id", value.OfString(in.SessionID))
	}
	if in.Facts != nil {
		ctx = withFacts(ctx, e, b.facts)
	}
	out.Context = ctx
	return out
}

// allFacts lists the kinds in a fixed order.
var allFacts = [...]call.FactKind{call.CallCount, call.Attempts, call.TokensUsed, call.ToolCalls, call.ActiveSlots, call.Elapsed}

// withFacts puts in the facts that a backend names, and takes out what the
// context claims about the others.
func withFacts(ctx value.Value, e matching.Evaluation, wanted []call.FactKind) value.Value {
	for _, kind := range allFacts {
		if _, claimed := ctx.Get(kind.String()); claimed {
			ctx = ctx.With(kind.String(), value.Value{})
		}
	}
	for _, kind := range wanted {
		if kind == call.ToolCalls {
			// Only the tool of this call: the names of others are not known
			// here, and each would be one more premise.
			x, premise := e.In.Facts.Exact(kind, e.Tool)
			e.AddPremise(premise)
			ctx = ctx.With(kind.String(), value.OfMap(value.Pair{Key: e.Tool, Value: value.OfInt(x)}))
			continue
		}
		x, premise := e.In.Facts.Exact(kind, "")
		e.AddPremise(premise)
		ctx = ctx.With(kind.String(), value.OfInt(x))
	}
	return ctx
}

func (c *compiler) linkBackend(files []source.File, language string, load external.BackendLoader) {
	if len(files) == 0 {
		return
	}
	if load == nil {
		c.addf(files[0].Path, 0, "", "this program was built without the %s backend; the tree cannot be evaluated here", language)
		return
	}
	b, probs := load(files)
	c.problems = append(c.problems, probs...)
	if len(probs) > 0 {
		return
	}
	loaded := loadedBackend{Backend: b}
	for _, kind := range allFacts {
		if slices.ContainsFunc(files, func(f source.File) bool { return bytes.Contains(f.Content, []byte(kind.String())) }) {
			loaded.facts = append(loaded.facts, kind)
		}
	}
	c.policy.backends = append(c.policy.backends, loaded)
}
