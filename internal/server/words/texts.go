package words

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unique"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// What the state machine has answered, in the words of the API.

// Outcomes is the one table from codes of the state machine to outcomes. Codes
// that are no answer are in package fault.
var Outcomes = map[session.Code]v1.Outcome{
	session.Admitted:         v1.Outcome_OUTCOME_ADMITTED,
	session.Queued:           v1.Outcome_OUTCOME_QUEUED,
	session.Denied:           v1.Outcome_OUTCOME_DENIED_BY_POLICY,
	session.AttemptLimit:     v1.Outcome_OUTCOME_ATTEMPT_LIMIT,
	session.CallLimit:        v1.Outcome_OUTCOME_CALL_LIMIT,
	session.ToolLimitReached: v1.Outcome_OUTCOME_TOOL_LIMIT,
	session.TokenLimit:       v1.Outcome_OUTCOME_TOKEN_LIMIT,
	session.TimedOut:         v1.Outcome_OUTCOME_SESSION_TIMEOUT,
	session.ConcurrencyLimit: v1.Outcome_OUTCOME_CONCURRENCY_LIMIT,
	session.QueueFull:        v1.Outcome_OUTCOME_QUEUE_FULL,
	session.WaitTimeout:      v1.Outcome_OUTCOME_WAIT_TIMEOUT,
	session.SessionClosed:    v1.Outcome_OUTCOME_SESSION_CLOSED,
	session.LeaseLost:        v1.Outcome_OUTCOME_LEASE_LOST,
	session.AlreadyEnded:     v1.Outcome_OUTCOME_ALREADY_ENDED,
	session.Ended:            v1.Outcome_OUTCOME_ENDED,
	session.WaitCancelled:    v1.Outcome_OUTCOME_CANCELLED,
	session.Renewed:          v1.Outcome_OUTCOME_RENEWED,
	session.LeaseExpired:     v1.Outcome_OUTCOME_LEASE_EXPIRED,
	session.Fenced:           v1.Outcome_OUTCOME_FENCED,
	session.Released:         v1.Outcome_OUTCOME_RELEASED,
	session.AlreadyReleased:  v1.Outcome_OUTCOME_ALREADY_RELEASED,
	session.RateLimited:      v1.Outcome_OUTCOME_RATE_LIMITED,
	session.KindLimitReached: v1.Outcome_OUTCOME_KIND_LIMIT,
	session.BreakerOpen:      v1.Outcome_OUTCOME_BREAKER_OPEN,
	session.BudgetExceeded:   v1.Outcome_OUTCOME_BUDGET_EXCEEDED,
	session.Stopped:          v1.Outcome_OUTCOME_STOPPED,
	session.ApprovalRequired: v1.Outcome_OUTCOME_APPROVAL_REQUIRED,
	session.ApprovalDenied:   v1.Outcome_OUTCOME_APPROVAL_DENIED,
	session.ApprovalExpired:  v1.Outcome_OUTCOME_APPROVAL_EXPIRED,
}

// Categories of refusals that the state machine makes, beside those of package
// engine.
const (
	categoryAttempts    = "max_attempts"
	categoryToolCalls   = "max_calls_per_tool"
	categoryTokens      = "max_tokens"
	categoryConcurrency = "max_concurrent"
	categoryRate        = "rate_limit"
	categorySession     = "session"
	categoryBreaker     = "max_consecutive_failures"
	categoryBudget      = "budget"
	categorySignal      = "signal"
)

// A refusal is how an outcome that the state machine reached reads.
type refusal struct {
	Category string
	Public   string // what an end user may read
	Reason   string
}

