package model

import (
	"fmt"
	"maps"
	"math"
	"slices"
	"time"

	"example.com/govnode/session"
)

// What a Generator makes commands of.

var ttls = []time.Duration{time.Second, 2 * time.Second, 5 * time.Second, 10 * time.Second, 30 * time.Second, time.Hour}

func (g *Generator) limits(d session.Digest) session.Limits {
	// They follow from the digest, as limits follow from a tree.
	n := int32(d[0])
	return session.Limits{
		MaxTokens: 1000, MaxToolCalls: uint32(3 * g.slack * n), MaxAttempts: uint32(12 * g.slack * n),
		PerTool: []session.ToolLimit{{Tool: "t0", Max: uint32(3 * g.slack)}, {Tool: "t1", Max: 0}}[:n%3],
		Timeout: time.Duration(n*n*n) * time.Minute, MaxConcurrent: min(n*g.slack, session.MaxSlots), Backpressure: n - 1, Checkpoint: uint32(n - 1), Drift: 1,
		Kinds: []session.KindLimit{
			{Kind: session.Model, Max: uint32(2 * g.slack)}, {Kind: session.Agent, Max: 0}, {Kind: session.Handoff, Max: uint32(g.slack)},
			{Kind: session.Sampling, Max: uint32(g.slack)},
		}[min(n-1, 3)*(n%2):],
		MaxFailures: uint32(n-1) % 3 * uint32(g.slack), BreakerReset: 15 * time.Second,
	}
}

func (g *Generator) putPolicy() session.Command {
	d := g.digest()
	if g.names > 3 && !g.once(10) {
		d = session.Digest{1}
	}
	return &session.PutPolicy{NS: g.ns(), By: g.maker(), Name: g.policy(), Digest: d, Tree: []byte{d[0]}, Limits: g.limits(d)}
}

func (g *Generator) deletePolicy() session.Command {
	ns := g.ns()
	c := &session.DeletePolicy{NS: ns, By: g.maker(), Digest: g.digest()}
	if n := g.m.space(ns).names[g.policy()]; n != nil && n.digest != (session.Digest{}) && !g.once(5) {
		c.Digest = n.digest
	}
	if p := g.m.space(ns).policies[c.Digest]; p != nil {
		if c.Names = slices.Clone(p.names); g.once(2) {
			c.Name = pick(g, p.names...)
		}
	}
	if g.once(8) {
		c.Names = nil
	}
	return c
}

func (g *Generator) open() session.Command {
	ns := g.ns()
	s, id := g.m.space(ns), g.session(ns)
	live := 0
	for _, x := range s.sessions {
		if x.phase == session.PhaseOpen {
			live++
		}
	}
	if live >= 3*g.sessions && !g.once(8) {
		return g.close() // few sessions get far, many do not
	}
	switch {
	case g.one:
		id = "s0"
	case len(s.sessions) < g.sessions || g.once(2):
		id = g.id("s")
	case len(s.sessions) > 0 && g.once(2): // perhaps one that is over
		id = pick(g, slices.Sorted(maps.Keys(s.sessions))...)
	}
	c := &session.Open{NS: ns, Session: id, Agent: g.agent(), Policy: g.policy(), Digest: g.digest(),
		IdleTTL: pick(g, time.Second, 20*time.Second, time.Minute, time.Hour, 24*time.Hour, 24*time.Hour)}
	if n := s.names[c.Policy]; n != nil && n.digest != (session.Digest{}) && !g.once(10) {
		c.Digest = n.digest
	} else if g.once(3) {
		c.Policy = ""
	}
	if x := s.sessions[id]; x != nil && g.once(2) {
		c.Over = x.digest
	}
	if g.once(6) {
		c.Parent, c.Attributes = "parent", []session.Attr{{Name: "a", Value: fmt.Sprint(g.n)}}
	}
	if g.known && g.once(4) {
		c.Token = session.Digest{byte(1 + g.n%200)}
	}
	return c
}

