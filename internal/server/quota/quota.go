package quota

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Store is where quotas and what is used of them are read.
type Store interface {
	Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error)
	View(ctx context.Context, ns string, r storage.Read) (storage.View, error)
}

// Quotas hold namespaces to theirs. They are safe for concurrent use.
type Quotas struct {
	store    Store
	counts   storage.Counting // nil where the store cannot say
	refusals *prometheus.CounterVec
	delayed  prometheus.Counter
	pace     int64 // of sessions, a second; 0 is none

	mu     sync.Mutex
	spaces map[string]*space
}

// A space is what this node knows of the use of one namespace.
type space struct {
	quotas   session.Quotas
	known    bool          // they were read, or could not be
	read     time.Time     // when the latest read of them began
	reading  chan struct{} // closed when the one under way ends; nil if there is none
	measured time.Time
	bytes    int64

	held       [kinds]int64 // of this node
	operations bucket
	sessions   bucket
}

// Names are those of all quotas, in errors and metrics.
var Names = []string{"sessions", "clients", "pools", "policies", "keys", "bytes", "waiters", "followers", "streams", "operations a second", "sessions a second"}

// Kind is something of which a node itself has so many.
type Kind int

// The kinds.
const (
	Waiters Kind = iota
	Followers
	Streams
	kinds
)

var kindNames = [kinds]string{"waiters", "followers", "streams"}

const (
	// readEvery is how old quotas and counts may be.
	readEvery = 250 * time.Millisecond
	// readFor bounds a read of them, whose length is that of no request.
	readFor = 5 * time.Second
	// measureEvery is how old the sum of bytes may be: all values are looked at for it.
	measureEvery = 10 * time.Second
	// maxSpaces bounds what is remembered of namespaces that are not used any more.
	maxSpaces = 4096
)

// New makes Quotas for a store. Pace is how many sessions a namespace may begin in a second
// at this node, where it has no quota of operations; 0 is any number.
func New(store Store, counts any, refusals *prometheus.CounterVec, delayed prometheus.Counter, pace int) *Quotas {
	q := &Quotas{store: store, refusals: refusals, delayed: delayed, pace: int64(pace), spaces: map[string]*space{}}
	q.counts, _ = counts.(storage.Counting)
	return q
}

// of locks q.mu and returns what is known of a namespace, with its quotas. They are read
// without the lock, since a store that is slow about one namespace must not stall the
// others, and by nobody's request: that one is given up says nothing of the quotas of all.
// Who begins a read waits for it; the others take what was read before, and wait for it
// where that is nothing. Quotas that cannot be read now are as they were.
func (q *Quotas) of(ctx context.Context, ns string) *space {
	q.mu.Lock()
	for waited := false; ; waited = true {
		s, now := q.spaceOf(ns), time.Now()
		// Behind a wait it was read just now, or has been forgotten meanwhile.
		begins := s.reading == nil && (s.read.IsZero() || !waited && now.Sub(s.read) > readEvery)
		if begins {
			s.read, s.reading = now, make(chan struct{})
			go q.readQuotas(context.WithoutCancel(ctx), ns, s)
		}
		done := s.reading
		if done == nil || s.known && !begins || ctx.Err() != nil {
			return s
		}
		q.mu.Unlock()
		select {
		case <-done:
		case <-ctx.Done():
		}
		q.mu.Lock()
	}
}

func (q *Quotas) readQuotas(ctx context.Context, ns string, s *space) {
	ctx, cancel := context.WithTimeout(ctx, readFor)
	defer cancel()
	found, err := q.store.Get(ctx, session.AccessKey(ns), storage.Nearby)
	q.mu.Lock()
	defer q.mu.Unlock()
	close(s.reading)
	s.known, s.reading = true, nil
	if err == nil {
		s.quotas = session.Quotas{}
		if x, _ := found.Record.(*session.Access); x != nil {
			s.quotas = x.Quotas
		}
	}
}

// spaceOf returns what is remembered of a namespace; q.mu is held.
func (q *Quotas) spaceOf(ns string) *space {
	s := q.spaces[ns]
	if s != nil {
		return s
	}
	if len(q.spaces) >= maxSpaces {
		for name, old := range q.spaces { // order-free: any that holds nothing may go
			if old.held == ([kinds]int64{}) && old.reading == nil {
				delete(q.spaces, name)
			}
		}
	}
	s = &space{}
	q.spaces[ns] = s
	return s
}

// Of returns the quotas of a namespace.
func (q *Quotas) Of(ctx context.Context, ns string) session.Quotas {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	return s.quotas
}

