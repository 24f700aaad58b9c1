package session

import (
	"fmt"
	"math"
	"slices"
	"time"

	"example.com/govnode/internal/seeded"
)

// The commands that carry the id of a request: pools, policies, values and hashes
// are put and deleted, and what a client asked before is known again.

// A request is such a command.
type request interface {
	Command
	from() (ns string, by Maker)
}

func (c *ForceRelease) from() (ns string, by Maker) { return c.NS, c.By }
func (c *PutPool) from() (ns string, by Maker)      { return c.NS, c.By }
func (c *DeletePool) from() (ns string, by Maker)   { return c.NS, c.By }
func (c *PutPolicy) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *DeletePolicy) from() (ns string, by Maker) { return c.NS, c.By }
func (c *Set) from() (ns string, by Maker)          { return c.NS, c.By }
func (c *Delete) from() (ns string, by Maker)       { return c.NS, c.By }
func (c *Increment) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *PutHash) from() (ns string, by Maker)      { return c.NS, c.By }
func (c *Repair) from() (ns string, by Maker)       { return c.NS, c.By }
func (c *Signal) from() (ns string, by Maker)       { return c.NS, c.By }

// MakerOf returns whose request a command is, and under which id; nobody's where it is none.
func MakerOf(cmd Command) Maker {
	c, ok := cmd.(request)
	if !ok {
		return Maker{}
	}
	_, by := c.from()
	return by
}

// request carries a request out if it was not before, and remembers it. Refusals
// change nothing, so that they are not remembered.
func (s *State) request(c request, r *Result) {
	ns, by := c.from()
	if !s.known(c, r) {
		s.carryOut(c, r)
		if r.Code == Done {
			s.remember(ns, by, r.Value)
		}
	}
	if r.Code != Done {
		return
	}
	switch c := c.(type) {
	case *PutPool:
		r.After = s.afterPool(ref{KindPool, c.NS, c.Pool})
	case *PutRate:
		r.After = s.afterPool(ref{KindPool, c.NS, RatePool(c.Rate)})
	case *ForceRelease:
		r.Code = Released
	case *PutBudget:
		s.showBudget(c.NS, c.Budget, r)
	case *AdjustBudget:
		s.showBudget(c.NS, c.Budget, r)
	case *Signal:
		r.Signal = s.standing(c.NS, c.Target)
	case *PutStanding:
		r.After = s.afterStanding(ref{KindStanding, c.NS, c.Of.ID()})
	case *Ask:
		r.After = s.afterApproval(ref{KindApproval, c.NS, c.ID})
	case *Decide:
		r.After = s.afterApproval(ref{KindApproval, c.NS, c.ID})
	case *CancelApproval:
		r.After = s.afterApproval(ref{KindApproval, c.NS, c.ID})
	}
}

func (s *State) carryOut(c request, r *Result) {
	switch c := c.(type) {
	case *ForceRelease:
		s.forceRelease(c, r)
	case *PutPool:
		s.putPool(c)
	case *DeletePool:
		s.deletePool(c, r)
	case *PutPolicy:
		s.putPolicy(c, r)
	case *DeletePolicy:
		s.deletePolicy(c, r)
	case *Set:
		s.set(c, r)
	case *Delete:
		s.delete(c, r)
	case *Increment:
		s.increment(c, r)
	case *PutHash:
		s.putHash(c)
	case *Repair:
		s.repair(c, r)
	case *PutRate:
		s.putRate(c)
	case *DeleteRate:
		s.deleteRate(c, r)
	case *PutBudget:
		s.putBudget(c, r)
	case *AdjustBudget:
		s.adjustBudget(c, r)
	case *DeleteBudget:
		s.deleteBudget(c, r)
	case *Append:
		s.append(c, r)
	case *DeleteList:
		s.deleteList(c, r)
	case *Signal:
		s.signal(c, r)
	case *Ask:
		s.carryOutAsk(c, r)
	case *Decide:
		s.decide(c, r)
	case *CancelApproval:
		s.cancelApproval(c, r)
	case *PutStanding:
		s.putStanding(c)
	case *DeleteStanding:
		s.deleteStanding(c, r)
	case *PutToken:
		s.putToken(c, r)
	case *RevokeToken:
		s.revokeToken(c, r)
	case *Deny:
		s.deny(c, r)
	case *Allow:
		s.allow(c, r)
	case *PutQuotas:
		s.putQuotas(c)
	case *KeepKey:
		s.keepKey(c)
	case *UseToken:
		s.useToken(c, r)
	default:
		panic(fmt.Sprintf("session: %T has the id of a request and no way to be carried out", c))
	}
}