func (g *Generator) begin() session.Command {
	ns := g.ns()
	id := g.session(ns)
	for range 4 { // one that admits something, as a rule
		if x := g.m.space(ns).sessions[id]; x != nil && (!x.goesOn(g.m.Now) || g.m.space(ns).keptOut(x)) && !g.once(6) {
			id = g.session(ns)
		}
	}
	if x := g.m.space(ns).sessions[id]; (x == nil || !x.goesOn(g.m.Now)) && !g.once(4) {
		return g.open()
	}
	c := &session.Begin{
		NS: ns, Session: id, Call: g.id("c"), Content: g.content(), CallKind: pick(g, session.Tool, session.Tool, session.Model, session.Agent, session.Handoff, session.Sampling),
		Tool: g.tool(), Digest: g.digest(), Verdict: session.Verdict{Allow: !g.once(10), Rule: uint16(g.r.IntN(3))},
		TTL: pick(g, ttls...), Priority: g.r.Int32N(g.priority) - 1, Tokens: pick[int64](g, 0, 0, 0, 0, 1, 10, 10, 10, 10, 1000, 1001),
		Pools: []session.Want{{Pool: "policy/" + g.policy(), Weight: 1}},
	}
	x := g.m.space(ns).sessions[id]
	if x != nil && !g.once(40) {
		c.Digest, c.Pools[0].Pool = x.digest, "policy/"+x.policy
	}
	// Half of them name things of one kind alone: of those that name several few get far.
	names := func(kind int) bool { return true }
	if only := g.r.IntN(8); only < 4 {
		names = func(kind int) bool { return kind == only }
	}
	for i := range g.pools {
		id := string(rune('a' + i))
		if names(0) && g.once(4) && (g.m.space(ns).pools[id] != nil || g.once(20)) {
			c.Pools = append(c.Pools, session.Want{Pool: id, Weight: g.weight(ns, id)})
		}
	}
	if g.once(20) {
		c.Pools[0].Weight = pick[int32](g, 2, 3, 100)
	}
	if g.crowd {
		c.Pools, c.TTL = c.Pools[:1], time.Hour
	}
	if c.Wait, c.MaxHold = g.wait(); names(1) && (c.Wait > 0 || g.once(2)) {
		c.Budgets = g.charges(ns)
	}
	if names(2) {
		c.Rates = g.rates(ns, c)
	}
	if names(3) {
		g.asks(c, x)
	}
	for x != nil && g.once(6) && len(c.Seen) < 3 {
		p := session.Premise{Fact: session.Fact(1 + g.r.IntN(6))}
		if p.Fact == session.FactToolCalls {
			p.Name = g.tool()
		}
		v := g.m.space(ns).fact(p, x)
		p.Lo, p.Hi = v-int64(g.r.IntN(3)), v+int64(g.r.IntN(3))
		if g.once(5) {
			p.Lo, p.Hi = v+1, v+2
		}
		c.Seen = append(c.Seen, p)
	}
	r := ref{ns, id, true, &held{id: c.Call}}
	g.asked[r.key()] = c
	return c
}

func (g *Generator) wait() (wait, hold time.Duration) {
	if g.once(2) {
		wait = pick(g, time.Second, 9*time.Second, 10*time.Second, 11*time.Second, 15*time.Second, 10*time.Minute, 10*time.Minute)
	}
	if g.once(5) {
		hold = pick(g, time.Second, 3*time.Second, 20*time.Second)
	}
	return wait, hold
}

func (g *Generator) acquire() session.Command {
	ns := g.ns()
	pool := g.pool(ns)
	if g.m.space(ns).pools[pool] == nil && !g.once(4) {
		return g.putPool()
	}
	c := &session.Acquire{NS: ns, Client: g.client(), Slot: g.id("l"), Content: g.content(), Pool: pool, Weight: g.weight(ns, pool),
		TTL: pick(g, ttls...), Priority: g.r.Int32N(g.priority) - 1, Label: pick(g, "", "job")}
	if c.Wait, c.MaxHold = g.wait(); g.crowd {
		c.Weight, c.TTL = 1, time.Hour
	}
	if g.once(20) {
		c.Slot = g.recent(&g.slots, "l", 10)
	}
	r := ref{c.NS, c.Client, false, &held{id: c.Slot}}
	g.asked[r.key()] = c
	return c
}

// claim sends again what waits.
func (g *Generator) claim() session.Command {
	ns, any := g.ns(), g.once(6)
	all := g.m.open(ns, func(h *held) bool { return h.waits() || any })
	if len(all) == 0 {
		return g.begin()
	}
	r := pick(g, all...)
	c := g.asked[r.key()]
	if c == nil {
		return g.begin()
	}
	if b, ok := c.(*session.Begin); ok && (b.Asking != nil || r.asked != nil) && g.once(3) {
		return g.changed(b)
	}
	if b, ok := c.(*session.Begin); ok && g.once(12) {
		d := *b
		d.TTL, d.Pools = pick(g, ttls...), d.Pools[:1]
		return &d
	}
	return c
}

