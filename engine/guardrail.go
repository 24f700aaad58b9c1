package engine

import (
	"context"
	"errors"
	"fmt"
	"runtime/debug"

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
	Metadata     value.Value  // for the audit record
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
}

// maxModifiedBytes bounds what a guardrail may put in the place of arguments.
const maxModifiedBytes = 64 << 10

func (c *GuardrailChain) run(ctx context.Context, call GuardrailCall) guardrailVerdict {
	before := call.Args.JSON()
	for _, provider := range c.Providers {
		res, err := askGuardrail(ctx, provider, call)
		switch {
		case err != nil:
			return guardrailVerdict{by: provider.Name(), err: err}
		case res.Decision == GuardrailDeny:
			return guardrailVerdict{by: provider.Name(), reason: textGuardrail(res.Reason)}
		case res.Decision == GuardrailModify && res.ModifiedArgs != nil:
			call.Args = *res.ModifiedArgs
		}
	}
	return guardrailVerdict{allowed: true, args: call.Args, changed: call.Args.JSON() != before}
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

// maxGuardrailRounds bounds how often rewritten arguments are judged again.
// One round rewrites, the next finds nothing to change; a chain that needs
// more is not converging.
const maxGuardrailRounds = 4

var errGuardrailUnsettled = errors.New("the guardrails keep changing the arguments")

// guard runs the guardrails on a call that everything else allows. Whatever
// they write is judged again by all that can deny, the guardrails included,
// until nothing changes any more.
func (p *Policy) guard(ctx context.Context, e evaluation, d *Decision) {
	if e.in.Kind != KindTool {
		return
	}
	modified := false
	for range maxGuardrailRounds {
		args := e.arguments()
		if args.Kind() != value.Map {
			args = emptyArguments
		}
		verdict := p.guardrails.run(ctx, GuardrailCall{
			ToolName: e.tool, Args: args, AgentName: p.agentName(e), CallID: e.in.CallID,
		})
		switch {
		case verdict.err != nil:
			*d = p.guardrailError(e, verdict.by, verdict.err)
			return
		case !verdict.allowed:
			if e.in.Explain {
				e.explain("guardrail %s: %s", verdict.by, verdict.reason)
			}
			*d = Decision{
				Action: string(Deny), Policy: "guardrail:" + verdict.by, Reason: verdict.reason,
				PublicMessage: publicMessages[CategoryGuardrail], Category: CategoryGuardrail,
			}
			return
		case !verdict.changed:
			if modified {
				d.ModifiedArguments = &args
			}
			return
		}
		modified = true
		e.setArguments(verdict.args)
		if e.in.Explain {
			e.explain("the guardrails changed the arguments; judging them again")
		}
		*d = Decision{}
		if p.judge(ctx, e, d); !d.Allowed {
			return
		}
	}
	*d = p.guardrailError(e, "chain", errGuardrailUnsettled)
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
	return contextString(e.in.Context, "agent_id")
}
