package session

import (
	"fmt"
	"slices"
	"strings"
	"time"
	"unique"

	"example.com/govnode/limiter"
	"example.com/govnode/session/ids"
)

// Rates: pools whose slots return by themselves. Calls take them behind their
// pools, clients one at a time; those of policies come and go with their calls.

const (
	// MaxRates is how many rates a call may name, those of its policy included.
	MaxRates = 8
	// MaxRate is the largest limit of a rate.
	MaxRate = limiter.MaxWeight
	// MinPer and MaxPer bound the time after which a slot returns.
	MinPer = 100 * time.Millisecond
	MaxPer = 24 * time.Hour
	// MaxRateName is of a rate of a policy, whose record is named by more.
	MaxRateName = 64
	// MaxRetry bounds what an answer says about when to try again, so that it
	// can be remembered with the id.
	MaxRetry = MaxDuration

	maxRatePool = len(ratePrefix) + len(policyPrefix) + MaxID + 1 + MaxRateName + 1 + MaxID
	maxLeases   = limiter.MaxHeld + 2*limiter.MaxEntries
)

const (
	ratePrefix       = "rate/"
	policyRatePrefix = ratePrefix + policyPrefix
)

// RatePool returns the name of the pool that a rate is.
func RatePool(rate string) string { return ratePrefix + rate }

// PolicyRate returns the name of a rate of a policy: of the namespace if policy is
// empty, and of one agent or session if of is not.
func PolicyRate(policy, rate, of string) string {
	name := policyPrefix + policy + "/" + rate
	if of != "" {
		name += "#" + of // which is in no id, so that a name has one reading
	}
	return name
}

// IsRate reports whether a pool is a rate.
func IsRate(pool string) bool { return strings.HasPrefix(pool, ratePrefix) }

// RateName returns the name of the rate that a pool is.
func RateName(pool string) string { return strings.TrimPrefix(pool, ratePrefix) }

type (
	// A RateWant is what a call spends at a rate. Those of policies bring their
	// limit; that of others stands in their record.
	RateWant struct {
		Pool   string // as RatePool names it
		Cost   int32
		Tokens bool // the cost is what the call may use, and is corrected at its end
		Limit  int32
		Per    time.Duration
	}

	// PutRate makes or changes a rate.
	PutRate struct {
		Authorized
		NS    string
		By    Maker
		Rate  string
		Limit int32
		Per   time.Duration
		Queue int32
	}

	// DeleteRate removes a rate for which nobody waits.
	DeleteRate struct {
		Authorized
		NS   string
		By   Maker
		Rate string
	}

	// TakeRate spends at a rate; sent again, it claims for a waiter. Once it was
	// granted nothing stays open.
	TakeRate struct {
		Authorized
		NS, Client, ID string
		Content        Fingerprint
		Rate           string
		Cost           int32
		Wait           time.Duration
		Priority       int32
	}
)

// Spent is what a call has spent at a rate when it was admitted.
type Spent struct {
	Pool   unique.Handle[string]
	Token  uint64
	Weight int32
	Per    time.Duration // of the rate of a policy, which may be gone by its end
}

func (c *PutRate) Touches() []Key { return append(c.By.touches(c.NS), PoolKey(c.NS, RatePool(c.Rate))) }
func (c *DeleteRate) Touches() []Key {
	return append(c.By.touches(c.NS), PoolKey(c.NS, RatePool(c.Rate)))
}
func (c *TakeRate) Touches() []Key {
	return []Key{ClientKey(c.NS, c.Client), PoolKey(c.NS, RatePool(c.Rate)), NamespaceKey(c.NS)}
}

func (*PutRate) Kind() uint16    { return 28 }
func (*DeleteRate) Kind() uint16 { return 29 }
func (*TakeRate) Kind() uint16   { return 30 }

func (c *PutRate) from() (ns string, by Maker)    { return c.NS, c.By }
func (c *DeleteRate) from() (ns string, by Maker) { return c.NS, c.By }

// poolAt names what the call asks for: its pools, then its rates.
func (c *Begin) poolAt(i int) string {
	if i < len(c.Pools) {
		return c.Pools[i].Pool
	}
	if i -= len(c.Pools); i < len(c.Rates) {
		return c.Rates[i].Pool
	}
	return ""
}

