package model

import (
	"fmt"
	"math"
	"slices"
	"time"

	"example.com/govnode/session"
)

// laws holds what was answered, and how pools stand, to what is promised,
// whatever the model says: tokens rise, nobody is admitted above his limit, an
// attempt and an execution count once, no lease ends early, nobody overtakes,
// and whoever holds or waits is known to the one who asked.
type laws struct {
	last     map[session.Key]uint64                     // token of a pool
	holder   map[session.Key]map[uint64]string          // who was given a token
	until    map[session.Key]map[uint64]time.Duration   // how long it is his, at least
	held     map[session.Key]map[string][]session.Grant // by maker and id: what it was given
	tallies  map[session.Key]*tally
	opened   map[session.Key]time.Duration
	queues   map[session.Key][]string
	waits    map[session.Key]map[string]bool // by session: calls that stood in a queue when they were answered last
	rates    map[session.Key]*window
	halts    map[string]map[session.Target]session.SignalKind // that stand, by namespace
	consents map[session.Key]map[string]*consent
	standing map[session.Key]*leave
	chains   map[session.Key]*session.Chain
	now      time.Duration
	alone    bool // the command has an entry of its own
	broken   string
}

// A tally is what was counted of a session.
type tally struct{ attempts, executions uint32 }

func newLaws() *laws {
	return &laws{
		last: map[session.Key]uint64{}, holder: map[session.Key]map[uint64]string{}, until: map[session.Key]map[uint64]time.Duration{},
		held: map[session.Key]map[string][]session.Grant{}, tallies: map[session.Key]*tally{}, opened: map[session.Key]time.Duration{}, queues: map[session.Key][]string{}, waits: map[session.Key]map[string]bool{},
		rates: map[session.Key]*window{}, halts: map[string]map[session.Target]session.SignalKind{},
		consents: map[session.Key]map[string]*consent{}, standing: map[session.Key]*leave{},
		chains: map[session.Key]*session.Chain{},
	}
}

func (l *laws) check(now time.Duration, s *session.State, cmds []session.Command, results []session.Result) string {
	l.now, l.alone = now, len(cmds) == 1
	pools, sessions := map[session.Key]bool{}, map[session.Key]bool{}
	generation := s.Generation() // as it was before the entry
	for _, c := range cmds {
		if _, ok := c.(*session.Restore); ok {
			generation--
		}
	}
	for i, c := range cmds {
		l.answer(s, c, &results[i])
		if _, ok := c.(*session.Restore); ok {
			generation++
		}
		l.chained(generation, c, &results[i])
		for _, k := range session.Footprint(c) {
			switch k.Kind() {
			case session.KindPool:
				pools[k] = true
			case session.KindSession:
				sessions[k] = true
			}
		}
	}
	for k := range sessions {
		l.lapse(s, k)
	}
	for _, c := range cmds {
		l.heads(s, c)
	}
	for k := range pools {
		if p, ok := s.Get(k).(*session.Pool); ok {
			l.pool(s, k, p)
		} else {
			delete(l.queues, k)
		}
	}
	return l.broken
}

func (l *laws) breaks(format string, args ...any) {
	if l.broken == "" {
		l.broken = fmt.Sprintf(format, args...)
	}
}

