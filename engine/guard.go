package engine

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/external"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// guard runs the guardrails on a call that everything else allows or asks about.
// What they write is judged by all that can deny, the guardrails included: those are asked
// once more, to allow or to deny what the chain has come to. A change that one
// of them wants then is not made; a guardrail that adds something to the
// arguments adds it once.
func (p *Policy) guard(ctx context.Context, e matching.Evaluation, d *Decision) {
	if !e.OfTool() {
		return
	}
	call := external.GuardrailCall{ToolName: e.Tool, Args: e.Arguments(), AgentName: p.agentName(e), CallID: e.In.CallID}
	if call.Args.Kind() != value.Map {
		call.Args = emptyArguments
	}
	first := p.guardrails.Run(ctx, call, false)
	if !first.Allowed {
		*d = p.guarded(e, first)
		d.GuardrailMetadata = external.Metadata(first.Said)
		return
	}
	if !first.Changed {
		d.GuardrailMetadata = external.Metadata(first.Said)
		return
	}
	call.Args = first.Args
	e.SetArguments(first.Args)
	if e.In.Explain {
		e.Explain("the guardrails changed the arguments; judging them again")
	}
	*d = Decision{}
	if p.judge(ctx, e, d); !d.Allowed && d.Ask == nil {
		d.GuardrailMetadata = external.Metadata(first.Said)
		return
	}
	second := p.guardrails.Run(ctx, call, true)
	if second.Allowed {
		d.ModifiedArguments = &first.Args
	} else {
		*d = p.guarded(e, second)
	}
	if second.Changed && e.In.Explain {
		e.Explain("the guardrails would change the arguments again; what they wrote first stands")
	}
	d.GuardrailMetadata = external.Metadata(first.Said, second.Said)
}

// guarded is the decision of a guardrail that did not let a call pass.
func (p *Policy) guarded(e matching.Evaluation, v external.GuardrailVerdict) Decision {
	if v.Err != nil {
		return p.guardrailError(e, v.By, v.Err)
	}
	if e.In.Explain {
		e.Explain("guardrail %s: %s", v.By, v.Reason)
	}
	return Decision{
		Action: string(document.Deny), Policy: "guardrail:" + v.By, Reason: v.Reason,
		PublicMessage: publicMessages[CategoryGuardrail], Category: CategoryGuardrail,
	}
}

func (p *Policy) guardrailError(e matching.Evaluation, by string, err error) Decision {
	if pe := (*external.PanicError)(nil); errors.As(err, &pe) {
		p.log.Error("guardrail panicked", "guardrail", by, "panic", redact.Text(fmt.Sprint(pe.Cause)), "stack", string(pe.Stack))
	}
	d := p.errorDecision(e, "", fmt.Errorf("guardrail %s: %w", by, err))
	d.Rule = ruleNone
	d.Policy = "guardrail:" + by
	d.Reason = source.Clip("Policy evaluation error (fail-closed): "+d.Error, external.MaxReason)
	return d
}

func (p *Policy) agentName(e matching.Evaluation) string {
	if e.In.AgentID != "" || e.In.SessionID != "" {
		return e.In.AgentID
	}
	return e.In.Context.TextAt("agent_id")
}

// linkInterceptors turns what the policy names into what evaluations use.
func (c *compiler) linkInterceptors() {
	p, g := c.policy, c.policy.governance
	if g.VerifiesHashes() {
		p.hashes = &hashTable{hashes: g.ContentHashes, strict: g.ContentHashMode != governance.ContentHashWarn}
	}
	chain := &external.GuardrailChain{Providers: slices.Clone(c.options.guardrails)}
	for _, ep := range g.Guardrails {
		chain.Providers = append(chain.Providers, external.NewHTTPGuardrail(ep, c.client))
	}
	if len(chain.Providers) > 0 {
		p.guardrails = chain
	}
}