// ratesThere finds the rates that a call names, behind its pools.
func (s *State) ratesThere(c *Begin, wants []wanted, r *Result) ([]wanted, bool) {
	for i := range c.Rates {
		w := &c.Rates[i]
		k := ref{KindPool, c.NS, w.Pool}
		p := s.pool(k)
		limit, queue := w.Limit, int32(DefaultQueue)
		if limit == 0 {
			if p == nil || !p.Put {
				r.Code, r.Pools = NotFound, []string{w.Pool}
				return nil, false
			}
			limit, queue = p.Slots, p.MaxQueue
		}
		if w.Cost > limit {
			r.Code, r.Limit, r.Pools = Invalid, int64(limit), []string{w.Pool}
			return nil, false
		}
		wants = append(wants, wanted{key: k, pool: p, Request: limiter.Request{Weight: w.Cost, Slots: w.Limit, Queue: queue}, per: w.Per})
	}
	return wants, true
}

// ownRate returns the entry's own copy of a rate, which is made if it is one of a
// policy that is not there.
func (s *State) ownRate(k ref, p *Pool, per time.Duration) *Pool {
	p = s.ownPool(k, p)
	if per > 0 {
		p.Under(s.now, per)
	}
	return p
}

// noRate refuses for want of room at a rate, and says exactly when there will be.
func (s *State) noRate(w wanted, r *Result) Code {
	r.Limit, r.Pools = int64(w.limit()), []string{w.key.name}
	r.RetryAfter = retryAfter(w.pool, s.now, w.Request)
	return RateLimited
}

func retryAfter(p *Pool, now time.Duration, q limiter.Request) time.Duration {
	if p == nil {
		return time.Second
	}
	if free := p.Free(now, q.Weight, q.Slots, q.Priority); free > 0 {
		return min(free, MaxRetry)
	}
	return 50 * time.Millisecond // there is room, and somebody is before it
}

// What is remembered of a call that a rate refused: which of its rates, and when
// there was to be room, in microseconds.
func rememberRate(which int, at time.Duration) uint64 {
	return uint64(which)&0xf | uint64((at+time.Microsecond-1)/time.Microsecond)<<4
}

func (s *State) recallRate(value uint64, r *Result) (which int) {
	r.RetryAfter = s.left(time.Duration(value>>4) * time.Microsecond)
	return int(value & 0xf)
}

// spend turns what a call holds at its rates into what it has spent. Only pools
// are left among what it holds.
func (s *State) spend(c *Begin, h *Held) {
	n := len(c.Pools)
	if len(h.Pools) == n {
		return
	}
	rates := h.Pools[n:]
	h.Pools = h.Pools[:n:n]
	var spent []Spent
	for i, hold := range rates {
		k := ref{KindPool, c.NS, hold.Pool.Value()}
		token, _ := s.ownPool(k, s.pool(k)).Spend(s.now, hold.Token)
		if w := &c.Rates[i]; w.Tokens {
			spent = append(spent, Spent{hold.Pool, token, hold.Weight, w.Per})
		}
	}
	if spent != nil {
		h.changeGates(func(g *HeldGates) { g.Rates = spent })
	}
}

// RateNames returns the rates at which the end of a call corrects what it cost.
func (h *Held) RateNames() []string {
	if h.Gates == nil {
		return nil
	}
	var names []string
	for _, r := range h.Gates.Rates {
		names = append(names, r.Pool.Value())
	}
	return names
}

// ratesNamed reports whether the premise names every rate that the end of a call
// corrects.
func (h *Held) ratesNamed(rates []string) bool {
	return h.Gates == nil || !slices.ContainsFunc(h.Gates.Rates, func(s Spent) bool { return !contains(rates, s.Pool.Value()) })
}

// correct brings what a call has cost at its rates to what it has used.
func (s *State) correct(c *End, h *Held) {
	if h.Gates == nil || c.Tokens < 0 {
		return
	}
	for _, spent := range h.Gates.Rates {
		k := ref{KindPool, c.NS, spent.Pool.Value()}
		p := s.pool(k)
		used := int32(min(c.Tokens, MaxRate))
		switch {
		case used < spent.Weight && p != nil:
			s.ownPool(k, p).Return(s.now, h.Started, spent.Token, spent.Weight-used)
		case used > spent.Weight && (p != nil || spent.Per > 0):
			s.ownRate(k, p, spent.Per).Charge(s.now, used-spent.Weight)
		}
	}
}

