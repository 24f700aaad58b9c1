package cluster

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// certify gives each node a certificate of its own.
func certify(t *testing.T, ca *pki.Pair) func(*Config) {
	t.Helper()
	return func(c *Config) { c.TLS = certificateOf(t, ca, c.ID) }
}

func certificateOf(t *testing.T, ca *pki.Pair, node string) *pki.Source {
	t.Helper()
	p, err := pki.Issue(ca, pki.Node, node, []string{"127.0.0.1"}, time.Now(), time.Hour)
	require.NoError(t, err)
	dir := t.TempDir()
	cert, key, cas := filepath.Join(dir, "crt"), filepath.Join(dir, "key"), filepath.Join(dir, "ca")
	require.NoError(t, p.Write(cert, key, false))
	require.NoError(t, os.WriteFile(cas, ca.CertPEM(), 0o600))
	s, err := pki.Load(pki.Options{Cert: cert, Key: key, CA: cas, Cluster: "govnode", Logger: testLogger()})
	require.NoError(t, err)
	return s
}

func newCA(t *testing.T) *pki.Pair {
	t.Helper()
	ca, err := pki.NewCA("govnode", time.Now())
	require.NoError(t, err)
	return ca
}

// A cluster with TLS forms, passes commands on, survives its leader, and compares
// its states.
func TestClusterWithTLS(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	own := certify(t, ca)
	c := newCluster(t, 3, func(cfg *Config) {
		own(cfg)
		cfg.CheckInterval = 50 * time.Millisecond
	})
	_, _, err := storage.One(within(t, 10*time.Second), c.follower(), increment("one"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		for _, n := range c.nodes {
			if len(n.states.of(n.fsm.applied())) == 3 {
				return true
			}
		}
		return false
	}, 20*time.Second, time.Millisecond, "all have told their states")

	first := c.leader()
	require.Eventually(t, func() bool { return first.NodeAt("api-of-"+c.follower().cfg.ID) != "" }, 10*time.Second, time.Millisecond)
	require.Empty(t, first.NodeAt("nowhere"))
	require.NoError(t, first.Close())
	second := c.leader(first)
	_, _, err = storage.One(within(t, 20*time.Second), c.follower(first, second), increment("two"))
	require.NoError(t, err)
	again := c.restart(first)
	again.waitReady(t)
	require.EqualValues(t, 2, count(t, again, storage.Latest))
}

// A member that was down while another one joined, and became the leader, listens to
// that one all the same, or it would never hear of it.
func TestALeaderNobodyToldOf(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	c := newCluster(t, 3, certify(t, ca))
	late := c.follower()
	require.NoError(t, late.Close())
	next := c.add("next", certify(t, ca))
	next.waitReady(t)
	require.Eventually(t, func() bool {
		return next.TransferLeadership(within(t, 10*time.Second), "next") == nil && next.Leader()
	}, 20*time.Second, 10*time.Millisecond)
	_, _, err := storage.One(within(t, 10*time.Second), next, increment("one"))
	require.NoError(t, err)
	late.cfg.Join = nil
	late = c.restart(late)
	late.waitReady(t)
	require.EqualValues(t, 1, count(t, late, storage.Latest))
	require.False(t, late.strange("next"))
}

func TestIsStrange(t *testing.T) {
	known := []raft.Server{{ID: "a"}, {ID: "b"}}
	for _, c := range []struct {
		node, leader string
		members      []raft.Server
		want         bool
	}{
		{"x", "a", known, true},
		{"x", "a", known[:1], true},
		{"b", "a", known, false},
		{"x", "", known, false},  // it may have missed that x leads
		{"x", "x", known, false}, // it has missed that x joined
		{"x", "a", nil, false},   // it has just been admitted itself
	} {
		require.Equal(t, c.want, isStrange(c.node, c.leader, c.members), "%v", c)
	}
}

// Who is not let in, and what it is told.
func TestWhoIsNotLetIn(t *testing.T) {
	t.Parallel()
	ca := newCA(t)
	c := newCluster(t, 2, certify(t, ca))
	join := func(id string, s *pki.Source) error {
		cfg := c.config(id)
		cfg.TLS, cfg.JoinTimeout = s, time.Second
		_, err := c.open(cfg)
		return err
	}
	require.ErrorContains(t, join("x", certificateOf(t, newCA(t), "x")), "unknown authority")
	require.ErrorContains(t, join("x", nil), "not admitted")
	require.ErrorContains(t, join("x", certificateOf(t, ca, "y")), `that of node y, and it speaks for node "x"`)
	require.NoError(t, join("x", certificateOf(t, ca, "x")))

	// One that was removed has its certificate still, and is not listened to.
	x := c.nodes[2]
	x.waitReady(t)
	leader := c.leader()
	if leader == x {
		require.NoError(t, x.TransferLeadership(within(t, 10*time.Second), ""))
		leader = c.leader(x)
	}
	require.False(t, leader.strange("x"))
	require.NoError(t, leader.RemoveNode(within(t, 10*time.Second), "x", false))
	require.Eventually(t, func() bool { return c.nodes[0].strange("x") && c.nodes[1].strange("x") }, 10*time.Second, time.Millisecond)
	require.False(t, leader.strange("n1") || leader.strange("n2"))

	// Nor may a member speak for another one.
	other := c.follower(x)
	_, err := other.peers.At(leader.Address()).CompareState(t.Context(), &nodev1.CompareStateRequest{Node: leader.cfg.ID, Index: 1, Digest: make([]byte, len(session.Digest{}))})
	require.ErrorContains(t, err, "it speaks for node")
	_, err = other.peers.At(leader.Address()).Hello(t.Context(), &nodev1.HelloRequest{Self: &nodev1.Identity{Node: leader.cfg.ID}})
	require.ErrorContains(t, err, "it speaks for node")
}