func (l *laws) answer(s *session.State, c session.Command, r *session.Result) {
	switch c := c.(type) {
	case *session.Open:
		l.lapses(c.NS, r)
		if k := session.SessionKey(c.NS, c.Session); r.Code == session.Done && !r.Repeat {
			delete(l.halts[c.NS], session.Target{Scope: session.OfSession, Name: c.Session}) // of one before it
			l.let(s, k, session.Kill)
			delete(l.consents, k)
			l.tallies[k], l.opened[k] = &tally{}, l.now
		}
	case *session.Begin:
		k := session.SessionKey(c.NS, c.Session)
		l.lapses(c.NS, r)
		fresh := r.Code == session.Admitted && !sameTokens(l.held[k][c.Call], r.Grants)
		if fresh {
			l.let(s, k, session.Stop)
		}
		l.asked(k, c, r, fresh)
		if t := l.tallies[k]; t != nil && !r.Code.Failure() && r.Code != session.SessionClosed && r.Code != session.AttemptLimit && r.Code != session.Stopped {
			if !r.Repeat && !l.waits[k][c.Call] { // one that waited may be asked about after all
				t.attempts++
			}
			l.counted(k, t, r)
		}
		l.grants(c.NS, k, c.Call, r)
		if r.Code == session.Queued {
			// It has what it asks of the rates before, and no lower limit takes that away.
			waitsAt := slices.IndexFunc(c.Rates, func(w session.RateWant) bool { return w.Pool == r.Queue.Pool })
			for i, w := range c.Rates {
				l.window(session.PoolKey(c.NS, w.Pool)).holds(string(k)+" "+c.Call, w.Limit, i < waitsAt, !r.Repeat)
			}
		}
		if r.Code == session.Admitted {
			for _, w := range c.Rates {
				l.spends(s, session.PoolKey(c.NS, w.Pool), string(k)+" "+c.Call, w.Cost, w.Limit, w.Per, r.Repeat)
			}
		}
		l.charged(s, c, r)
	case *session.TakeRate:
		if r.Code == session.Admitted {
			l.spends(s, session.PoolKey(c.NS, session.RatePool(c.Rate)), string(session.ClientKey(c.NS, c.Client))+" "+c.ID, c.Cost, 0, 0, r.Repeat)
		}
	case *session.PutRate:
		if r.Code == session.Done && !r.Repeat {
			w := l.window(session.PoolKey(c.NS, session.RatePool(c.Rate)))
			w.lasts(l.now, c.Per)
			w.limit = c.Limit
		}
	case *session.DeleteRate:
		if r.Code == session.Done && !r.Repeat {
			l.window(session.PoolKey(c.NS, session.RatePool(c.Rate))).admitted = nil
		}
	case *session.End:
		k := session.SessionKey(c.NS, c.Session)
		l.lapses(c.NS, r)
		if r.Code == session.Ended {
			l.corrects(string(k)+" "+c.Call, c)
			l.free(k, c.Call)
			if t := l.tallies[k]; t != nil {
				t.executions++
				l.counted(k, t, r)
			}
		}
	case *session.Cancel:
		l.lapses(c.NS, r)
		if r.Code == session.WaitCancelled {
			l.noConsent(session.SessionKey(c.NS, c.Session), c.Call)
		}
	case *session.Decide:
		l.lapses(c.NS, r)
		l.voted(c, r)
	case *session.CancelApproval:
		l.lapses(c.NS, r)
		if r.Code == session.Done && r.Value == 1 && c.Call != "" {
			l.noConsent(session.SessionKey(c.NS, c.Session), c.Call)
		}
	case *session.PutStanding:
		if r.Code == session.Done && !r.Repeat {
			l.standing[session.StandingKey(c.NS, c.Of.ID())] = &leave{c.Uses, l.now, l.now + c.TTL}
		}
	case *session.DeleteStanding:
		if r.Code == session.Done && !r.Repeat {
			delete(l.standing, session.StandingKey(c.NS, c.ID))
		}
	case *session.Close:
		if k := session.SessionKey(c.NS, c.Session); r.Code == session.Done {
			delete(l.held, k)
			delete(l.consents, k)
			l.forget(k)
		}
		l.lapses(c.NS, r)
	case *session.Acquire:
		l.grants(c.NS, session.ClientKey(c.NS, c.Client), c.Slot, r)
	case *session.Renew:
		k := session.ClientKey(c.NS, c.Client)
		if c.Session != "" {
			k = session.SessionKey(c.NS, c.Session)
		}
		l.lapses(c.NS, r)
		if r.Code == session.Renewed {
			for _, g := range l.held[k][c.ID] {
				if l.until[session.PoolKey(c.NS, g.Pool)][g.Token] > l.now { // else it is what had the id before
					l.promise(c.NS, g, r.Grants[0].TTL)
				}
			}
		}
	case *session.Release:
		if r.Code == session.Released || r.Code == session.LeaseExpired {
			l.free(session.ClientKey(c.NS, c.Client), c.Slot)
		}
	case *session.ForceRelease:
		if k := session.ClientKey(c.NS, c.Holder); r.Code == session.Released && !r.Repeat {
			if c.Session != "" {
				k = session.SessionKey(c.NS, c.Session)
			}
			l.free(k, c.ID)
		}
		l.lapses(c.NS, r)
	case *session.DeletePool:
		if k := session.PoolKey(c.NS, c.Pool); r.Code == session.Done && !r.Repeat {
			delete(l.until, k)
		}
	case *session.Signal:
		l.lapses(c.NS, r)
		l.signal(c, r)
	case *session.Tick:
		for _, k := range c.Keys {
			if slices.ContainsFunc(r.Lapsed, func(x session.Lapse) bool { return session.SessionKey(x.NS, x.Session) == k }) {
				delete(l.tallies, k)
			}
		}
	case *session.Restore:
		clear(l.until)
		clear(l.held)
		clear(l.consents)
		clear(l.waits)
		clear(l.tallies)
	}
}

