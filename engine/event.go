package engine

import (
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/matching"
	"example.com/govnode/engine/redact"
)

// An EventType names a governance event (policy engine spec 17.2).
type EventType string

// The five governance events.
const (
	PolicyCheck       EventType = "policy_check"
	PolicyViolation   EventType = "policy_violation"
	ToolCallBlocked   EventType = "tool_call_blocked"
	CheckpointCreated EventType = "checkpoint_created"
	DriftDetected     EventType = "drift_detected"
)

// OutputReviewed is that rules of an Edictum ruleset found something in what a call
// has returned.
const OutputReviewed EventType = "output_reviewed"

// What a follower is told of budgets, beside those.
const (
	BudgetWarning  EventType = "budget_warning"
	BudgetExceeded EventType = "budget_exceeded"
)

// An Event tells a follower that something happened. Its texts are redacted.
type Event struct {
	Type       EventType
	Time       time.Time
	AgentID    string
	SessionID  string
	CallID     string
	Tool       string
	Policy     string
	Rule       string
	Category   string
	Reason     string
	Checkpoint string       // of checkpoint_created
	Drift      *DriftResult // of drift_detected
	Approval   string       // the id of one that was asked for or decided
	Approver   string       // whose vote decided it
}

// Events returns what a decision gives rise to: a policy_check always; a
// policy_violation for every denial; a tool_call_blocked where what was denied
// is a tool call. What is asked about is not denied.
func Events(in call.Input, d Decision) []Event {
	ev := Event{
		Type: PolicyCheck, Time: moment(in.Now),
		AgentID: redact.Text(in.AgentID), SessionID: in.SessionID, CallID: in.CallID, Tool: redact.Text(in.Tool),
		Policy: d.Policy, Rule: d.MatchedRule, Category: d.Category, Reason: redact.Text(d.Reason),
	}
	events := []Event{ev}
	if d.Allowed || d.Action == string(document.Ask) {
		return events
	}
	ev.Type = PolicyViolation
	events = append(events, ev)
	if matching.Begun(&in).OfTool() {
		ev.Type = ToolCallBlocked
		events = append(events, ev)
	}
	return events
}

// AfterEvents returns what the end of a call gives rise to (adapter contract
// 3.7): a checkpoint where one fell due, a drift beyond the threshold. A review is told
// of where a rule has found something in the output; it may be nil.
func AfterEvents(in call.Input, checkpoint string, drift *DriftResult, review *Review) []Event {
	ev := Event{Time: moment(in.Now), AgentID: redact.Text(in.AgentID), SessionID: in.SessionID, CallID: in.CallID, Tool: redact.Text(in.Tool)}
	var events []Event
	if drift != nil && drift.Exceeded {
		d := ev
		d.Type, d.Category, d.Reason, d.Drift = DriftDetected, CategoryDrift, drift.Reason(), drift
		events = append(events, d)
	}
	if review != nil && review.Told() {
		r := ev
		r.Type, r.Reason = OutputReviewed, "the output could not be judged"
		if len(review.Findings) > 0 {
			r.Rule, r.Category, r.Reason = review.Findings[0].Rule, review.Findings[0].Type, redact.Text(review.Findings[0].Message)
		}
		events = append(events, r)
	}
	if checkpoint != "" {
		ev.Type, ev.Checkpoint = CheckpointCreated, checkpoint
		events = append(events, ev)
	}
	return events
}

func moment(t time.Time) time.Time {
	if t.IsZero() {
		t = time.Now()
	}
	return t.UTC()
}
