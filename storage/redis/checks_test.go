package redis

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage/redis/internal/wire"
)

// A Redis that cannot keep the promise is refused, and the error brings the
// command that repairs it.
func TestRedisStartingChecks(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	open := func(change ...func(*Config)) error {
		cfg := Config{URL: s.url(), Node: "n", Logger: testLog()}
		for _, f := range change {
			f(&cfg)
		}
		r, err := Open(t.Context(), cfg)
		if err == nil {
			require.NoError(t, r.Close())
		}
		return err
	}
	require.NoError(t, open())
	for _, c := range []struct{ setting, bad, good, command, risk string }{
		{"appendonly", "no", "yes", "CONFIG SET appendonly yes", RiskAOF},
		{"maxmemory-policy", "allkeys-lru", "noeviction", "CONFIG SET maxmemory-policy noeviction", RiskEviction},
	} {
		s.do("CONFIG", "SET", c.setting, c.bad)
		require.ErrorContains(t, open(), c.command)
		require.NoError(t, open(func(cfg *Config) { cfg.AcceptRisk = []string{c.risk} }))
		// Where CONFIG is forbidden, INFO tells.
		s.do("ACL", "SETUSER", "app", "on", ">secret", "allkeys", "allchannels", "+@all", "-config")
		byApp := func(cfg *Config) { cfg.URL = "redis://app:secret@" + s.addr() }
		require.ErrorContains(t, open(byApp), c.command)
		s.do("CONFIG", "SET", c.setting, c.good)
		require.NoError(t, open(byApp))
	}
	// What is given for something that it is not.
	require.ErrorContains(t, open(func(cfg *Config) { cfg.Cluster = []string{s.addr()} }), "name it in URL")
	require.ErrorContains(t, open(func(cfg *Config) { cfg.Sentinel = Sentinel{Master: "m", Addresses: []string{s.addr()}} }), "name it in URL")
	member := startRedis(t, "--cluster-enabled", "yes")
	require.ErrorContains(t, open(func(cfg *Config) { cfg.URL = member.url() }), "name it in Cluster")
	require.ErrorContains(t, open(func(cfg *Config) { cfg.URL = "redis://127.0.0.1:1" }), "see that Redis runs there")
	require.ErrorContains(t, open(func(cfg *Config) { cfg.URL = "redis://app:wrong@" + s.addr() }), "give user and password")
	replica := startRedis(t, "--replicaof", "127.0.0.1 "+s.addr()[len("127.0.0.1:"):])
	require.ErrorContains(t, open(func(cfg *Config) { cfg.URL = replica.url() }), "REPLICAOF NO ONE")
}

func TestRedisConfigIsChecked(t *testing.T) {
	t.Parallel()
	for text, cfg := range map[string]Config{
		"URL is empty":                   {},
		"URL cannot be read":             {URL: "http://user:secret@host"},
		"Sentinel needs":                 {Sentinel: Sentinel{Master: "m"}},
		"both set":                       {Sentinel: Sentinel{Master: "m", Addresses: []string{"a"}}, Cluster: []string{"a"}},
		"Prefix":                         {URL: "redis://h", Prefix: "a{b"},
		"AcceptRisk":                     {URL: "redis://h", AcceptRisk: []string{"all"}},
		"RoundSize":                      {URL: "redis://h", RoundSize: 5000},
		"a Redis Cluster has database 0": {URL: "redis://h/3", Cluster: []string{"a"}},
	} {
		_, err := Open(t.Context(), cfg)
		require.ErrorContains(t, err, text)
		require.NotContains(t, err.Error(), "secret")
	}
}

// A Redis that ends while it is dialed resets the connection, as one does that wants TLS a moment later.
func TestAdviceAboutAReset(t *testing.T) {
	t.Parallel()
	const absent, tls = "see that Redis runs there", "see that both use TLS or neither does"
	for says, err := range map[string]error{
		absent: &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", syscall.ECONNRESET)},
		tls:    &net.OpError{Op: "read", Err: os.NewSyscallError("read", syscall.ECONNRESET)},
	} {
		require.Contains(t, advice(fmt.Errorf("redis: %w", err)), says)
	}
}

