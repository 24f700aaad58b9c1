package server

import (
	"time"

	"example.com/govnode/engine/value"
	"example.com/govnode/session"
)

// A bound says what a number in a request may be, ends included, and what it
// is where the request has none.
type bound struct{ Min, Max, Default int64 }

// A span says the same of a duration.
type span struct{ Min, Max, Default time.Duration }

// caps is the one table of what a request may hold. Validation reads it and
// nothing else does the limiting; the tests walk over it and try both edges of
// every row.
var caps = struct {
	// Bytes.
	ID         bound // ids, agents, clients, pools, policies, keys of counters
	Namespace  bound
	Tool       bound // names of tools: any text without control or bidirectional format characters
	Label      bound
	Attribute  bound // name and value together
	Arguments  bound // JSON text; context likewise
	Output     bound // what drift is computed on; longer outputs are compared by hash
	CounterKey bound
	Text       bound // value of a counter that is a text
	Tree       bound // all files of a policy
	Body       bound // one request
	PolicyBody bound // PutPolicy: the tree in its envelope

	// Items.
	Attributes  bound
	Pools       bound // of one call, beside the pool of its policy
	Metadata    bound
	Operations  bound // of one BatchCalls
	Renewals    bound // of one RenewSlots
	Keys        bound // of one BatchGet
	Page        bound
	Tools       bound // of one session
	OpenCalls   bound // of one session, and slots of one client
	Checkpoints bound // kept

	// Numbers.
	Slots     bound
	Weight    bound
	Queue     bound
	Threshold bound
	Priority  bound
	Tokens    bound
	Depth     bound // of nested JSON

	// Durations.
	TTL     span
	MaxHold span
	Wait    span
	IdleTTL span
	KeyTTL  span // of a counter
	Timeout span // of one operation in a batch
	Ahead   span // of the clock: the time that an id may carry
}{
	ID:         bound{Min: 1, Max: session.MaxID},
	Namespace:  bound{Min: 1, Max: session.MaxNamespace},
	Tool:       bound{Min: 1, Max: session.MaxTool},
	Label:      bound{Max: session.MaxTool},
	Attribute:  bound{Min: 1, Max: session.MaxAttribute},
	Arguments:  bound{Max: 64 << 10},
	Output:     bound{Max: session.MaxText},
	CounterKey: bound{Min: 1, Max: session.MaxKey},
	Text:       bound{Max: session.MaxText},
	Tree:       bound{Max: session.MaxTree},
	Body:       bound{Max: 256 << 10},
	PolicyBody: bound{Max: 1<<20 + 256<<10},

	Attributes:  bound{Max: session.MaxAttributes},
	Pools:       bound{Max: session.MaxPools},
	Metadata:    bound{Max: 32},
	Operations:  bound{Min: 1, Max: 1024},
	Renewals:    bound{Min: 1, Max: 1024},
	Keys:        bound{Min: 1, Max: 1000},
	Page:        bound{Min: 1, Max: 1000, Default: 100},
	Tools:       bound{Max: session.MaxTools},
	OpenCalls:   bound{Max: session.MaxOpen},
	Checkpoints: bound{Max: session.MaxCheckpoints},

	Slots:     bound{Min: 1, Max: session.MaxSlots},
	Weight:    bound{Min: 1, Max: session.MaxSlots, Default: 1},
	Queue:     bound{Min: 0, Max: session.MaxQueue, Default: session.DefaultQueue},
	Threshold: bound{Min: 0, Max: session.MaxSlots}, // 0: as many as there are slots
	Priority:  bound{Min: -1000, Max: 1000},
	Tokens:    bound{Min: 0, Max: session.MaxCallTokens},
	Depth:     bound{Max: value.MaxDepth},

	TTL:     span{Min: session.MinTTL, Max: session.MaxTTL, Default: 30 * time.Second},
	MaxHold: span{Min: session.MinTTL, Max: session.MaxHold},
	Wait:    span{Max: session.MaxWait},
	IdleTTL: span{Min: session.MinTTL, Max: session.MaxIdleTTL, Default: 24 * time.Hour},
	KeyTTL:  span{Min: time.Millisecond, Max: session.MaxDuration},
	Timeout: span{Min: time.Millisecond, Max: session.MaxWait + time.Minute}, // the longest wait, and the work
	Ahead:   span{Max: time.Hour},
}
