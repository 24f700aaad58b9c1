package client_test

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What a node says of the members leads to the leader, though some have no address or one
// that is none, and wherever in the list it stands.
func TestMembersWithAndWithoutAddresses(t *testing.T) {
	peer := func(node, address string) *govnodev1.Peer { return &govnodev1.Peer{Node: node, ApiAddress: address} }
	for name, test := range map[string]struct {
		status *govnodev1.StatusResponse
		leader string
	}{
		"first":                       {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("b", "b:1"), peer("a", "a:1")}}, "http://b:1"},
		"last":                        {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("a", "a:1"), peer("c", "c:1"), peer("b", "b:1")}}, "http://b:1"},
		"behind one without":          {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("c", ""), peer("b", "b:1")}}, "http://b:1"},
		"behind one that is none":     {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("c", "::"), peer("b", "b:1")}}, "http://b:1"},
		"with a scheme":               {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("b", "http://b:1/")}}, "http://b:1"},
		"itself, without an address":  {&govnodev1.StatusResponse{Node: "a", Leader: "a", Peers: []*govnodev1.Peer{peer("a", "")}}, "http://a:1"},
		"another, without an address": {&govnodev1.StatusResponse{Node: "a", Leader: "b", Peers: []*govnodev1.Peer{peer("a", "a:1"), peer("b", "")}}, "http://a:1"},
		"nobody":                      {&govnodev1.StatusResponse{Node: "a", Peers: []*govnodev1.Peer{peer("a", "a:1"), peer("b", "b:1")}}, "http://a:1"},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				w := &wire{hosts: map[string]http.Handler{}}
				for _, host := range []string{"a:1", "b:1", "c:1"} {
					n := granting(30 * time.Second)
					n.status = func() (*govnodev1.StatusResponse, error) { return test.status, nil }
					w.hosts[host] = n.handler()
				}
				c := connected(t, w, []string{"a:1"})
				_, err := c.Acquire(t.Context(), "gpu")
				require.NoError(t, err)
				synctest.Wait()
				require.Equal(t, test.leader, c.Leader())
				got, err := c.Status(t.Context())
				require.NoError(t, err)
				require.Equal(t, test.status.GetLeader(), got.GetLeader())
				require.NoError(t, c.Close())
			})
		})
	}
}

// A configured address may end in a slash, which is none of it.
func TestAddressesWithASlash(t *testing.T) {
	c, err := client.New(client.Config{Addresses: []string{"http://a:1/", "b:1"}})
	require.NoError(t, err)
	require.Equal(t, "http://a:1", c.Leader())
	require.NoError(t, c.Close())
}
