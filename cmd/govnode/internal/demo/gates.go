package demo

import (
	"fmt"
	"time"
)

// How the scenes with gates are judged: functions of what callers saw, and of
// nothing that the service says about itself. What a caller knows of the instant of
// its admission is that it lies between the asking and the answer; so a violation
// that is counted here is one whatever happened in between, and an answer that got
// lost, or came twice, accuses nobody.

// A gate is what became of those who came to one.
type gate struct {
	Violations int    `json:"violations"` // who passed it and must not have
	Admitted   int    `json:"admitted"`
	KeptOut    int    `json:"keptOut"`
	How        string `json:"how"` // in words
}

// asked is one call as its caller saw it.
type asked struct {
	id       string
	sent     time.Duration // by machineTime: before it was asked for first
	answered time.Duration // and when its outcome was there
	outcome  string
	index    uint64        // in the log, of the answer that admitted it
	ended    time.Duration // before its end was reported; 0 if that was not

	retryAfter time.Duration // as it was told, where it was refused
}

// A stopSpan is a STOP of the fleet as seen by who sent it. What is between its
// first and its last number at the turnstile was admitted while it stood: they were
// drawn after the STOP was answered and before CONTINUE was sent, and the numbers
// stand in the order of the log.
type stopSpan struct {
	sent, answered time.Duration // of the STOP
	lifted         time.Duration // before CONTINUE was sent
	first, last    uint64
}

// caught reports whether a call was under way when the STOP came. If it stood in the
// queue of a pool it has lost its place there, and comes again as a new attempt,
// which its caller does not see.
func (s *stopSpan) caught(t *thing) bool {
	return t.intent.At < s.answered && (t.answered == 0 || t.answered > s.sent)
}

// whileStopped judges calls of the fleet. Kept out are those that were refused for
// the STOP, and those that were still without an answer when it was lifted;
// admitted are those of the latter that then went on.
func whileStopped(calls []*thing, s stopSpan) (g gate) {
	for _, t := range calls {
		if t.passed > s.first && t.passed < s.last {
			g.Violations++
		}
		switch held := t.intent.At < s.lifted && t.answered > s.lifted; {
		case t.outcome == "STOPPED":
			g.KeptOut++
		case held && wasAdmitted(t.outcome):
			g.KeptOut++
			g.Admitted++
		case held:
			g.KeptOut++
		}
	}
	g.How = fmt.Sprintf("%d were kept out for %.1f s, and %d of them went on after CONTINUE", g.KeptOut, (s.lifted - s.answered).Seconds(), g.Admitted)
	return g
}

// A vote is what an approver has decided about a call.
type vote struct {
	call  string
	yes   bool
	sent  time.Duration // by machineTime
	index uint64        // of its answer, in the log; 0 if there was none
}

// votesOf reads the votes from the ledger of an approver.
func votesOf(entries []entry) (votes []vote) {
	for _, e := range entries {
		switch e.What {
		case wroteIntent:
			votes = append(votes, vote{call: e.ID, yes: e.Outcome == saidYes, sent: e.At})
		case wroteAnswer:
			votes[len(votes)-1].index = e.Index // he decides one thing at a time
		}
	}
	return votes
}

// withoutApproval judges calls that somebody had to agree to: a call may be admitted
// only after a yes to it, which was sent before its answer came and does not stand
// behind it in the log. An entry of the log holds what came at the same time, so
// both may have the same index.
func withoutApproval(calls []asked, votes []vote) (g gate) {
	for _, c := range calls {
		if c.outcome != admitted {
			g.KeptOut++
			continue
		}
		g.Admitted++
		agreed := false
		for _, v := range votes {
			agreed = agreed || v.call == c.id && v.yes && v.sent < c.answered && v.index <= c.index
		}
		if !agreed {
			g.Violations++
		}
	}
	g.How = fmt.Sprintf("of %d that were asked about %d went on, and %d were denied", len(calls), g.Admitted, g.KeptOut)
	return g
}

// overRate judges calls under a rate, which is a pool whose slots return by
// themselves: whoever was admitted before its answer keeps one at least until so
// long after its asking.
func overRate(calls []asked, limit int, per time.Duration) (g gate) {
	var uses []use
	for _, c := range calls {
		if c.outcome != admitted {
			g.KeptOut++
			continue
		}
		g.Admitted++
		if until := c.sent + per; until > c.answered {
			uses = append(uses, use{from: c.answered, to: until})
		}
	}
	var highest int
	highest, g.Violations = most(uses, limit)
	g.How = fmt.Sprintf("at most %d of %d in any %v; %d times a caller was told when to come back", highest, limit, per, g.KeptOut)
	return g
}

// A charge is what each call of a budget is assumed to cost, and what it cost.
type charge struct{ assumed, spent int }

// overBudget judges calls that are charged to a budget: with what was assumed until
// their end is reported, and with what they cost from then on.
func overBudget(calls []asked, amount int, c charge) (g gate) {
	var steps []step
	for _, a := range calls {
		if a.outcome != admitted {
			g.KeptOut++
			continue
		}
		g.Admitted++
		steps = append(steps, step{a.answered, c.assumed})
		if a.ended != 0 {
			steps = append(steps, step{a.ended, c.spent - c.assumed})
		}
	}
	var highest int
	highest, g.Violations = peak(steps, amount)
	g.How = fmt.Sprintf("at most %d of %d used at once, by %d calls; %d were refused", highest, amount, g.Admitted, g.KeptOut)
	return g
}