// some returns something that is open, most of the time.
func (g *Generator) some(call bool) ref {
	ns := g.ns()
	all := g.m.open(ns, func(*held) bool { return true })
	all = slices.DeleteFunc(all, func(r ref) bool { return r.call != call })
	if len(all) > 0 && !g.once(10) {
		return pick(g, all...)
	}
	if all = g.m.open(namespaces[0], func(*held) bool { return true }); len(all) > 0 && !g.once(5) {
		if r := pick(g, all...); r.call == call {
			return r
		}
	}
	r := ref{ns, g.client(), false, &held{id: g.recent(&g.slots, "l", 10), pools: []hold{{pool: g.pool(ns), token: uint64(g.r.IntN(9))}}}}
	var done []finished
	if x := g.m.space(ns).clients[r.maker]; x != nil {
		done = x.ids.done
	}
	if call {
		r = ref{ns, g.session(ns), true, &held{id: g.recent(&g.calls, "c", 10), pools: []hold{{pool: "policy/p0"}}}}
		if x := g.m.space(ns).sessions[r.maker]; x != nil {
			done = x.ids.done
		}
	}
	if len(done) > 0 && !g.once(4) {
		f := done[max(0, len(done)-1-g.r.IntN(20))]
		if g.once(4) {
			f = pick(g, done...)
		}
		r.id, r.pools[0].token = f.id, f.value
	}
	return r
}

// premise returns the pools of something, rarely not all of them.
func (g *Generator) premise(h *held) []string {
	pools := poolsOf(h)
	if len(pools) > 0 && g.once(20) {
		return pools[1:]
	}
	if g.once(10) && !slices.Contains(pools, "zzz") {
		pools = append(pools, "zzz")
	}
	return pools
}

// token returns a token of something, rarely another.
func (g *Generator) token(h *held) uint64 {
	if len(h.pools) == 0 {
		return uint64(g.r.IntN(2))
	}
	switch t := pick(g, h.pools...).token; {
	case g.once(12):
		return t - 1
	case g.once(12):
		return uint64(g.r.IntN(50))
	default:
		return t
	}
}

func (g *Generator) end() session.Command {
	h := g.some(true)
	if anew, _ := g.charged(h.ns, func(b *bud, ch charged) bool { return b != nil && b != ch.to }); len(anew) > 0 && g.once(2) {
		h = pick(g, anew...)
	}
	used := pick[int64](g, -1, 0, 7, 30)
	if much := g.m.open(h.ns, g.spentMuch(h.ns)); len(much) > 0 && g.once(2) {
		h, used = pick(g, much...), 1 // what comes back has room for who waits
	}
	late := "" // a budget that has a later period, of which nothing comes back
	if all, names := g.charged(h.ns, g.lateFor); len(all) > 0 && g.once(2) {
		i := g.r.IntN(len(all))
		h, late = all[i], names[i]
	}
	c := &session.End{NS: h.ns, Session: h.maker, Call: h.id, Pools: g.premise(h.held), Status: session.Status(1 + g.r.IntN(3)), Tokens: used, Rates: h.rates()}
	if len(c.Rates) > 0 && g.once(10) {
		c.Rates = c.Rates[1:]
	}
	switch {
	case g.once(20):
		c.Content = g.content()
	case g.once(3):
		c.Content = h.content
	}
	if g.bill(c, h.held); late != "" {
		c.Budgets, c.Spent = h.budgets(), []session.Bill{{Budget: late}}
	}
	if x := g.m.space(h.ns).sessions[h.maker]; x != nil && g.once(4) {
		c.Output = session.Output{Hash: g.digest(), Against: x.baseline, Score: int64(g.r.IntN(1000)), Text: fmt.Sprint("text", g.n)}
		if g.once(5) {
			c.Output.Against = g.digest()
		}
	}
	return c
}

func (g *Generator) cancel() session.Command {
	h := g.some(g.once(2))
	if w := g.m.open(h.ns, func(h *held) bool { return h.waits() }); len(w) > 0 && !g.once(4) {
		h = pick(g, w...)
	}
	c := &session.Cancel{NS: h.ns, Call: h.id, Pools: g.premise(h.held)}
	if c.Client = h.maker; h.call {
		c.Client, c.Session = "", h.maker
		c.Asked = h.asked != nil && !g.once(10) || g.once(20)
	}
	if g.once(3) { // as a node that has lost sight of him, or has it from before
		kind := byte('c')
		if h.call {
			kind = 's'
		}
		c.Heard = max(0, g.m.space(h.ns).heard(h.held, kind, h.maker)+time.Duration(g.r.IntN(3)-1))
	}
	return c
}