// known reports whether the request was answered before, or cannot be; the
// result then says so.
func (s *State) known(c request, r *Result) bool {
	ns, m := c.from()
	if m.Request == "" {
		return false
	}
	if s.answered(ns, m, r) {
		return true
	}
	if _, ok := c.(*Repair); ok {
		return false // it is not held to what it repairs
	}
	k := ref{KindClient, ns, m.Client}
	return stale(m.Request, s.newerThan(k, s.client(k)), r)
}

// answered reports whether the request was answered before; the result then
// says so.
func (s *State) answered(ns string, m Maker, r *Result) bool {
	x := s.client(ref{KindClient, ns, m.Client})
	if x == nil || m.Request == "" {
		return false
	}
	if x.Find(m.Request) != nil { // the id of a slot, which is remembered beside requests once it is finished
		r.Code = IDReused
		return true
	}
	seen := x.IDs.Find(m.Request)
	if seen == nil || seeded.On(seeded.ForgetByAge) && s.now-x.Used > time.Second {
		return false
	}
	if seen.Content != m.Content {
		r.Code = IDReused
		return true
	}
	r.Repeat, r.Value = true, int64(seen.Value)
	return true
}

// newerThan returns the time that an id must be newer than to be surely unknown
// to a client, which is x if it is there. Its own record decides then, and
// what was forgotten when it was made, as far as that was not repaired since.
func (s *State) newerThan(k ref, x *Client) uint64 {
	forgot := s.namespace(k.ns).ForgotClients
	if x != nil {
		return max(x.IDs.NewerThan(), min(x.Born, forgot))
	}
	if over, _ := s.lookup(k).(*Client); over != nil {
		forgot = max(forgot, over.IDs.Newest())
	}
	return forgot
}

// remember notes a request that was carried out.
func (s *State) remember(ns string, m Maker, value int64) {
	if m.Request == "" {
		return
	}
	k := ref{KindClient, ns, m.Client}
	x := s.ownClient(k, s.client(k))
	x.Used, x.Born = s.now, min(x.Born, s.namespace(ns).ForgotClients)
	x.IDs.Add(remembered(m.Request, m.Content, Done, 0, uint64(value)))
}

func (s *State) putPool(c *PutPool) {
	k := ref{KindPool, c.NS, c.Pool}
	p := s.pool(k)
	fresh := p == nil
	p = s.ownPool(k, p)
	if fresh && !seeded.On(seeded.TokensAgain) {
		p.RaiseToken(s.namespace(c.NS).TokenFloor)
	}
	p.Put, p.Threshold, p.MaxQueue = true, c.Threshold, c.Queue
	p.SetSlots(s.now, c.Slots)
}

// deletePool removes a pool; what is given out in a later pool of the same name
// lies above all its tokens, and whoever held in it is fenced there.
func (s *State) deletePool(c *DeletePool, r *Result) {
	k := ref{KindPool, c.NS, c.Pool}
	p := s.pool(k)
	if p == nil || !p.Put {
		r.Code = NotFound
		return
	}
	if !c.Force && len(p.Leases)+len(p.Queue) > 0 {
		r.Code = PoolInUse
		return
	}
	s.dropPool(k, p)
}

func (s *State) dropPool(k ref, p *Pool) {
	ns := s.namespace(k.ns)
	if p.Last >= ns.TokenFloor {
		ns.TokenFloor = p.Last + 1 // the end of a pool is behind all that it granted
		s.write(ref{KindNamespace, k.ns, ""}, &ns)
	}
	s.put(k, nil)
}

// putPolicy stores a tree and lets the name point to it. The same content
// again changes nothing.
func (s *State) putPolicy(c *PutPolicy, r *Result) {
	n := Name{}
	if x, ok := s.lookup(ref{KindName, c.NS, c.Name}).(*Name); ok {
		n = *x
	}
	k := refOf(PolicyKey(c.NS, c.Digest))
	policy, _ := s.lookup(k).(*Policy)
	if policy == nil {
		policy = &Policy{Tree: c.Tree, Pin: &Pin{c.Digest, c.Limits}, First: c.Name}
	}
	if !contains(policy.Names, c.Name) {
		if len(policy.Names) >= MaxNames {
			r.Code, r.Limit = TooManyNames, MaxNames
			return
		}
		next := *policy
		next.Names = append(slices.Clip(slices.Clone(policy.Names)), c.Name)
		slices.Sort(next.Names)
		s.write(k, &next)
	}
	if n.Digest != c.Digest {
		n.Digest = c.Digest
		n.Version++
		s.write(ref{KindName, c.NS, c.Name}, &n)
	}
	r.Value = int64(n.Version)
}

