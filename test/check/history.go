package check

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// An Outcome is what a client was told became of an operation.
type Outcome uint8

// The zero value claims nothing.
const (
	Unknown Outcome = iota
	Applied
	NotApplied
	Refused // by an answer: it was not granted, or not held any longer
)

func (o Outcome) String() string {
	return [...]string{"unknown", "applied", "not applied", "refused"}[o]
}

// A Kind is what an operation does.
type Kind string

const (
	Increment Kind = "increment" // Object is a counter
	Read      Kind = "read"      // of a counter
	Acquire   Kind = "acquire"   // Object is a pool
	Release   Kind = "release"
	Begin     Kind = "begin" // Object is a session
	End       Kind = "end"
	Take      Kind = "take" // Object is a rate
	Look      Kind = "look" // at the calls of a session
	Stop      Kind = "stop" // Object is an agent
	Continue  Kind = "continue"
	Kill      Kind = "kill"
	Adjust    Kind = "adjust" // Object is a budget
	Vote      Kind = "vote"   // Object is an approval; Amount is 1 for it, -1 against it
	Revoke    Kind = "revoke" // Object is a token

	// Effects alone.
	Made     Kind = "made"     // a budget
	Swept    Kind = "swept"    // a KILL of the agent is marked so
	Restored Kind = "restored" // an earlier state
)

// reads reports whether it changes nothing.
func (k Kind) reads() bool { return k == Read || k == Look }

// An Op is one operation of a client, however often it was sent.
type Op struct {
	Client string
	Kind   Kind
	Object string
	ID     string // names its effect, with Kind
	Amount int64  // of an Increment, a Take or an Adjust
	Costs  []Cost `json:",omitempty"` // of a Begin, as it is assumed; of an End, as it is reported
	Call   time.Duration
	Return time.Duration

	Shown string `json:",omitempty"` // the token that was shown, where that is known

	Outcome Outcome
	// What the answer said.
	Index   uint64 // of the log; 0 if it does not say
	Value   int64  // of the counter, or of a session's calls (with this one)
	Granted bool
	Token   uint64
	Text    string // of an error
}

func (o Op) String() string {
	s := fmt.Sprintf("%v-%v %s %s %s %s: %v", o.Call, o.Return, o.Client, o.Kind, o.Object, o.ID, o.Outcome)
	for _, f := range []struct {
		name  string
		value int64
	}{{"index", int64(o.Index)}, {"amount", o.Amount}, {"value", o.Value}, {"token", int64(o.Token)}} {
		if f.value != 0 {
			s += fmt.Sprintf(" %s=%d", f.name, f.value)
		}
	}
	if len(o.Costs) > 0 {
		s += fmt.Sprintf(" costs=%v", o.Costs)
	}
	if o.Text != "" {
		s += " (" + strings.ReplaceAll(o.Text, "\n", " ") + ")"
	}
	return s
}

// An Effect is a change that the log has in it.
type Effect struct {
	Kind    Kind
	Object  string
	ID      string
	Index   uint64
	Granted bool          // of an Acquire or a Begin
	Agent   string        // of a Begin; who votes
	By      string        // the principal that asked for it, or for what it ends the wait of; of a Revoke, who is revoked
	Open    int           // of a Swept: how many sessions of the agent are open
	At      time.Duration // of the log
	Amount  int64         // of a Take or an Adjust
	Costs   []Cost        // as those of an Op
	Asks    string        // of a Begin: the approval that it asks for
	Needs   int           // to agree to it
	Ends    int           // to refuse it
}

// A Rate admits Limit in each window of Per.
type Rate struct {
	Limit int64
	Per   time.Duration
}

// A Hold is a time for which a client took itself for the holder of a slot. It
// ends when the client gives the slot back, is told that it was lost, or may not
// trust its lease any longer.
type Hold struct {
	Pool        string
	ID          string
	Weight      int
	Token       uint64
	From, Until time.Duration
}

// A History is what a run left behind.
type History struct {
	Ops     []Op
	Effects []Effect // in the order of the log
	Holds   []Hold
	Limits  map[string]int // of pools
	Rates   map[string]Rate
	Budgets map[string]Budget
	Final   map[string]int64 // counters, as read after the run
	Spent   map[string]int64 // likewise, what is used of budgets that have no period
	Alone   map[string]int   // steps that were answered of scripts that clients played alone, by their names
}

// A Violation is a promise that was broken.
type Violation struct{ Check, Text string }

func (v Violation) String() string { return v.Check + ": " + v.Text }

// All runs every check of this package.
func All(h History) (broken []Violation) {
	for _, check := range []func(History) []Violation{Order, Once, Definite, Counters, Holders, Tokens, Rates, Budgets, Spent, Signals, Approvals, Revoked, RevokedAnswers, Linearizable} {
		broken = append(broken, check(h)...)
	}
	return broken
}

type effectKey struct {
	kind Kind
	id   string
}

// effects returns what the log has of each operation.
func (h *History) effects() map[effectKey][]Effect {
	all := make(map[effectKey][]Effect, len(h.Effects))
	for _, e := range h.Effects {
		k := effectKey{e.Kind, e.ID}
		all[k] = append(all[k], e)
	}
	return all
}

// byCall returns the operations in the order in which they were called.
func byCall(ops []Op) []Op {
	sorted := slices.Clone(ops)
	slices.SortStableFunc(sorted, func(a, b Op) int { return int(a.Call - b.Call) })
	return sorted
}
