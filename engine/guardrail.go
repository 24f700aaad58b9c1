package engine

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"example.com/govnode/engine/value"
)

// A GuardrailCall is a tool call as a guardrail sees it.
type GuardrailCall struct {
	ToolName  string
	Args      value.Value // a mapping
	AgentName string
	CallID    string
}

// GuardrailDecision is what a guardrail says.
type GuardrailDecision string

// The three decisions.
const (
	GuardrailAllow  GuardrailDecision = "allow"
	GuardrailDeny   GuardrailDecision = "deny"
	GuardrailModify GuardrailDecision = "modify"
)

// A GuardrailResult is a guardrail's answer.
type GuardrailResult struct {
	Decision     GuardrailDecision
	Reason       string
	ModifiedArgs *value.Value // with GuardrailModify; nil changes nothing
	Metadata     value.Value  // for the audit record, redacted and bounded there
}

// A GuardrailProvider intercepts tool calls before they run. It must be safe
// for concurrent use and return when ctx is done; an error denies the call.
type GuardrailProvider interface {
	Name() string
	Evaluate(ctx context.Context, call GuardrailCall) (GuardrailResult, error)
}

// A GuardrailChain asks providers in order. Any deny ends it; arguments that
// one provider wrote are what the next one sees.
type GuardrailChain struct {
	Providers []GuardrailProvider
}

// guardrailVerdict is the outcome of one pass through a chain.
type guardrailVerdict struct {
	allowed bool
	by      string // the provider that ended the chain
	reason  string
	args    value.Value
	changed bool
	err     error
	said    []value.Pair // metadata by provider
}

// maxModifiedBytes bounds what a guardrail may put in the place of arguments.
const maxModifiedBytes = 64 << 10

// run asks all providers in order. Once the arguments are final, a change that a
// provider wants is not passed on to the next.
func (c *GuardrailChain) run(ctx context.Context, call GuardrailCall, final bool) guardrailVerdict {
	var v guardrailVerdict
	before := call.Args.JSON()
	for _, provider := range c.Providers {
		res, err := askGuardrail(ctx, provider, call)
		if err == nil && res.Metadata.Len() > 0 {
			v.said = append(v.said, value.Pair{Key: provider.Name(), Value: res.Metadata})
		}
		switch {
		case err != nil:
			v.by, v.err = provider.Name(), err
			return v
		case res.Decision == GuardrailDeny:
			v.by, v.reason = provider.Name(), textGuardrail(res.Reason)
			return v
		case res.Decision == GuardrailModify && res.ModifiedArgs != nil && final:
			v.changed = v.changed || res.ModifiedArgs.JSON() != before
		case res.Decision == GuardrailModify && res.ModifiedArgs != nil:
			call.Args = *res.ModifiedArgs
		}
	}
	v.allowed, v.args, v.changed = true, call.Args, v.changed || call.Args.JSON() != before
	return v
}

// maxGuardrailMetadata bounds in bytes of JSON what one guardrail adds to an
// audit record.
const maxGuardrailMetadata = 4 << 10

// metadata is what guardrails said beside their decisions, by their names;
// nil if nothing. Where one was asked twice, what it said last counts.
func metadata(said ...[]value.Pair) *value.Value {
	all := map[string]value.Value{}
	for _, pairs := range said {
		for _, p := range pairs {
			m := RedactValue(p.Value)
			if n := len(m.JSON()); n > maxGuardrailMetadata {
				m = value.OfString(fmt.Sprintf("left out: %d bytes", n))
			}
			all[p.Key] = m
		}
	}
	if len(all) == 0 {
		return nil
	}
	pairs := make([]value.Pair, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		pairs = append(pairs, value.Pair{Key: name, Value: all[name]})
	}
	m := value.OfMap(pairs...)
	return &m
}

func textGuardrail(reason string) string {
	if reason == "" {
		reason = "policy violation"
	}
	return "Tool call denied: " + clip(Redact(reason), maxReason)
}

