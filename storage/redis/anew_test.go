package redis

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Redis is emptied, and before any node notices one is started that knows of
// nothing and begins anew. Those that know better are not taken in: everything
// is in quarantine, and tokens go on above those from before.
func TestRedisBegunAnewIsNoticed(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	p := newProxy(t, s.addr())
	quarantine := func(c *Config) { c.Quarantine = 3 * time.Second }
	knows := s.open("knows", quarantine, func(c *Config) { c.URL = p.url() })
	f := &fleet{t: t, nodes: []*Store{knows}}
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "one", Weight: 1, TTL: time.Minute}
	}
	put := func(request string) session.Command {
		return &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: request}}
	}
	f.must(0, put("first"))
	held := f.must(0, acquire("held"))
	require.Equal(t, session.Admitted, held.Code)

	p.to("127.0.0.1:1") // it notices nothing
	s.do("FLUSHALL")
	anew := &fleet{t: t, nodes: []*Store{s.open("anew", quarantine)}}
	anew.must(0, put("second"))
	p.to(s.addr())
	notReady(t, anew.node(0), "quarantine for another")
	ready(t, anew.node(0))
	ready(t, knows)
	next := anew.must(0, acquire("next"))
	require.Equal(t, session.Admitted, next.Code)
	require.Greater(t, next.Grants[0].Token, held.Grants[0].Token, "the token is that of a holder who may still be at work")
}

// A member of a Redis Cluster has lost a namespace while no node ran. The list of
// namespaces lies on another, and says that there was one.
func TestRedisClusterNamespaceIsGone(t *testing.T) {
	all := startCluster(t)
	quarantine := func(c *Config) { c.Quarantine = 3 * time.Second }
	r := openCluster(t, all, "before", quarantine)
	lists := serves(t, all, r.keys.Namespaces())
	ns, of := "", (*server)(nil)
	for _, ns = range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		if of = serves(t, all, r.keys.Tag(ns)); of != lists {
			break
		}
	}
	require.NotEqual(t, lists, of)
	put := func(request string) session.Command {
		return &session.PutPool{NS: ns, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: request}}
	}
	f := &fleet{t: t, nodes: []*Store{r}}
	f.must(0, put("first"))
	require.NoError(t, r.Close())
	of.do("FLUSHALL")
	after := &fleet{t: t, nodes: []*Store{openCluster(t, all, "after", quarantine)}}
	_, _, err := storage.One(t.Context(), after.node(0), put("second"))
	require.ErrorContains(t, err, "quarantine")
	require.Equal(t, session.Done, after.must(0, put("third")).Code)
	// One that there never was begins at once.
	_, _, err = storage.One(t.Context(), after.node(0), &session.PutPool{NS: "new-" + ns, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	require.NoError(t, err)
}
