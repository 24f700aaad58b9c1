package cluster

import (
	"context"
	"errors"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	"example.com/govnode/session"
)

// A standIn is at an address in the place of a node, and says what a test lets it say.
type standIn struct {
	nodev1connect.UnimplementedNodeServiceHandler
	address string

	mu      sync.Mutex
	hello   func(*nodev1.HelloRequest) (*nodev1.HelloResponse, error)
	join    func(*nodev1.JoinRequest) (*nodev1.JoinResponse, error)
	members []*nodev1.Member
}

// newStandIn returns one that is taken for a node of n's cluster, and says nothing yet.
func newStandIn(t *testing.T, n *testNode) *standIn {
	t.Helper()
	l := listen(t, "127.0.0.1:0")
	s := &standIn{address: l.Addr().String()}
	s.says(nil)
	server := transport.NewServer(s, n.port, func() bool { return true })
	go func() { _ = server.Serve(l) }() // until the test ends
	t.Cleanup(func() { _ = server.Close() })
	return s
}

// says lets it answer so from now on; not at all if h is nil.
func (s *standIn) says(h *nodev1.HelloResponse) {
	s.answers(func(*nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
		if h == nil {
			return nil, connect.NewError(connect.CodeUnavailable, errors.New("nobody is there"))
		}
		return h, nil
	})
}

func (s *standIn) answers(hello func(*nodev1.HelloRequest) (*nodev1.HelloResponse, error)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hello = hello
}

func (s *standIn) Hello(_ context.Context, r *nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
	s.mu.Lock()
	hello := s.hello
	s.mu.Unlock()
	return hello(r)
}

func (s *standIn) Join(_ context.Context, r *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	s.mu.Lock()
	join := s.join
	s.mu.Unlock()
	return join(r)
}

func (s *standIn) Members(context.Context, *nodev1.MembersRequest) (*nodev1.MembersResponse, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return &nodev1.MembersResponse{Members: s.members}, nil
}

// as returns what a node of that name and address would be that has the log and the state of n,
// and does nothing by itself.
func (n *testNode) as(t *testing.T, id, address string) *Node {
	t.Helper()
	m := &Node{
		cfg: n.Node.cfg, run: "now", ctx: n.ctx, dead: n.dead, raft: n.raft, fsm: n.fsm, port: n.port, peers: n.peers,
		members: newMembers(id, session.Version, silentAfter), changing: make(chan struct{}, 1),
	}
	m.cfg.ID, m.cfg.Address = id, address
	m.cluster.Store(n.cluster.Load())
	m.started.Store(true)
	var err error
	m.roll, err = newRoll(nil)
	require.NoError(t, err)
	return m
}
