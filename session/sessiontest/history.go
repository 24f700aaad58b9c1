// Package sessiontest makes random histories of commands, for tests of the
// state machine and of everything that orders commands for it.
package sessiontest

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"example.com/govnode/session"
)

// NS is the namespace of all histories.
const NS = "test"

// A Step is one entry of a history: commands, and how much time passed before.
type Step struct {
	After    time.Duration
	Commands []session.Command
}

// A History makes steps. Equal seeds make equal histories. It knows what it
// asked for and not what was answered: many of its commands are refused, come
// too late, or name what does not exist, as those of real clients do.
type History struct {
	Seed uint64
	// Timed gives ids a time, now and then one in the future, lets hours pass,
	// and has clients repaired. What is forgotten then depends on when it was
	// settled, as do answers.
	Timed bool

	r         *rand.Rand
	n         int
	begun     []*session.Begin
	asked     []*session.Begin // of those begun, which ask
	requested []*session.Ask
	slots     []*session.Acquire
	takes     []*session.TakeRate
	past      []session.Command
}

// New returns a history.
func New(seed uint64) *History {
	return &History{Seed: seed, r: rand.New(rand.NewPCG(seed, seed))}
}

// Digest returns the digest of a policy of the history.
func Digest(version int) session.Digest { return session.Digest{0: byte(version)} }

// Limits are those of all policies of the history: small, so that every limit
// is reached.
func Limits(version int) session.Limits {
	l := session.Limits{
		MaxTokens: 3000, MaxToolCalls: 60, MaxAttempts: uint32(90 + version), Timeout: 4 * time.Minute,
		PerTool: []session.ToolLimit{{Tool: "rm", Max: 3}}, MaxConcurrent: int32(4 - version), Backpressure: 2, Checkpoint: 5,
	}
	if version == 3 { // what few policies have
		l.Kinds = []session.KindLimit{{Kind: session.Model, Max: 5}, {Kind: session.Agent, Max: 4}, {Kind: session.Handoff, Max: 3}, {Kind: session.Sampling, Max: 2}}
		l.MaxFailures, l.BreakerReset = 2, 20*time.Second
	}
	return l
}

// policy names the policy of a version; two versions have one name, and so
// share a pool under limits of their own.
func policy(version int) string { return fmt.Sprintf("p%d", min(version, 2)) }

func init() { session.GuardFootprints() }

// Setup returns what every history begins with.
func Setup() []session.Command {
	var cmds []session.Command
	for v := 1; v <= 3; v++ {
		cmds = append(cmds, &session.PutPolicy{NS: NS, Name: policy(v), Digest: Digest(v),
			Tree: []byte{byte(v)}, Limits: Limits(v), By: session.Maker{Client: "setup", Request: fmt.Sprintf("policy%d", v)}})
	}
	for i, pool := range []string{"a", "b", "c"} {
		cmds = append(cmds, &session.PutPool{NS: NS, Pool: pool, Slots: int32(1 + i), Threshold: 1, Queue: int32(2 + i),
			By: session.Maker{Client: "setup", Request: "pool" + pool}})
	}
	for i, rate := range []string{"r0", "r1"} {
		cmds = append(cmds, &session.PutRate{NS: NS, Rate: rate, Limit: int32(2 + 60*i), Per: 4 * time.Second, Queue: 3,
			By: session.Maker{Client: "setup", Request: "rate" + rate}})
	}
	return append(cmds, putBudgets()...)
}

// Step returns the next step: mostly one command, sometimes many.
func (h *History) Step() Step {
	s := Step{After: time.Duration(h.r.IntN(1500)) * time.Millisecond}
	switch h.r.IntN(20) {
	case 0:
		s.After = time.Duration(h.r.IntN(40)) * time.Second
	case 1, 2, 3, 4, 5:
		s.After = 0
	case 6:
		if h.Timed && h.r.IntN(3) == 0 {
			s.After = time.Duration(h.r.IntN(3)) * time.Hour
		}
	}
	n := 1
	if h.r.IntN(4) == 0 {
		n += h.r.IntN(6)
	}
	for range n {
		s.Commands = append(s.Commands, h.Next())
	}
	if h.r.IntN(10) == 0 { // a limit falls before what was handed over is claimed
		h.n++
		s.Commands = append(s.Commands, &session.PutPool{NS: NS, By: h.maker(), Pool: h.pool(), Slots: 1, Threshold: 1, Queue: 3})
	}
	return s
}

