package server_test

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// fellows are the members of a cluster as its nodes see it.
type fellows struct {
	server.Cluster
	mu    sync.Mutex
	peers []server.Peer
}

func (f *fellows) Status(context.Context) (server.Status, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return server.Status{Leader: "n1", Peers: f.peers, Health: "ok"}, nil
}

func (f *fellows) LeaderAPI() string { return "" }

func (f *fellows) AdmitForwarded(func(session.Command) bool) {}

func (f *fellows) set(peers ...server.Peer) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.peers = peers
}

func peer(n *node, name string) server.Peer {
	return server.Peer{Node: name, APIAddress: strings.TrimPrefix(n.url, "http://")}
}

// Two nodes on one store, and a third that is gone.
func pair(t *testing.T) (one, two *node, all *fellows) {
	all = &fellows{}
	one = start(t, func(c *server.Config) { c.Cluster = all })
	two = startOn(t, one.store, func(c *server.Config) { c.Cluster, c.Node = all, "n2" })
	all.set(peer(one, "n1"), peer(two, "n2"), server.Peer{Node: "n3", APIAddress: "127.0.0.1:1"})
	one.putPolicy(policy("allowed_tools: [t]")...)
	one.session("s")
	return one, two, all
}

// A decision is explained by whichever node is asked; where nobody has it, the
// answer says who was asked, and who could not be.
func TestExplainElsewhere(t *testing.T) {
	one, two, _ := pair(t)
	id := two.begin("s", "c").DecisionId
	require.Equal(t, "n2", one.explain(id).Node)
	_, err := one.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: id, SessionId: "other"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "was not made for the session")
	_, err = one.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: id, Local: true})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "is kept by n1. ")
	_, err = one.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: "nope"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "is kept by n1, n2; not reached: n3. ")
	require.Equal(t, "n3", info(t, err).Metadata["unreachable"])
	asked := `gov_requests_total{code="not_found",method="Explain",service="DecisionService"}`
	require.InDelta(t, 3, one.metric(asked), 0, "who is asked by a node asks no further")
	require.InDelta(t, 1, two.metric(asked), 0, "the session is compared where it was asked for")
}

// A call that one node could not put in order may have come to another: what was applied
// explains it, whoever is asked.
func TestExplainWhatWasApplied(t *testing.T) {
	all := &fellows{}
	one := start(t, func(c *server.Config) { c.Cluster = all })
	b := &behind{Store: one.store}
	two := startOn(t, b, func(c *server.Config) { c.Cluster, c.Node = all, "n2" })
	all.set(peer(one, "n1"), peer(two, "n2"))
	one.putPolicy(policy()...)
	one.session("s")
	lost := func(call string) {
		b.refuse = errors.New("no leader")
		_, err := two.calls.BeginCall(t.Context(), beginRequest("s", call))
		require.Error(t, err)
		b.refuse = nil
	}
	lost("elsewhere")
	id := one.begin("s", "elsewhere").DecisionId
	for _, n := range []*node{one, two} {
		require.Equal(t, []string{"n1", ""}, []string{n.explain(id).Node, n.explain(id).Failure})
	}
	id = two.begin("s", "here").DecisionId
	lost("here") // it is asked for again
	for _, n := range []*node{one, two} {
		require.Equal(t, []string{"n2", ""}, []string{n.explain(id).Node, n.explain(id).Failure})
	}
	lost("nowhere")
	id = words.DecisionID(b, "default", "s", "nowhere")
	for _, n := range []*node{one, two} {
		require.Equal(t, []string{"n2", "unavailable"}, []string{n.explain(id).Node, n.explain(id).Failure})
	}
}

// A member whose API nobody knows does not answer either, until it is known.
func TestWhoseAPINobodyKnows(t *testing.T) {
	one, two, all := pair(t)
	all.set(peer(one, "n1"), peer(two, "n2"), server.Peer{Node: "n3"})
	_, err := one.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: "nope"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "is kept by n1, n2; not reached: n3. ")
	require.Equal(t, "n3", info(t, err).Metadata["unreachable"])
	f, first := one.follow(&v1.FollowRequest{Cluster: true})
	require.Equal(t, []string{"n3"}, first.Unreachable)
	late := startOn(t, one.store, func(c *server.Config) { c.Cluster, c.Node = all, "n3" })
	all.set(peer(one, "n1"), peer(two, "n2"), peer(late, "n3"))
	m := f.message()
	for len(m.Unreachable) > 0 {
		m = f.message()
	}
	require.Contains(t, m.Cursor, "n3")
	late.begin("s", "told")
	require.Equal(t, "told", f.event().CallId)
}

