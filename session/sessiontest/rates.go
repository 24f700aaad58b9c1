package sessiontest

import (
	"time"

	"example.com/govnode/session"
)

// The rates of a history.

// allPools are those in which a call may have something.
var allPools = []string{
	"policy/p1", "policy/p2", "a", "b", "c", "rate/policy//all", "rate/policy/p2/x", "rate/policy/p2/x#s", "rate/r0", "rate/r1",
}

// rates lets a call name rates: of its policy, whose versions have windows of
// different lengths, and others.
func (h *History) rates(c *session.Begin) {
	add := func(often int, w session.RateWant) {
		if h.r.IntN(often) > 0 {
			return
		}
		if w.Tokens = h.r.IntN(3) == 0; w.Tokens {
			w.Cost = int32(max(c.Tokens, 1))
		}
		c.Rates = append(c.Rates, w)
	}
	v := version(c.Session)
	add(10, session.RateWant{Pool: "rate/policy//all", Cost: 1, Limit: 60, Per: time.Second})
	add(6, session.RateWant{Pool: "rate/policy/p2/x", Cost: 1, Limit: int32(50 + v), Per: time.Duration(v) * 2 * time.Second})
	add(12, session.RateWant{Pool: "rate/policy/p2/x#s", Cost: 1, Limit: 1, Per: 3 * time.Second})
	add(6, session.RateWant{Pool: "rate/r0", Cost: 1})
	add(5, session.RateWant{Pool: "rate/r1", Cost: int32(1 + h.r.IntN(40))})
}

// rate is a command of a client at a rate, or of an operator.
func (h *History) rate() session.Command {
	name := []string{"r0", "r1"}[h.r.IntN(2)]
	switch h.r.IntN(12) {
	case 0:
		return &session.PutRate{NS: NS, By: h.maker(), Rate: name, Limit: int32(1 + h.r.IntN(80)), Per: time.Duration(1+h.r.IntN(80)) * 100 * time.Millisecond, Queue: int32(h.r.IntN(4))}
	case 1:
		return &session.DeleteRate{NS: NS, By: h.maker(), Rate: name}
	}
	c := &session.TakeRate{NS: NS, Client: h.client(), ID: h.id("t"), Content: session.Fingerprint{0: byte(h.n)}, Rate: name,
		Cost: int32(1 + h.r.IntN(8)/7*20), Priority: int32(h.r.IntN(2))}
	if h.r.IntN(2) == 0 {
		c.Wait = time.Duration(1+h.r.IntN(30)) * time.Second
	}
	h.takes = append(h.takes, c)
	return c
}