// Next returns the next command; one in six was sent before.
func (h *History) Next() session.Command {
	if len(h.past) > 0 && h.r.IntN(6) == 0 {
		return h.past[max(0, len(h.past)-1-h.r.IntN(12))]
	}
	h.n++
	c := h.fresh()
	h.past = append(h.past, c)
	return c
}

func (h *History) fresh() session.Command {
	if h.deliberate() && h.r.IntN(3) == 0 {
		return h.approval()
	}
	switch p := h.r.IntN(100); {
	case p < 8:
		return h.open()
	case p < 13:
		return h.approval()
	case p < 44:
		if h.r.IntN(6) == 0 {
			if c, ok := h.again(); ok {
				return c
			}
		}
		return h.begin()
	case p < 60:
		return h.end()
	case p < 66:
		return h.renewCall()
	case p < 69:
		return h.cancel()
	case p < 71:
		id := h.session()
		return &session.Close{NS: NS, Session: id, Killed: h.r.IntN(3) == 0, Pools: allPools, Digest: Digest(1 + h.r.IntN(3)), Asked: h.askedCalls(id)}
	case p < 77:
		return h.acquire()
	case p < 81:
		return h.rate()
	case p < 86:
		return h.release()
	case p < 88:
		return h.renewSlot()
	case p < 91:
		pool := h.pool()
		return &session.PutPool{NS: NS, By: h.maker(), Pool: pool, Slots: int32(1 + h.r.IntN(3)), Threshold: 1, Queue: int32(h.r.IntN(4))}
	case p < 92:
		return &session.DeletePool{NS: NS, By: h.maker(), Pool: h.pool(), Force: h.r.IntN(3) == 0}
	case p < 93:
		return h.force()
	case p < 94:
		if h.r.IntN(2) == 0 {
			return h.ofBudgets()
		}
		return h.state()
	case p < 96:
		return &session.Increment{NS: NS, By: h.maker(), Key: h.key(), Amount: int64(h.r.IntN(5)-1) * 500_000}
	case p < 98:
		v := session.Value{Text: "text"}
		if h.r.IntN(3) > 0 {
			v = session.Value{Number: true, N: int64(h.r.IntN(10)) * 1_000_000}
		}
		return &session.Set{NS: NS, By: h.maker(), Key: h.key(), Value: v, TTL: time.Duration(h.r.IntN(2)) * 20 * time.Second}
	case p < 98+h.r.IntN(2):
		if h.r.IntN(3) > 0 {
			return h.signal()
		}
		return h.repair()
	case p < 99:
		return &session.Delete{NS: NS, By: h.maker(), Key: h.key()}
	}
	v := 1 + h.r.IntN(3)
	return &session.PutPolicy{NS: NS, By: h.maker(), Name: "p1", Digest: Digest(v), Tree: []byte{byte(v)}, Limits: Limits(v)}
}

// id returns an id for the next thing of a kind.
func (h *History) id(kind string) string {
	if !h.Timed || h.r.IntN(8) == 0 {
		return fmt.Sprintf("%s%d", kind, h.n)
	}
	time := timeOf(h.n)
	if h.r.IntN(30) == 0 {
		time += 1 << 40
	}
	return ulid(time, kind, h.n)
}

// timeOf is the time in ids, in Unix milliseconds.
func timeOf(n int) uint64 { return 1_700_000_000_000 + uint64(n) }

// ulid writes an id of the form of a ULID.
func ulid(time uint64, kind string, n int) string {
	b := []byte(fmt.Sprintf("%010d%s%0*d", 0, strings.ToUpper(kind), 16-len(kind), n))
	for i := 9; i >= 0; i-- {
		b[i] = "0123456789ABCDEFGHJKMNPQRSTVWXYZ"[time%32]
		time /= 32
	}
	return string(b)
}

