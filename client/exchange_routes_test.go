package client_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

// Where no stream can be had everything goes by itself, and streams are not
// tried again for a while.
func TestFallsBackToUnary(t *testing.T) {
	node := granting(time.Minute)
	for name, h := range map[string]*host{
		"HTTP/1 only":   listen(t, node.handler(), func(p *http.Protocols) { p.SetUnencryptedHTTP2(false) }),
		"unimplemented": listen(t, node.handler()),
		"refused half way": listen(t, (&streamer{node: node, exchange: func(context.Context, *exchangeStream) error {
			return connect.NewError(connect.CodeInternal, errors.New("as the test wants it"))
		}}).handler()),
		"swallowed": listen(t, (&streamer{node: node, exchange: func(ctx context.Context, _ *exchangeStream) error {
			<-ctx.Done()
			return nil
		}}).handler()),
	} {
		t.Run(name, func(t *testing.T) {
			var now atomic.Int64
			began := time.Now()
			c := streaming(t, []string{h.URL}, func(c *client.Config) {
				c.Now = func() time.Time { return began.Add(time.Duration(now.Load())) }
			})
			session := c.Session("s")
			for range 20 {
				call, err := session.Begin(t.Context(), client.Call{Tool: "t"})
				require.NoError(t, err)
				require.NoError(t, call.End(t.Context(), client.Succeeded))
			}
			require.Equal(t, 20, h.count("BeginCall"))
			require.Equal(t, 20, h.count("EndCall"))
			tried := h.count("Exchange")
			require.LessOrEqual(t, tried, 1)
			now.Add(int64(6 * time.Second))
			before := time.Now()
			_, err := session.Begin(t.Context(), client.Call{Tool: "t"})
			require.NoError(t, err)
			require.Less(t, time.Since(before), 500*time.Millisecond, "nobody waits for what has failed before")
			require.Equal(t, 21, h.count("BeginCall"))
			if tried > 0 {
				eventually(t, "a stream is tried again", func() bool { return h.count("Exchange") == tried+1 })
			}
		})
	}
}

// A node that comes to have streams gets them.
func TestComesBackToStreams(t *testing.T) {
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	})
	var without atomic.Bool
	without.Store(true)
	h := listen(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if without.Load() && strings.HasSuffix(r.URL.Path, "/Exchange") {
			http.Error(w, "no such thing", http.StatusNotFound)
			return
		}
		s.Handler().ServeHTTP(w, r)
	}))
	var now atomic.Int64
	began := time.Now()
	c := streaming(t, []string{h.URL}, func(c *client.Config) {
		c.Now = func() time.Time { return began.Add(time.Duration(now.Load())) }
	})
	prepare(t, c, 10)
	session, err := c.CreateSession(t.Context(), client.Session{Agent: "a", Policy: "p"})
	require.NoError(t, err)
	call := func() {
		t.Helper()
		require.NoError(t, session.Do(t.Context(), client.Call{Tool: "t"}, func(context.Context, *client.OpenCall) error { return nil }))
	}
	call()
	require.Equal(t, 1, h.count("BeginCall"))
	without.Store(false)
	now.Add(int64(6 * time.Second))
	eventually(t, "calls go over a stream", func() bool {
		before := h.count("BeginCall") + h.count("EndCall")
		call()
		return h.count("BeginCall")+h.count("EndCall") == before
	})
}

// A node that drains says so: calls go on at another one, over a stream.
func TestGoesOnWhereNobodyDrains(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	var hosts []*host
	var servers []*server.Server
	for _, name := range []string{"a", "b"} {
		s, err := server.New(server.Config{Store: store, Node: name})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		servers, hosts = append(servers, s), append(hosts, listen(t, s.Handler()))
	}
	c := streaming(t, []string{hosts[0].URL, hosts[1].URL})
	prepare(t, c, 10)
	session, err := c.CreateSession(t.Context(), client.Session{Agent: "a", Policy: "p"})
	require.NoError(t, err)
	begin := func() *client.OpenCall {
		t.Helper()
		call, err := session.Begin(t.Context(), client.Call{Tool: "t"})
		require.NoError(t, err)
		return call
	}
	open := begin()
	require.Equal(t, 1, hosts[0].count("Exchange"))
	require.NoError(t, servers[0].Drain(t.Context()))
	require.NoError(t, open.End(t.Context(), client.Succeeded))
	require.NoError(t, begin().End(t.Context(), client.Succeeded))
	require.Equal(t, 1, hosts[1].count("Exchange"))
	require.Zero(t, hosts[0].count("EndCall")+hosts[1].count("EndCall"))
	got, err := session.Read(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 2, got.GetExecutions())
}

// A node that names the leader is believed, if it is a node that is known.
func TestStreamNamesTheLeader(t *testing.T) {
	leader, _ := real(t)
	follower := listen(t, (&streamer{node: granting(time.Minute), exchange: reading(&govnodev1.ExchangeResponse{MaxInFlight: 1024, LeaderAddress: strings.TrimPrefix(leader.URL, "http://")}, func(_ context.Context, stream *exchangeStream, frames []*govnodev1.Operation) error {
		for _, f := range frames {
			if err := stream.Send(&govnodev1.ExchangeResponse{Answers: []*govnodev1.OperationResult{admitted(f.GetTag())}}); err != nil {
				return err
			}
		}
		return nil
	})}).handler())
	c := streaming(t, []string{follower.URL, leader.URL})
	_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	require.Equal(t, leader.URL, c.Leader())
}
