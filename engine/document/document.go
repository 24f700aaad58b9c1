package document

import (
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A document as it was written: its rules with their conditions, and its
// defaults. How one is read stands in read.go.

// An Action is what a rule, a default or a backend prescribes (policy engine
// spec 6.1). Only its class matters for whether a call may go on: allow and
// audit permit, deny and block refuse, everywhere. A rule may also ask, which
// leaves it to people: any deny wins over that, and of an allow and an ask the
// ask counts wherever a deny would.
type Action string

// The four actions, and the one that rules alone have.
const (
	Allow Action = "allow"
	Deny  Action = "deny"
	Audit Action = "audit"
	Block Action = "block"
	Ask   Action = "ask"
)

// Allows reports whether the action is of the allowing class.
func (a Action) Allows() bool { return a == Allow || a == Audit }

// Restricts reports whether the action denies or asks. Anything that is not
// known to allow does.
func (a Action) Restricts() bool { return !a.Allows() }

// Denies reports whether the action is of the denying class. Anything that is
// not known to allow or to ask denies.
func (a Action) Denies() bool { return !a.Allows() && a != Ask }

// Valid reports whether the action is one of the five.
func (a Action) Valid() bool {
	return a == Allow || a == Deny || a == Audit || a == Block || a == Ask
}

// An Operator compares a field of the context with a target value (policy
// engine spec 5.1, and not_in, which every implementation has).
type Operator string

// The ten operators.
const (
	OpEq       Operator = "eq"
	OpNe       Operator = "ne"
	OpGt       Operator = "gt"
	OpLt       Operator = "lt"
	OpGte      Operator = "gte"
	OpLte      Operator = "lte"
	OpIn       Operator = "in"
	OpNotIn    Operator = "not_in"
	OpContains Operator = "contains"
	OpMatches  Operator = "matches"
)

func (o Operator) valid() bool {
	switch o {
	case OpEq, OpNe, OpGt, OpLt, OpGte, OpLte, OpIn, OpNotIn, OpContains, OpMatches:
		return true
	}
	return false
}

// A Condition is a field, an operator and a target (policy engine spec 4.2).
type Condition struct {
	Field    string // literal key, or dotted path into the context
	Operator Operator
	Value    value.Value

	Search *pattern.Searcher // of Value, for matches
}

// A Rule is one condition and the action that follows from it (policy engine
// spec 4.1).
type Rule struct {
	Name      string
	Condition Condition
	Action    Action
	Priority  int64 // higher is evaluated first; equal keeps document order
	Message   string
	Override  bool // replaces a parent's rule of the same name on merging

	Line   int
	Doc    *Document
	Number uint16 // place in the tree, from 0, files by path
	Reason string
}

// Defaults is what holds where no rule matches (policy engine spec 3.2). The
// limits stand only where the document states them; see [Policy.Limits].
type Defaults struct {
	Action              Action
	MaxTokens           int64
	MaxToolCalls        int64
	ConfidenceThreshold float64

	// Stated says which of them the document itself wrote.
	Stated struct{ Any, MaxTokens, MaxToolCalls, Confidence bool }
}

// A Document is one declarative policy file (policy engine spec 3.1), with the
// settings that a tree may add to it.
type Document struct {
	Version     string
	Name        string
	Description string
	Rules       []*Rule
	Defaults    Defaults
	Inherit     bool
	Scope       *string // glob over action paths; nil applies to all

	// Level is the scope of the document for conflict resolution (policy
	// engine spec 13.3); it is not the path glob above.
	Level Level
	// AllowCutoff lets documents below say inherit: false in strict mode.
	AllowCutoff bool

	Path     string // of the file in the tree
	Settings Settings
}

// New is a document that states nothing.
func New(path string) *Document {
	return &Document{
		Version: "1.0",
		Name:    "unnamed",
		Defaults: Defaults{
			Action: Allow, MaxTokens: 4096, MaxToolCalls: 10, ConfidenceThreshold: 0.8,
		},
		Inherit: true,
		Level:   LevelGlobal,
		Path:    path,
	}
}
