package storage

import (
	"time"

	"example.com/govnode/session"
)

// claimTime is how long a claim may take to be carried out: a claim that comes
// later than limiter.ClaimTTL is worth nothing.
const claimTime = 5 * time.Second

// ClaimBy implements Handing.
func (r *Redis) ClaimBy(claims func(session.Key, *session.Pool) []Claim) { r.claims.Store(&claims) }

// claim adds to a round the claims of those who wait at this node, and to whom
// its commands have handed a slot. It leaves out whom it would have to read
// records for: they claim in a round of their own, as all do who wait at other
// nodes. If the round is lost the claims stay in it as any other command: each
// is the command of its caller once more, which may be applied at any time.
func (x *round) claim(d *draft, state *session.State) {
	by := x.r.claims.Load()
	if by == nil || len(x.sent) > 0 {
		return
	}
	var cmds []session.Command
	for i := range d.was { // not those that are added below
		p, ok := state.Stored(x.wants[i].key).(*session.Pool)
		if !ok || !handed(d.was[i].record, p) {
			continue
		}
		for _, c := range (*by)(x.wants[i].key, p) {
			b := x.r.newBatch(x.r.ctx, []session.Command{c.Command})
			b.until, b.claimed = time.Now().Add(claimTime), c.Answered
			if len(cmds) < x.r.cfg.RoundSize && x.include(d, state, &b.asks[0]) {
				x.batches = append(x.batches, b)
				cmds = append(cmds, c.Command)
			}
		}
	}
	if len(cmds) > 0 {
		d.results = append(d.results, state.ApplyAll(d.now, cmds)...)
	}
}

// include adds what a command touches to a round, if all of it is known.
func (x *round) include(d *draft, state *session.State, a *ask) bool {
	wants, found := make([]want, len(a.keys)), make([]entry, len(a.keys))
	for i, k := range a.keys {
		wants[i] = want{key: k, parts: a.parts(i)}
	}
	for i, known := range x.seen(wants, found) {
		if at, ok := x.at[wants[i].key]; ok {
			known = knows(d.was[at], wants[i].parts)
		}
		if !known {
			return false
		}
	}
	x.touch(a)
	for i, w := range wants {
		if x.at[w.key] < len(d.was) {
			continue
		}
		d.was, d.fresh = append(d.was, found[i]), false
		if found[i].record != nil {
			state.Put(w.key, found[i].record)
		}
	}
	return true
}