// charged holds what was charged to what the budgets have, at once or by a claim.
// What others use or change in the same entry is not told apart, so that only a call
// that was alone with its budgets since is judged.
func (l *laws) charged(s *session.State, c *session.Begin, r *session.Result) {
	k := session.SessionKey(c.NS, c.Session)
	claims := r.Repeat && l.waits[k][c.Call]
	if r.Code == session.Queued {
		if l.waits[k] == nil {
			l.waits[k] = map[string]bool{}
		}
		l.waits[k][c.Call] = true
	} else if !r.Code.Failure() {
		delete(l.waits[k], c.Call)
	}
	if r.Code == session.Admitted && (!r.Repeat || claims) && l.alone {
		for _, n := range c.Budgets {
			if b, ok := s.Get(session.BudgetKey(c.NS, n.Budget)).(*session.Budget); !ok || b.Used > b.Amount {
				l.breaks("%s was admitted, and budget %s is %+v", c.Call, n.Budget, b)
			}
		}
	}
}

// lapses counts what ran out as executed, and holds it to when it might.
func (l *laws) lapses(ns string, r *session.Result) {
	for _, lapse := range r.Lapsed {
		k := session.SessionKey(ns, lapse.Session)
		if t := l.tallies[k]; t != nil {
			t.executions++
		}
		for _, g := range l.held[k][lapse.Call] {
			if end := l.until[session.PoolKey(ns, g.Pool)][g.Token]; end > l.now {
				l.breaks("call %s of %s lapsed at %v, which had its slot until %v", lapse.Call, k, l.now, end)
			}
		}
		delete(l.held[k], lapse.Call)
	}
}

func (l *laws) counted(k session.Key, t *tally, r *session.Result) {
	if r.Counters.Attempts != t.attempts || r.Counters.Executions != t.executions {
		l.breaks("%s has counted %+v, and was asked and told of %+v", k, r.Counters, *t)
	}
}

func (l *laws) grants(ns string, maker session.Key, id string, r *session.Result) {
	if r.Code != session.Admitted {
		return
	}
	if p := r.Pressure; !r.Repeat && p.InUse > p.Limit {
		l.breaks("%s of %s was admitted as number %d of %d", id, maker, p.InUse, p.Limit)
	}
	for _, g := range r.Grants {
		k := session.PoolKey(ns, g.Pool)
		if l.holder[k] == nil {
			l.holder[k] = map[uint64]string{}
		}
		who, known := l.holder[k][g.Token]
		if me := string(maker) + " " + id; known && who != me || !known && !r.Repeat && g.Token <= l.last[k] {
			l.breaks("%s was given token %d of %s, where %q had it and the last was %d", me, g.Token, k, who, l.last[k])
		} else {
			l.holder[k][g.Token] = me
		}
		l.last[k] = max(l.last[k], g.Token)
		l.promise(ns, g, g.TTL)
	}
	if l.held[maker] == nil {
		l.held[maker] = map[string][]session.Grant{}
	}
	l.held[maker][id] = r.Grants
}

func (l *laws) promise(ns string, g session.Grant, ttl time.Duration) {
	k := session.PoolKey(ns, g.Pool)
	if l.until[k] == nil {
		l.until[k] = map[uint64]time.Duration{}
	}
	l.until[k][g.Token] = l.now + ttl
}

// free ends the promise to something that gave back what it had.
func (l *laws) free(maker session.Key, id string) {
	for _, g := range l.held[maker][id] {
		delete(l.until[session.PoolKey(maker.Namespace(), g.Pool)], g.Token)
	}
	delete(l.held[maker], id)
}

// forget ends all promises to a maker.
func (l *laws) forget(maker session.Key) {
	for pool, tokens := range l.holder {
		for token, who := range tokens {
			if len(who) > len(maker) && who[:len(maker)+1] == string(maker)+" " {
				delete(l.until[pool], token)
			}
		}
	}
}

