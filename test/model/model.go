package model

import (
	"fmt"
	"slices"
	"time"

	"example.com/govnode/session"
)

// What is promised in numbers.
const (
	claimTTL  = 5 * time.Second  // a slot that was handed to a waiter waits for him
	ticketTTL = 10 * time.Second // a waiter is kept that is not heard of
	keptFor   = time.Hour        // what is over is remembered
	maxOpen   = 1024             // calls of a session, slots of a client
	maxTools  = 256              // of a session
	maxNames  = 1024             // of a tree
	queueLen  = 1024             // of the pool of a policy
)

// A Model is a whole state.
type Model struct {
	Now        time.Duration
	Generation uint64 // of tokens: they begin above it, shifted by 40 bits
	spaces     map[string]*space
	lapsed     []session.Lapse // told of by the command under way
}

// A space is a namespace. Nothing of one is seen in another.
type space struct {
	*Model
	name           string
	sessions       map[string]*sess
	clients        map[string]*client
	pools          map[string]*pool
	policies       map[session.Digest]*policy
	names          map[string]*name
	counters       map[string]*counter
	hashes         map[string]string
	hashed         uint64 // how often they changed, above all of the generations before
	lists          map[string]*itemList
	tokenFloor     uint64 // above it are the tokens of pools that are made again
	forgotSessions uint64 // newest time of what is not remembered any more
	forgotClients  uint64
	budgets        map[string]*bud
	budgetsMade    uint64 // ever
	halts          map[session.Target]*halt
	kills          uint64 // number of the last
	signalled      bool   // something stood once
	approvals      map[string]*appr
	standings      map[string]*stands
	access         *access // nil until something was put
}

type sess struct {
	id, agent, policy, parent string
	version                   int32
	content                   session.Fingerprint
	digest                    session.Digest
	limits                    session.Limits
	attributes                []session.Attr
	opened, used, idle        time.Duration
	phase                     session.Phase
	pinned                    bool
	session.Counters
	reserved   int64
	tools      []tool
	open       []*held // in the order in which they began
	ids        memory
	baseline   session.Digest
	text       string // of the baseline
	drift      int64
	token      session.Digest  // of the secret of its calls
	kinds      [5]uint32       // calls by kind, of those that the policy limits
	failedAt   time.Duration   // the latest failure, if there is a breaker
	unreported []session.Lapse // for whoever looks first
	halt       *halt           // its own
}

type tool struct {
	name     string
	calls    uint32
	sampling uint32
}

type client struct {
	used time.Duration
	open []*held
	ids  memory
	born uint64 // what was forgotten of clients when it was made
}

// held is an open call, or an open slot of a client.
type held struct {
	id, tool                 string
	content                  session.Fingerprint
	kind                     session.CallKind
	rule                     uint16
	tokens                   int64
	started, deadline, until time.Duration // until is 0 if it does not wait
	pools                    []hold
	spent                    []spent // what its end corrects
	charges                  []charged
	agreed                   session.Digest    // to what people, or what stands, have agreed
	asked                    *appr             // that it waits for
	owner                    session.Principal // of a slot
}

type hold struct {
	pool   string
	token  uint64 // 0: not yet
	weight int32
}

type policy struct {
	tree   []byte
	limits session.Limits
	names  []string
	first  string
}

type name struct {
	digest  session.Digest
	version int32
}

type counter struct {
	session.Value
	until time.Duration
}

// New returns an empty model.
func New() *Model { return &Model{spaces: map[string]*space{}} }

func (m *Model) space(ns string) *space {
	s := m.spaces[ns]
	if s == nil {
		s = &space{
			Model: m, name: ns, sessions: map[string]*sess{}, clients: map[string]*client{}, pools: map[string]*pool{},
			policies: map[session.Digest]*policy{}, names: map[string]*name{}, counters: map[string]*counter{}, hashes: map[string]string{}, budgets: map[string]*bud{},
			lists: map[string]*itemList{},
			halts: map[session.Target]*halt{}, approvals: map[string]*appr{}, standings: map[string]*stands{},
		}
		m.spaces[ns] = s
	}
	return s
}

