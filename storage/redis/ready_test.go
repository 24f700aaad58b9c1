package redis

import (
	"bytes"
	"context"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// notReady waits until a node is not ready for a reason that names all of the
// words.
func notReady(t *testing.T, r *Store, words ...string) {
	t.Helper()
	var err error
	require.Eventually(t, func() bool {
		if err = r.Ready(t.Context()); err == nil {
			return false
		}
		for _, w := range words {
			if !strings.Contains(err.Error(), w) {
				return false
			}
		}
		return true
	}, time.Minute, 10*time.Millisecond, "%v", err)
}

func ready(t *testing.T, r *Store) {
	t.Helper()
	require.Eventually(t, func() bool { return r.Ready(t.Context()) == nil }, time.Minute, 10*time.Millisecond)
}

// A node is ready while it serves, and else says what is wrong and what to do.
func TestRedisReady(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.Quarantine = 1500 * time.Millisecond })
	require.NoError(t, r.Ready(t.Context()))

	s.do("CONFIG", "SET", "appendonly", "no")
	require.Equal(t, checkEvery, r.untilCheck())
	require.Error(t, r.check(t.Context(), false))
	require.Equal(t, repairEvery, r.untilCheck(), "what is being repaired is looked at more often")
	notReady(t, r, "CONFIG SET appendonly yes")
	s.do("CONFIG", "SET", "appendonly", "yes")
	require.NoError(t, r.check(t.Context(), false))
	require.NoError(t, r.Ready(t.Context()))

	s.do("CONFIG", "SET", "maxmemory", "1")
	notReady(t, r, "takes writes", "OOM")
	s.do("CONFIG", "SET", "maxmemory", "0")
	ready(t, r)

	s.kill()
	notReady(t, r, "has not answered", "connection refused")
	s.start()
	ready(t, r)

	s.do("DEL", "{gov}:epoch")
	notReady(t, r, "quarantine for another")
	ready(t, r)
}

// Whoever knows that nobody works any more need not wait for the quarantine.
func TestRedisRestoreEndsQuarantine(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	long := func(c *Config) { c.Quarantine = time.Hour }
	f := &fleet{t: t, nodes: []*Store{s.open("one", long), s.open("two", long)}}
	setup(t, f.node(0))
	var snapshot bytes.Buffer
	require.NoError(t, f.node(0).Save(t.Context(), &snapshot))
	acquire := func(slot string) session.Command {
		return &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Minute}
	}
	before := f.must(0, acquire("before"))
	s.do("FLUSHALL")
	for _, r := range f.nodes {
		notReady(t, r, "quarantine for another")
	}
	require.ErrorAs(t, f.node(0).Save(t.Context(), new(bytes.Buffer)), new(*storage.ReadError), "nobody should keep what is left for the whole")
	require.NoError(t, f.node(0).Restore(t.Context(), &snapshot))
	require.NoError(t, f.node(0).Ready(t.Context()))
	after := f.must(1, acquire("after"))
	require.Equal(t, session.Admitted, after.Code)
	require.Greater(t, after.Grants[0].Token, before.Grants[0].Token)
}

// In a Redis Cluster, and nowhere else, some data may be served and other not.
func TestRedisReadyWhileSomethingIsServed(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	other := r.newDomain("{other}", "other")
	shut := epoch{state: epochShut, id: "x", until: time.Hour}.with()
	other.gate.Store(&gate{shut, other.quarantined(shut)})
	r.mu.Lock()
	served := r.domains["{gov}"]
	r.domains["{other}"] = other
	r.mu.Unlock()
	require.NoError(t, r.Ready(t.Context()))
	served.gate.Store(other.gate.Load())
	require.ErrorContains(t, r.Ready(t.Context()), "quarantine")
}

// metricsOf returns all values by name and labels: name{label="value"}.
func metricsOf(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		for _, m := range f.Metric {
			name := f.GetName()
			for _, l := range m.Label {
				name += "/" + l.GetValue()
			}
			switch {
			case m.Counter != nil:
				values[name] = m.Counter.GetValue()
			case m.Gauge != nil:
				values[name] = m.Gauge.GetValue()
			default:
				values[name+"_count"], values[name+"_sum"] = float64(m.Histogram.GetSampleCount()), m.Histogram.GetSampleSum()
			}
		}
	}
	return values
}

