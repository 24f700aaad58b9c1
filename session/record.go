package session

import (
	"math"
	"slices"
	"time"
	"unique"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/limiter"
	"example.com/govnode/session/ids"
)

// Records: what the state consists of, and how each settles as time passes.

// Caps that commands are held to. Ids and sizes are checked where requests are
// taken; these are of the state itself.
const (
	MaxOpen        = 1024 // open calls of a session, slots of a client
	MaxTools       = 256  // tools of a session
	MaxCheckpoints = 32   // kept
	MaxSlots       = 4096 // of a pool
	MaxQueue       = 4096
	DefaultQueue   = 1024
	// KeptFor is how long a closed session answers reads and repeats, and how
	// long a client is remembered that asks for nothing.
	KeptFor = time.Hour
)

const never = time.Duration(math.MaxInt64)

// A Record is immutable once published, and stored on its own. The set is
// closed.
type Record interface {
	// At returns the record as it stands at now; nil if nothing is left. It
	// needs no other record, and returns the record itself where time has
	// changed nothing.
	At(now time.Duration) Record
	// Due returns no later than the first instant at which At differs; ok is
	// false if it never will.
	Due() (at time.Duration, ok bool)
}

// A Pin is what a session is pinned to. All sessions of a digest share one.
type Pin struct {
	Digest Digest
	Limits Limits
}

// Session is the record of an execution context (adapter contract 2, 3.5).
type Session struct {
	entry uint64 // the entry that may write into this version

	Agent   unique.Handle[string]
	Policy  unique.Handle[string] // the name of its pool, without "policy/"
	Version int32                 // of the name; 0 if the caller named the digest
	Phase   Phase
	Pinned  bool // counted among the pins of its digest

	// Whether the entry may write into Open and Tools as well: they are copied
	// at their first change.
	ownOpen, ownTools bool

	Pin     *Pin
	Content Fingerprint // of the request that made it

	Opened  time.Duration
	IdleTTL time.Duration
	Used    time.Duration // when something last happened here: in the end, its closing

	Attempts, Calls, Executions, Failures, Consecutive uint32

	Tokens   int64 // used
	Reserved int64 // by open calls

	Tools []ToolCount
	Open  []Held
	IDs   ids.Set
	More  *More // what few sessions have
	Gates *Gates
	Chain *Chain // of the audit; nil where none is kept
}

// Phase says whether a session admits calls.
type Phase uint8

const (
	PhaseOpen    Phase = iota
	PhaseClosed        // by CloseSession
	PhaseExpired       // after its idle TTL
)

// More is what few sessions have; immutable.
type More struct {
	Parent     string
	Attributes []Attr
	Baseline   Digest // of the first output; the text is a record of its own
	Drift      int64  // the latest score, in millionths
	Token      Digest // of the secret that its calls bring; zero: they need none
}

// A ToolCount counts the calls of one tool, and the requests of a server of that
// name.
type ToolCount struct {
	Tool     unique.Handle[string]
	Calls    uint32
	Sampling uint32
}

// Held is an open call of a session, or an open slot of a client: something
// that is running, or waits for a slot. Its deadline stands in the leases of
// its pools as well.
type Held struct {
	Holder   string // names it in its pools; see holder
	Content  Fingerprint
	Started  time.Duration
	Deadline time.Duration // settled at this instant
	Until    time.Duration // end of the wait; 0 if it stands in no queue
	Tokens   int64         // reserved
	Tool     unique.Handle[string]
	Pools    []Hold // replaced, never written into
	Rule     uint16
	Kind     CallKind
	Gates    *HeldGates // of a call that uses one; immutable
}

// A Hold is the slot that something has in a pool; Token is 0 where it does
// not have it yet.
type Hold struct {
	Pool   unique.Handle[string]
	Token  uint64
	Weight int32
}

// Waiting reports whether it has not been admitted yet: it stands in a queue, or
// waits for an approval.
func (h *Held) Waiting() bool { return h.Until != 0 || h.Asked() != nil }

// ID returns the id of the call or the slot.
func (h *Held) ID() string { _, _, id := SplitHolder(h.Holder); return id }