// Who does not answer when it is to be followed may have had something to tell by the time
// that it does, which is said.
func TestWhoIsHeardLate(t *testing.T) {
	one, two, all := pair(t)
	f, first := one.follow(&v1.FollowRequest{Cluster: true})
	require.Equal(t, []string{"n3"}, first.Unreachable)
	late := startOn(t, one.store, func(c *server.Config) { c.Cluster, c.Node = all, "n3" })
	late.begin("s", "missed")
	all.set(peer(one, "n1"), peer(two, "n2"), peer(late, "n3"))
	m := f.message()
	for m.Gap == nil {
		require.Nil(t, m.Event)
		m = f.message()
	}
	require.Equal(t, []string{"n3", "UNHEARD"}, []string{m.Gap.Node, m.Gap.Reason})
	late.begin("s", "told")
	require.Equal(t, "told", f.event().CallId)
}

// One stream has the events of all nodes; its cursor holds for each of them,
// and for those that have joined since.
func TestFollowTheCluster(t *testing.T) {
	one, two, all := pair(t)
	two.begin("s", "before")
	f, first := one.follow(&v1.FollowRequest{Cluster: true})
	require.Equal(t, []string{"n3"}, first.Unreachable)
	require.Len(t, strings.Split(first.Cursor, ","), 2)
	one.begin("s", "a")
	require.Equal(t, "a", f.event().CallId)
	two.begin("s", "b")
	ev := f.event()
	require.Equal(t, []string{"n2", "b"}, []string{ev.Node, ev.CallId})
	here := f.cursor
	f.end()

	two.begin("s", "c")
	three := startOn(t, one.store, func(c *server.Config) { c.Cluster, c.Node = all, "n3" })
	three.begin("s", "d")
	all.set(peer(one, "n1"), peer(two, "n2"), peer(three, "n3"))
	f, first = two.follow(&v1.FollowRequest{Cluster: true, After: here})
	require.Empty(t, first.Unreachable)
	require.ElementsMatch(t, []string{"c", "d"}, []string{f.event().CallId, f.event().CallId}, "each once, and nothing twice")
	here = f.cursor

	// A node that ends is told of, and the others go on.
	require.NoError(t, three.server.Close())
	for m := f.message(); len(m.Unreachable) == 0; m = f.message() {
		require.Nil(t, m.Event)
	}
	one.begin("s", "e")
	require.Equal(t, "e", f.event().CallId)

	// One that is back says what it has forgotten, and counts as unreachable no more.
	back := startOn(t, one.store, func(c *server.Config) { c.Cluster, c.Node = all, "n3" })
	all.set(peer(one, "n1"), peer(two, "n2"), peer(back, "n3"))
	m := f.message()
	for m.Gap == nil {
		m = f.message()
	}
	require.Equal(t, "n3", m.Gap.Node)
	require.Empty(t, m.Unreachable)
	back.begin("s", "f")
	for ev = f.event(); ev.CallId != "f"; ev = f.event() {
		require.Equal(t, "e", ev.CallId)
	}
	require.Equal(t, "n3", ev.Node)

	// One that is no member any more may have had more to tell, as a follower learns who was
	// there, and one who goes on from a cursor that has a part of it.
	require.Contains(t, f.cursor, "n3")
	later, first := one.follow(&v1.FollowRequest{Cluster: true, After: f.cursor})
	require.Nil(t, first.Gap)
	require.NoError(t, back.server.Close())
	all.set(peer(one, "n1"), peer(two, "n2"))
	after, first := one.follow(&v1.FollowRequest{Cluster: true, After: f.cursor})
	require.Equal(t, []string{"n3"}, first.Unreachable)
	for _, f := range []*following{f, later, after} {
		m := f.message()
		for m.Gap == nil {
			m = f.message()
		}
		require.Equal(t, []string{"n3", "LEFT"}, []string{m.Gap.Node, m.Gap.Reason})
		require.Empty(t, m.Unreachable)
		require.NotContains(t, m.Cursor, "n3")
	}

	_, err := one.explains.Explain(t.Context(), &v1.ExplainRequest{DecisionId: "nope"})
	requireRefused(t, err, connect.CodeNotFound, "NOT_FOUND", "is kept by n1")
	f, first = one.follow(&v1.FollowRequest{After: here})
	require.Nil(t, first.Gap, "the part of this node is taken from the cursor of all")
	require.Equal(t, "e", f.event().CallId)
}
