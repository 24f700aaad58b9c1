package redis

import (
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// A move takes the slot of a key from one primary of a Redis Cluster to another,
// as redis-cli --cluster reshard does.
type move struct {
	t        *testing.T
	all      []*server
	slot     int64
	from, to *server
	one, two any // ids of both
}

// beginMove begins to move the slot of a key to a primary that does not serve it.
func beginMove(t *testing.T, all []*server, key string) *move {
	t.Helper()
	m := &move{t: t, all: all, from: serves(t, all, key)}
	require.NotNil(t, m.from)
	m.slot = m.from.do("CLUSTER", "KEYSLOT", key).(int64)
	for _, s := range all {
		if s != m.from && s.cmd != nil && parseInfo(s.do("INFO", "replication").(string))["role"] == "master" {
			m.to = s
		}
	}
	require.NotNil(t, m.to)
	m.one, m.two = m.from.do("CLUSTER", "MYID"), m.to.do("CLUSTER", "MYID")
	m.to.do("CLUSTER", "SETSLOT", m.slot, "IMPORTING", m.one)
	m.from.do("CLUSTER", "SETSLOT", m.slot, "MIGRATING", m.two)
	return m
}

// keys moves at most so many keys, and returns how many it moved.
func (m *move) keys(most int) int {
	m.t.Helper()
	keys := m.from.do("CLUSTER", "GETKEYSINSLOT", m.slot, most).([]any)
	if len(keys) > 0 {
		m.from.do(append([]any{"MIGRATE", "127.0.0.1", m.to.port, "", 0, 5000, "KEYS"}, keys...)...)
	}
	return len(keys)
}

// end moves the keys that are left, and tells everybody who has the slot.
func (m *move) end() {
	m.t.Helper()
	for m.keys(10) > 0 {
	}
	m.to.do("CLUSTER", "SETSLOT", m.slot, "NODE", m.two)
	m.from.do("CLUSTER", "SETSLOT", m.slot, "NODE", m.two)
	for _, s := range m.all {
		if s != m.from && s != m.to && s.cmd != nil && parseInfo(s.do("INFO", "replication").(string))["role"] == "master" {
			s.do("CLUSTER", "SETSLOT", m.slot, "NODE", m.two)
		}
	}
}

// refusals is how many commands a node has answered as unavailable.
func refusals(t *testing.T, registry *prometheus.Registry) float64 {
	return metricsOf(t, registry)["gov_redis_commands_total/unavailable"]
}

// The slot of a namespace moves from primary to primary while callers fire at the
// one free unit. Half-way nothing is served; then nodes go on by themselves, with
// what was there: nothing is lost, so nothing is in quarantine.
func TestRedisClusterSlotMoves(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	f := &fleet{t: t}
	var registries []*prometheus.Registry
	for i := range 3 {
		registry := prometheus.NewRegistry()
		registries = append(registries, registry)
		f.nodes = append(f.nodes, openCluster(t, all, fmt.Sprint("n", i), func(c *Config) { c.Registry = registry }))
	}
	moves, every := rounds(3, 6), 20
	var moving sync.WaitGroup
	f.fire(moves*every, 24, func(round int) {
		if round%every != every/2 {
			return
		}
		moving.Wait()
		m := beginMove(t, all, "{gov:"+testNS+"}")
		require.NotZero(t, m.keys(3))
		moving.Go(func() {
			for _, registry := range registries {
				before := refusals(t, registry)
				require.Eventually(t, func() bool { return refusals(t, registry) > before }, 30*time.Second, time.Millisecond, "nobody noticed")
			}
			m.end()
		})
	})
	moving.Wait()
	for i, r := range f.nodes {
		ready(t, r)
		e := r.place(testNS).d.current()
		require.Equal(t, epochOpen, e.state)
		require.Zero(t, e.generation, "something was taken for lost")
		require.Zero(t, metricsOf(t, registries[i])["gov_redis_faults_total"])
	}
	hears(t, f, "after")
}

// However often the slot has moved, nodes take turns as they did before: each
// comes to listen where the swaps of the others call it.
func TestRedisClusterTurnsAfterSlotMoved(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	f := &fleet{t: t}
	for i := range 3 {
		f.nodes = append(f.nodes, openCluster(t, all, fmt.Sprint("n", i)))
	}
	parts, want := 0, 0
	increment := func(times int) {
		parts++
		want += 3 * 8 * times
		hammer(t, f.nodes, fmt.Sprint(parts, "-"), 8, times)
	}
	listen := func(at *server) {
		ask := []any{"PUBSUB", "NUMSUB"}
		for _, r := range f.nodes {
			ask = append(ask, r.place(testNS).Turns()+":"+r.name)
		}
		require.Eventually(t, func() bool {
			increment(5)
			hear := at.do(ask...).([]any)
			return hear[1].(int64) == 1 && hear[3].(int64) == 1 && hear[5].(int64) == 1
		}, 30*time.Second, time.Millisecond, "nodes do not listen where the slot is")
	}
	part := func(name string) float64 {
		var rounds, lost uint64
		for _, r := range f.nodes {
			rounds, lost = rounds-r.Stats().Rounds, lost-r.Stats().Lost
		}
		increment(200)
		for _, r := range f.nodes {
			rounds, lost = rounds+r.Stats().Rounds, lost+r.Stats().Lost
		}
		t.Logf("%s: %d of %d rounds were lost", name, lost, rounds)
		return float64(lost) / float64(rounds)
	}
	const most = 0.2 // beside much else some are; of nodes that hear nothing three in five
	key := "{gov:" + testNS + "}"
	listen(serves(t, all, key))
	require.Less(t, part("before"), most)
	for range rounds(2, 4) {
		m := beginMove(t, all, key)
		m.end()
		listen(m.to)
	}
	require.Less(t, part("after"), most, "turns are not heard of")
	require.EqualValues(t, want, counted(t, f.node(0)))
}

// staleCluster is a pool of some slots in a Redis Cluster whose primary for it
// ends in a burst, of which its replica has heard nothing. It returns how many
// leases overlap: what the old primary had granted, and what the nodes grant
// before one of those has run out.
func staleCluster(t *testing.T, quarantine, ttl time.Duration) (granted, overlap int) {
	const slots, callers = 4, 16
	all := startClusterWithReplicas(t)
	f := &fleet{t: t}
	for i := range 2 {
		f.nodes = append(f.nodes, openCluster(t, all, fmt.Sprint("n", i), func(c *Config) { c.Quarantine = quarantine }))
	}
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: slots, By: session.Maker{Client: "t", Request: "put"}})
	f.must(1, count("c", "1"))
	primary := serves(t, all, "{gov:"+testNS+"}")
	for _, s := range all {
		info := parseInfo(s.do("INFO", "replication").(string))
		if info["role"] == "slave" && info["master_port"] == fmt.Sprint(primary.port) {
			require.Eventually(t, func() bool {
				return parseInfo(s.do("INFO", "replication").(string))["master_link_status"] == "up" && s.client.Do(t.Context(), "READONLY").Err() == nil &&
					s.do("CLUSTER", "COUNTKEYSINSLOT", s.do("CLUSTER", "KEYSLOT", "{gov:"+testNS+"}")).(int64) > 4
			}, time.Minute, 5*time.Millisecond, "the replica does not follow")
			s.do("CONFIG", "SET", "masteruser", "nobody", "masterauth", "nothing") // it does not get in again
		}
	}
	primary.do("CLIENT", "KILL", "TYPE", "replica")

	type grant struct {
		code session.Code
		at   time.Time
	}
	fire := func(name string) []grant {
		grants := make([]grant, callers)
		var wg sync.WaitGroup
		for i := range callers {
			wg.Go(func() {
				r := f.must(i, &session.Acquire{NS: testNS, Client: fmt.Sprint("c", i), Slot: name, Pool: "one", Weight: 1, TTL: ttl})
				grants[i] = grant{r.Code, time.Now()}
			})
		}
		wg.Wait()
		return grants
	}
	var believes time.Time // until when the last of the holders does
	for _, g := range fire("before") {
		if g.code == session.Admitted {
			granted++
			if until := g.at.Add(ttl); believes.IsZero() || until.Before(believes) {
				believes = until
			}
		}
	}
	primary.kill()
	for _, g := range fire("after") {
		if g.code == session.Admitted && g.at.Before(believes) {
			overlap++
		}
	}
	require.Equal(t, slots, granted)
	return granted, overlap
}

// What was granted in a burst is lost with the primary, and the replica that is
// promoted knows nothing of it: with quarantine the limit holds all the same.
func TestRedisClusterStaleReplicaInABurst(t *testing.T) {
	atLength(t)
	t.Parallel()
	_, overlap := staleCluster(t, 6*time.Second, 6*time.Second)
	require.Zero(t, overlap, "the limit was exceeded")
}

// The control: without quarantine all slots are given out twice, long before the
// leases from before run out.
func TestRedisClusterStaleReplicaWithoutQuarantine(t *testing.T) {
	atLength(t)
	t.Parallel()
	granted, overlap := staleCluster(t, -1, time.Hour)
	require.Equal(t, granted, overlap, "the limit should have been exceeded")
}
