package session

import (
	"strings"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/limiter"
)

// What a call has to pass: first what the node took for granted, then the checks,
// in their order.

// wanted is a slot that a call asks for, and the pool that has it.
type wanted struct {
	key  ref
	pool *Pool // nil: the pool of a policy that nobody has used yet
	limiter.Request
	per       time.Duration // of the rate of a policy
	threshold int32         // backpressure; its limit if 0
}

// limit is what its pool gives out.
func (w *wanted) limit() int32 {
	if w.Slots == 0 && w.pool != nil {
		return w.pool.Slots
	}
	return w.Slots
}

// premises reports whether what the node took for granted holds, and finds the
// pools and the rates. Where it does not, nothing is counted. A call that comes
// again is open already.
func (s *State) premises(c *Begin, x *Session, again bool, wants []wanted, r *Result) ([]wanted, bool) {
	limits := &x.Pin.Limits
	if c.Digest != x.Pin.Digest {
		r.Code, r.Digest = StalePremise, x.Pin.Digest
		return nil, false
	}
	if policy, ok := strings.CutPrefix(c.Pools[0].Pool, policyPrefix); !ok || policy != x.Policy.Value() {
		r.Code, r.Pools = StalePremise, []string{PolicyPool(x.Policy.Value())}
		return nil, false
	}
	for i, w := range c.Pools {
		k := ref{KindPool, c.NS, w.Pool}
		p := s.pool(k)
		q := limiter.Request{Weight: w.Weight, Slots: limits.MaxConcurrent, Queue: DefaultQueue}
		threshold := limits.Backpressure
		if i > 0 {
			if p == nil {
				r.Code, r.Pools = NotFound, []string{w.Pool}
				return nil, false
			}
			q.Slots, q.Queue, threshold = 0, p.MaxQueue, p.Threshold
			if w.Weight > p.Slots {
				r.Code, r.Limit, r.Pools = Invalid, int64(p.Slots), []string{w.Pool}
				return nil, false
			}
		}
		wants[i] = wanted{key: k, pool: p, Request: q, threshold: threshold}
	}
	if !x.asks(c, r) {
		return nil, false
	}
	if s.otherHashes(c, r) || !s.factsHold(c, x, wants[0].pool, r) {
		return nil, false
	}
	if !s.budgetsStand(c, r) {
		return nil, false
	}
	if !again && len(x.Open) >= MaxOpen {
		r.Code = TooManyOpen
		return nil, false
	}
	if x.namesTool(c.CallKind) && len(x.Tools) >= MaxTools && x.tool(s.name(c.Tool)) < 0 {
		r.Code = TooManyTools
		return nil, false
	}
	return s.ratesThere(c, wants, r)
}

// factsHold reports whether every fact that the verdict looked at still stands
// in its range; if not, the result brings today's values.
func (s *State) factsHold(c *Begin, x *Session, pool *Pool, r *Result) bool {
	holds := true
	for _, p := range c.Seen {
		if v := s.fact(p, x, pool); v < p.Lo || v > p.Hi {
			holds = false
		}
	}
	if holds || seeded.On(seeded.CheckOutside) {
		return true
	}
	r.Code = StalePremise
	for _, p := range c.Seen {
		r.Facts = append(r.Facts, s.fact(p, x, pool))
	}
	return false
}

func (s *State) fact(p Premise, x *Session, pool *Pool) int64 {
	switch p.Fact {
	case FactCalls:
		return int64(x.Calls)
	case FactAttempts:
		return int64(x.Attempts)
	case FactTokens:
		return x.Tokens + x.Reserved // what open calls reserved may be used
	case FactToolCalls:
		return int64(x.ToolCalls(p.Name))
	case FactElapsed:
		return int64(s.now - x.Opened)
	case FactActiveSlots:
		if pool != nil {
			return int64(pool.InUse())
		}
	}
	return 0
}

// admit decides a call whose attempt was counted. The order of the checks is
// part of the contract. If it was asked about before, was is the open call: it had
// begun in time.
func (s *State) admit(c *Begin, x *Session, wants []wanted, was *Held, r *Result) Code {
	limits := &x.Pin.Limits
	if !c.Verdict.Allow && c.Asking == nil {
		return Denied
	}
	if elapsed := s.now - x.Opened; elapsed > limits.Timeout && was == nil {
		r.Elapsed, r.Limit = elapsed, int64(limits.Timeout)
		return TimedOut
	}
	counts := c.CallKind == Tool || c.CallKind == Model
	if counts && x.Calls >= limits.MaxToolCalls {
		r.Limit = int64(limits.MaxToolCalls)
		return CallLimit
	}
	if code := kindAllows(c, x, r); code != Done {
		return code
	}
	if code := s.breakerAllows(c, x, r); code != Done {
		return code
	}
	if c.CallKind == Tool {
		if most, ok := limits.tool(c.Tool); ok && x.ToolCalls(c.Tool) >= most {
			r.Limit = int64(most)
			return ToolLimitReached
		}
	}
	if c.Tokens > limits.MaxTokens { // of one request (policy engine spec 3.2)
		r.Limit = limits.MaxTokens
		return TokenLimit
	}
	if code := s.budgetsAllow(c, r); code != Done {
		return code
	}
	if !s.approved(c, x, was) {
		return s.ask(c, x, r)
	}
	return s.slots(c, x, wants, was, r)
}

func (l *Limits) tool(name string) (uint32, bool) {
	for _, t := range l.PerTool {
		if t.Tool == name {
			return t.Max, true
		}
	}
	return 0, false
}
