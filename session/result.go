package session

import (
	"slices"
	"time"

	"example.com/govnode/session/ids"
)

// The answer to a command: its code, and what comes with it.

// A Code says how a command ended. All replicas agree on it.
type Code uint8

// Codes below failures are outcomes: values in the answer. Those from
// NotFound on mean that there is no answer: nothing changed and nothing is
// remembered.
const (
	Done Code = iota
	Admitted
	Queued
	Denied
	AttemptLimit
	CallLimit
	ToolLimitReached
	TokenLimit
	TimedOut
	ConcurrencyLimit
	QueueFull
	WaitTimeout
	SessionClosed
	LeaseLost
	AlreadyEnded
	Ended
	WaitCancelled
	Renewed
	LeaseExpired
	Fenced
	Released
	AlreadyReleased
	Stopped          Code = 22 // a signal stands against it; no final answer
	KindLimitReached Code = 23
	BreakerOpen      Code = 24
	BudgetExceeded   Code = 25
	ApprovalRequired Code = 26 // somebody is asked; no final answer
	ApprovalDenied   Code = 27
	ApprovalExpired  Code = 28
	RateLimited      Code = 29 // of a rate
)

// Failures begin at a number of their own, so that a new outcome renumbers
// none: results travel between nodes of different versions.
const (
	NotFound          Code = iota + 40 // the session, call, slot, pool or policy named
	IDReused                           // the id is known with other content
	StaleID                            // the id is older than what is still remembered
	StalePremise                       // what the node took for granted no longer holds
	Invalid                            // the command contradicts itself
	TooManyOpen                        // cap: open calls of a session, or slots of a client
	TooManyTools                       // cap: tools of a session
	PoolInUse                          // the pool has leases or waiters
	PolicyPinned                       // live sessions pin the tree
	NotWaiting                         // there is no wait to give up
	StillWaiting                       // the call has not been admitted yet
	NotANumber                         // the key holds a text
	Overflow                           // the sum does not fit
	TooManyNames                       // cap: names of a tree
	Killed            Code = 54        // a KILL stands against the session that is to be opened
	KillUnderWay      Code = 55        // the KILL has not closed all its sessions yet
	TooManySignals    Code = 56        // cap: signals that stand in a namespace
	AlreadyVoted      Code = 57        // the approver has said the opposite
	AlreadyDecided    Code = 58        // the approval is not pending any more
	SelfApproval      Code = 59        // the approver is the agent that asks
	BudgetHasChildren Code = 61        // others are below it
	StaleAccess       Code = 62        // who may do what has changed since it was judged
	TooManyTokens     Code = 63        // cap: tokens, or denied subjects, of a namespace
	TokenTaken        Code = 64        // the token is for another node, or another has used it
	StaleSession      Code = 65        // another session has the id by now than the one that was judged
	numCodes          Code = 66
)

// The key has another version, or the list another length, than the caller named.
const VersionConflict Code = 60

// Codes is how many codes there are; they are numbered from 0.
const Codes = int(numCodes)

// Failure reports whether the code means that there is no answer.
func (c Code) Failure() bool { return c >= NotFound }

// A Result is the answer to a command. Only the fields that its code and
// command speak of are set.
type Result struct {
	Code       Code
	Repeat     bool   // this was known before
	Rule       uint16 // number of the rule that decided, in the pinned tree
	Checkpoint uint32 // the execution that made one; 0 if none did

	Grants   []Grant
	Pressure Pressure // of the first pool of a call
	Counters Counters
	Queue    Place

	RetryAfter time.Duration
	Limit      int64         // the limit that refused
	Elapsed    time.Duration // with TimedOut
	Value      int64         // of a counter after Increment, in millionths; version after PutPolicy; leases ended by Close; how many tokens or subjects it was that changed; length of a list, also with StalePremise and VersionConflict
	NewerThan  uint64        // with StaleID, Unix milliseconds
	Released   bool

	// What holds instead, with StalePremise.
	Digest Digest
	Pools  []string
	Names  []string
	Rates  []string // of a call, beside its Pools
	Facts  []int64  // in the order of Begin.Seen

	Version string // that a key has, with VersionConflict

	Lapsed []Lapse // calls that this command found to have run out

	// Chain is that of the audit as the command has left it; nil if the command has no
	// link in it. Folds are the chains that ended by the way.
	Chain *Chain
	Folds []Fold

	// Budgets are, first, the one that had no room for a call, or that the
	// command was about; and those of which the command crossed a share.
	Budgets []BudgetCount

	// After is set where callers show what they changed: after PutPool, Open and
	// Close, among others. An Open that failed brings the session that it has to name
	// as over.
	After *After

	// Approval is that of a call, with ApprovalRequired, ApprovalDenied and
	// ApprovalExpired, where it was used, and where it is a premise.
	Approval *ApprovalCount

	// Signal is what stands: with Stopped and Killed, with SessionClosed of one
	// that was killed, and after a Signal.
	Signal *Halt
}