// RefusalOf makes the words of a refusal from what every node holds for ever
// or is remembered with the id, so that a repeat reads the same: the outcome,
// the pinned limits, and the call itself.
func RefusalOf(res *session.Result, limits *session.Limits, cmd *session.Begin) refusal {
	switch res.Code {
	case session.AttemptLimit:
		return refusal{categoryAttempts, "Attempt limit exceeded.", fmt.Sprintf("Attempt limit reached (%d). Agent may be stuck in a retry loop. Stop and reassess.", limits.MaxAttempts)}
	case session.CallLimit:
		return refusal{engine.CategoryMaxToolCalls, "Tool-call limit exceeded.", fmt.Sprintf("Max tool calls exceeded (%d)", limits.MaxToolCalls)}
	case session.ToolLimitReached:
		return refusal{categoryToolCalls, "Tool-call limit exceeded.", toolLimitText(cmd.Tool, ToolLimit(limits, cmd.Tool))}
	case session.KindLimitReached:
		return kindRefusal(limits, cmd)
	case session.BreakerOpen:
		return refusal{categoryBreaker, "Too many calls have failed.",
			fmt.Sprintf("%d calls in a row failed; none is admitted until one that is tried after %s succeeds", limits.MaxFailures, limits.BreakerReset)}
	case session.BudgetExceeded:
		return refusal{categoryBudget, "Budget exceeded.", budgetText(res)}
	case session.TokenLimit:
		return refusal{categoryTokens, "Token limit exceeded.", fmt.Sprintf("Max tokens exceeded (%d)", limits.MaxTokens)}
	case session.TimedOut:
		return refusal{engine.CategoryTimeout, "Execution timeout exceeded.",
			fmt.Sprintf("Timeout exceeded (%ds): elapsed %.1fs", limits.Timeout/time.Second, res.Elapsed.Seconds())}
	case session.ConcurrencyLimit:
		return refusal{categoryConcurrency, "Too many calls are running.", noRoomText(limits, cmd)}
	case session.QueueFull:
		return refusal{categoryConcurrency, "Too many calls are waiting.", noRoomText(limits, cmd) + ", and its queue is full"}
	case session.RateLimited:
		name := session.RateName(res.Pools[0])
		if name != "" { // else nobody knows any more which it was
			name += " "
		}
		return refusal{categoryRate, "Too many calls at once; try again later.", "Rate limit " + name + "reached"}
	case session.WaitTimeout:
		return refusal{categoryConcurrency, "Too many calls are running.", noRoomText(limits, cmd) + "; no slot became free while the call waited"}
	case session.WaitCancelled:
		return refusal{categoryConcurrency, "The call was given up.", "The wait was given up by its caller"}
	case session.ApprovalRequired:
		return refusal{engine.CategoryApproval, publicApproval, "Waiting for approval"}
	case session.ApprovalExpired:
		return refusal{engine.CategoryApproval, publicApproval, "Approval expired: nobody decided in time, or the call did not come back in time"}
	case session.ApprovalDenied:
		return refusal{engine.CategoryApproval, publicApproval, approvalRefusals[res.Approval.Why]}
	case session.Stopped:
		return refusal{categorySignal, "Work is stopped for now.", StoppedText(res.Signal)}
	case session.SessionClosed:
		if res.Signal != nil {
			return refusal{categorySignal, "The session was ended by an operator.", KilledText(res.Signal)}
		}
		return refusal{categorySession, "The session is closed.", "Session is closed; create a new one"}
	case session.LeaseLost:
		return refusal{categorySession, "The call has lapsed.", "The lease of this call ran out; it was settled as unknown and counts as executed"}
	case session.AlreadyEnded:
		return refusal{categorySession, "The call has ended.", "This call has already ended; take a new callId for a new call"}
	}
	return refusal{}
}

// kindRefusal names the field of the limit, which is the category too.
func kindRefusal(limits *session.Limits, cmd *session.Begin) refusal {
	var most uint32
	for _, k := range limits.Kinds {
		if k.Kind == cmd.CallKind {
			most = k.Max
		}
	}
	switch cmd.CallKind {
	case session.Model:
		return refusal{"max_model_calls", "Model-call limit exceeded.", fmt.Sprintf("Max model calls exceeded (%d)", most)}
	case session.Agent:
		return refusal{"max_agent_calls", "Agent-call limit exceeded.", fmt.Sprintf("Max agent calls exceeded (%d)", most)}
	case session.Handoff:
		return refusal{"max_handoffs", "Handoff limit exceeded.", fmt.Sprintf("Max handoffs exceeded (%d)", most)}
	}
	return refusal{"max_sampling_requests", "Sampling limit exceeded.", fmt.Sprintf("Max sampling requests of server %q exceeded (%d)", cmd.Tool, most)}
}

