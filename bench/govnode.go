package bench

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net/http"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// Govnode as a Target: how a cluster is set up for a plan, what its callers do,
// and how it is audited.

const (
	tool = "web_search"
	// setupAtOnce is how many sessions and pools are made, and read, at a time.
	setupAtOnce = 64
	fleetWait   = 10 * time.Second
	queueWait   = 2 * time.Minute
	// crashTTL is the lease of a holder that is going to crash, and
	// lapseWithin how long its call may take to be settled.
	crashTTL    = time.Second
	lapseWithin = 30 * time.Second
)

// A GovnodeConfig says how a cluster is reached.
type GovnodeConfig struct {
	Addresses []string
	Namespace string
	// Unary sends each request by itself instead of over a stream.
	Unary bool
	// Clients is over how many clients the callers are spread, each of which
	// stands for a process. 1 if 0.
	Clients int
	// Token is shown with every request; empty where nobody is asked.
	Token string
	// TLS says whom to trust; nil: the cluster does not speak TLS.
	TLS *tls.Config
}

// shown adds a token to requests that go around the client.
type shown struct {
	token string
	next  http.RoundTripper
}

// RoundTrip implements http.RoundTripper.
func (s shown) RoundTrip(req *http.Request) (*http.Response, error) {
	if s.token != "" {
		req = req.Clone(req.Context())
		req.Header.Set("Authorization", "Bearer "+s.token)
	}
	return s.next.RoundTrip(req)
}

// CloseIdleConnections lets http.Client reach the transport.
func (s shown) CloseIdleConnections() {
	if t, ok := s.next.(*http.Transport); ok {
		t.CloseIdleConnections()
	}
}

// A govnode is a cluster as a Target.
type govnode struct {
	plan    Plan
	clients []*client.Client
	// raw begins the calls of holders that crash: a client would give back what
	// it holds.
	raw     govnodev1connect.CallServiceClient
	http    *http.Client
	base    string // URL of the first node
	ns      string
	callers []govnodeCaller
	crashed atomic.Int64
}

// A govnodeCaller is used by one goroutine at a time.
type govnodeCaller struct {
	sessions []*client.OpenSession
	books    []Ledger
	turn     int // of the session in use
	calls    int
	open     *client.OpenCall
	pool     []client.Want
}

// NewGovnode makes what a plan needs in a cluster, and returns the cluster as a
// Target.
func NewGovnode(ctx context.Context, cfg GovnodeConfig, plan Plan) (Target, error) {
	if err := plan.check(); err != nil {
		return nil, err
	}
	g := &govnode{plan: plan, http: &http.Client{Transport: shown{cfg.Token, &http.Transport{TLSClientConfig: cfg.TLS.Clone()}}}, ns: cfg.Namespace}
	scheme := "http://"
	if cfg.TLS != nil {
		scheme = "https://"
	}
	if len(cfg.Addresses) > 0 {
		g.base = scheme + cfg.Addresses[0]
		g.raw = govnodev1connect.NewCallServiceClient(g.http, g.base)
	}
	for range max(cfg.Clients, 1) {
		c, err := client.New(client.Config{Addresses: cfg.Addresses, Namespace: cfg.Namespace, DisableExchange: cfg.Unary, Token: cfg.Token, TLS: cfg.TLS})
		if err != nil {
			return nil, errors.Join(err, g.Close())
		}
		g.clients = append(g.clients, c)
	}
	if err := g.setUp(ctx); err != nil {
		return nil, errors.Join(err, g.Close())
	}
	return g, nil
}