// Apply applies the commands of an entry. Time never runs backwards.
func (m *Model) Apply(at time.Duration, cmds []session.Command) []session.Result {
	m.advance(at)
	results := make([]session.Result, len(cmds))
	for i, c := range cmds {
		m.lapsed = nil
		if !m.judgedNow(c) {
			results[i].Code = session.StaleAccess
			continue
		}
		if !m.judgedBySame(c) {
			results[i].Code = session.StaleSession
			continue
		}
		m.apply(c, &results[i])
		for _, s := range m.spaces {
			s.dropRates()
		}
		results[i].Lapsed = m.lapsed
	}
	return results
}

// advance moves time, and settles all that runs out. What one thing has left
// does not depend on another: the deadline of a call stands with its session and
// in each of its pools.
func (m *Model) advance(at time.Duration) {
	m.Now = max(m.Now, at)
	for _, s := range m.spaces {
		for _, x := range s.sessions {
			x.settle(m.Now)
		}
		for _, x := range s.clients {
			x.settle(m.Now)
		}
		s.settleApprovals()
		for _, p := range s.pools {
			p.settle(m.Now)
		}
		s.dropRates()
		for _, b := range s.budgets {
			b.settle(m.Now)
		}
		for k, x := range s.counters {
			if x.until != 0 && x.until <= m.Now {
				delete(s.counters, k)
			}
		}
		for _, l := range s.lists {
			l.settle(m.Now)
		}
	}
}

func (m *Model) apply(c session.Command, r *session.Result) {
	switch c := c.(type) {
	case *session.Open:
		m.space(c.NS).openSession(c, r)
	case *session.Begin:
		m.space(c.NS).begin(c, r)
	case *session.End:
		m.space(c.NS).end(c, r)
	case *session.Cancel:
		m.space(c.NS).cancel(c, r)
	case *session.Close:
		m.space(c.NS).closeSession(c, r)
	case *session.Acquire:
		m.space(c.NS).acquire(c, r)
	case *session.Renew:
		m.space(c.NS).renew(c, r)
	case *session.Release:
		m.space(c.NS).release(c, r)
	case *session.ForceRelease:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).forceRelease(c, r) })
		if r.Code == session.Done {
			r.Code = session.Released
		}
	case *session.PutPool:
		m.space(c.NS).putPool(c, r)
	case *session.DeletePool:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deletePool(c, r) })
	case *session.PutPolicy:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putPolicy(c, r) })
	case *session.DeletePolicy:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deletePolicy(c, r) })
	case *session.Set:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).set(c, r) })
	case *session.Delete:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).delete(c, r) })
	case *session.Increment:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).increment(c, r) })
	case *session.PutHash:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putHash(c) })
	case *session.PutBudget:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putBudget(c, r) })
		m.space(c.NS).show(c.Budget, r)
	case *session.AdjustBudget:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).adjustBudget(c, r) })
		m.space(c.NS).show(c.Budget, r)
	case *session.DeleteBudget:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deleteBudget(c, r) })
	case *session.Append:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).appendTo(c, r) })
	case *session.DeleteList:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deleteList(c, r) })
	case *session.Repair:
		m.space(c.NS).repair(c, r)
	case *session.PutRate:
		m.space(c.NS).putRate(c, r)
	case *session.DeleteRate:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deleteRate(c, r) })
	case *session.TakeRate:
		m.space(c.NS).takeRate(c, r)
	case *session.Signal:
		m.space(c.NS).signal(c, r)
	case *session.Ask:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).askFor(c, r) })
		m.space(c.NS).showApproval(c.ID, r)
	case *session.Decide:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).decide(c, r) })
		m.space(c.NS).showApproval(c.ID, r)
	case *session.CancelApproval:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).cancelApproval(c, r) })
		m.space(c.NS).showApproval(c.ID, r)
	case *session.PutStanding:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putStanding(c) })
		m.space(c.NS).showStanding(c.Of.ID(), r)
	case *session.DeleteStanding:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deleteStanding(c, r) })
	case *session.PutToken:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putToken(c, r) })
	case *session.RevokeToken:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).revokeToken(c, r) })
	case *session.Deny:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).deny(c, r) })
	case *session.Allow:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).allow(c, r) })
	case *session.UseToken:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).useToken(c, r) })
	case *session.PutQuotas:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).putQuotas(c) })
	case *session.KeepKey:
		m.space(c.NS).request(c.By, r, func() bool { return m.space(c.NS).keepKey(c) })
	case *session.Swept:
		m.space(c.NS).swept(c)
	case *session.Tick:
		m.tick(c)
	case *session.Restore:
		m.restore()
	default:
		panic(fmt.Sprintf("model: no command %T", c))
	}
}