func (h *History) session() string { return fmt.Sprintf("s%d", h.r.IntN(5)+h.n/400*5) }
func (h *History) client() string  { return fmt.Sprintf("w%d", h.r.IntN(3)) }
func (h *History) pool() string    { return string(rune('a' + h.r.IntN(3))) }
func (h *History) key() string     { return fmt.Sprintf("k%d", h.r.IntN(3)) }
func (h *History) maker() session.Maker {
	return session.Maker{Client: h.client(), Request: h.id("r"), Content: session.Fingerprint{1: byte(h.n)}}
}

// version tells which policy a session of the history pins.
func version(id string) int { return 1 + int(id[len(id)-1])%3 }

func (h *History) open() session.Command {
	id := h.session()
	c := &session.Open{NS: NS, Session: id, Agent: "agent", Digest: Digest(version(id)), IdleTTL: time.Duration(30+h.r.IntN(300)) * time.Second}
	if h.r.IntN(20) == 0 {
		c.Content[0] = 1 // the same id with other content
	}
	if h.Timed && h.r.IntN(3) == 0 { // under another policy than one before, which may be over
		c.Digest, c.Over = Digest(1+h.r.IntN(3)), Digest(h.r.IntN(4))
	}
	return c
}

func (h *History) begin() session.Command {
	id := h.session()
	v := version(id)
	c := &session.Begin{
		NS: NS, Session: id, Call: h.id("c"), Content: session.Fingerprint{0: byte(h.n)},
		CallKind: session.CallKind(h.r.IntN(6) % 5), Tool: []string{"rm", "ls", "cat"}[h.r.IntN(3)], Digest: Digest(v),
		Verdict: session.Verdict{Allow: h.r.IntN(10) > 0, Rule: uint16(h.r.IntN(3))},
		Pools:   []session.Want{{Pool: session.PolicyPool(policy(v)), Weight: 1}},
		TTL:     time.Duration(1+h.r.IntN(15)) * time.Second, Priority: int32(h.r.IntN(2)), Tokens: int64(h.r.IntN(3) * 50),
	}
	h.rates(c)
	for _, pool := range []string{"a", "b", "c"} {
		if h.r.IntN(4) == 0 {
			c.Pools = append(c.Pools, session.Want{Pool: pool, Weight: int32(1 + h.r.IntN(5)/4)})
		}
	}
	if h.r.IntN(2) == 0 {
		c.Wait = time.Duration(1+h.r.IntN(30)) * time.Second
	}
	if h.r.IntN(5) == 0 {
		c.MaxHold = time.Duration(1+h.r.IntN(20)) * time.Second
	}
	if h.r.IntN(8) == 0 {
		c.Seen = []session.Premise{{Fact: session.Fact(1 + h.r.IntN(6)), Name: "rm", Hi: int64(h.r.IntN(20))}}
	}
	c.Budgets = h.charges()
	h.asks(c)
	h.begun = append(h.begun, c)
	if c.Asking != nil {
		h.asked = append(h.asked, c)
	}
	return c
}

// recent picks one of the latest of what was asked for.
func recent[T any](h *History, of []T) (v T, ok bool) {
	if len(of) == 0 {
		return v, false
	}
	return of[max(0, len(of)-1-h.r.IntN(15))], true
}

func pools(c *session.Begin) (names []string) {
	for _, w := range c.Pools {
		names = append(names, w.Pool)
	}
	for _, w := range c.Rates {
		names = append(names, w.Pool)
	}
	return names
}

func (h *History) end() session.Command {
	b, ok := recent(h, h.begun)
	if !ok {
		return h.begin()
	}
	c := &session.End{NS: NS, Session: b.Session, Call: b.Call, Pools: pools(b), Status: session.Status(1 + h.r.IntN(3)), Tokens: int64(h.r.IntN(60) - 10)}
	if c.Tokens < 0 {
		c.Tokens = -1
	}
	c.Rates = c.Pools[len(b.Pools):]
	h.bill(c, b)
	return c
}

func (h *History) renewCall() session.Command {
	b, ok := recent(h, h.begun)
	if !ok {
		return h.begin()
	}
	return &session.Renew{NS: NS, Session: b.Session, ID: b.Call, Pools: pools(b), Token: uint64(h.r.IntN(8)), TTL: 10 * time.Second}
}

