package external

import (
	"context"
	"fmt"
	"maps"
	"runtime/debug"
	"slices"

	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Guardrails, and the chain in which they are asked about a call.

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

// GuardrailVerdict is the outcome of one pass through a chain.
type GuardrailVerdict struct {
	Allowed bool
	By      string // the provider that ended the chain
	Reason  string
	Args    value.Value
	Changed bool
	Err     error
	Said    []value.Pair // metadata by provider
}

// maxModifiedBytes bounds what a guardrail may put in the place of arguments.
const maxModifiedBytes = 64 << 10

// Run asks all providers in order. Once the arguments are final, a change that a
// provider wants is not passed on to the next.
func (c *GuardrailChain) Run(ctx context.Context, call GuardrailCall, final bool) GuardrailVerdict {
	var v GuardrailVerdict
	before := call.Args.JSON()
	for _, provider := range c.Providers {
		res, err := askGuardrail(ctx, provider, call)
		if err == nil && res.Metadata.Len() > 0 {
			v.Said = append(v.Said, value.Pair{Key: provider.Name(), Value: res.Metadata})
		}
		switch {
		case err != nil:
			v.By, v.Err = provider.Name(), err
			return v
		case res.Decision == GuardrailDeny:
			v.By, v.Reason = provider.Name(), textGuardrail(res.Reason)
			return v
		case res.Decision == GuardrailModify && res.ModifiedArgs != nil && final:
			v.Changed = v.Changed || res.ModifiedArgs.JSON() != before
		case res.Decision == GuardrailModify && res.ModifiedArgs != nil:
			call.Args = *res.ModifiedArgs
		}
	}
	v.Allowed, v.Args, v.Changed = true, call.Args, v.Changed || call.Args.JSON() != before
	return v
}

// maxGuardrailMetadata bounds in bytes of JSON what one guardrail adds to an
// audit record.
const maxGuardrailMetadata = 4 << 10

// Metadata is what guardrails said beside their decisions, by their names;
// nil if nothing. Where one was asked twice, what it said last counts.
func Metadata(said ...[]value.Pair) *value.Value {
	all := map[string]value.Value{}
	for _, pairs := range said {
		for _, p := range pairs {
			m := redact.Value(p.Value)
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
	return "Tool call denied: " + source.Clip(redact.Text(reason), MaxReason)
}

// askGuardrail calls one provider; a panic, an unknown decision and arguments
// that are no mapping are errors.
func askGuardrail(ctx context.Context, p GuardrailProvider, call GuardrailCall) (res GuardrailResult, err error) {
	defer func() {
		if r := recover(); r != nil {
			res, err = GuardrailResult{}, &PanicError{Cause: r, Stack: debug.Stack()}
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
		return res, fmt.Errorf("the decision must be allow, deny or modify, got %q", source.Clip(string(res.Decision), 40))
	}
	return res, nil
}

// PanicError carries a stack to the log and none of it to a caller.
type PanicError struct {
	Cause any
	Stack []byte
}

// Error says nothing of the stack.
func (e *PanicError) Error() string { return "the provider panicked" }