// PoolNames returns the pools in which it holds or waits.
func (h *Held) PoolNames() []string {
	names := make([]string, len(h.Pools))
	for i, p := range h.Pools {
		names[i] = p.Pool.Value()
	}
	return names
}

// holder names what a maker holds: one letter for the kind of the maker, its
// id, a blank, and the id of the thing. Ids have no blanks in them.
func holder(kind byte, maker, id string) string {
	return string(kind) + maker + " " + id
}

// SplitHolder takes the name of a holder apart.
func SplitHolder(h string) (kind byte, maker, id string) {
	for i := 1; i < len(h); i++ {
		if h[i] == ' ' {
			return h[0], h[1:i], h[i+1:]
		}
	}
	return 0, "", ""
}

// Pool is the record of a pool. It is never dropped, since it holds the last
// token; but for the rates of policies, whose tokens nobody is shown.
type Pool struct {
	entry uint64
	limiter.Pool
	Threshold int32 // backpressure, of a pool that was put
	MaxQueue  int32 // of a pool that was put
	Put       bool  // made by PutPool; the pools of policies are not
}

// Client remembers the ids of one process, and holds its slots.
type Client struct {
	entry uint64
	Used  time.Duration
	Open  []Held
	IDs   ids.Set
	// Born is what was forgotten of clients when this one was made, since one of
	// its name may have been among them, or when its record was put together
	// from what a loss had left. It is lowered to what the namespace has
	// forgotten, which only a repair lowers, with the next thing that the client
	// does: what is forgotten after a repair does not raise it again.
	Born  uint64
	Chain *Chain // of the audit; nil where none is kept
}

// Policy is a tree of files, content-addressed; immutable but for its names.
type Policy struct {
	Tree  []byte
	Pin   *Pin
	Names []string // that point here, or did until they were put elsewhere; sorted
	First string   // the name it was first put under
}

// Name is what the name of a policy points to.
type Name struct {
	Digest  Digest
	Version int32
}

// Pins counts sessions that pin a digest.
type Pins struct{ N int64 }

// Counter is a number or a text under a key (storage protocol).
type Counter struct {
	Value Value
	Until time.Duration // 0: no end
}

// Namespace is what outlives everything in a namespace.
type Namespace struct {
	// ForgotSessions is the newest time, Unix ms, of a session id that was
	// dropped, or of a call whose session was dropped and had an id without a
	// time. It is for sessions that are opened, and for the calls of those whose
	// own id has no time.
	ForgotSessions uint64
	ForgotClients  uint64 // newest time of an id whose client was dropped; for those that are not there
	TokenFloor     uint64 // above the last token of every deleted pool; those of new ones lie above it
	Budgets        uint64 // that were ever made, which tells apart those of one name
	Chain          *Chain // of the audit, into which those of dropped records go; nil where none is kept
}

// Baseline is the first output of a session, which later ones are compared to.
type Baseline struct {
	Hash Digest
	Text string
}

// Hash is the registered content hash of a tool.
type Hash struct{ Hash string }

// Due is the earliest deadline of what is open; else the end of idleness, or
// the hour after closing.
func (s *Session) Due() (time.Duration, bool) {
	if s.Phase != PhaseOpen {
		if s.Pinned {
			return s.Used, true // its pin is to be let go
		}
		return s.Used + KeptFor, true
	}
	if at := soonest(s.Open); at != never {
		return at, true
	}
	return s.Used + s.IdleTTL, true
}

func soonest(open []Held) time.Duration {
	at := never
	for i := range open {
		at = min(at, open[i].Deadline)
	}
	return at
}

// At settles the session: calls whose deadline has passed, in the order of
// their deadlines, then idleness, then the hour after closing.
func (s *Session) At(now time.Duration) Record {
	if at, _ := s.Due(); at > now {
		return s
	}
	if s.Phase != PhaseOpen && now < s.Used+KeptFor {
		return s
	}
	c := s.copy()
	c.IDs = s.IDs.Detach()
	if !c.settle(now, nil) {
		return nil
	}
	return c
}

// copy returns a version of its own, which shares what it has not changed yet.
func (s *Session) copy() *Session {
	c := *s
	c.ownOpen, c.ownTools = false, false
	return &c
}