// settle ends calls whose deadline has come, the earliest first, then the
// session if nobody used it for so long and nothing is open.
func (x *sess) settle(now time.Duration) {
	for {
		h := earliest(x.open, now)
		if h == nil {
			break
		}
		x.used = max(x.used, h.deadline)
		if h.asked != nil && !x.pass(h) {
			continue
		}
		if !h.waits() {
			x.unreported = append(x.unreported, session.Lapse{Session: x.id, Call: h.id, Tool: h.tool})
		}
		x.lapse(h)
	}
	if x.phase == session.PhaseOpen && len(x.open) == 0 && x.used+x.idle <= now {
		x.phase, x.used = session.PhaseExpired, x.used+x.idle
	}
}

func earliest(open []*held, now time.Duration) (first *held) {
	for _, h := range open {
		if h.deadline <= now && (first == nil || h.deadline < first.deadline) {
			first = h
		}
	}
	return first
}

// lapse settles what is cut off: what ran counts as executed, what waited gives
// back what it had reserved.
func (x *sess) lapse(h *held) {
	switch {
	case h.asked != nil:
		x.giveBack(h, session.ApprovalExpired, 0)
		return
	case h.until != 0:
		x.giveBack(h, session.WaitTimeout, 0)
		return
	}
	x.open = without(x.open, h)
	x.reserved -= h.tokens
	x.Executions++
	x.Tokens += h.tokens
	x.ids.add(finished{h.id, h.content, session.LeaseLost, h.rule, 0})
}

// giveBack ends a wait.
func (x *sess) giveBack(h *held, code session.Code, value uint64) {
	x.takeOut(h)
	x.ids.add(finished{h.id, h.content, code, h.rule, value})
}

// takeOut takes away what waits, with what was counted for it.
func (x *sess) takeOut(h *held) {
	x.open = without(x.open, h)
	if !h.parked() {
		x.reserved -= h.tokens
		x.count(h, -1)
	}
}

// count counts a call that is admitted or waits, by 1, or takes it back.
func (x *sess) count(h *held, by int) {
	if h.kind == session.Tool || h.kind == session.Model {
		x.Calls += uint32(by)
	}
	if h.kind == session.Tool {
		x.tool(h.tool).calls += uint32(by)
	}
	if _, limited := limitOf(x.limits, h.kind); !limited {
		return
	}
	if h.kind == session.Sampling {
		x.tool(h.tool).sampling += uint32(by)
	} else {
		x.kinds[h.kind] += uint32(by)
	}
}

func (x *sess) toolCalls(name string) uint32 {
	for _, t := range x.tools {
		if t.name == name {
			return t.calls
		}
	}
	return 0
}

func (x *client) settle(now time.Duration) {
	for {
		h := earliest(x.open, now)
		if h == nil {
			return
		}
		x.used = max(x.used, h.deadline)
		x.lose(h)
	}
}

// lose settles a slot that is cut off.
func (x *client) lose(h *held) {
	if h.until != 0 {
		x.finish(h, session.WaitTimeout, 0)
	} else {
		x.finish(h, session.LeaseLost, h.pools[0].token)
	}
}

func (x *client) finish(h *held, code session.Code, value uint64) {
	x.open = without(x.open, h)
	x.ids.add(finished{h.id, h.content, code, 0, value})
}

func (x *sess) over(now time.Duration) bool {
	return x.phase != session.PhaseOpen && now >= x.used+keptFor
}

func (x *client) over(now time.Duration) bool { return len(x.open) == 0 && now >= x.used+keptFor }

func without(open []*held, h *held) []*held {
	return slices.DeleteFunc(slices.Clone(open), func(o *held) bool { return o == h })
}

func find(open []*held, id string) *held {
	for _, h := range open {
		if h.id == id {
			return h
		}
	}
	return nil
}