func (g *Generator) close() session.Command {
	ns := g.ns()
	c := &session.Close{NS: ns, Session: g.session(ns), Digest: g.digest()}
	if x := g.m.space(c.NS).sessions[c.Session]; x != nil && !g.once(10) {
		if c.Digest = x.digest; !g.once(10) {
			c.Pools = poolsOf(x.open...)
		}
		if c.Asked = x.askedCalls(); len(c.Asked) > 0 && g.once(10) {
			c.Asked = c.Asked[1:]
		}
	}
	if g.once(5) {
		c.Killed, c.Reason = true, "look"
	}
	return c
}

func (g *Generator) release() session.Command {
	h := g.some(false)
	c := &session.Release{NS: h.ns, Client: h.maker, Slot: h.id, Pool: h.pools[0].pool, Token: g.token(h.held)}
	if g.once(30) || session.IsRate(c.Pool) { // what waits for a rate has no slot
		c.Pool = g.pool(h.ns)
	}
	return c
}

func (g *Generator) renew() session.Command {
	h := g.some(g.once(2))
	c := &session.Renew{NS: h.ns, ID: h.id, Pools: g.premise(h.held), Token: g.token(h.held), TTL: pick(g, ttls...)}
	if h.until != 0 && !g.once(5) {
		c.Token = 0
	}
	if c.Client = h.maker; h.call {
		c.Client, c.Session = "", h.maker
	}
	return c
}

func (g *Generator) force() session.Command {
	h := g.some(g.once(2))
	c := &session.ForceRelease{NS: h.ns, By: g.maker(), ID: h.id, Pools: g.premise(h.held)}
	if c.Holder = h.maker; h.call {
		c.Holder, c.Session = "", h.maker
	}
	return c
}

func (g *Generator) putPool() session.Command {
	c := &session.PutPool{NS: g.ns(), By: g.maker(), Pool: string(rune('a' + g.r.IntN(g.pools))), Slots: 1 + g.r.Int32N(3*g.slack), Threshold: g.r.Int32N(3), Queue: g.r.Int32N(5)}
	if g.slack > 1000 {
		c.Slots = pick[int32](g, 2000, session.MaxSlots)
	}
	return c
}

func (g *Generator) deletePool() session.Command {
	ns := g.ns()
	return &session.DeletePool{NS: ns, By: g.maker(), Pool: g.pool(ns), Force: g.once(3)}
}

func (g *Generator) set() session.Command {
	v := session.Value{Number: true, N: pick[int64](g, 0, 1_000_000, math.MaxInt64, math.MinInt64)}
	if g.once(4) {
		v = session.Value{Text: "text"}
	}
	ns, key := g.ns(), g.key()
	return &session.Set{NS: ns, By: g.maker(), Key: key, Value: v, TTL: pick(g, 0, 0, time.Second, 20*time.Second), IfVersion: g.version(ns, key)}
}

func (g *Generator) delete() session.Command {
	ns, key := g.ns(), g.key()
	return &session.Delete{NS: ns, By: g.maker(), Key: key, IfVersion: g.version(ns, key)}
}

func (g *Generator) increment() session.Command {
	return &session.Increment{NS: g.ns(), By: g.maker(), Key: g.key(), Amount: pick[int64](g, 0, 1, 500_000, -1_000_000, math.MaxInt64, math.MinInt64)}
}

func (g *Generator) putHash() session.Command {
	return &session.PutHash{NS: g.ns(), By: g.maker(), Tool: g.tool(), Hash: pick(g, "", "sha256:1", "sha256:2")}
}

func (g *Generator) repair() session.Command {
	c := &session.Repair{NS: g.ns(), By: g.maker(), NewerThan: uint64(1_700_000_000_000 + max(0, g.n-g.r.IntN(500)))}
	if g.once(2) {
		c.Client = g.client()
	}
	return c
}

// tick names everything that is over with what it needs, or some keys at random.
func (g *Generator) tick() session.Command {
	var keys []session.Key
	for _, k := range g.m.Keys() {
		if !g.once(3) {
			continue
		}
		ns := k.Namespace()
		keys = append(keys, k)
		if x := g.m.space(ns).sessions[k.Name()]; x != nil && k.Kind() == session.KindSession && !g.once(4) {
			keys = append(keys, session.PinsKey(ns, x.digest, x.id), session.BaselineKey(ns, x.id))
		}
		if !g.once(4) {
			keys = append(keys, session.NamespaceKey(ns))
		}
	}
	slices.Sort(keys)
	return &session.Tick{Keys: slices.Compact(keys)}
}
