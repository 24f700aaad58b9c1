package redis

import (
	"bytes"
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// startCluster starts a Redis Cluster of three primaries.
func startCluster(t *testing.T, args ...string) []*server {
	var all []*server
	for range primaries {
		all = append(all, startRedis(t, append([]string{"--cluster-enabled", "yes"}, args...)...))
	}
	joinCluster(t, all)
	return all
}

// startClusterWithReplicas starts one of three primaries with a replica each, which
// is promoted soon after its primary has died.
func startClusterWithReplicas(t *testing.T) []*server {
	var all []*server
	for range 2 * primaries {
		all = append(all, startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "2000", "--cluster-replica-validity-factor", "0"))
	}
	joinCluster(t, all)
	return all
}

// primaries is how many a Redis Cluster of the tests has.
const primaries = 3

func openCluster(t *testing.T, all []*server, name string, change ...func(*Config)) *Store {
	cfg := Config{Node: name, Logger: testLog()}
	for _, s := range all {
		cfg.Cluster = append(cfg.Cluster, s.addr())
	}
	for _, f := range change {
		f(&cfg)
	}
	r, err := Open(t.Context(), cfg)
	require.NoError(t, err)
	t.Cleanup(func() { r.Close() })
	return r
}

func TestRedisClusterLastSlot(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	f := &fleet{t: t}
	for i := range 3 {
		f.nodes = append(f.nodes, openCluster(t, all, fmt.Sprint("n", i)))
	}
	f.fire(rounds(30, 300), 24, nil)

	// Namespaces lie in slots of their own, and each is whole.
	var cmds []session.Command
	for i := range 30 {
		cmds = append(cmds, &session.Increment{NS: fmt.Sprint("ns", i%10), Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: fmt.Sprint(i)}})
	}
	for i, a := range f.nodes[0].Apply(t.Context(), cmds...) {
		require.NoError(t, a.Err)
		require.EqualValues(t, i/10+1, a.Result.Value)
	}
	v, err := f.nodes[1].View(t.Context(), "", storage.Latest)
	require.NoError(t, err)
	found, err := v.Find("k", "", 100, nil)
	require.NoError(t, err)
	require.Len(t, found, 10)
}

// A snapshot has one time for all namespaces, each of which has a clock of its own: what
// one has that was begun much later has not run out there, nor in a view.
func TestRedisClusterNamespaceBegunLater(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, r, set("old", "k", time.Hour))
	old := r.domain("old")
	primary := serves(t, all, old.key("clock"))
	_, seq, err := wire.ParseClock(primary.do("GET", old.key("clock")))
	require.NoError(t, err)
	primary.do("SET", old.key("clock"), fmt.Sprint(wire.ClockText(240*time.Hour), " ", seq+1000)) // ten days later

	two := openCluster(t, all, "two") // which has not looked at any yet
	one(t, two, set("new", "k", time.Hour))
	for _, node := range []*Store{two, r} {
		for _, ns := range []string{"new", ""} {
			v, err := node.View(t.Context(), ns, storage.Latest)
			require.NoError(t, err)
			found, err := v.Find(session.CounterKey("new", ""), "", 9, nil)
			require.NoError(t, err)
			require.Len(t, found, 1)
		}
	}
	var snapshot bytes.Buffer
	require.NoError(t, two.Save(t.Context(), &snapshot))
	require.NoError(t, two.Restore(t.Context(), &snapshot))
	found, err := two.Get(t.Context(), session.CounterKey("new", "k"), storage.Latest)
	require.NoError(t, err)
	require.NotNil(t, found.Record)
}

// A primary of the cluster dies and its replica is promoted: the namespaces in
// its slots are in quarantine, and served again after it. Time stands still until
// the quarantine was seen.
func TestRedisClusterFailover(t *testing.T) {
	t.Parallel()
	all := startClusterWithReplicas(t)
	const quarantine = 3 * time.Second
	at := clockAt(time.Minute)
	r := openCluster(t, all, "one", func(c *Config) { c.Quarantine, c.logTime = quarantine, at.now })
	f := &fleet{t: t, nodes: []*Store{r}}
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "put"}})
	serves(t, all, "{gov:"+testNS+"}").kill()
	notReady(t, r, "quarantine for another")
	acquire := &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "one", Weight: 1, TTL: time.Minute}
	_, _, err := storage.One(t.Context(), r, acquire)
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	require.ErrorContains(t, err, "quarantine for another")
	at.pass(quarantine)
	// The replica may have had nothing of the pool.
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, By: session.Maker{Client: "t", Request: "again"}})
	res := f.must(0, acquire)
	require.Equal(t, session.Admitted, res.Code)
	require.Positive(t, res.Grants[0].Token>>40, "a new generation of tokens")
	ready(t, r)
}

// joinCluster makes a Redis Cluster of servers, of which the first are primaries and
// each of the others, if there are, is a replica of one, in step.
func joinCluster(t *testing.T, all []*server) {
	t.Helper()
	const slots = 16384
	for i, s := range all {
		s.do("CLUSTER", "SET-CONFIG-EPOCH", i+1)
		if i < primaries {
			add := []any{"CLUSTER", "ADDSLOTS"}
			for slot := i * slots / primaries; slot < (i+1)*slots/primaries; slot++ {
				add = append(add, slot)
			}
			s.do(add...)
		}
		for _, other := range all[:i] {
			s.do("CLUSTER", "MEET", "127.0.0.1", other.port)
		}
	}
	for i, s := range all[primaries:] {
		of := all[i].do("CLUSTER", "MYID")
		require.Eventually(t, func() bool {
			return s.client.Do(context.Background(), "CLUSTER", "REPLICATE", of).Err() == nil
		}, time.Minute, 10*time.Millisecond, "a replica does not come to know its primary")
	}
	for i, s := range all {
		require.Eventually(t, func() bool {
			info := parseInfo(s.client.ClusterInfo(context.Background()).Val(), s.client.Info(context.Background(), "replication").Val())
			inStep := len(all) == primaries || info["connected_slaves"] == "1"
			if i >= primaries {
				inStep = info["master_link_status"] == "up"
			}
			return inStep && info["cluster_state"] == "ok" && info["cluster_slots_ok"] == fmt.Sprint(slots) && info["cluster_known_nodes"] == fmt.Sprint(len(all))
		}, time.Minute, 10*time.Millisecond, "the Redis Cluster does not find together")
	}
}