// pool looks at a pool as it stands.
func (l *laws) pool(s *session.State, k session.Key, p *session.Pool) {
	if p.Per > 0 {
		l.window(k).lasts(l.now, p.Per)
	}
	if p.Last < l.last[k] {
		l.breaks("%s has given out %d, and goes on behind %d", k, l.last[k], p.Last)
	}
	own := func(slots int32) int32 {
		if slots > 0 {
			return slots
		}
		return p.Slots
	}
	claimed := int32(math.MaxInt32) // what claims leave to others
	for i, x := range p.Leases {
		if i > 0 && x.Token <= p.Leases[i-1].Token || x.Expires <= l.now {
			l.breaks("%s: lease %+v", k, x)
		}
		if x.Claim {
			claimed = min(claimed, own(x.Place.Slots))
			if p.InUse() > own(x.Place.Slots) && p.Per == 0 { // else what a call used beyond its estimate may have come between
				l.breaks("%s: %s cannot claim what it was handed: %d of %d are in use", k, x.Holder, p.InUse(), own(x.Place.Slots))
			}
		}
		if x.Spent() && p.Per > 0 {
			continue
		}
		l.known(s, k, x.Holder, len(p.Leases))
	}
	for token, end := range l.until[k] {
		if end <= l.now {
			delete(l.until[k], token)
		} else if x, there := p.Lease(token); !there || x.Expires < end {
			l.breaks("%s: the lease of %s, token %d, is gone at %v, before %v", k, l.holder[k][token], token, l.now, end)
		}
	}
	var queue []string
	for i, t := range p.Queue {
		if i > 0 && t.Priority > p.Queue[i-1].Priority || t.Lapses() <= l.now {
			l.breaks("%s: ticket %+v", k, t)
		}
		l.known(s, k, t.Holder, len(p.Queue))
		queue = append(queue, fmt.Sprint(t.Priority, " ", t.Holder))
	}
	if len(queue) > 0 && p.InUse()+p.Queue[0].Weight <= min(own(p.Queue[0].Slots), claimed) {
		l.breaks("%s: %s waits while there is room", k, queue[0])
	}
	at := -1
	for _, who := range queue { // those who waited before stand as they stood
		if was := slices.Index(l.queues[k], who); was >= 0 && was < at {
			l.breaks("%s: the queue was %v and is %v", k, l.queues[k], queue)
		} else if was >= 0 {
			at = was
		}
	}
	l.queues[k] = queue
}

// known looks for a holder with the one who asked for it. That takes long where
// there are many, so that few are looked for then.
func (l *laws) known(s *session.State, pool session.Key, holder string, of int) {
	if of > 32 {
		return
	}
	kind, maker, id := session.SplitHolder(holder)
	there := false
	if kind == session.KindSession {
		x, ok := s.Get(session.SessionKey(pool.Namespace(), maker)).(*session.Session)
		there = ok && x.Find(id) != nil
	} else {
		x, ok := s.Get(session.ClientKey(pool.Namespace(), maker)).(*session.Client)
		there = ok && x.Find(id) != nil
	}
	if !there {
		l.breaks("%s: %s is there, and the one who asked does not know of it", pool, holder)
	}
}

// signal notes what stands.
func (l *laws) signal(c *session.Signal, r *session.Result) {
	if r.Code != session.Done || r.Repeat {
		return
	}
	all := l.halts[c.NS]
	if all == nil {
		all = map[session.Target]session.SignalKind{}
		l.halts[c.NS] = all
	}
	switch {
	case c.Signal == session.Continue:
		delete(all, c.Target)
	case all[c.Target] != session.Kill:
		all[c.Target] = c.Signal
	}
}

// let holds that nothing stands against a session that it lets something new in,
// which is at least as strong.
func (l *laws) let(s *session.State, k session.Key, least session.SignalKind) {
	x, _ := s.Get(k).(*session.Session)
	if x == nil {
		return
	}
	for t, kind := range l.halts[k.Namespace()] { // order-free: any of them is wrong
		own := t.Scope == session.OfSession && t.Name == k.Name()
		if (own || t.Hits(x.Agent.Value(), x.Policy.Value())) && kind >= least {
			l.breaks("%s lets something in, and a signal %d stands against %+v", k, kind, t)
		}
	}
}

func sameTokens(a, b []session.Grant) bool {
	return slices.EqualFunc(a, b, func(a, b session.Grant) bool { return a.Pool == b.Pool && a.Token == b.Token })
}
