package bench

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis"
)

// hotPatience bounds how long a caller waits for its turn.
const hotPatience = 20 * time.Second

// rounds is some nodes over one Redis. A caller keeps to its node.
type rounds struct {
	hotPool
	nodes []*hotNode
}

func newRounds(b *testing.B, url string, h hotPool, nodes int) hotSystem {
	ctx := context.Background()
	s := &rounds{hotPool: h}
	for i := range nodes {
		r, err := redis.Open(ctx, redis.Config{URL: url, Prefix: fmt.Sprint("nodes", nodes), Node: fmt.Sprint("n", i)})
		require.NoError(b, err)
		n := &hotNode{store: r, waiting: map[string]*hotWait{}, stop: make(chan struct{}), stopped: make(chan struct{}), kick: make(chan struct{}, 1)}
		r.ClaimBy(n.claims)
		go n.serve()
		s.nodes = append(s.nodes, n)
	}
	must := func(c session.Command) {
		_, _, err := storage.One(ctx, s.nodes[0].store, c)
		require.NoError(b, err)
	}
	must(&session.PutPolicy{NS: hotNamespace, By: session.Maker{Client: "bench", Request: "put"}, Name: "p", Digest: hotDigest, Tree: []byte("tree"),
		Limits: session.Limits{MaxTokens: 1 << 40, MaxToolCalls: 1 << 30, MaxAttempts: 1 << 30, Timeout: 24 * time.Hour, MaxConcurrent: int32(h.slots)}})
	var opens []session.Command
	for i := range h.callers {
		opens = append(opens, &session.Open{NS: hotNamespace, Session: fmt.Sprint("s", i), Agent: "a", Policy: "p", Digest: hotDigest, IdleTTL: time.Hour})
	}
	for _, a := range s.nodes[0].store.Apply(ctx, opens...) {
		require.NoError(b, a.Err)
	}
	return s
}

const hotNamespace = "default"

var (
	hotDigest = session.Digest{1}
	hotName   = session.PolicyPool("p")
	hotKey    = session.PoolKey(hotNamespace, hotName)
)

func (s *rounds) call(caller, n int) (int, error) {
	node := s.nodes[caller%len(s.nodes)]
	begin := &session.Begin{NS: hotNamespace, Session: fmt.Sprint("s", caller), Call: fmt.Sprint("c", n), Tool: "ls", Digest: hotDigest,
		Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: hotName, Weight: 1}}, TTL: 30 * time.Second}
	if s.queue {
		begin.Wait = hotPatience
	}
	code, err := node.begin(begin)
	switch {
	case err != nil:
		return 0, err
	case code == session.ConcurrencyLimit && !s.queue:
		return 1, nil
	case code != session.Admitted:
		return 0, fmt.Errorf("a begin was answered %v", code)
	}
	r, _, err := storage.One(context.Background(), node.store, &session.End{NS: hotNamespace, Session: begin.Session, Call: begin.Call,
		Pools: []string{hotName}, Status: session.Succeeded})
	if err == nil && r.Code != session.Ended {
		err = fmt.Errorf("an end was answered %v", r.Code)
	}
	return 2, err
}

func (s *rounds) lost() (sent, lost uint64) {
	for _, n := range s.nodes {
		stats := n.store.Stats()
		sent, lost = sent+stats.Rounds, lost+stats.Lost
	}
	return sent, lost
}

func (s *rounds) close() {
	for _, n := range s.nodes {
		close(n.stop)
		<-n.stopped
		_ = n.store.Close()
	}
}

// A hotNode is a node with those who wait at it. It claims for them as the
// server does: the store asks it in the round that hands a slot to one of them.
// For those who were handed one by another node it looks at the pool whenever the
// store says that something has changed, and asks again for them in one request.
type hotNode struct {
	store         *redis.Store
	stop, stopped chan struct{}
	kick          chan struct{} // somebody has begun to wait
	seen          *session.Pool // of serve: the pool when it was last looked at

	mu      sync.Mutex
	waiting map[string]*hotWait // by holder, as the pool has it
}

type hotWait struct {
	begin  *session.Begin
	answer chan storage.Answer
}

func (n *hotNode) begin(c *session.Begin) (session.Code, error) {
	r, _, err := storage.One(context.Background(), n.store, c)
	if err != nil || r.Code != session.Queued {
		return r.Code, err
	}
	w := &hotWait{c, make(chan storage.Answer, 1)}
	n.mu.Lock()
	n.waiting[c.Session+" "+c.Call] = w
	n.mu.Unlock()
	select {
	case n.kick <- struct{}{}: // its turn may have come meanwhile
	default:
	}
	select {
	case a := <-w.answer:
		return a.Result.Code, a.Err
	case <-time.After(hotPatience):
		return 0, fmt.Errorf("the turn of %s %s did not come", c.Session, c.Call)
	}
}

func (n *hotNode) serve() {
	defer close(n.stopped)
	for {
		select {
		case <-n.stop:
			return
		case <-n.store.Changed():
			n.claim()
		case <-n.kick:
			n.seen = nil
			n.claim()
		}
	}
}

// claims returns the claims of those to whom a slot was handed here.
func (n *hotNode) claims(_ session.Key, p *session.Pool) []storage.Claim {
	n.mu.Lock()
	defer n.mu.Unlock()
	var claims []storage.Claim
	for _, h := range n.handed(p) {
		claims = append(claims, storage.Claim{Command: n.waiting[h].begin, Answered: func(a storage.Answer) { n.answered(h, a) }})
	}
	return claims
}

// handed returns those of this node who are to claim a slot of the pool.
func (n *hotNode) handed(p *session.Pool) (holders []string) {
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Claim {
			_, s, call := session.SplitHolder(l.Holder)
			if h := s + " " + call; n.waiting[h] != nil {
				holders = append(holders, h)
			}
		}
	}
	return holders
}

func (n *hotNode) answered(holder string, a storage.Answer) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if w := n.waiting[holder]; w != nil {
		delete(n.waiting, holder)
		w.answer <- a
	}
}

// claim asks again for all whose turn has come.
func (n *hotNode) claim() {
	ctx := context.Background()
	found, err := n.store.Get(ctx, hotKey, storage.Nearby)
	if err != nil {
		return // it is told again
	}
	p, _ := found.Record.(*session.Pool)
	if p == nil || p == n.seen {
		return
	}
	n.seen = p
	n.mu.Lock()
	holders := n.handed(p)
	cmds := make([]session.Command, len(holders))
	for i, h := range holders {
		cmds[i] = n.waiting[h].begin
	}
	n.mu.Unlock()
	if len(cmds) == 0 {
		return
	}
	for i, a := range n.store.Apply(ctx, cmds...) {
		n.answered(holders[i], a)
	}
}