// serves returns the running server that is the primary for a key, nil
// while there is none.
func serves(t *testing.T, all []*server, key string) *server {
	t.Helper()
	for _, s := range all {
		if s.cmd == nil {
			continue
		}
		slot := s.do("CLUSTER", "KEYSLOT", key).(int64)
		for _, r := range s.do("CLUSTER", "SLOTS").([]any) {
			first, last, primary := r.([]any)[0].(int64), r.([]any)[1].(int64), r.([]any)[2].([]any)
			for _, x := range all {
				if first <= slot && slot <= last && x.cmd != nil && primary[1] == int64(x.port) {
					return x
				}
			}
		}
	}
	return nil
}

// A node that nobody has asked for anything yet finds the primary that was
// promoted for the list of namespaces as well, and is ready again by itself.
func TestRedisClusterFailoverOfAnIdleNode(t *testing.T) {
	t.Parallel()
	all := startClusterWithReplicas(t)
	r := openCluster(t, all, "idle")
	require.NoError(t, r.Ready(t.Context()))
	lists := serves(t, all, r.keys.Namespaces())
	lists.kill()
	require.Error(t, r.Ready(t.Context()))
	require.Eventually(t, func() bool {
		s := serves(t, all, r.keys.Namespaces())
		return s != nil && s != lists
	}, time.Minute, 20*time.Millisecond, "no replica is promoted")
	ready(t, r)
}

// The list of all namespaces lies on one primary, and what it lists on all: a replica that
// was behind is promoted, and names are gone from it. What nobody remembers is found
// all the same: by who asks for it by its name, in a snapshot, and soon in every list.
func TestRedisClusterListOfNamespacesIsLost(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	first := openCluster(t, all, "first")
	lists := serves(t, all, first.keys.Namespaces())
	names := []string{"a", "b", "c", "d_E-1"}
	for _, ns := range names {
		one(t, first, set(ns, "k", time.Hour))
	}
	require.NoError(t, first.Close())
	lose := func() { lists.do("SREM", first.keys.Namespaces(), "b", "c", "d_E-1") }

	asked := openCluster(t, all, "asked")
	require.Eventually(t, func() bool {
		asked.seen.mu.Lock()
		defer asked.seen.mu.Unlock()
		return asked.seen.names == len(names)
	}, 30*time.Second, 10*time.Millisecond, "it has seen to it at its start, and does not so soon again")
	lose()
	found, err := asked.Get(t.Context(), session.CounterKey("b", "k"), storage.Latest)
	require.NoError(t, err)
	require.NotNil(t, found.Record, "who may do what in it would be read likewise")
	found, err = asked.Get(t.Context(), session.CounterKey("unknown", "k"), storage.Latest)
	require.NoError(t, err)
	require.Nil(t, found.Record)
	require.Nil(t, asked.domainOf("unknown"), "nothing is kept of it")

	var saved bytes.Buffer
	require.NoError(t, asked.Save(t.Context(), &saved))
	state, err := session.ReadSnapshot(&saved)
	require.NoError(t, err)
	for _, ns := range names {
		require.NotNil(t, state.Stored(session.CounterKey(ns, "k")), ns)
	}

	lose()
	late := openCluster(t, all, "late")
	require.Eventually(t, func() bool {
		v, err := late.View(t.Context(), "", storage.Latest)
		require.NoError(t, err)
		found, err := v.Find("k", "", 100, nil)
		require.NoError(t, err)
		return len(found) == len(names)
	}, 30*time.Second, 10*time.Millisecond, "a node that starts looks for what the list lacks")

	lose()
	late.seeListed(t.Context())
	require.ElementsMatch(t, names, lists.do("SMEMBERS", late.keys.Namespaces()), "it has become shorter")
	lists.kill()
	lists.start()
	require.Eventually(t, func() bool {
		return lists.client.SRem(t.Context(), late.keys.Namespaces(), "c").Err() == nil
	}, time.Minute, 10*time.Millisecond, "the Redis Cluster does not find together")
	lists.do("SADD", late.keys.Namespaces(), "another")
	require.Eventually(t, func() bool {
		late.seeListed(t.Context())
		return lists.client.SIsMember(t.Context(), late.keys.Namespaces(), "c").Val()
	}, time.Minute, 10*time.Millisecond, "it is as long as it was, of a Redis that was started again")

	one(t, late, set("younger", "k", time.Hour)) // of which the one that restores has not heard
	lists.do("SREM", late.keys.Namespaces(), "younger")
	require.NoError(t, asked.Restore(t.Context(), bytes.NewReader(snapshotOf(t, "a", "restored"))))
	found, err = asked.Get(t.Context(), session.CounterKey("younger", "k"), storage.Latest)
	require.NoError(t, err)
	require.Nil(t, found.Record, "it is replaced as well")
}
