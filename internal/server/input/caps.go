package input

import (
	"time"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// What numbers, texts and durations in a request may be: see Caps.

// A Bound says what a number in a request may be, ends included, and what it
// is where the request has none.
type Bound struct{ Min, Max, Default int64 }

// A Span says the same of a duration.
type Span struct{ Min, Max, Default time.Duration }

// Caps is the one table of what a request may hold. Validation reads it and
// nothing else does the limiting; the tests walk over it and try both edges of
// every row.
var Caps = struct {
	// Bytes.
	ID         Bound // ids, agents, clients, pools, policies, keys of counters
	Namespace  Bound
	Tool       Bound // names of tools: any text without control or bidirectional format characters
	Label      Bound
	Secret     Bound // of a session
	Subject    Bound // that is denied
	Signal     Bound // its name
	Reason     Bound // of a signal
	Message    Bound // why an approval is asked for, or decided
	Attribute  Bound // name and value together
	Arguments  Bound // JSON text; context likewise
	Output     Bound // what drift is computed on; longer outputs are compared by hash
	CounterKey Bound
	Text       Bound // value of a counter that is a text
	Item       Bound // of a list
	Scan       Bound // text of a scan
	Tree       Bound // all files of a policy
	Body       Bound // one request
	PolicyBody Bound // PutPolicy: the tree in its envelope
	OutputBody Bound // EndCall and Evaluate, which may carry what a tool returned

	// Items.
	Attributes  Bound
	Patterns    Bound // of a token, of agents and of policies each
	Pools       Bound // of one call, beside the pool of its policy
	Budgets     Bound // of one call, with all that are above those it names
	Metadata    Bound
	Operations  Bound // of one BatchCalls
	Renewals    Bound // of one RenewSlots
	Keys        Bound // of one BatchGet
	Items       Bound // of one Append
	Page        Bound
	Tools       Bound // of one session
	OpenCalls   Bound // of one session, and slots of one client
	Checkpoints Bound // kept

	// Numbers.
	Rates     Bound // of one call
	Rate      Bound // limit of a rate
	Cost      Bound // at a rate
	Slots     Bound
	Quota     Bound // of a namespace; 0: none
	Weight    Bound
	Queue     Bound
	Threshold Bound
	Priority  Bound
	Tokens    Bound
	Depth     Bound // of nested JSON
	Votes     Bound // that decide an approval
	Uses      Bound // of a standing approval; 0: no limit
	Length    Bound // of a list, and index of an item

	// Durations.
	Per       Span // of a rate
	TTL       Span
	MaxHold   Span
	Wait      Span
	IdleTTL   Span
	TokenTTL  Span // of a token
	JoinTTL   Span // of a token that lets a node join
	KeyTTL    Span // of a counter
	ListTTL   Span // of items of a list
	BudgetPer Span // period of a budget
	Approval  Span // to decide
	Standing  Span // of a standing approval
	Timeout   Span // of one operation in a batch
	Ahead     Span // of the clock: the time that an id may carry
}{
	ID:         Bound{Min: 1, Max: session.MaxID},
	Namespace:  Bound{Min: 1, Max: session.MaxNamespace},
	Tool:       Bound{Min: 1, Max: session.MaxTool},
	Label:      Bound{Max: session.MaxTool},
	Secret:     Bound{Max: 256},
	Subject:    Bound{Min: 5, Max: session.MaxSubject},
	Signal:     Bound{Min: 1, Max: session.MaxID},
	Reason:     Bound{Max: session.MaxReason},
	Message:    Bound{Max: session.MaxMessage},
	Attribute:  Bound{Min: 1, Max: session.MaxAttribute},
	Arguments:  Bound{Max: 64 << 10},
	Output:     Bound{Max: session.MaxText},
	CounterKey: Bound{Min: 1, Max: session.MaxKey},
	Text:       Bound{Max: session.MaxText},
	Item:       Bound{Max: session.MaxItem},
	Scan:       Bound{Max: engine.MaxScan},
	Tree:       Bound{Max: session.MaxTree},
	Body:       Bound{Max: 256 << 10},
	PolicyBody: Bound{Max: 1<<20 + 256<<10},
	OutputBody: Bound{Max: 1<<20 + 256<<10},

	Attributes:  Bound{Max: session.MaxAttributes},
	Patterns:    Bound{Max: session.MaxPatterns},
	Pools:       Bound{Max: session.MaxPools},
	Budgets:     Bound{Max: session.MaxBudgets},
	Metadata:    Bound{Max: 32},
	Operations:  Bound{Min: 1, Max: 1024},
	Renewals:    Bound{Min: 1, Max: 1024},
	Keys:        Bound{Min: 1, Max: 1000},
	Items:       Bound{Min: 1, Max: session.MaxAppend},
	Page:        Bound{Min: 1, Max: 1000, Default: 100},
	Tools:       Bound{Max: session.MaxTools},
	OpenCalls:   Bound{Max: session.MaxOpen},
	Checkpoints: Bound{Max: session.MaxCheckpoints},

	Rates:     Bound{Max: session.MaxRates},
	Rate:      Bound{Min: 1, Max: session.MaxRate},
	Cost:      Bound{Min: 1, Max: session.MaxRate, Default: 1},
	Slots:     Bound{Min: 1, Max: session.MaxSlots},
	Quota:     Bound{Max: session.MaxQuota},
	Weight:    Bound{Min: 1, Max: session.MaxSlots, Default: 1},
	Queue:     Bound{Min: 0, Max: session.MaxQueue, Default: session.DefaultQueue},
	Threshold: Bound{Min: 0, Max: session.MaxSlots}, // 0: as many as there are slots
	Priority:  Bound{Min: -1000, Max: 1000},
	Tokens:    Bound{Min: 0, Max: session.MaxCallTokens},
	Depth:     Bound{Max: value.MaxDepth},
	Votes:     Bound{Min: 1, Max: approval.MaxVotes, Default: 1},
	Uses:      Bound{Max: session.MaxUses},
	Length:    Bound{Max: session.MaxList / session.MinItemSize},

	Per:       Span{Min: session.MinPer, Max: session.MaxPer},
	TTL:       Span{Min: session.MinTTL, Max: session.MaxTTL, Default: 30 * time.Second},
	MaxHold:   Span{Min: session.MinTTL, Max: session.MaxHold},
	Wait:      Span{Max: session.MaxWait},
	IdleTTL:   Span{Min: session.MinTTL, Max: session.MaxIdleTTL, Default: 24 * time.Hour},
	KeyTTL:    Span{Min: time.Millisecond, Max: session.MaxDuration},
	JoinTTL:   Span{Min: time.Second, Max: 24 * time.Hour, Default: 10 * time.Minute},
	TokenTTL:  Span{Min: time.Second, Max: session.MaxDuration, Default: 90 * 24 * time.Hour},
	ListTTL:   Span{Min: time.Millisecond, Max: session.MaxListTTL},
	BudgetPer: Span{Min: session.MinBudgetPer, Max: session.MaxBudgetPer},
	Approval:  Span{Min: session.MinApproval, Max: session.MaxApproval, Default: 5 * time.Minute},
	Standing:  Span{Min: session.MinApproval, Max: session.MaxStanding},
	Timeout:   Span{Min: time.Millisecond, Max: session.MaxWait + time.Minute}, // the longest wait, and the work
	Ahead:     Span{Max: time.Hour},
}
