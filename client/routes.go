package client

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// routes knows the nodes and which of them to ask: the leader if it is known
// and answers, else any that does.
type routes struct {
	configured []string
	scheme     string
	http       connect.HTTPClient
	options    []connect.ClientOption
	wrap       func(*node) // makes the most of a node that is new
	now        func() time.Time

	mu       sync.Mutex
	nodes    map[string]*node // by address; those that were ever known
	members  []*node          // those to try, in order
	current  *node
	checkAt  time.Time // when to ask again who leads
	checked  time.Time // when that was done last
	checking bool
}

const (
	// A node that could not be reached is not taken for the leader again
	// before this has passed: the others may still name it.
	shunFor = time.Second
	// How old the knowledge of who leads may be while there is traffic.
	leaderFresh = 10 * time.Second
	// The same while the leader is not known or could not be reached.
	leaderRetry   = 500 * time.Millisecond
	statusTimeout = time.Second
)

// A node is one address of the service, and what can be asked there.
type node struct {
	address   string // with its scheme
	calls     govnodev1connect.CallServiceClient
	sessions  govnodev1connect.SessionServiceClient
	slots     govnodev1connect.SlotServiceClient
	limits    govnodev1connect.LimitServiceClient
	approvals govnodev1connect.ApprovalServiceClient
	policies  govnodev1connect.PolicyServiceClient
	counters  govnodev1connect.CounterServiceClient
	cluster   govnodev1connect.ClusterServiceClient
	access    govnodev1connect.AccessServiceClient
	line      *line // nil where nothing goes over streams

	shunned time.Time // until then; guarded by routes.mu
}

func newRoutes(addresses []string, client connect.HTTPClient, now func() time.Time, options ...connect.ClientOption) *routes {
	r := &routes{http: client, options: options, wrap: func(*node) {}, now: now, nodes: make(map[string]*node)}
	for _, a := range addresses {
		r.configured = append(r.configured, withScheme("http", a))
	}
	r.scheme, _, _ = strings.Cut(r.configured[0], "://")
	r.know(nil)
	r.current = r.members[0]
	return r
}

func withScheme(scheme, address string) string {
	if strings.Contains(address, "://") {
		return strings.TrimRight(address, "/")
	}
	return scheme + "://" + address
}

// checkAddress reports what is wrong with an address of Config.Addresses.
func checkAddress(address string) error {
	u, err := url.Parse(withScheme("http", address))
	switch {
	case err != nil:
		return fmt.Errorf("%q is no address: write host:port or http://host:port", address)
	case u.Scheme != "http" && u.Scheme != "https":
		return fmt.Errorf("%q: the scheme must be http or https", address)
	case u.Hostname() == "" || u.Port() == "" && !strings.Contains(address, "://"):
		return fmt.Errorf("%q: write host:port or http://host:port", address)
	case u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("%q: must have neither a user, nor a query, nor a fragment", address)
	}
	return nil
}

// know makes the configured addresses and those of the cluster's members the
// ones to try.
func (r *routes) know(learned []string) {
	all := slices.Clone(r.configured)
	for _, a := range learned {
		if u, err := url.Parse(withScheme(r.scheme, a)); err == nil && u.Host != "" {
			all = append(all, withScheme(r.scheme, a))
		}
	}
	r.members = r.members[:0]
	for _, a := range all {
		n := r.nodes[a]
		if n == nil {
			n = &node{
				address:   a,
				calls:     govnodev1connect.NewCallServiceClient(r.http, a, r.options...),
				sessions:  govnodev1connect.NewSessionServiceClient(r.http, a, r.options...),
				slots:     govnodev1connect.NewSlotServiceClient(r.http, a, r.options...),
				limits:    govnodev1connect.NewLimitServiceClient(r.http, a, r.options...),
				approvals: govnodev1connect.NewApprovalServiceClient(r.http, a, r.options...),
				policies:  govnodev1connect.NewPolicyServiceClient(r.http, a, r.options...),
				counters:  govnodev1connect.NewCounterServiceClient(r.http, a, r.options...),
				cluster:   govnodev1connect.NewClusterServiceClient(r.http, a, r.options...),
				access:    govnodev1connect.NewAccessServiceClient(r.http, a, r.options...),
			}
			r.wrap(n)
			r.nodes[a] = n
		}
		if !slices.Contains(r.members, n) {
			r.members = append(r.members, n)
		}
	}
	maps.DeleteFunc(r.nodes, func(_ string, n *node) bool { return n != r.current && !slices.Contains(r.members, n) })
}