func (h *History) cancel() session.Command {
	if t, ok := recent(h, h.takes); ok && h.r.IntN(6) == 0 {
		return &session.Cancel{NS: NS, Client: t.Client, Call: t.ID, Pools: []string{session.RatePool(t.Rate)}}
	}
	if h.r.IntN(3) == 0 {
		if a, ok := recent(h, h.slots); ok {
			return &session.Cancel{NS: NS, Client: a.Client, Call: a.Slot, Pools: []string{a.Pool}}
		}
	}
	b, ok := recent(h, h.begun)
	if !ok {
		return h.begin()
	}
	return &session.Cancel{NS: NS, Session: b.Session, Call: b.Call, Pools: pools(b), Asked: b.Asking != nil}
}

func (h *History) acquire() session.Command {
	c := &session.Acquire{NS: NS, Client: h.client(), Slot: h.id("l"), Content: session.Fingerprint{0: byte(h.n)},
		Pool: h.pool(), Weight: int32(1 + h.r.IntN(5)/4), TTL: time.Duration(1+h.r.IntN(15)) * time.Second, Priority: int32(h.r.IntN(2))}
	if h.r.IntN(2) == 0 {
		c.Wait = time.Duration(1+h.r.IntN(30)) * time.Second
	}
	h.slots = append(h.slots, c)
	return c
}

func (h *History) release() session.Command {
	a, ok := recent(h, h.slots)
	if !ok {
		return h.acquire()
	}
	return &session.Release{NS: NS, Client: a.Client, Slot: a.Slot, Pool: a.Pool, Token: uint64(h.r.IntN(40))}
}

func (h *History) renewSlot() session.Command {
	if t, ok := recent(h, h.takes); ok && h.r.IntN(3) == 0 {
		return &session.Renew{NS: NS, Client: t.Client, ID: t.ID, Pools: []string{session.RatePool(t.Rate)}, TTL: 10 * time.Second}
	}
	a, ok := recent(h, h.slots)
	if !ok {
		return h.acquire()
	}
	return &session.Renew{NS: NS, Client: a.Client, ID: a.Slot, Pools: []string{a.Pool}, Token: uint64(h.r.IntN(40)), TTL: 10 * time.Second}
}

// state is what asks for a version of a value or for the length of a list.
func (h *History) state() session.Command {
	version := []string{"", session.Absent, session.Value{Text: "text"}.Version()}[h.r.IntN(3)]
	switch h.r.IntN(8) {
	case 0:
		return &session.DeleteList{NS: NS, By: h.maker(), Key: h.key()}
	case 1:
		return &session.Delete{NS: NS, By: h.maker(), Key: h.key(), IfVersion: version}
	case 2, 3:
		return &session.Set{NS: NS, By: h.maker(), Key: h.key(), Value: session.Value{Text: "text"}, IfVersion: version}
	}
	c := &session.Append{NS: NS, By: h.maker(), Key: h.key(), From: int64(h.r.IntN(5)), Exact: h.r.IntN(3) == 0,
		TTL: time.Duration(1+h.r.IntN(60)) * time.Second}
	for i := range 1 + h.r.IntN(3) {
		c.Items = append(c.Items, fmt.Sprintf("item %d.%d", h.n, i))
	}
	return c
}

func (h *History) repair() session.Command {
	c := &session.Repair{NS: NS, By: h.maker(), NewerThan: timeOf(max(0, h.n-h.r.IntN(50)))}
	if h.Timed && h.r.IntN(2) == 0 {
		c.Client = h.client()
	}
	return c
}

// signal stops somebody, or lets who was stopped go on, which is asked for more
// often; it kills rarely, and marks that as swept.
func (h *History) signal() session.Command {
	c := &session.Signal{NS: NS, By: h.maker(), Signal: session.Continue, Target: session.Target{Scope: session.OfSession, Name: h.session()}}
	switch h.r.IntN(4) {
	case 0:
		c.Target = session.Target{Scope: session.Everything}
	case 1:
		c.Target = session.Target{Scope: session.OfPolicy, Name: policy(1 + h.r.IntN(2))}
	case 2:
		c.Target = session.Target{Scope: session.OfAgent, Name: "agent"}
	}
	switch h.r.IntN(6) {
	case 0, 1:
		c.Signal, c.Reason = session.Stop, "look"
	case 2:
		c.Signal = session.Kill
	case 3:
		return &session.Swept{NS: NS, Target: c.Target, Number: uint64(1 + h.r.IntN(3))}
	}
	return c
}