// edit returns the open call of that id for writing, or nil.
func (s *Session) edit(call string) *Held {
	s.editOpen()
	return s.Find(call)
}

func (s *Session) editOpen() {
	if !s.ownOpen {
		s.Open, s.ownOpen = slices.Clone(s.Open), true
	}
}

// add puts something that has begun behind all that is open.
func (s *Session) add(h Held) {
	if !s.ownOpen {
		s.Open, s.ownOpen = append(make([]Held, 0, len(s.Open)+1), s.Open...), true
	}
	s.Open = append(s.Open, h)
}

// removeAt takes what is open at i away.
func (s *Session) removeAt(i int) {
	switch {
	case len(s.Open) == 1:
		s.Open, s.ownOpen = nil, true
	case s.ownOpen:
		s.Open = slices.Delete(s.Open, i, i+1)
	default:
		rest := make([]Held, 0, len(s.Open)-1)
		s.Open, s.ownOpen = append(append(rest, s.Open[:i]...), s.Open[i+1:]...), true
	}
}

// remove takes away what is open under that id.
func (s *Session) remove(call string) {
	for i := range s.Open {
		if s.Open[i].ID() == call {
			s.removeAt(i)
			return
		}
	}
}

// editTools returns the counts of tools for writing.
func (s *Session) editTools() []ToolCount {
	if !s.ownTools {
		s.Tools, s.ownTools = slices.Clone(s.Tools), true
	}
	return s.Tools
}

// settle does the work of At in place and reports whether anything is left. It
// hands each lapsed call to lapsed, if that is not nil.
func (s *Session) settle(now time.Duration, lapsed func(*Held)) bool {
	for s.Phase == PhaseOpen {
		i := overdue(s.Open, now)
		if i < 0 {
			break
		}
		if s.goesOn(i) {
			continue
		}
		h := s.Open[i]
		s.removeAt(i)
		s.Used = max(s.Used, h.Deadline)
		s.lapse(&h)
		if lapsed != nil && !h.Waiting() {
			lapsed(&h)
		}
	}
	if s.Phase == PhaseOpen && len(s.Open) == 0 && s.Used+s.IdleTTL <= now {
		s.Phase, s.Used = PhaseExpired, s.Used+s.IdleTTL
	}
	return s.Phase == PhaseOpen || now < s.Used+KeptFor
}

// overdue returns the first of what has run out by now, or -1.
func overdue(open []Held, now time.Duration) int {
	first := -1
	for i := range open {
		if d := open[i].Deadline; d <= now && (first < 0 || d < open[first].Deadline || seeded.On(seeded.MapOrder) && seeded.Toss()) {
			first = i
		}
	}
	return first
}

// lapse settles a call that ran out: one that was running counts as executed,
// since nobody can say that it was not; one that waited gives back what it had
// reserved.
func (s *Session) lapse(h *Held) {
	s.Reserved -= h.Tokens
	if h.Waiting() {
		code := WaitTimeout
		if h.Asked() != nil {
			code = ApprovalExpired
		}
		s.unreserve(h)
		s.IDs.Add(remembered(h.ID(), h.Content, code, h.Rule, 0))
		return
	}
	s.Executions++
	s.Tokens += h.Tokens
	s.IDs.Add(remembered(h.ID(), h.Content, LeaseLost, h.Rule, 0))
}

// remembered is what is remembered of an id that was finished.
func remembered(id string, content Fingerprint, code Code, rule uint16, value uint64) ids.Remembered {
	return ids.New(id, content, uint8(code), rule, value)
}

// unreserve takes back the counts of a call that was never admitted. For one that
// is parked nothing was counted.
func (s *Session) unreserve(h *Held) {
	if h.Parked() {
		return
	}
	if h.Kind == Tool || h.Kind == Model {
		s.Calls--
	}
	if h.Kind == Tool {
		if i := s.tool(h.Tool); i >= 0 {
			s.editTools()[i].Calls--
		}
	}
	s.countKind(h, -1)
}

func (s *Session) tool(name unique.Handle[string]) int {
	return slices.IndexFunc(s.Tools, func(t ToolCount) bool { return t.Tool == name })
}

