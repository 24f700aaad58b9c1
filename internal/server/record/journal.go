package record

import (
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/engine"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// A Journal keeps the latest records of a node, within a bound of records and
// bytes. It is the source of Explain and of Follow.
type Journal struct {
	boot       string // names this life of the node, in cursors
	maxRecords int
	maxBytes   int
	counted    map[engine.EventType]prometheus.Counter

	mu        sync.Mutex
	records   []*Record // in the order of their events
	byID      map[string]*Record
	bytes     int
	next      uint64 // sequence of the next event; the first is 1
	followers int
	news      chan struct{} // closed when there are new events; nil if nobody waits
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
	At     time.Time

	Policy    *engine.Policy
	input     engine.Input // without its functions and facts
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
	Failure       string
	FailureReason string

	After []engine.Event // of EndCall; then there is no decision

	Size   int    // about how many bytes it holds
	first  uint64 // sequence of its first event
	events uint64 // how many it gives rise to
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

// NewJournal makes the journal of one life of a node, which boot names.
func NewJournal(boot string, records, bytes int, events *prometheus.CounterVec) *Journal {
	j := &Journal{
		boot: boot, maxRecords: records, maxBytes: bytes, byID: map[string]*Record{}, next: 1,
		counted: map[engine.EventType]prometheus.Counter{},
	}
	for _, t := range eventTypes {
		j.counted[t] = events.WithLabelValues(string(t))
	}
	return j
}

// Add keeps a record and drops the oldest that there is no room for. A decision
// that is kept already with the same outcome is left as it is: it was repeated,
// and an event occurs once.
func (j *Journal) Add(r *Record) {
	j.mu.Lock()
	defer j.mu.Unlock()
	if r.ID != "" {
		before := j.byID[r.ID]
		if before != nil && before.Failure == "" && before.Outcome == r.Outcome && r.Failure == "" {
			return
		}
		// A call that waited was checked when it was queued, or when people were
		// asked. That it was admitted in the end is no second check; that it was not is news.
		waited := before != nil && r.Decision.Allowed &&
			(before.Outcome == v1.Outcome_OUTCOME_QUEUED || before.Outcome == v1.Outcome_OUTCOME_APPROVAL_REQUIRED)
		if before != nil {
			r.Repeat = false
		}
		if !waited {
			r.events = j.count(r)
		}
		j.byID[r.ID] = r
	} else {
		r.events = j.count(r)
	}
	r.first = j.next
	j.next += r.events
	j.records = append(j.records, r)
	j.bytes += r.Size
	for len(j.records) > j.maxRecords || j.bytes > j.maxBytes && len(j.records) > 1 {
		j.drop()
	}
	if r.events > 0 && j.news != nil {
		close(j.news)
		j.news = nil
	}
}

func (j *Journal) drop() {
	oldest := j.records[0]
	j.records[0] = nil
	j.records = j.records[1:]
	j.bytes -= oldest.Size
	if j.byID[oldest.ID] == oldest {
		delete(j.byID, oldest.ID)
	}
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
	if r.input.Kind != engine.KindTool {
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
	return len(j.records), j.bytes, j.followers
}

// A reading is a part of the journal as a follower gets it.
type reading struct {
	records []*Record
	missed  uint64          // events that are not kept any more
	next    uint64          // sequence from which to go on
	news    <-chan struct{} // closed when there is more; nil if there is now
}

// maxReading bounds the records of one reading.
const maxReading = 256

// read returns records with events from a sequence on.
func (j *Journal) read(from uint64) reading {
	j.mu.Lock()
	defer j.mu.Unlock()
	r := reading{next: from}
	oldest := j.oldest()
	if from < oldest {
		r.missed, r.next = oldest-from, oldest
	}
	i := sort.Search(len(j.records), func(i int) bool { return j.records[i].first+j.records[i].events > r.next })
	r.records = slices.Clone(j.records[i:min(len(j.records), i+maxReading)])
	if n := len(r.records); n > 0 {
		last := r.records[n-1]
		r.next = last.first + last.events
		return r
	}
	if j.news == nil {
		j.news = make(chan struct{})
	}
	r.news = j.news
	return r
}

// oldest is the sequence of the oldest event that is kept.
func (j *Journal) oldest() uint64 {
	if len(j.records) > 0 {
		return j.records[0].first
	}
	return j.next
}

// bounds returns the sequences of the oldest event and of the next one.
func (j *Journal) bounds() (oldest, next uint64) {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.oldest(), j.next
}

// enter counts a follower in, if there is room for one more.
func (j *Journal) enter(most int) bool {
	j.mu.Lock()
	defer j.mu.Unlock()
	if j.followers >= most {
		return false
	}
	j.followers++
	return true
}

func (j *Journal) leave() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.followers--
}