// named returns the name of a policy if it points to a digest; where it does not,
// or to another, the answer says so.
func (s *State) named(ns, name string, d Digest, r *Result) *Name {
	n, _ := s.lookup(ref{KindName, ns, name}).(*Name)
	if n == nil || n.Digest == (Digest{}) {
		r.Code = NotFound
		return nil
	}
	if n.Digest != d {
		r.Code, r.Digest = StalePremise, n.Digest
		return nil
	}
	return n
}

// deletePolicy removes a name, and the tree if nothing else needs it. Where
// live sessions pin the tree, nothing is removed. A name that was removed keeps
// its version, so that versions of a name never repeat.
func (s *State) deletePolicy(c *DeletePolicy, r *Result) {
	k := refOf(PolicyKey(c.NS, c.Digest))
	policy, _ := s.lookup(k).(*Policy)
	if c.Name != "" && s.named(c.NS, c.Name, c.Digest, r) == nil {
		return
	}
	if policy == nil {
		r.Code = NotFound
		return
	}
	if !slices.Equal(policy.Names, c.Names) {
		r.Code, r.Names, r.Digest = StalePremise, policy.Names, c.Digest
		return
	}
	for _, pins := range PinsKeys(c.NS, c.Digest) {
		if s.Stored(pins) != nil {
			r.Code = PolicyPinned
			return
		}
	}
	var kept []string // that still point here
	for _, name := range policy.Names {
		nk := ref{KindName, c.NS, name}
		n, _ := s.lookup(nk).(*Name)
		if n == nil || n.Digest != c.Digest {
			continue
		}
		if c.Name != "" && name != c.Name {
			kept = append(kept, name)
			continue
		}
		s.write(nk, &Name{Version: n.Version})
	}
	if kept == nil {
		s.put(k, nil)
	} else {
		next := *policy
		next.Names = kept
		s.write(k, &next)
	}
}

func (s *State) set(c *Set, r *Result) {
	k := ref{KindCounter, c.NS, c.Key}
	if !s.ifVersion(k, c.IfVersion, r) {
		return
	}
	x := &Counter{Value: c.Value}
	if c.TTL > 0 {
		x.Until = s.now + c.TTL
	}
	s.write(k, x)
}

func (s *State) delete(c *Delete, r *Result) {
	k := ref{KindCounter, c.NS, c.Key}
	if !s.ifVersion(k, c.IfVersion, r) {
		return
	}
	if s.counter(k) != nil {
		r.Value = 1
	}
	s.put(k, nil)
}

// increment adds to a counter, which starts at 0 and keeps its TTL.
func (s *State) increment(c *Increment, r *Result) {
	k := ref{KindCounter, c.NS, c.Key}
	x := Counter{Value: Value{Number: true}}
	if old := s.counter(k); old != nil {
		x = *old
	}
	if !x.Value.Number {
		r.Code = NotANumber
		return
	}
	n := x.Value.N
	if c.Amount > 0 && n > math.MaxInt64-c.Amount || c.Amount < 0 && n < math.MinInt64-c.Amount {
		r.Code = Overflow
		return
	}
	x.Value.N += c.Amount
	s.write(k, &x)
	r.Value = x.Value.N
}

func (s *State) putHash(c *PutHash) {
	k, was := ref{KindHash, c.NS, c.Tool}, ""
	if x, _ := s.lookup(k).(*Hash); x != nil {
		was = x.Hash
	}
	if c.Hash == was {
		return
	}
	if c.Hash == "" {
		s.put(k, nil)
	} else {
		s.write(k, &Hash{c.Hash})
	}
	k = ref{KindSignals, c.NS, ""}
	var next Signals
	if x, _ := s.lookup(k).(*Signals); x != nil {
		next = *x
	}
	next.Hashes = max(next.Hashes, uint64(s.generation)<<32) + 1
	s.write(k, &next)
}

// otherHashes reports whether a call was judged by other registered hashes than those of
// now; the answer then says so.
func (s *State) otherHashes(c *Begin, r *Result) bool {
	if len(s.signals) == 0 && c.Hashes == 0 || HashesOf(s.lookup(ref{KindSignals, c.NS, ""})) == c.Hashes {
		return false
	}
	r.Code = StalePremise
	return true
}