func (g *govnode) setUp(ctx context.Context) error {
	made := map[string]bool{}
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(setupAtOnce)
	for i := range g.plan.Callers {
		policy, pool := g.plan.policyOf(i), g.plan.poolOf(i)
		if !made["policy "+policy] {
			made["policy "+policy] = true
			work.Go(func() error {
				_, err := g.of(i).PutPolicyTree(ctx, &govnodev1.PutPolicyRequest{Name: policy, Files: []*govnodev1.TextFile{
					{Path: "limits.yaml", Content: g.plan.limits(policy)},
					{Path: "rules.yaml", Content: g.plan.rules(policy)},
				}})
				return err
			})
		}
		if !made[pool] {
			made[pool] = true
			work.Go(func() error {
				_, err := g.of(i).PutPool(ctx, client.Pool{Name: pool, Slots: int32(g.plan.Slots), QueueLimit: int32(g.plan.Callers)})
				return err
			})
		}
	}
	if err := work.Wait(); err != nil {
		return fmt.Errorf("setting up: %w", err)
	}
	ctx = context.WithoutCancel(ctx)
	if g.plan.Fill > 0 {
		if err := g.fill(ctx); err != nil {
			return fmt.Errorf("setting up: filling the cluster with %d sessions: %w", g.plan.Fill, err)
		}
	}
	return g.openSessions(ctx)
}

// openSessions makes the sessions of the callers, unless they are there.
func (g *govnode) openSessions(ctx context.Context) error {
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(setupAtOnce)
	g.callers = make([]govnodeCaller, g.plan.Callers)
	for i := range g.callers {
		c := &g.callers[i]
		c.sessions = make([]*client.OpenSession, g.plan.Sessions)
		c.books = make([]Ledger, g.plan.Sessions)
		c.pool = []client.Want{{Pool: g.plan.poolOf(i)}}
		for k := range c.sessions {
			id := g.plan.session(g.plan.sessionOf(i, k))
			if g.plan.Fill > 0 {
				c.sessions[k], c.books[k] = g.of(i).Session(id), Ledger{Counted: Counted{filledCalls, filledCalls, filledCalls}}
				continue
			}
			work.Go(func() (err error) {
				c.sessions[k], err = g.of(i).CreateSession(ctx, client.Session{ID: id, Agent: agentOf(i), Policy: g.plan.policyOf(i), IdleTTL: idleTTL})
				return err
			})
		}
	}
	if err := work.Wait(); err != nil {
		return fmt.Errorf("setting up: opening sessions: %w", err)
	}
	return nil
}

const idleTTL = 24 * time.Hour

func agentOf(caller int) string { return fmt.Sprintf("agent-%d", caller) }

func (g *govnode) of(caller int) *client.Client { return g.clients[caller%len(g.clients)] }

func (g *govnode) Step(ctx context.Context, caller int) error {
	c := &g.callers[caller]
	switch {
	case g.plan.Scenario == Reads:
		c.turn = (c.turn + 1) % len(c.sessions)
		_, err := c.sessions[c.turn].Read(ctx)
		return err
	case c.open != nil:
		return c.end(ctx)
	}
	c.turn = (c.turn + 1) % len(c.sessions)
	c.calls++
	if g.plan.Scenario == Fleet && (c.calls+caller)%crashEvery == 0 {
		return g.crash(ctx, c)
	}
	return g.begin(ctx, c)
}

// Think holds a call for as long as it takes where others wait for its slot.
func (g *govnode) Think(ctx context.Context, caller int) {
	if g.plan.waits() && g.callers[caller].open != nil {
		sleepUntil(ctx, time.Now().Add(g.plan.Hold))
	}
}

// Settle ends what a caller has open. Verify finds out if that failed.
func (g *govnode) Settle(ctx context.Context, caller int) {
	if c := &g.callers[caller]; c.open != nil && g.plan.waits() {
		_ = c.end(ctx)
	}
}

func (g *govnode) begin(ctx context.Context, c *govnodeCaller) error {
	wait := client.NoWait
	switch g.plan.Scenario {
	case Fleet:
		wait = fleetWait
	case Queue:
		wait = queueWait
	}
	open, err := c.sessions[c.turn].Begin(ctx, client.Call{Tool: tool, Arguments: arguments, Pools: c.pool, Wait: wait})
	b := &c.books[c.turn]
	if err == nil {
		c.open = open
		b.Attempts++
		b.Calls++
		return nil
	}
	var refused *client.Refused
	var unavailable *client.Unavailable
	switch {
	case errors.As(err, &refused):
		b.Attempts++
		if g.plan.waits() {
			return ErrRefused
		}
		return err // there is room for everybody
	case !errors.As(err, &unavailable):
		b.Unknown++
	}
	return err
}

