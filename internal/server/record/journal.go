package record

import (
	"container/list"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/engine"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// A Journal keeps the latest records of a node, within a bound of records and
// bytes. It is the source of Explain and of Follow.
//
// Each namespace has a partition with a sequence of its own, so that a follower
// counts what is of its namespace and nothing else. The room is shared in two
// halves. The newer half are the latest records of all, and drops nothing: what it
// has no room for passes into the older half, in the order in which it came. There
// the namespace that holds the most gives up its oldest. So whoever is busy pushes
// out nobody who holds no more than an even part of the older half, and still has
// the newer one to be followed in, however many others keep what is theirs.
type Journal struct {
	newer, older room // what each half may hold
	mostIdle     int  // partitions
	counted      map[engine.EventType]prometheus.Counter

	mu         sync.Mutex
	partitions map[string]*partition
	idle       list.List // of partitions with nothing kept and no follower, in the order in which they came to that
	byID       map[string]*Record
	added      uint64 // records, ever

	recent  queue[young] // the newer half
	fresh   room         // what it holds
	aged    room         // what the older half holds
	largest heaviest

	followers int
}

// Bounds of what a node keeps to explain decisions and to let followers come
// back, where Config states no others.
const (
	DefaultJournalRecords = 16_384
	DefaultJournalBytes   = 32 << 20
)

// A Record is one decision, or the end of a call that gave rise to events. What
// the caller sent stays in it as it came, in memory alone: it is redacted when
// somebody asks, because redaction costs more than the decision itself.
type Record struct {
	ID, NS string
	Opened time.Duration // when its session began, in log time
	At     time.Time

	Policy    *engine.Policy
	Input     engine.Input // without its functions and facts; whose it is, of what is no decision
	facts     *engine.Facts
	toolCalls int64 // of the tool of the call; stands for facts.ToolCalls
	Decision  engine.Decision
	Hash      engine.ContextHash
	rendered  *v1.DecisionRecord // instead of policy and input, where these are large

	Outcome       v1.Outcome
	Counters      *session.Counters
	Index         uint64
	DryRun        bool
	Repeat        bool
	Over          bool // it repeats a call that is over, and says nothing of the decision on that
	Failure       string
	FailureReason string

	After []engine.Event // of EndCall; then there is no decision

	Size   int    // about how many bytes it holds
	order  uint64 // among the records of all namespaces; nobody is told
	first  uint64 // sequence of its first event, in its namespace
	events uint64 // how many it gives rise to
}

// Told makes the record of events that no decision has given rise to, all of one session.
// Another node may have told of what is a repeat.
// Whose they are is as it came: what they show is redacted, and finds no agent.
func Told(ns, agent string, repeat bool, events ...engine.Event) *Record {
	return &Record{
		NS: ns, At: events[0].Time, After: events, Repeat: repeat, Size: BareRecord,
		Input: engine.Input{AgentID: agent, SessionID: events[0].SessionID},
	}
}

// Signal is the type of the event that a signal is.
const Signal engine.EventType = "signal"

// What a follower is told of approvals: that people are asked, and what came of it.
const (
	ApprovalRequested engine.EventType = "approval_requested"
	ApprovalDecided   engine.EventType = "approval_decided"
)

// eventTypes are the five governance events (policy engine spec 17.2), the signals,
// and those of outputs, budgets and approvals.
var eventTypes = []engine.EventType{
	engine.PolicyCheck, engine.PolicyViolation, engine.ToolCallBlocked, engine.CheckpointCreated, engine.DriftDetected, Signal,
	engine.OutputReviewed, engine.BudgetWarning, engine.BudgetExceeded, ApprovalRequested, ApprovalDecided,
}

// NewJournal makes the journal of one life of a node.
func NewJournal(records, bytes int, events *prometheus.CounterVec) *Journal {
	j := &Journal{
		newer: room{max(records/2, 1), bytes / 2}, mostIdle: maxIdle, partitions: map[string]*partition{}, byID: map[string]*Record{},
		counted: map[engine.EventType]prometheus.Counter{},
	}
	j.older = room{records - j.newer.records, bytes - j.newer.bytes}
	for _, t := range eventTypes {
		j.counted[t] = events.WithLabelValues(string(t))
	}
	return j
}

// Add keeps a record and drops those that there is no room for. A decision
// that is kept already with the same outcome is left as it is: it was repeated,
// and an event occurs once. So is one of a call that is over by now, and where that is all
// that is known of it, it is kept and makes no event.
func (j *Journal) Add(r *Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.ID != "" {
		before := j.byID[r.ID]
		if before != nil && before.Opened != r.Opened {
			before = nil // of a session that had the id before
		}
		if before != nil && (r.Over || before.Failure == "" && before.Outcome == r.Outcome && r.Failure == "") {
			return
		}
		// A call that waited was checked when it was queued, or when people were
		// asked. That it was admitted in the end is no second check; that it was not is news.
		waited := before != nil && r.Decision.Allowed &&
			(before.Outcome == v1.Outcome_OUTCOME_QUEUED || before.Outcome == v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
		if before != nil {
			r.Repeat = false
		}
		if !waited && !r.Over {
			r.events = j.count(r)
		}
		if before == nil || r.Failure == "" || before.Failure != "" { // else a repeat told nothing new
			j.byID[r.ID] = r
		}
	} else {
		r.events = j.count(r)
	}
	p := j.partition(r.NS)
	j.wake(p)
	r.order, r.first = j.added, p.next
	j.added++
	p.next += r.events
	p.records.push(r)
	j.recent.push(young{p, r.Size})
	j.fresh.add(r.Size)
	for len(j.recent.live()) > 1 && !j.fresh.within(j.newer) { // the latest is kept, however large it is
		j.age()
	}
	for !j.aged.within(j.older) {
		j.drop()
	}
	if r.events > 0 && p.news != nil {
		close(p.news)
		p.news = nil
	}
}

// A young is what is to be known of a record of the newer half when it passes into the
// older one: to look at the record itself, which nobody has for long, would be slow.
type young struct {
	of   *partition
	size int
}

// age passes the oldest record of the newer half into the older one.
func (j *Journal) age() {
	r := j.recent.pop()
	j.fresh.take(r.size)
	j.aged.add(r.size)
	r.of.aged.add(r.size)
	j.weigh(r.of)
}

// drop gives up the oldest record of the namespace that holds the most of the
// older half.
func (j *Journal) drop() {
	p := j.largest[0]
	r := p.records.pop()
	j.aged.take(r.Size)
	p.aged.take(r.Size)
	j.weigh(p)
	if j.byID[r.ID] == r {
		delete(j.byID, r.ID)
	}
	j.settle(p)
}

// count returns how many events a record gives rise to, and counts them by type
// (policy engine spec 17.2).
func (j *Journal) count(r *Record) uint64 {
	for i := range r.After {
		j.counted[r.After[i].Type].Inc()
	}
	if r.ID == "" {
		return uint64(len(r.After))
	}
	j.counted[engine.PolicyCheck].Inc()
	if r.Decision.Allowed || r.Decision.Action == string(engine.Ask) {
		return 1
	}
	j.counted[engine.PolicyViolation].Inc()
	if r.Input.Kind != engine.KindTool {
		return 2
	}
	j.counted[engine.ToolCallBlocked].Inc()
	return 3
}

// find returns the record of a decision that was made in a namespace.
func (j *Journal) find(ns, id string) *Record {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r := j.byID[id]; r != nil && r.NS == ns {
		return r
	}
	return nil
}

// State tells the size of the journal, for metrics.
func (j *Journal) State() (records, bytes, followers int) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.fresh.records + j.aged.records, j.fresh.bytes + j.aged.bytes, j.followers
}