func (s *State) putRate(c *PutRate) {
	k := ref{KindPool, c.NS, RatePool(c.Rate)}
	p := s.pool(k)
	fresh := p == nil
	p = s.ownPool(k, p)
	if fresh {
		p.RaiseToken(s.namespace(c.NS).TokenFloor)
	}
	p.Put, p.MaxQueue = true, c.Queue
	p.SetRate(s.now, c.Limit, c.Per)
}

// deleteRate removes a rate and what was spent at it.
func (s *State) deleteRate(c *DeleteRate, r *Result) {
	k := ref{KindPool, c.NS, RatePool(c.Rate)}
	p := s.pool(k)
	if p == nil || !p.Put {
		r.Code = NotFound
		return
	}
	if p.Waits() {
		r.Code = PoolInUse
		return
	}
	s.dropPool(k, p)
}

// takeRate spends at a rate that was put; sent again while it waits, it is the
// claim.
func (s *State) takeRate(c *TakeRate, r *Result) {
	k, pk := ref{KindClient, c.NS, c.Client}, ref{KindPool, c.NS, RatePool(c.Rate)}
	x := s.client(k)
	if x != nil {
		if h := x.Find(c.ID); h != nil {
			s.takeAgain(c, k, x, h, r)
			return
		}
		if m := x.IDs.Find(c.ID); m != nil {
			s.recallTake(m, c, r)
			return
		}
	}
	if stale(c.ID, s.newerThan(k, x), r) {
		return
	}
	if x != nil && len(x.Open) >= MaxOpen {
		r.Code = TooManyOpen
		return
	}
	p := s.pool(pk)
	if p == nil || !p.Put {
		r.Code = NotFound
		return
	}
	if c.Cost > p.Slots {
		r.Code, r.Limit = Invalid, int64(p.Slots)
		return
	}

	x = s.ownClient(k, x)
	x.Used, x.Born = s.now, min(x.Born, s.namespace(c.NS).ForgotClients)
	q := limiter.Request{
		Holder: holder(KindClient, c.Client, c.ID), Label: unique.Make(""), Weight: c.Cost, Queue: p.MaxQueue,
		Priority: c.Priority, Expires: s.now + claimTTL,
	}
	if c.Wait > 0 {
		q.Until = s.now + c.Wait
	}
	p = s.ownPool(pk, p)
	how, token, position := p.Acquire(s.now, q)
	var value uint64
	switch how {
	case limiter.Granted:
		p.Spend(s.now, token)
		r.Code = Admitted
	case limiter.Queued:
		r.Code, r.Queue = Queued, Place{pk.name, int32(position)}
		x.Open = append(x.Open, Held{
			Holder: q.Holder, Content: c.Content, Started: s.now, Until: q.Until, Deadline: s.waitDeadline(q.Until),
			Pools: []Hold{{s.name(pk.name), 0, c.Cost}},
		})
		return
	case limiter.QueueFull:
		r.Code = s.noRoom(wanted{key: pk, pool: p, Request: q}, r, QueueFull)
	default:
		r.Code = s.noRate(wanted{key: pk, pool: p, Request: q}, r)
		value = rememberRate(0, s.now+r.RetryAfter)
	}
	x.IDs.Add(remembered(c.ID, c.Content, r.Code, 0, value))
}

func (s *State) recallTake(m *ids.Remembered, c *TakeRate, r *Result) {
	if m.Content != c.Content {
		r.Code = IDReused
		return
	}
	r.Repeat, r.Code = true, Code(m.Code())
	if r.Code == RateLimited {
		r.Pools = []string{RatePool(c.Rate)}
		s.recallRate(m.Value, r)
	}
}