// arguments are what the policy gets to look at.
var arguments = map[string]any{"query": "weather in Lisbon", "limit": 5}

func (c *govnodeCaller) end(ctx context.Context) error {
	open := c.open
	c.open = nil
	err := open.End(ctx, client.Succeeded)
	b := &c.books[c.turn]
	// A call is executed once, whoever settles it: this End, or the end of its
	// lease if the End never arrived.
	b.Executions++
	if errors.Is(err, client.ErrLeaseLost) {
		return ErrRefused
	}
	return err
}

// crash begins a call with a short lease and forgets it, as a process does that
// dies. The slot comes free when the lease ends.
func (g *govnode) crash(ctx context.Context, c *govnodeCaller) error {
	ctx, info := connect.NewClientContext(ctx)
	if g.ns != "" {
		info.RequestHeader().Set("Govnode-Namespace", g.ns)
	}
	res, err := g.raw.BeginCall(ctx, &govnodev1.BeginCallRequest{
		SessionId: c.sessions[c.turn].ID(), CallId: fmt.Sprintf("crash-%d", g.crashed.Add(1)), Tool: tool,
		Ttl: durationpb.New(crashTTL), Wait: durationpb.New(fleetWait),
		Pools: []*govnodev1.Want{{Pool: c.pool[0].Pool}},
	})
	b := &c.books[c.turn]
	if err != nil {
		b.Unknown++
		return err
	}
	b.Attempts++
	if res.GetOutcome() != govnodev1.Outcome_OUTCOME_ADMITTED {
		return ErrRefused
	}
	b.Calls++
	b.Executions++ // once it has lapsed
	return nil
}

// Verify reads every session until nothing is open in it, and holds what was
// counted to the books.
func (g *govnode) Verify(ctx context.Context) (Audit, error) {
	work, ending := errgroup.WithContext(ctx)
	work.SetLimit(setupAtOnce)
	for i := range g.callers {
		if c := &g.callers[i]; c.open != nil {
			work.Go(func() error {
				if err := c.end(ending); err != nil && !errors.Is(err, ErrRefused) {
					return fmt.Errorf("ending what is open: %w", err)
				}
				return nil
			})
		}
	}
	if err := work.Wait(); err != nil {
		return Audit{}, err
	}
	var books []Ledger
	for i := range g.callers {
		books = append(books, g.callers[i].books...)
	}
	system, err := g.counts(ctx, len(books))
	if err != nil {
		return Audit{}, err
	}
	a, err := CompareLedgers(books, system)
	a.Lapsed = g.crashed.Load()
	return a, err
}

func (g *govnode) counts(ctx context.Context, n int) ([]Counted, error) {
	system := make([]Counted, n)
	until := time.Now().Add(lapseWithin)
	work, ctx := errgroup.WithContext(ctx)
	work.SetLimit(setupAtOnce)
	for i := range g.callers {
		c := &g.callers[i]
		for k, s := range c.sessions {
			work.Go(func() error {
				for {
					now, err := s.Read(ctx)
					if err != nil {
						return fmt.Errorf("reading what was counted: %w", err)
					}
					if len(now.GetOpenCalls()) == 0 {
						system[i*g.plan.Sessions+k] = Counted{int64(now.GetAttempts()), int64(now.GetCalls()), int64(now.GetExecutions())}
						return nil
					}
					if time.Now().After(until) {
						return fmt.Errorf("session %s: %d calls are still open %v after the last one was due to end", s.ID(), len(now.GetOpenCalls()), lapseWithin)
					}
					if !sleepUntil(ctx, time.Now().Add(50*time.Millisecond)) {
						return context.Cause(ctx)
					}
				}
			})
		}
	}
	return system, work.Wait()
}

func (g *govnode) Close() error {
	var errs []error
	for _, c := range g.clients {
		errs = append(errs, c.Close())
	}
	g.http.CloseIdleConnections()
	return errors.Join(errs...)
}