func TestRedisSettings(t *testing.T) {
	t.Parallel()
	good := settings{version: "7.0.15", role: "master", policy: "noeviction", aof: "yes", fsync: "always", replicas: "0"}
	require.NoError(t, good.wrong(&Config{}))
	require.Empty(t, good.weaker())
	for version, ok := range map[string]bool{"6.2.0": true, "7.4.1": true, "10.0": true, "6.0.16": false, "5.0.7": false, "": false, "x": false} {
		s := good
		s.version = version
		require.Equal(t, ok, s.wrong(&Config{}) == nil, version)
	}
	for mode, says := range map[string]string{"standalone": "", "sentinel": "--redis-sentinel", "cluster": "--redis-cluster"} {
		s := good
		s.mode = mode
		if says == "" {
			require.NoError(t, s.wrong(&Config{}))
		} else {
			require.ErrorContains(t, s.wrong(&Config{}), says)
		}
		require.Equal(t, mode == "sentinel", s.wrong(&Config{Cluster: []string{"a"}}) != nil)
	}
	silent := good
	silent.aof, silent.fsync = "", ""
	require.ErrorContains(t, silent.wrong(&Config{}), RiskAOF)
	require.Len(t, silent.weaker(), 2)
	second := good
	second.fsync, second.replicas, second.minReplicas = "everysec", "1", "0"
	require.Len(t, second.weaker(), 2)
}

// A snapshot is of one instant, though changes go on: two counters that are
// written together are equal in it.
func TestRedisSnapshotIsOneInstant(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	writer, saver := s.open("writer"), s.open("saver")
	for i := range 2 * pageKeys { // so that the two are read in different pages
		(&fleet{t: t, nodes: []*Store{writer}}).must(0, &session.Increment{NS: testNS, Key: fmt.Sprint("b", i), Amount: 1, By: session.Maker{Client: "w"}})
	}
	var stop atomic.Bool
	var wrote atomic.Int64
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !stop.Load() {
			for _, x := range writer.Apply(context.Background(),
				&session.Increment{NS: testNS, Key: "a", Amount: 1, By: session.Maker{Client: "w"}},
				&session.Increment{NS: testNS, Key: "c", Amount: 1, By: session.Maker{Client: "w"}}) {
				if x.Err != nil {
					t.Error(x.Err)
				}
			}
			wrote.Add(1)
		}
	}()
	for range 10 {
		before := wrote.Load()
		var b bytes.Buffer
		require.NoError(t, saver.Save(t.Context(), &b))
		state, err := session.ReadSnapshot(&b)
		require.NoError(t, err)
		require.Equal(t, state.Get(session.CounterKey(testNS, "a")), state.Get(session.CounterKey(testNS, "c")))
		require.Eventually(t, func() bool { return wrote.Load() > before+1 }, 30*time.Second, time.Millisecond, "changes go on")
	}
	stop.Store(true)
	<-done
}

// The values last seen are bounded; what was dropped is read again.
func TestRedisCacheIsBounded(t *testing.T) {
	t.Parallel()
	c := newCache(10 * entryCost)
	for i := range 100 {
		c.put(session.CounterKey(testNS, string(rune('a'+i%26))+string(rune('a'+i/26))), wire.Entry{Size: 1})
	}
	require.LessOrEqual(t, c.size, 10*entryCost)
	require.Len(t, c.items, c.recent.Len())
	_, ok := c.get(session.CounterKey(testNS, "va"))
	require.False(t, ok)
	s := startRedis(t)
	r := s.open("small", func(cfg *Config) { cfg.CacheBytes = 1 })
	f := &fleet{t: t, nodes: []*Store{r}}
	f.fire(5, 8, nil)
}

// What a read found is not kept if a round has seen the record since it began.
func TestCacheKeepsTheLater(t *testing.T) {
	t.Parallel()
	const k = session.Key("k")
	c := newCache(1 << 20)
	c.put(k, wire.Entry{Stamp: "of a round", Seen: 5})
	for since, want := range map[time.Duration]wire.Stamp{4: "of a round", 5: "of a round", 6: "of a read"} {
		c.putRead(k, wire.Entry{Stamp: "of a read", Seen: 7}, since)
		x, _ := c.get(k)
		require.Equal(t, want, x.Stamp, since)
		c.put(k, wire.Entry{Stamp: "of a round", Seen: 5})
	}
}