const publicApproval = "Human approval required."

// approvalRefusals say why a call was not approved. Who denied it, and why, stands
// beside, for as long as the approval is kept.
var approvalRefusals = map[session.Refusal]string{
	session.RefusedByVote:     "Approval denied",
	session.RefusedCancelled:  "The approval was cancelled",
	session.RefusedTooMany:    "Too many calls of this session wait for approval",
	session.RefusedOtherThing: "The call came back with other arguments than were asked about",
}

// CallKinds are the kinds of calls as policies name them.
var CallKinds = map[session.CallKind]string{session.Tool: "tool", session.Model: "model", session.Agent: "agent", session.Handoff: "handoff", session.Sampling: "sampling"}

// ApprovalStates are the states of approvals in the words of the API.
var ApprovalStates = map[approval.State]v1.ApprovalState{
	approval.Pending:   v1.ApprovalState_APPROVAL_STATE_PENDING,
	approval.Approved:  v1.ApprovalState_APPROVAL_STATE_APPROVED,
	approval.Used:      v1.ApprovalState_APPROVAL_STATE_USED,
	approval.Denied:    v1.ApprovalState_APPROVAL_STATE_DENIED,
	approval.Expired:   v1.ApprovalState_APPROVAL_STATE_EXPIRED,
	approval.Cancelled: v1.ApprovalState_APPROVAL_STATE_CANCELLED,
}

// ApprovalOf is the approval of a call; nil if it has none.
func ApprovalOf(n *session.ApprovalCount) *v1.CallApproval {
	if n == nil {
		return nil
	}
	out := &v1.CallApproval{
		Id: n.ID, State: ApprovalStates[n.State], ExpiresIn: SomeDuration(n.Left), Required: int32(n.Required), Votes: int32(n.For),
		DecidedBy: n.By, DecisionReason: n.Reason,
	}
	if n.By == "" && (n.State == approval.Approved || n.State == approval.Used) {
		out.DecidedBy = "timeout"
	}
	return out
}

func budgetText(res *session.Result) string {
	if len(res.Budgets) == 0 { // the tree of that time is not there any more
		return "Budget exceeded"
	}
	b := &res.Budgets[0]
	return fmt.Sprintf("Budget %s exceeded: %s is left of it", b.Budget, input.FormatDecimal(b.Left()))
}

// toolLimitText counts what counts: a call is refused once that many were begun.
func toolLimitText(tool string, limit uint32) string {
	return fmt.Sprintf("Per-tool limit: %s called %d times (limit: %d).", tool, limit, limit)
}

// ToolLimit is the limit of the calls of one tool; 0 for none.
func ToolLimit(limits *session.Limits, tool string) uint32 {
	for _, t := range limits.PerTool {
		if t.Tool == tool {
			return t.Max
		}
	}
	return 0
}

// noRoomText names the limit of the policy's own pool. Which of several pools
// was full is not remembered with the id, so all are named.
func noRoomText(limits *session.Limits, cmd *session.Begin) string {
	if len(cmd.Pools)+len(cmd.Rates) == 1 {
		return fmt.Sprintf("Max concurrency reached (%d)", limits.MaxConcurrent)
	}
	names := make([]string, len(cmd.Pools))
	for i, w := range cmd.Pools {
		names[i] = w.Pool
	}
	for _, w := range cmd.Rates {
		names = append(names, w.Pool)
	}
	return "Max concurrency reached in one of the pools " + strings.Join(names, ", ")
}

// DecisionID names a decision: the same call has the same one, on every node of
// its cluster and for ever, and another one in every other cluster.
func DecisionID(store interface{ DataID(ns string) string }, ns, sess, call string) string {
	// None of the four can hold a NUL.
	var room [256]byte // of most
	text := append(append(room[:0], store.DataID(ns)...), 0)
	text = append(append(text, ns...), 0)
	text = append(append(text, sess...), 0)
	sum := sha256.Sum256(append(text, call...))
	return hex.EncodeToString(sum[:16])
}

// HolderName is how package session names what a maker holds in its pools.
func HolderName(kind byte, maker, id string) string { return string(kind) + maker + " " + id }