func TestRedisMetrics(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	s.do("SCRIPT", "FLUSH")
	p := newProxy(t, s.addr())
	registry := prometheus.NewRegistry()
	r := s.open("one", func(c *Config) {
		c.Registry, c.URL, c.Timeout = registry, p.url(), 2*time.Second
	})
	other := s.open("two")
	add := func(r *Store, n int64, request string) error {
		_, _, err := storage.One(t.Context(), r, &session.Increment{NS: testNS, Key: "k", Amount: n, By: session.Maker{Client: "w" + request, Request: request}})
		return err
	}
	require.NoError(t, add(r, 1, ""))
	require.NoError(t, add(other, 1, ""))
	require.NoError(t, add(r, 1, "")) // after a swap that is lost
	require.Error(t, add(r, 1, strings.Repeat("x", 1000)))
	m := metricsOf(t, registry)
	require.EqualValues(t, 2, m["gov_redis_commands_total/ok"])
	require.EqualValues(t, 1, m["gov_redis_commands_total/invalid"])
	require.EqualValues(t, 1, m["gov_redis_exchanges_total/lost/swap"])
	require.EqualValues(t, 2, m["gov_redis_exchanges_total/ok/swap"])
	require.EqualValues(t, 3, m["gov_redis_exchange_seconds/swap_count"])
	require.Positive(t, m["gov_redis_exchange_seconds/swap_sum"])
	require.EqualValues(t, 2, m["gov_redis_round_commands_count"])
	require.EqualValues(t, 2, m["gov_redis_round_commands_sum"])
	require.Positive(t, m["gov_redis_cache_records"])
	require.Positive(t, m["gov_redis_cache_bytes"])
	require.Positive(t, m["gov_redis_log_time_seconds"])
	require.Less(t, m["gov_redis_silent_seconds"], 5.0)
	require.Zero(t, m["gov_redis_quarantine"])
	require.Zero(t, m["gov_redis_refused"])
	require.Zero(t, m["gov_redis_epoch_changes_total"])

	require.Eventually(t, func() bool { // a beat, which is not counted, may bring it first
		s.do("SCRIPT", "FLUSH")
		return add(r, 1, "") == nil && metricsOf(t, registry)["gov_redis_script_loads_total"] > m["gov_redis_script_loads_total"]
	}, 30*time.Second, time.Millisecond)

	// Nobody answers any more. Of what was under way on a connection that
	// broke nobody knows; what found no connection is unavailable.
	p.to("127.0.0.1:1")
	for range 2 {
		require.Error(t, add(r, 1, ""))
	}
	p.to(s.addr())
	require.Positive(t, metricsOf(t, registry)["gov_redis_commands_total/unavailable"])

	var snapshot bytes.Buffer
	require.NoError(t, other.Save(t.Context(), &snapshot))
	s.do("DEL", "{gov}:epoch")
	require.Eventually(t, func() bool {
		m := metricsOf(t, registry)
		return m["gov_redis_quarantine"] == 1 && m["gov_redis_quarantine_seconds"] > 0 && m["gov_redis_epoch_changes_total"] == 1
	}, 30*time.Second, 5*time.Millisecond)
	notReady(t, other, "quarantine")
	require.NoError(t, other.Restore(t.Context(), &snapshot)) // which ends it
	f := &fleet{t: t, nodes: []*Store{r, other}}
	f.must(0, &session.Increment{NS: testNS, Key: "k", Amount: 1, By: session.Maker{Client: "w"}})
	require.Eventually(t, func() bool { return metricsOf(t, registry)["gov_redis_quarantine"] == 0 }, 30*time.Second, 5*time.Millisecond)
	_, err := Open(context.Background(), Config{URL: s.url(), Registry: registry})
	require.ErrorContains(t, err, "Registry", "two stores in one registry")
}

// The document of metrics lists every one, and none that there is not.
func TestRedisMetricsAreDocumented(t *testing.T) {
	t.Parallel()
	text, err := os.ReadFile("../../docs/metrics.md")
	require.NoError(t, err)
	documented := map[string]bool{}
	for _, m := range regexp.MustCompile("(?m)^\\| `(gov_redis_[a-z_]+)` \\|").FindAllStringSubmatch(string(text), -1) {
		documented[m[1]] = true
	}
	registry := prometheus.NewRegistry()
	m := newMetrics()
	require.NoError(t, m.register(registry, &Store{cache: newCache(1)}))
	m.commands.WithLabelValues("ok").Inc() // what has labels is there once it has values
	m.exchanges.WithLabelValues("swap", "ok").Inc()
	m.seconds.WithLabelValues("swap").Observe(1)
	m.recoveries.WithLabelValues("ok").Inc()
	families, err := registry.Gather()
	require.NoError(t, err)
	there := map[string]bool{}
	for _, f := range families {
		there[f.GetName()] = true
	}
	require.Equal(t, there, documented)
}

// An outcome that nobody knows is counted as such.
func TestRedisMetricsOfUnknownOutcomes(t *testing.T) {
	t.Parallel()
	m := newMetrics()
	registry := prometheus.NewRegistry()
	require.NoError(t, m.register(registry, &Store{cache: newCache(1)}))
	m.answered([]storage.Answer{storage.Lost(context.Canceled), storage.Refused(context.Canceled), storage.Done(session.Result{}, 0)})
	values := metricsOf(t, registry)
	for _, result := range []string{"unknown", "unavailable", "ok"} {
		require.EqualValues(t, 1, values["gov_redis_commands_total/"+result])
	}
}