// After is how something stands after the command, also after one that was
// carried out before. Whoever would read it instead could fail, and could not
// say any more what became of the command.
type After struct {
	Now     time.Duration // log time
	Session *Session      // without what it remembers: its ids, and whether it is counted among the pins
	Pool    *PoolCounts   // nil if it was deleted since
	// Approval is nil if it was dropped since.
	Approval *Approval
	Standing *Standing // nil if it was used up or taken back since
}

// PoolCounts is a pool without those who hold and wait, who may be thousands.
type PoolCounts struct {
	Slots, Threshold, MaxQueue int32
	InUse, Waiting             int32
	Last                       uint64        // token of the latest grant
	Per, Free                  time.Duration // of a rate: Free is until one more may be spent
}

// afterSession is what a caller is shown of a session. It shares nothing that a later
// command of the entry writes into.
func (s *State) afterSession(x *Session) *After {
	y := x.copy()
	y.entry, y.Pinned, y.IDs, y.Chain = 0, false, ids.Set{}, nil
	y.Open, y.Tools = slices.Clone(x.Open), slices.Clone(x.Tools)
	return &After{Now: s.now, Session: y}
}

func (s *State) afterPool(k ref) *After {
	p := s.pool(k)
	if p == nil {
		return &After{Now: s.now}
	}
	return &After{Now: s.now, Pool: &PoolCounts{
		Slots: p.Slots, Threshold: p.Threshold, MaxQueue: p.MaxQueue,
		InUse: p.InUse(), Waiting: int32(len(p.Queue)), Last: p.Last,
		Per: p.Per, Free: p.Free(s.now, 1, 0, 0),
	}}
}

// A Grant is a slot that is held.
type Grant struct {
	Pool  string
	Token uint64
	TTL   time.Duration // what is left
}

// Pressure tells how full a pool is.
type Pressure struct {
	InUse, Limit, Threshold int32
}

// Pressed reports whether the pool asks its users to slow down
// (policy engine spec 15.1).
func (p Pressure) Pressed() bool { return p.Threshold > 0 && p.InUse >= p.Threshold }

// Delay is how long a holder is asked to hold back: 50 ms for each slot in use
// from the threshold on, at most 1 s.
func (p Pressure) Delay() time.Duration {
	if !p.Pressed() {
		return 0
	}
	return min(time.Duration(p.InUse-p.Threshold+1)*50*time.Millisecond, time.Second)
}

// Counters are those of a session.
type Counters struct {
	Attempts, Calls, Executions, Failures, Consecutive uint32
	Tokens                                             int64
}

// A Place is where somebody waits; 1 is the head.
type Place struct {
	Pool     string
	Position int32
}

// A Lapse names a call whose lease ran out. It was settled as unknown and
// counts as executed.
type Lapse struct {
	NS, Session, Call, Tool string
}

var codeNames = [numCodes]string{
	Done: "done", Admitted: "admitted", Queued: "queued", Denied: "denied", AttemptLimit: "attempt limit",
	CallLimit: "call limit", ToolLimitReached: "tool limit", TokenLimit: "token limit", TimedOut: "timed out",
	ConcurrencyLimit: "concurrency limit", QueueFull: "queue full", WaitTimeout: "wait timeout",
	SessionClosed: "session closed", LeaseLost: "lease lost", AlreadyEnded: "already ended", Ended: "ended",
	WaitCancelled: "wait cancelled", Renewed: "renewed", LeaseExpired: "lease expired", Fenced: "fenced",
	Released: "released", AlreadyReleased: "already released", NotFound: "not found", IDReused: "id reused",
	StaleID: "stale id", StalePremise: "stale premise", Invalid: "invalid", TooManyOpen: "too many open",
	TooManyTools: "too many tools", PoolInUse: "pool in use", PolicyPinned: "policy pinned", NotWaiting: "not waiting",
	StillWaiting: "still waiting", NotANumber: "not a number", Overflow: "overflow",
	TooManyNames: "too many names", VersionConflict: "version conflict", RateLimited: "rate limited",
	KindLimitReached: "kind limit", BreakerOpen: "breaker open",
	BudgetExceeded: "budget exceeded", BudgetHasChildren: "budget has children",
	ApprovalRequired: "approval required", ApprovalDenied: "approval denied", ApprovalExpired: "approval expired",
	AlreadyVoted: "already voted", AlreadyDecided: "already decided", SelfApproval: "self approval",
	StaleAccess: "stale access", TooManyTokens: "too many tokens", TokenTaken: "token taken", StaleSession: "stale session",
	Stopped: "stopped", Killed: "killed", KillUnderWay: "kill under way", TooManySignals: "too many signals",
}

// String returns the code in words.
func (c Code) String() string {
	if c < numCodes && codeNames[c] != "" {
		return codeNames[c]
	}
	return "unknown code"
}
