package demo

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A stopped span that lasts from 10 to 20, with the numbers 100 and 110 drawn at its
// ends.
var aStop = stopSpan{sent: 9, answered: 10, lifted: 20, first: 100, last: 110}

// at is a call of a worker: when it was asked for, when it was answered, what, and
// its number at the turnstile.
func at(sent, answered int, outcome string, passed uint64) *thing {
	return &thing{intent: entry{At: time.Duration(sent), Session: "s"}, answered: time.Duration(answered), outcome: outcome, passed: passed}
}

// What has a number between those of the STOP was admitted while it stood, whenever
// its caller heard of it.
func TestWhileStopped(t *testing.T) {
	tests := []struct {
		name string
		call *thing
		want gate
	}{
		{"admitted before", at(5, 8, admitted, 99), gate{}},
		{"admitted before, answered in between", at(5, 15, admitted, 99), gate{}},
		{"admitted before, answered after", at(5, 25, admitted, 99), gate{KeptOut: 1, Admitted: 1}},
		{"admitted in between", at(12, 13, admitted, 101), gate{Violations: 1}},
		{"from the queue", at(5, 13, admitted, 109), gate{Violations: 1}},
		{"admitted in between, answered after", at(12, 25, admitted, 105), gate{Violations: 1, KeptOut: 1, Admitted: 1}},
		{"kept out, and admitted after", at(12, 25, admitted, 111), gate{KeptOut: 1, Admitted: 1}},
		{"kept out, and refused after", at(12, 25, "CALL_LIMIT", 0), gate{KeptOut: 1}},
		{"refused for the STOP", at(12, 13, "STOPPED", 0), gate{KeptOut: 1}},
		{"asked for after", at(21, 22, admitted, 112), gate{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := whileStopped([]*thing{tt.call}, aStop)
			require.NotEmpty(t, got.How)
			got.How = ""
			require.Equal(t, tt.want, got)
		})
	}
}

// A call that was under way when the STOP came may have counted twice as an attempt,
// and no other.
func TestCaughtByTheStop(t *testing.T) {
	for name, tt := range map[string]struct {
		call *thing
		want bool
	}{
		"answered before":             {at(5, 8, admitted, 1), false},
		"asked for before":            {at(5, 25, admitted, 111), true},
		"asked for before its answer": {at(9, 25, admitted, 111), true},
		"without an answer":           {at(5, 0, "", 0), true},
		"asked for after":             {at(11, 25, admitted, 111), false},
	} {
		require.Equal(t, tt.want, aStop.caught(tt.call), name)
	}
	b := newBooks(1)
	b.stop = aStop
	b.add(0, []entry{
		told(1, wroteSession, "s", ""),
		told(5, wroteIntent, "s", "a"), told(25, wroteAnswer, "s", "a", outcome(admitted)),
		told(26, wroteFinish, "s", "a"), told(27, wroteDone, "s", "a", outcome("ENDED")),
		told(28, wroteIntent, "s", "b"), told(29, wroteAnswer, "s", "b", outcome("STOPPED")),
	})
	b.count()
	require.Equal(t, &sessionBook{attempts: 1, again: 1, calls: 1, executions: 1}, b.sessions["s"])
}

// A call needs a yes to itself, which was sent before it was answered and does not
// stand behind it in the log.
func TestWithoutApproval(t *testing.T) {
	call := asked{id: "a", sent: 1, answered: 20, outcome: admitted, index: 50}
	denied := asked{id: "a", sent: 1, answered: 20, outcome: "APPROVAL_DENIED"}
	yes := vote{call: "a", yes: true, sent: 10, index: 40}
	with := func(change func(*vote)) []vote {
		v := yes
		change(&v)
		return []vote{v}
	}
	tests := []struct {
		name  string
		call  asked
		votes []vote
		want  gate
	}{
		{"a yes", call, []vote{yes}, gate{Admitted: 1}},
		{"a yes in the same entry", call, with(func(v *vote) { v.index = 50 }), gate{Admitted: 1}},
		{"a yes whose answer was lost", call, with(func(v *vote) { v.index = 0 }), gate{Admitted: 1}},
		{"the second vote", call, append(with(func(v *vote) { v.call = "b" }), yes), gate{Admitted: 1}},
		{"nobody was asked", call, nil, gate{Admitted: 1, Violations: 1}},
		{"a yes to another", call, with(func(v *vote) { v.call = "b" }), gate{Admitted: 1, Violations: 1}},
		{"a no", call, with(func(v *vote) { v.yes = false }), gate{Admitted: 1, Violations: 1}},
		{"a yes that was sent later", call, with(func(v *vote) { v.sent, v.index = 21, 0 }), gate{Admitted: 1, Violations: 1}},
		{"a yes that stands behind it", call, with(func(v *vote) { v.index = 51 }), gate{Admitted: 1, Violations: 1}},
		{"denied", denied, with(func(v *vote) { v.yes = false }), gate{KeptOut: 1}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := withoutApproval([]asked{tt.call}, tt.votes)
			require.NotEmpty(t, got.How)
			got.How = ""
			require.Equal(t, tt.want, got)
		})
	}
}

