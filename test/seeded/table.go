package seeded

// A Bug is one of package internal/seeded, by its name there.
type Bug struct {
	Name   string
	What   string
	Layer  string   // that has to catch it
	Checks []string // of that layer; one of them has to speak
	Faults []string // the kinds of L1 that it shows under; every second run has only those
}

// Layers that catch bugs.
const (
	L0 = "L0" // package test/model
	L1 = "L1" // package test/sim
	L3 = "L3" // package test/chaos/power
)

// Bugs are all of them.
var Bugs = []Bug{
	{"snapshot-forgets", "a snapshot is read without the ids that its records remember", L0, []string{"snapshot", "replicas", "model"}, nil},
	{"forget-by-age", "a request is known again for a second only", L0, []string{"model"}, nil},
	{"time-in-apply", "an entry is applied at a time that the node's own clock has a part in", L0, []string{"model", "replicas"}, nil},
	{"map-order", "the order of a map decides which of several calls that ran out is settled first", L0, []string{"model", "replicas"}, nil},
	{"one-too-many", "a pool grants one slot above its limit", L0, []string{"model", "laws"}, nil},
	{"check-outside", "what a verdict rests on is looked at before the order, and not again in it", L0, []string{"model"}, nil},
	{"resurrect", "a slot that ran out is renewed", L0, []string{"model", "laws"}, nil},
	{"any-token", "a slot is given back with another token than it has", L0, []string{"model"}, nil},
	{"tokens-again", "the tokens of a pool that is made again begin anew", L0, []string{"model", "laws"}, nil},
	{"claim-stays", "a slot that was handed to a waiter who is gone is kept for him for ever", L0, []string{"model", "laws"}, nil},
	{"snapshot-live", "a snapshot has the records as they are when it is written", L0, []string{"snapshot", "replicas"}, nil},
	{"skip-unknown", "a command of another version is passed over", L0, []string{"unknown"}, nil},
	{"claim-under-stop", "a call that waits is let in by its claim, whatever signal stands", L0, []string{"model", "laws"}, nil},
	{"stands-on", "a standing approval is looked at and not spent", L0, []string{"model", "laws"}, nil},
	{"own-vote", "the vote of the agent that asks counts", L0, []string{"model", "laws"}, nil},
	{"other-thing", "a call that comes back with other arguments than were asked about is let in", L0, []string{"model", "laws"}, nil},
	{"answer-early", "a leader answers before what it answers is committed", L1, []string{"order", "definite", "ledger", "counters"}, nil},
	{"read-unasked", "a leader answers reads without asking whether it leads", L1, []string{"order", "counters", "linearizable"}, nil},
	{"no-barrier", "a leader serves before it has applied what those before it committed", L1, []string{"order", "counters"}, nil},
	{"restart-ttl", "every lease begins anew with a new leader", L1, []string{"lapse"}, nil},
	{"wall-clock", "log time is the time of day", L1, []string{"time", "holders"}, nil},
	{"old-clock", "a leader goes on with the clock of its last leadership", L1, []string{"lapse"}, nil},
	{"relay-twice", "a node sends what it forwards again though nobody would know it again", L1, []string{"once"}, []string{"deaf node"}},
	{"retry-anew", "the Go client sends again under another id", L1, []string{"order"}, nil},
	{"not-pinned", "a session is judged by what the name of its policy points to now", L1, []string{"pin"}, nil},
	{"error-allows", "what a policy cannot judge is allowed", L1, []string{"fail closed"}, nil},
	{"audit-gap", "an audit line is dropped where it cannot be written, and its decision is told", L1, []string{"audit"}, nil},
	{"blind-set", "a value is set whatever version it has by now", L1, []string{"counters", "linearizable", "ledger"}, nil},
	{"append-over", "items are put where the node took a list to end, over those of others", L1, []string{"lists", "counters"}, nil},
	{"sweep-early", "the sessions of a KILL are looked for in the state that the node has", L1, []string{"signals"}, nil},
	{"claim-unpaid", "a call that waits is let in by its claim, whatever is left of its budgets", L1, []string{"budgets"}, nil},
	{"no-sync", "entries are acknowledged before they are on the disk", L3, []string{"lost", "order", "counters", "ledger"}, nil},
}