// PressureOf is the pressure of a pool; nil where it has no limit.
func PressureOf(p session.Pressure) *v1.Pressure {
	if p.Limit == 0 {
		return nil
	}
	out := &v1.Pressure{Level: v1.Level_LEVEL_NONE, InUse: p.InUse, Limit: p.Limit}
	if p.Pressed() {
		out.Level, out.AdvisedDelay = v1.Level_LEVEL_PRESSED, durationpb.New(p.Delay())
	}
	return out
}

// CountersOf are the counters of a session.
func CountersOf(c session.Counters) *v1.Counters {
	out := &v1.Counters{}
	SetCounters(out, c)
	return out
}

// SetCounters is CountersOf into a message that is there.
func SetCounters(out *v1.Counters, c session.Counters) {
	out.Attempts, out.Calls, out.Executions = int32(c.Attempts), int32(c.Calls), int32(c.Executions)
	out.Failures, out.ConsecutiveFailures, out.TokensUsed = int32(c.Failures), int32(c.Consecutive), c.Tokens
}

// SetDuration puts a duration into a message that is there.
func SetDuration(out *durationpb.Duration, d time.Duration) *durationpb.Duration {
	out.Seconds, out.Nanos = int64(d/time.Second), int32(d%time.Second)
	return out
}

// GrantsOf are the slots that an answer grants.
func GrantsOf(grants []session.Grant) []*v1.Grant {
	out := make([]*v1.Grant, len(grants))
	for i, g := range grants {
		out[i] = &v1.Grant{Pool: g.Pool, Token: g.Token, Ttl: durationpb.New(g.TTL)}
	}
	return out
}

// PlaceOf is a place in a queue; nil if it is none.
func PlaceOf(p session.Place) *v1.QueuePlace {
	if p.Position == 0 {
		return nil
	}
	return &v1.QueuePlace{Pool: p.Pool, Position: p.Position}
}

// SomeDuration leaves out a duration of nothing.
func SomeDuration(d time.Duration) *durationpb.Duration {
	if d <= 0 {
		return nil
	}
	return durationpb.New(d)
}

// The names of signals in the API.
const (
	Stop     = "STOP"
	Continue = "CONTINUE"
	Kill     = "KILL"
)

// SignalOf shows a signal that stands; nil if none does. Without the time of a
// look its age is not known.
func SignalOf(h *session.Halt, now time.Duration) *v1.Signal {
	if h == nil {
		return nil
	}
	out := &v1.Signal{Signal: Stop, Reason: h.Reason, Swept: h.Swept}
	if h.Signal == session.Kill {
		out.Signal = Kill
	}
	if now > 0 {
		out.Age = durationpb.New(max(now-h.Since, 0))
	}
	switch t := h.Target; t.Scope {
	case session.OfSession:
		out.Target = &v1.Signal_SessionId{SessionId: t.Name}
	case session.OfAgent:
		out.Target = &v1.Signal_AgentId{AgentId: t.Name}
	case session.OfPolicy:
		out.Target = &v1.Signal_PolicyName{PolicyName: t.Name}
	default:
		out.Target = &v1.Signal_Everything{Everything: true}
	}
	return out
}

// TargetText names whom a signal is for.
func TargetText(t session.Target) string {
	switch t.Scope {
	case session.OfSession:
		return fmt.Sprintf("sessionId %q", t.Name)
	case session.OfAgent:
		return fmt.Sprintf("agentId %q", t.Name)
	case session.OfPolicy:
		return fmt.Sprintf("policyName %q", t.Name)
	}
	return "everything"
}

// KilledText is why what was killed is closed.
func KilledText(h *session.Halt) string {
	if h.Reason == "" {
		return "killed"
	}
	return "killed: " + h.Reason
}

// StoppedText is why a call is not admitted for now.
func StoppedText(h *session.Halt) string {
	text := "Stopped by a signal for " + TargetText(h.Target)
	if h.Reason != "" {
		text += " (" + h.Reason + ")"
	}
	return text + "; nothing was counted, and the same id may be sent again"
}

// TextOf reads a text that may never have been set.
func TextOf(h unique.Handle[string]) string {
	if h == (unique.Handle[string]{}) {
		return ""
	}
	return h.Value()
}