// A ledger of the approver is its votes; one whose answer was lost has no index.
func TestVotesOf(t *testing.T) {
	index := func(e *entry) { e.Index = 7 }
	require.Equal(t, []vote{{"a", true, 1, 7}, {"b", false, 3, 0}, {"b", false, 4, 7}}, votesOf([]entry{
		told(1, wroteIntent, "s", "a", outcome(saidYes)), told(2, wroteAnswer, "s", "a", outcome(saidYes), index),
		told(3, wroteIntent, "s", "b", outcome(saidNo)),
		told(4, wroteIntent, "s", "b", outcome(saidNo)), told(5, wroteAnswer, "s", "b", outcome(saidNo), index),
	}))
}

// taken is a call that was admitted, asked for and answered at these times.
func taken(sent, answered int) asked {
	return asked{sent: time.Duration(sent), answered: time.Duration(answered), outcome: admitted}
}

// More than the limit is only what was surely admitted within one window: a call
// that may have been before or after it accuses nobody.
func TestOverRate(t *testing.T) {
	tests := []struct {
		name  string
		calls []asked
		over  int
	}{
		{"nobody", nil, 0},
		{"two in a window of two", []asked{taken(0, 1), taken(2, 3), taken(12, 13), taken(14, 15)}, 0},
		{"two at the end of a window, two at the beginning of the next", []asked{taken(8, 9), taken(8, 9), taken(19, 19), taken(19, 19)}, 0},
		{"one too many at once", []asked{taken(0, 1), taken(0, 1), taken(0, 1)}, 1},
		{"one too many over the border of two windows", []asked{taken(8, 9), taken(8, 9), taken(16, 17)}, 1},
		{"two too many", []asked{taken(0, 1), taken(2, 3), taken(4, 5), taken(6, 7)}, 2},
		{"one may have been admitted later", []asked{taken(0, 1), taken(0, 1), taken(5, 12)}, 0},
		{"one may have been admitted before", []asked{taken(0, 9), taken(8, 9), taken(11, 12)}, 0},
		{"an answer that took longer than the window", []asked{taken(0, 20), taken(10, 12), taken(11, 13)}, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.over, overRate(tt.calls, 2, 10).Violations)
		})
	}
	got := overRate([]asked{taken(0, 1), taken(0, 1), {answered: 1, outcome: "RATE_LIMITED"}}, 2, 10)
	require.Equal(t, gate{Admitted: 2, KeptOut: 1, How: got.How}, got)
}

// A call takes what it was assumed to cost from its answer to its end, and what it
// cost for ever.
func TestOverBudget(t *testing.T) {
	spent := func(answered, ended int) asked {
		return asked{answered: time.Duration(answered), ended: time.Duration(ended), outcome: admitted}
	}
	tests := []struct {
		name  string
		calls []asked
		over  int
	}{
		{"nobody", nil, 0},
		{"as much as there is", []asked{spent(1, 9), spent(2, 9)}, 0},
		{"one too many while two are under way", []asked{spent(1, 9), spent(2, 9), spent(3, 9)}, 1},
		{"room that came back", []asked{spent(1, 2), spent(3, 4), spent(5, 9)}, 0},
		{"room that came back is not all", []asked{spent(1, 2), spent(3, 4), spent(5, 6), spent(7, 9)}, 1},
		{"at the instant of an end", []asked{spent(1, 5), spent(2, 5), spent(5, 9)}, 0},
		{"an end that was never reported", []asked{spent(1, 0), spent(2, 0), spent(30, 31)}, 1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			require.Equal(t, tt.over, overBudget(tt.calls, 20, charge{assumed: 10, spent: 5}).Violations)
		})
	}
	got := overBudget([]asked{spent(1, 9), spent(2, 9), {answered: 3, outcome: "BUDGET_EXCEEDED"}}, 20, charge{assumed: 10, spent: 5})
	require.Equal(t, gate{Admitted: 2, KeptOut: 1, How: got.How}, got)
}