// askGuardrail calls one provider; a panic, an unknown decision and arguments
// that are no mapping are errors.
func askGuardrail(ctx context.Context, p GuardrailProvider, call GuardrailCall) (res GuardrailResult, err error) {
	defer func() {
		if r := recover(); r != nil {
			res, err = GuardrailResult{}, &panicError{cause: r, stack: debug.Stack()}
		}
	}()
	res, err = p.Evaluate(ctx, call)
	if err != nil {
		return res, err
	}
	switch res.Decision {
	case GuardrailAllow, GuardrailDeny:
	case GuardrailModify:
		if m := res.ModifiedArgs; m != nil && (m.Kind() != value.Map || len(m.JSON()) > maxModifiedBytes) {
			return res, fmt.Errorf("modified arguments must be a mapping of at most %d bytes", maxModifiedBytes)
		}
	default:
		return res, fmt.Errorf("the decision must be allow, deny or modify, got %q", clip(string(res.Decision), 40))
	}
	return res, nil
}

// panicError carries a stack to the log and none of it to a caller.
type panicError struct {
	cause any
	stack []byte
}

func (e *panicError) Error() string { return "the provider panicked" }

// guard runs the guardrails on a call that everything else allows. What they
// write is judged by all that can deny, the guardrails included: those are asked
// once more, to allow or to deny what the chain has come to. A change that one
// of them wants then is not made; a guardrail that adds something to the
// arguments adds it once.
func (p *Policy) guard(ctx context.Context, e evaluation, d *Decision) {
	if !e.ofTool() {
		return
	}
	call := GuardrailCall{ToolName: e.tool, Args: e.arguments(), AgentName: p.agentName(e), CallID: e.in.CallID}
	if call.Args.Kind() != value.Map {
		call.Args = emptyArguments
	}
	chain := p.guardrails
	if e.in.guardrails != nil {
		chain = e.in.guardrails
	}
	first := chain.run(ctx, call, false)
	if !first.allowed {
		*d = p.guarded(e, first)
		d.GuardrailMetadata = metadata(first.said)
		return
	}
	if !first.changed {
		d.GuardrailMetadata = metadata(first.said)
		return
	}
	call.Args = first.args
	e.setArguments(first.args)
	if e.in.Explain {
		e.explain("the guardrails changed the arguments; judging them again")
	}
	*d = Decision{}
	if p.judge(ctx, e, d); !d.Allowed {
		d.GuardrailMetadata = metadata(first.said)
		return
	}
	second := chain.run(ctx, call, true)
	if second.allowed {
		d.ModifiedArguments = &first.args
	} else {
		*d = p.guarded(e, second)
	}
	if second.changed && e.in.Explain {
		e.explain("the guardrails would change the arguments again; what they wrote first stands")
	}
	d.GuardrailMetadata = metadata(first.said, second.said)
}

// guarded is the decision of a guardrail that did not let a call pass.
func (p *Policy) guarded(e evaluation, v guardrailVerdict) Decision {
	if v.err != nil {
		return p.guardrailError(e, v.by, v.err)
	}
	if e.in.Explain {
		e.explain("guardrail %s: %s", v.by, v.reason)
	}
	return Decision{
		Action: string(Deny), Policy: "guardrail:" + v.by, Reason: v.reason,
		PublicMessage: publicMessages[CategoryGuardrail], Category: CategoryGuardrail,
	}
}

func (p *Policy) guardrailError(e evaluation, by string, err error) Decision {
	if pe := (*panicError)(nil); errors.As(err, &pe) {
		p.log.Error("guardrail panicked", "guardrail", by, "panic", Redact(fmt.Sprint(pe.cause)), "stack", string(pe.stack))
	}
	d := p.errorDecision(e, "", fmt.Errorf("guardrail %s: %w", by, err))
	d.Rule = ruleNone
	d.Policy = "guardrail:" + by
	d.Reason = clip("Policy evaluation error (fail-closed): "+d.Error, maxReason)
	return d
}

func (p *Policy) agentName(e evaluation) string {
	if e.in.AgentID != "" || e.in.SessionID != "" {
		return e.in.AgentID
	}
	return e.in.Context.TextAt("agent_id")
}