// pick returns the node to ask next, and whether somebody should find out who
// leads; then find must be called.
func (r *routes) pick(now time.Time) (n *node, find bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if !r.checking && !now.Before(r.checkAt) {
		r.checking, find = true, true
	}
	return r.current, find
}

// address returns where the next request goes.
func (r *routes) address() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.current.address
}

// failed moves on from a node that gave no answer, or that could not do what it
// was asked.
func (r *routes) failed(n *node, unreachable bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	if unreachable {
		n.shunned = now.Add(shunFor)
	}
	if r.current != n {
		return // somebody else has moved on already
	}
	if soon := now.Add(leaderRetry); r.checkAt.After(soon) {
		r.checkAt = soon
	}
	// The next in the ring that is not shunned, or just the next.
	at := slices.Index(r.members, n) // -1 if it is a member no longer: begin with the first
	next := r.members[(at+1)%len(r.members)]
	for i := range r.members {
		if m := r.members[(at+1+i)%len(r.members)]; m != n && !now.Before(m.shunned) {
			next = m
			break
		}
	}
	r.current = next
}

// doubt has somebody look at a node of which it is not known whether it would
// have answered, unless that was done a moment ago.
func (r *routes) doubt(n *node) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if soon := r.checked.Add(leaderRetry); r.current == n && r.checkAt.After(soon) {
		r.checkAt = soon
	}
}

// find asks the nodes who leads, until one can say it, and goes there. One that
// does not answer is not the one to ask for anything else.
func (r *routes) find(ctx context.Context) {
	r.mu.Lock()
	order := append([]*node{r.current}, slices.DeleteFunc(slices.Clone(r.members), func(n *node) bool { return n == r.current })...)
	r.mu.Unlock()
	found := false
	for _, n := range order {
		if ctx.Err() != nil {
			break
		}
		sctx, cancel := context.WithTimeout(ctx, statusTimeout)
		status, err := n.cluster.Status(sctx, &govnodev1.StatusRequest{})
		cancel()
		if err == nil && r.learn(n, status) {
			found = true
			break
		}
		if err != nil && !connect.IsWireError(err) && judge(err).fate != final && !errors.Is(err, errNoToken) && ctx.Err() == nil {
			r.failed(n, true)
		}
	}
	r.mu.Lock()
	r.checking = false
	r.checked = r.now()
	r.checkAt = r.checked.Add(leaderRetry)
	if found {
		r.checkAt = r.checked.Add(leaderFresh)
	}
	r.mu.Unlock()
}

// learn takes over what a node says about the cluster, and reports whether the
// leader is known and was not found unreachable a moment ago.
func (r *routes) learn(n *node, status *govnodev1.StatusResponse) bool {
	var learned []string
	leader := ""
	for _, p := range status.GetPeers() {
		if p.GetApiAddress() == "" {
			continue
		}
		learned = append(learned, p.GetApiAddress())
		if p.GetNode() == status.GetLeader() {
			leader = withScheme(r.scheme, p.GetApiAddress())
		}
	}
	if leader == "" && status.GetLeader() != "" && status.GetLeader() == status.GetNode() {
		leader = n.address // a node that leads itself and knows no address of its own
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.know(learned)
	l := r.nodes[leader]
	if l == nil || r.now().Before(l.shunned) {
		return false
	}
	r.current = l
	return true
}
