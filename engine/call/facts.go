package call

import (
	"time"
)

// Facts are what the service itself holds about a session at the moment of an
// evaluation. They override fields of the same name in a caller's context
// (policy engine spec 22.3): an agent cannot talk its own counters down.
//
// Conditions reach them as call_count, attempts, tokens_used, active_slots,
// elapsed_seconds and tool_calls.<name>.
type Facts struct {
	CallCount   int64
	Attempts    int64
	TokensUsed  int64
	ActiveSlots int64                   // slots in use in the pool of the policy
	ToolCalls   func(tool string) int64 // calls of one tool; nil means none
	Elapsed     time.Duration           // since the session began
}

// A FactKind names one of the Facts.
type FactKind uint8

// The facts that a condition can look at.
const (
	CallCount FactKind = iota + 1
	Attempts
	TokensUsed
	ToolCalls // Premise.Name is the tool
	ActiveSlots
	Elapsed // nanoseconds
)

// String is the name of the fact in conditions.
func (k FactKind) String() string {
	switch k {
	case CallCount:
		return "call_count"
	case Attempts:
		return "attempts"
	case TokensUsed:
		return "tokens_used"
	case ToolCalls:
		return "tool_calls"
	case ActiveSlots:
		return "active_slots"
	case Elapsed:
		return "elapsed_seconds"
	}
	return "unknown"
}

// A Premise is a range of one fact, both ends included, in which every
// condition that looked at it keeps the truth it had. While all premises of a
// decision hold, evaluating again with the same input gives the same decision.
type Premise struct {
	Fact   FactKind
	Name   string // the tool, for ToolCalls
	Lo, Hi int64  // nanoseconds for Elapsed
}

// Read returns the fact as premises count it.
func (f *Facts) Read(kind FactKind, tool string) int64 {
	switch kind {
	case CallCount:
		return f.CallCount
	case Attempts:
		return f.Attempts
	case TokensUsed:
		return f.TokensUsed
	case ActiveSlots:
		return f.ActiveSlots
	case Elapsed:
		return int64(f.Elapsed)
	case ToolCalls:
		if f.ToolCalls != nil {
			return f.ToolCalls(tool)
		}
	}
	return 0
}

// Exact returns the fact as matches and backends see it, and the premise that
// this rests on. Time is seen in whole seconds there: no premise on the exact
// nanosecond could ever hold until the decision is spent.
func (f *Facts) Exact(kind FactKind, tool string) (int64, Premise) {
	x := f.Read(kind, tool)
	if kind != Elapsed {
		return x, Premise{Fact: kind, Name: tool, Lo: x, Hi: x}
	}
	seconds := x / int64(time.Second)
	return seconds, Premise{Fact: kind, Lo: seconds * int64(time.Second), Hi: (seconds+1)*int64(time.Second) - 1}
}
