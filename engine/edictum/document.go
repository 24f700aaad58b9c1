package edictum

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"

	"example.com/govnode/engine/value"
)

// A Document is a ruleset as its author wrote it, in one vocabulary, and as files
// make it when they are composed. It does not change.
type Document struct {
	Name        string // of the metadata
	Description string
	Mode        Mode // of rules that have none
	Rules       []Rule
	Tools       map[string]Tool
	Extends     string // name of the parent; empty without one
	Alongside   bool   // its rules are candidates beside those of others
	Warnings    []string

	source string // name of the file
	hash   string // of the raw bytes, hexadecimal
	given  fields // which top-level fields it has
}

type fields map[string]bool

// Version is the policy_version of the SDKs: the SHA-256 of the raw bytes of a file,
// or of the hashes of several, joined by colons.
func (d *Document) Version() string { return d.hash }

// Source is the file that a document was read from, or, of several, the first.
func (d *Document) Source() string { return d.source }

// A Mode says whether a rule decides or only says what it would have decided.
type Mode uint8

// The modes. Enforce is the zero value.
const (
	Enforce Mode = iota
	Observe
)

// A Type is what a rule looks at.
type Type uint8

// The types of rules.
const (
	Pre     Type = iota // the call
	Post                // its output
	Session             // how many there were
	Sandbox             // paths, commands and hosts in the call
)

// String is the type as documents write it.
func (t Type) String() string { return [...]string{"pre", "post", "session", "sandbox"}[t] }

// record is the type as records have it.
func (t Type) record() string {
	return [...]string{"precondition", "postcondition", SessionRecord, "sandbox"}[t]
}

// SessionRecord is the type of records of limits.
const SessionRecord = "session_contract"

// An Action is what a rule does where it applies.
type Action uint8

// The actions. Allow is that of no rule.
const (
	Allow Action = iota
	Block
	Ask
	Warn
	Redacts
)

// String is the action as documents write it.
func (a Action) String() string { return [...]string{"allow", "block", "ask", "warn", "redact"}[a] }

// A Rule is one of a ruleset.
type Rule struct {
	ID       string
	Type     Type
	Enabled  bool
	Mode     Mode // with OwnMode; else that of the document holds
	OwnMode  bool
	Action   Action // of a sandbox: what happens outside
	Message  string
	Tags     []string
	Metadata value.Value

	Tools []string   // patterns; of pre, post and sandbox
	When  *Condition // of pre and post

	Timeout        int64 // seconds for people; of an ask
	AllowOnTimeout bool

	Limits Limited // of session rules
	Box    Box     // of a sandbox

	// Candidate names the rule beside which this one only observes, and is empty
	// for those that decide.
	Candidate bool
	Source    string // the file that it comes from
}

// Limited are the limits of a session rule. 0 is none.
type Limited struct {
	ToolCalls, Attempts int64
	PerTool             map[string]int64
}

// A Box is what a sandbox rule allows.
type Box struct {
	Within, NotWithin, Commands, Domains, NotDomains []string
}

// A Tool is what a ruleset says of a tool.
type Tool struct {
	SideEffect SideEffect
	Idempotent bool
}

// A Condition is one node of a when.
type Condition struct {
	All, Any []*Condition
	Not      *Condition

	Selector, Operator string // of a leaf
	Operand            value.Value
}

// A Problem is why a document is refused.
type Problem struct {
	Rule    string // id of the rule; empty where it is none's
	Field   string // path of the field, such as rules[0].then.action
	Line    int    // from 1; 0 where the file as a whole is meant
	Message string // what is wrong and what to do
}

// Error implements error.
func (p *Problem) Error() string { return p.Message }

func hashOf(raw []byte) string {
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:])
}

// joined is the version of several files.
func joined(docs []*Document) string {
	if len(docs) == 1 {
		return docs[0].hash
	}
	hashes := make([]string, len(docs))
	for i, d := range docs {
		hashes[i] = d.hash
	}
	return hashOf([]byte(strings.Join(hashes, ":")))
}