// ToolCalls returns how many calls of a tool were admitted or wait.
func (s *Session) ToolCalls(tool string) uint32 {
	for _, t := range s.Tools {
		if t.Tool.Value() == tool {
			return t.Calls
		}
	}
	return 0
}

// Counters returns the session's counters.
func (s *Session) Counters() Counters {
	return Counters{s.Attempts, s.Calls, s.Executions, s.Failures, s.Consecutive, s.Tokens}
}

// Find returns the open call of that id, or nil.
func (s *Session) Find(call string) *Held { return findHeld(s.Open, call) }

func findHeld(open []Held, id string) *Held {
	for i := range open {
		h := open[i].Holder
		if n := len(h) - len(id); n > 0 && h[n-1] == ' ' && h[n:] == id {
			return &open[i]
		}
	}
	return nil
}

// Due is the earliest deadline of what is open; else the hour without use.
func (c *Client) Due() (time.Duration, bool) {
	if at := soonest(c.Open); at != never {
		return at, true
	}
	return c.Used + KeptFor, true
}

// At settles the client's slots, then drops it after an hour without use.
func (c *Client) At(now time.Duration) Record {
	if at, _ := c.Due(); at > now {
		return c
	}
	d := c.copy()
	d.IDs = c.IDs.Detach()
	if !d.settle(now) {
		return nil
	}
	return d
}

func (c *Client) copy() *Client {
	d := *c
	d.Open = slices.Clone(c.Open)
	return &d
}

func (c *Client) settle(now time.Duration) bool {
	for {
		i := overdue(c.Open, now)
		if i < 0 {
			break
		}
		h := c.Open[i]
		c.Open = slices.Delete(c.Open, i, i+1)
		c.Used = max(c.Used, h.Deadline)
		code, token := LeaseLost, uint64(0)
		if h.Waiting() {
			code = WaitTimeout
		} else {
			token = h.Pools[0].Token
		}
		c.IDs.Add(remembered(h.ID(), h.Content, code, 0, token))
	}
	return len(c.Open) > 0 || now < c.Used+KeptFor
}

// Find returns the open slot of that id, or nil.
func (c *Client) Find(slot string) *Held { return findHeld(c.Open, slot) }

// Due is when the pool will next differ.
func (p *Pool) Due() (time.Duration, bool) {
	if p.over() {
		return 0, true
	}
	return p.Pool.Due()
}

// over reports whether it is the rate of a policy of which nothing is left.
func (p *Pool) over() bool { return p.Per > 0 && !p.Put && len(p.Leases) == 0 && len(p.Queue) == 0 }

// At returns the pool without what has run out, freed room handed on.
func (p *Pool) At(now time.Duration) Record {
	if at, ok := p.Due(); !ok || at > now {
		return p
	}
	q := p.copy()
	q.Settle(now)
	if q.over() {
		return nil
	}
	return q
}

func (p *Pool) copy() *Pool {
	q := *p
	q.Pool = *p.Pool.Clone()
	return &q
}

// At drops a counter whose time is over.
func (c *Counter) At(now time.Duration) Record {
	if c.Until != 0 && c.Until <= now {
		return nil
	}
	return c
}

func (c *Counter) Due() (time.Duration, bool) { return c.Until, c.Until != 0 }

func (p *Policy) At(time.Duration) Record    { return p }
func (n *Name) At(time.Duration) Record      { return n }
func (p *Pins) At(time.Duration) Record      { return p }
func (n *Namespace) At(time.Duration) Record { return n }
func (b *Baseline) At(time.Duration) Record  { return b }
func (h *Hash) At(time.Duration) Record      { return h }

func (*Policy) Due() (time.Duration, bool)    { return 0, false }
func (*Name) Due() (time.Duration, bool)      { return 0, false }
func (*Pins) Due() (time.Duration, bool)      { return 0, false }
func (*Namespace) Due() (time.Duration, bool) { return 0, false }
func (*Baseline) Due() (time.Duration, bool)  { return 0, false }
func (*Hash) Due() (time.Duration, bool)      { return 0, false }