func (h *History) force() session.Command {
	c := &session.ForceRelease{NS: NS, By: h.maker()}
	if a, ok := recent(h, h.slots); ok && h.r.IntN(2) == 0 {
		c.Holder, c.ID, c.Pools = a.Client, a.Slot, []string{a.Pool}
		return c
	}
	b, ok := recent(h, h.begun)
	if !ok {
		return h.begin()
	}
	c.Session, c.ID, c.Pools = b.Session, b.Call, pools(b)
	return c
}

// Claims returns the commands that wait according to the state: what a node
// that serves the waiting clients sends again when it sees that a turn has
// come.
func (h *History) Claims(s *session.State) []session.Command {
	var again []session.Command
	for _, b := range h.begun[max(0, len(h.begun)-80):] {
		if x, ok := s.Get(session.SessionKey(NS, b.Session)).(*session.Session); ok {
			if call := x.Find(b.Call); call != nil && call.Waiting() && (handed(s, b, call) || b.Asking != nil && call.Parked() && call.Asked().Approved) {
				again = append(again, b)
			}
		}
	}
	for _, a := range h.slots[max(0, len(h.slots)-80):] {
		if x, ok := s.Get(session.ClientKey(NS, a.Client)).(*session.Client); ok {
			if slot := x.Find(a.Slot); slot != nil && slot.Waiting() && handed(s, nil, slot) {
				again = append(again, a)
			}
		}
	}
	for _, t := range h.takes[max(0, len(h.takes)-80):] {
		if x, ok := s.Get(session.ClientKey(NS, t.Client)).(*session.Client); ok {
			if take := x.Find(t.ID); take != nil && take.Waiting() && handed(s, nil, take) {
				again = append(again, t)
			}
		}
	}
	return again
}

// Late drops some of the claims: they come with a later step, or never.
func (h *History) Late(claims []session.Command) []session.Command {
	return slices.DeleteFunc(claims, func(session.Command) bool { return h.r.IntN(3) == 0 })
}

// handed reports whether a slot was handed to something that waits.
func handed(s *session.State, _ *session.Begin, h *session.Held) bool {
	for _, hold := range h.Pools {
		if p, ok := s.Get(session.PoolKey(NS, hold.Pool.Value())).(*session.Pool); ok {
			for _, l := range p.Leases {
				if l.Claim && l.Holder == h.Holder {
					return true
				}
			}
		}
	}
	return false
}

// Tokens lets renewals and releases name real tokens, and appends real lengths:
// it returns a command like c with what the state has for it.
func Tokens(s *session.State, c session.Command) session.Command {
	switch c := c.(type) {
	case *session.Renew:
		d := *c
		if c.Session != "" {
			if x, ok := s.Get(session.SessionKey(NS, c.Session)).(*session.Session); ok && x.Find(c.ID) != nil && !x.Find(c.ID).Parked() && c.Token%3 > 0 {
				d.Token = x.Find(c.ID).Pools[0].Token
				if x.Find(c.ID).Waiting() {
					d.Token = 0
				}
			}
			return &d
		}
		if x, ok := s.Get(session.ClientKey(NS, c.Client)).(*session.Client); ok && x.Find(c.ID) != nil && c.Token%3 > 0 {
			d.Token = x.Find(c.ID).Pools[0].Token
		}
		return &d
	case *session.Append:
		d := *c
		if c.From%5 > 0 {
			d.From = 0
			if x, ok := s.Get(session.ListKey(NS, c.Key)).(*session.List); ok && x != nil {
				d.From = x.Length
			}
		}
		return &d
	case *session.Release:
		d := *c
		if x, ok := s.Get(session.ClientKey(NS, c.Client)).(*session.Client); ok && x.Find(c.Slot) != nil && c.Token%4 > 0 {
			d.Token = x.Find(c.Slot).Pools[0].Token
		}
		return &d
	}
	return c
}

// Dump returns all records as they stand, encoded, by key.
func Dump(s *session.State) map[session.Key]string {
	all := make(map[session.Key]string)
	for k := range s.Snapshot().All() {
		if r := s.Get(k); r != nil {
			all[k] = string(session.EncodeRecord(r))
		}
	}
	return all
}
