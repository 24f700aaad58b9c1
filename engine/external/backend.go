package external

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync/atomic"
	"time"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/redact"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// A Backend evaluates a policy in another language (policy engine spec 14).
// Implementations must be safe for concurrent use, must return when ctx is
// done, and must report whatever they could not judge as an error: an error is
// skipped or denied, never taken for an allow.
type Backend interface {
	// Name is the identifier in decisions and audit records, such as cedar.
	Name() string
	Evaluate(ctx context.Context, in BackendInput) (BackendDecision, error)
}

// A BackendInput is a call as external languages see it (adapter contract
// 3.11.1).
type BackendInput struct {
	AgentID    string      // empty if nobody said one
	ActionType string      // tool_call, model_call, agent_call or handoff
	Tool       string      // empty if nobody said one
	Arguments  value.Value // a mapping; empty if there are none
	// Context is the caller's context with everything above in it, as
	// agent_id, action_type, tool_name, tool_args and arguments, and with
	// those facts of the service that the files of the backend name.
	Context value.Value
}

// A BackendDecision is a backend's answer (policy engine spec 14.2). Time and
// error are recorded by the engine.
type BackendDecision struct {
	Allowed bool
	Action  document.Action // empty means allow or deny, after Allowed
	Reason  string
	Trace   []string // ids of the external policies that decided
}

// A BackendLoader compiles the files of one language into a Backend. Problems
// name path and line; any problem refuses the tree.
type BackendLoader func(files []source.File) (Backend, []source.Problem)

// DefaultBudget is the time that one evaluation may spend in backends.
const DefaultBudget = 50 * time.Millisecond

// MaxReason bounds the free text of backends and guardrails, in bytes.
const MaxReason = 200

// abandoned counts backends that are still running after their budget. Each
// holds a goroutine, so their number is bounded.
var abandoned atomic.Int64

const maxAbandoned = 64

var (
	ErrBackendTime = errors.New("the time budget is used up")
	errBackendBusy = errors.New("too many earlier evaluations are still running")
)

// AskBackend runs one backend within the budget. It runs on a goroutine of its own so
// that one that ignores its context delays no decision.
func AskBackend(ctx context.Context, b Backend, in BackendInput, log *slog.Logger) (BackendDecision, error) {
	if ctx.Err() != nil {
		return BackendDecision{}, ErrBackendTime
	}
	if abandoned.Load() >= maxAbandoned {
		return BackendDecision{}, errBackendBusy
	}
	type answer struct {
		d   BackendDecision
		err error
	}
	done := make(chan answer, 1)
	var over atomic.Bool // whoever sets it first, the backend or its caller, is done
	go func() {
		defer func() {
			if !over.CompareAndSwap(false, true) {
				abandoned.Add(-1)
			}
		}()
		var a answer
		defer func() {
			if r := recover(); r != nil {
				log.Error("policy backend panicked", "backend", b.Name(), "panic", fmt.Sprint(r), "stack", string(debug.Stack()))
				a = answer{err: errors.New("the backend panicked")}
			}
			done <- a
		}()
		a.d, a.err = b.Evaluate(ctx, in)
	}()
	select {
	case a := <-done:
		if a.err != nil {
			if ctx.Err() != nil {
				return BackendDecision{}, ErrBackendTime
			}
			return BackendDecision{}, a.err
		}
		return checkBackendDecision(a.d)
	case <-ctx.Done():
		if over.CompareAndSwap(false, true) {
			abandoned.Add(1)
		}
		return BackendDecision{}, ErrBackendTime
	}
}

// checkBackendDecision refuses an answer that contradicts itself.
func checkBackendDecision(d BackendDecision) (BackendDecision, error) {
	if d.Action == "" {
		d.Action = document.Deny
		if d.Allowed {
			d.Action = document.Allow
		}
	}
	if d.Action == document.Ask {
		return d, errors.New("a policy backend allows or denies, and cannot ask")
	}
	if !d.Action.Valid() || d.Action.Allows() != d.Allowed {
		return d, fmt.Errorf("the answer contradicts itself: allowed is %t and action is %q", d.Allowed, source.Clip(string(d.Action), 40))
	}
	d.Reason = source.Clip(redact.Text(d.Reason), MaxReason)
	return d, nil
}