// Used returns what of them is used, as far as this node knows.
func (q *Quotas) Used(ctx context.Context, ns string) session.Quotas {
	t := q.tallyOf(ctx, ns)
	used := session.Quotas{Sessions: t.Sessions, Clients: t.Clients, Pools: t.Pools, Policies: t.Policies, Keys: t.Keys, Bytes: q.bytesOf(ctx, ns)}
	held := q.of(ctx, ns).held
	defer q.mu.Unlock()
	used.Waiters, used.Followers, used.Streams = held[Waiters], held[Followers], held[Streams]
	return used
}

// Admit refuses a command that adds to what its namespace has too much of (see chargeOf).
// What is there already is no addition. See admitEnd for what costs nothing.
func (q *Quotas) Admit(ctx context.Context, cmd session.Command) error {
	if ends(cmd) {
		if err := q.admitEnd(ctx, cmd); err != nil {
			return err
		}
	}
	c := chargeOf(cmd)
	if c == (charge{}) {
		return nil
	}
	ns := cmd.Namespace()
	x := q.Of(ctx, ns)
	if x == (session.Quotas{}) {
		return nil
	}
	var who session.Key // none where nobody is remembered
	if c.client != "" {
		who = session.ClientKey(ns, c.client)
	}
	// exceeded is which quota is used up for it, by what is there already.
	exceeded := func(there func(session.Key) bool) (name string, n int64) {
		t := q.tallyOf(ctx, ns)
		if c.counts != nil {
			// What adds nothing is let in also where there is more than there may be.
			most, used := c.counts.of(&x, &t)
			full := func(adds int64) bool { return most > 0 && adds > 0 && used+adds > most }
			if full(c.others) || full(c.others+1) && !there(c.own) {
				return c.counts.name, most
			}
		}
		if who != "" && x.Clients > 0 && t.Clients >= x.Clients && !there(who) {
			return "clients", x.Clients
		}
		if c.bytes > 0 && x.Bytes > 0 && q.bytesOf(ctx, ns)+c.bytes > x.Bytes {
			return "bytes", x.Bytes
		}
		return "", 0
	}
	if name, _ := exceeded(func(k session.Key) bool {
		found, err := q.store.Get(ctx, k, storage.Nearby)
		return err != nil || found.Record != nil
	}); name == "" {
		return nil
	}
	// Whether it is an addition is looked up as it stands, and once: this node may be behind,
	// and who is refused is told that nothing was applied.
	wanted := append([]session.Key{who, c.own, c.ends}, asked(cmd)...)
	wanted = slices.DeleteFunc(wanted, func(k session.Key) bool { return k == "" })
	found, err := q.latest(ctx, wanted)
	if err != nil {
		return nil // it cannot be told now
	}
	name, n := exceeded(func(k session.Key) bool { return found[k] != nil })
	if name == "" || slices.ContainsFunc(asked(cmd), func(k session.Key) bool { return found[k] != nil }) {
		return nil
	}
	if c.ends != "" && Has(found[c.ends], cmd) {
		return nil
	}
	if c.request != "" && found[who] != nil && q.answered(ctx, ns, c.client, c.request) {
		return nil // it was carried out before, and is answered as it was, or it cannot be told now
	}
	return q.refuse(ns, name, n)
}

// answered reports whether a client has finished an id, or may have. That is read by itself:
// what is read together may come without the ids that it remembers.
func (q *Quotas) answered(ctx context.Context, ns, client, request string) bool {
	found, err := q.store.Get(ctx, session.ClientKey(ns, client), storage.Latest)
	c, _ := found.Record.(*session.Client)
	return err != nil || c != nil && c.IDs.Find(request) != nil
}

// latest returns what stands under keys, without those under which nothing does.
func (q *Quotas) latest(ctx context.Context, keys []session.Key) (map[session.Key]session.Record, error) {
	all := map[session.Key]session.Record{}
	if store, ok := q.store.(storage.Gatherer); ok {
		found, err := store.GetAll(ctx, keys...)
		for i, x := range found {
			all[keys[i]] = x.Record
		}
		return all, err
	}
	read := storage.Latest
	for _, k := range keys {
		found, err := q.store.Get(ctx, k, read)
		if err != nil {
			return nil, err
		}
		all[k] = found.Record
		read = storage.Nearby // it is at least as new, behind the first
	}
	return all, nil
}

// instead is what to do about a quota that is used up, where to let something go is not
// it, or not at once.
var instead = map[string]string{
	"sessions": "Close some, each of which counts for an hour more",
	"waiters":  "Send it without wait, or when those that wait are answered",
	"clients":  "Let fewer processes name themselves, since an idle one is remembered for an hour",
}