func (s *State) takeAgain(c *TakeRate, k ref, x *Client, h *Held, r *Result) {
	pk := ref{KindPool, c.NS, RatePool(c.Rate)}
	if h.Content != c.Content || h.Pools[0].Pool.Value() != pk.name {
		r.Code = IDReused
		return
	}
	r.Repeat = true
	x = s.ownClient(k, x)
	x.Used = s.now
	h = x.Find(c.ID)
	how, token, position := limiter.Gone, uint64(0), 0
	p := s.pool(pk)
	if p != nil {
		p = s.ownPool(pk, p)
		how, token, position = p.Claim(s.now, h.Holder)
	}
	switch how {
	case limiter.Granted:
		p.Spend(s.now, token)
		r.Code = Admitted
	case limiter.Queued:
		h.Deadline = s.waitDeadline(h.Until)
		p.Hear(s.now, h.Holder)
		r.Code, r.Queue = Queued, Place{pk.name, int32(position)}
		return
	default:
		r.Code = WaitTimeout
	}
	x.finish(h, r.Code, 0)
}

func (f *codec) rateWants(v *[]RateWant) {
	for i, n := elements(f, 23, v, MaxRates); i < n; i++ {
		for m := f.Message(23, true); f.Visit(&m); {
			w := &(*v)[i]
			f.Text(1, &w.Pool)
			f.Int32(2, &w.Cost)
			f.Bool(3, &w.Tokens)
			f.Int32(4, &w.Limit)
			f.Duration(5, &w.Per)
		}
	}
}

func (c *PutRate) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Rate)
	f.Int32(4, &c.Limit)
	f.Duration(5, &c.Per)
	f.Int32(6, &c.Queue)
}

func (c *DeleteRate) fields(f *codec) {
	f.request(&c.NS, &c.By)
	f.Text(3, &c.Rate)
}

func (c *TakeRate) fields(f *codec) {
	f.Text(1, &c.NS)
	f.Text(2, &c.Client)
	f.Text(3, &c.ID)
	f.fingerprint(4, &c.Content)
	f.Text(5, &c.Rate)
	f.Int32(6, &c.Cost)
	f.Duration(7, &c.Wait)
	f.Sint32(8, &c.Priority)
}

// rates holds to the order in which rates are taken, as wants does.
func (v *validator) rates(c *Begin) {
	v.count("Rates", len(c.Rates), 0, MaxRates)
	for i := range c.Rates {
		w := &c.Rates[i]
		if v.err != nil {
			return
		}
		field := fmt.Sprintf("Rates[%d]", i)
		own := !strings.HasPrefix(w.Pool, policyRatePrefix)
		switch problem := badPool(w.Pool); {
		case !IsRate(w.Pool):
			v.fail(field+".Pool", "has to be a rate, rate/NAME")
		case problem != "":
			v.fail(field+".Pool", problem)
		case i > 0 && w.Pool <= c.Rates[i-1].Pool:
			v.fail(field+".Pool", "is not behind the one before it; order rates by name and name each once")
		case own && (w.Limit != 0 || w.Per != 0):
			v.fail(field+".Limit", "is of a rate that has its own; leave it out")
		case !own:
			between(v, field+".Limit", w.Limit, 1, MaxRate)
			between(v, field+".Per", w.Per, MinPer, MaxPer)
		}
		between(v, field+".Cost", w.Cost, 1, MaxRate)
		if w.Tokens && int64(w.Cost) != max(c.Tokens, 1) {
			v.fail(field+".Cost", "is not what the call may use; give its tokens, or 1 if it has none")
		}
	}
}

func (v *validator) putRate(c *PutRate) {
	v.of = "PutRate"
	v.request(c.NS, c.By)
	v.rate("Rate", c.Rate)
	between(v, "Limit", c.Limit, 1, MaxRate)
	between(v, "Per", c.Per, MinPer, MaxPer)
	between(v, "Queue", c.Queue, 0, MaxQueue)
}

func (v *validator) takeRate(c *TakeRate) {
	v.of = "TakeRate"
	v.namespace(c.NS)
	v.id("Client", c.Client)
	v.id("ID", c.ID)
	v.rate("Rate", c.Rate)
	between(v, "Cost", c.Cost, 1, MaxRate)
	between(v, "Wait", c.Wait, 0, MaxWait)
}

// rate checks the name of a rate that is put.
func (v *validator) rate(field, rate string) {
	if strings.HasPrefix(rate, policyPrefix) {
		v.fail(field, "begins with policy/, which is reserved for the rates of policies; choose another name")
	}
	v.id(field, rate)
}