func (q *Quotas) refuse(ns, name string, most int64) error {
	return q.refused(ns, name, most, instead[name])
}

// soon refuses what may be had again after a while.
func (q *Quotas) soon(ns, name string, most int64, wait time.Duration) *fault.Error {
	wait = (wait + time.Millisecond).Truncate(time.Millisecond) // not before it
	return q.refused(ns, name, most, "Send it again with the same id in "+wait.String()+", and less at a time").Later(wait)
}

func (q *Quotas) refused(ns, name string, most int64, what string) *fault.Error {
	q.refusals.WithLabelValues(name).Inc()
	what = cmp.Or(what, "Let something go")
	return fault.New(connect.CodeResourceExhausted, fault.ReasonQuotaExceeded,
		fmt.Sprintf("the namespace %q has as much as it may of %s, which is %d; nothing was applied. %s, or ask an operator of the cluster for more", ns, name, most, what)).With("quota", name)
}

func (q *Quotas) tallyOf(ctx context.Context, ns string) session.Tally {
	if q.counts == nil {
		return session.Tally{}
	}
	t, err := q.counts.Count(ctx, ns)
	if err != nil {
		return session.Tally{} // it protects where it can be counted
	}
	return t
}

// bytesOf is what values, lists, policies and approvals of a namespace take, up to 10 s ago.
func (q *Quotas) bytesOf(ctx context.Context, ns string) int64 {
	s := q.of(ctx, ns)
	if time.Since(s.measured) <= measureEvery {
		defer q.mu.Unlock()
		return s.bytes
	}
	s.measured = time.Now() // by this one alone
	before := s.bytes
	q.mu.Unlock()
	view, err := q.store.View(ctx, ns, storage.Nearby)
	if err != nil {
		return before
	}
	var sum int64
	for _, kind := range []byte{session.KindPolicy, session.KindCounter, session.KindList, session.KindApproval, session.KindStanding} {
		prefix := session.Prefix(kind, ns)
		_, err = view.Find(prefix, prefix, 1, func(_ session.Key, r session.Record) bool {
			switch r := r.(type) {
			case *session.Policy:
				sum += int64(len(r.Tree))
			case *session.Counter:
				sum += int64(len(r.Value.Text))
			case *session.ListItem: // of deleted lists too, whose items stay until they lapse
				sum += int64(len(r.Text))
			case *session.Approval:
				sum += int64(len(r.Preview) + len(r.Reason))
			case *session.Standing:
				sum += int64(len(r.Shown))
			}
			return false // it is counted, not kept
		})
		if err != nil {
			return before
		}
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	s.bytes = sum
	return sum
}

// Enter counts one more of what this node has of a namespace, until leave is called.
func (q *Quotas) Enter(ctx context.Context, ns string, kind Kind) (leave func(), err error) {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	if most := s.most(kind); most > 0 && s.held[kind] >= most {
		return nil, q.refuse(ns, kindNames[kind], most)
	}
	return q.add(s, kind), nil
}

// Full reports whether Enter would be refused, and counts as a refusal then.
func (q *Quotas) Full(ctx context.Context, ns string, kind Kind) bool {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	most := s.most(kind)
	if most == 0 || s.held[kind] < most {
		return false
	}
	_ = q.refuse(ns, kindNames[kind], most)
	return true
}

// Add is Enter for what cannot be refused any more.
func (q *Quotas) Add(ctx context.Context, ns string, kind Kind) (leave func()) {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	return q.add(s, kind)
}

func (s *space) most(kind Kind) int64 {
	return [kinds]int64{s.quotas.Waiters, s.quotas.Followers, s.quotas.Streams}[kind]
}

// add counts one more. q.mu is held.
func (q *Quotas) add(s *space, kind Kind) (leave func()) {
	s.held[kind]++
	return func() {
		q.mu.Lock()
		defer q.mu.Unlock()
		s.held[kind]--
	}
}

// Spend takes one operation from what a namespace may do in a second at this node. A
// second's worth may come at once.
func (q *Quotas) Spend(ctx context.Context, ns string) error {
	s := q.of(ctx, ns)
	defer q.mu.Unlock()
	most := float64(s.quotas.Operations)
	if most == 0 {
		return nil
	}
	if wait, taken := s.operations.turn(time.Now(), most, 0); !taken {
		return Debt{wait, q, ns, s.quotas.Operations}.Refusal()
	}
	return nil
}
