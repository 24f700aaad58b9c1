package redis

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/sweep"
	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// namespaceOn returns the name of a namespace that lies on a primary, or on any other.
func namespaceOn(t *testing.T, all []*server, primary *server, on bool) string {
	t.Helper()
	for i := range 1000 {
		ns := fmt.Sprint("ns", i)
		if (serves(t, all, "{gov:"+ns+"}") == primary) == on {
			return ns
		}
	}
	require.FailNow(t, "no such name")
	return ""
}

// killed sends a KILL to everything in a namespace, in which there is a session.
func killed(t *testing.T, r *Store, ns, id string) *session.Halt {
	t.Helper()
	one(t, r, &session.PutPolicy{NS: ns, By: session.Maker{Client: "w", Request: "policy" + id}, Name: "p", Digest: session.Digest{1}, Tree: []byte("tree"),
		Limits: session.Limits{MaxTokens: 9, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour, MaxConcurrent: 9, Checkpoint: 9}})
	require.Equal(t, session.Done, one(t, r, &session.Open{NS: ns, Session: id, Agent: "a", Policy: "p", Digest: session.Digest{1}, IdleTTL: time.Hour}).Code)
	one(t, r, &session.Signal{NS: ns, By: session.Maker{Client: "w", Request: "kill" + id}, Target: session.Target{Scope: session.OfAgent, Name: "a"}, Signal: session.Kill})
	found, err := r.Get(t.Context(), session.SignalsKey(ns), storage.Latest)
	require.NoError(t, err)
	return &found.Record.(*session.Signals).Halts[0]
}

// listed returns the names of the records of a kind in a view of a namespace.
func listed(t *testing.T, r *Store, kind byte, ns string) (names []string) {
	t.Helper()
	v, err := r.View(t.Context(), ns, storage.Latest)
	require.NoError(t, err)
	found, err := v.Find(session.Prefix(kind, ns), "", 100, nil)
	require.NoError(t, err)
	for _, e := range found {
		names = append(names, e.Key.Name())
	}
	return names
}

// One namespace of a Redis Cluster is in quarantine, and then its primary is away, which is
// also that of the list of all namespaces: another namespace is listed all the same, and a
// KILL in it closes its sessions, also by a node that has looked at nothing before.
func TestRedisClusterViewOfOneHangsOnNoOther(t *testing.T) {
	t.Parallel()
	all := startCluster(t, "--cluster-node-timeout", "600000") // else nothing is served soon after a primary is away
	r := openCluster(t, all, "one")
	primary := serves(t, all, r.keys.Namespaces())
	bad, good := namespaceOn(t, all, primary, true), namespaceOn(t, all, primary, false)
	for _, ns := range []string{bad, good} {
		one(t, r, set(ns, "k", time.Hour))
	}
	late := openCluster(t, all, "late")
	looked := func(node *Store, id string) {
		t.Helper()
		h := killed(t, r, good, id)
		require.Equal(t, []string{"k"}, listed(t, node, session.KindCounter, good))
		require.Eventually(t, func() bool { return slices.Contains(node.Unswept(t.Context()), session.SignalsKey(good)) }, 30*time.Second, 10*time.Millisecond)
		s := sweep.New(noSweeping{node}, testLog(), prometheus.NewCounter(prometheus.CounterOpts{Name: "killed"}))
		defer s.Close()
		done, err := s.Sweep(t.Context(), good, h)
		require.NoError(t, err)
		require.Equal(t, 1, done.Closed)
		one(t, r, &session.Signal{NS: good, By: session.Maker{Client: "w", Request: "go" + id}, Target: h.Target, Signal: session.Continue})
	}
	d := r.domain(bad)
	require.NoError(t, d.lost(t.Context(), d.current(), "a test"))
	_, err := r.View(t.Context(), bad, storage.Latest)
	require.ErrorContains(t, err, "quarantine")
	looked(r, "quarantine")
	looked(late, "late")

	primary.kill()
	_, err = r.View(t.Context(), bad, storage.Latest)
	require.Error(t, err)
	looked(r, "away")
	late.forgetNamespaces() // as when another data set is found
	require.Equal(t, []string{"k"}, listed(t, late, session.KindCounter, good))
}

// noSweeping is a store at which nobody sweeps but who is asked to.
type noSweeping struct{ storage.Store }

// hurry sets the clock of a namespace ten days forward: those of the others are behind,
// as that of one whose primary was away for long.
func hurry(t *testing.T, all []*server, r *Store, ns string) {
	t.Helper()
	key := r.domain(ns).key("clock")
	primary := serves(t, all, key)
	_, seq, err := wire.ParseClock(primary.do("GET", key))
	require.NoError(t, err)
	primary.do("SET", key, fmt.Sprint(wire.ClockText(240*time.Hour), " ", seq+1000))
	_, err = r.Get(t.Context(), session.CounterKey(ns, "k"), storage.Latest)
	require.NoError(t, err)
	now, _ := r.domain(ns).clock.now()
	require.GreaterOrEqual(t, now, 240*time.Hour)
}

// What a namespace has is seen as of its own time: it has not run out because another
// namespace is further.
func TestRedisClusterViewIsOfItsOwnTime(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, r, set("behind", "k", time.Hour))
	one(t, r, &session.PutPool{NS: "behind", Pool: "p", Slots: 1, By: session.Maker{Client: "w"}})
	one(t, r, &session.Acquire{NS: "behind", Client: "w", Slot: "s", Pool: "p", Weight: 1, TTL: time.Hour})
	h := killed(t, r, "behind", "s")
	one(t, r, set("ahead", "k", time.Hour))
	hurry(t, all, r, "ahead")
	for _, node := range []*Store{r, openCluster(t, all, "two")} {
		for _, ns := range []string{"behind", ""} {
			v, err := node.View(t.Context(), ns, storage.Latest)
			require.NoError(t, err)
			if ns != "" {
				require.Less(t, v.Now, time.Hour)
			}
			found, err := v.Find(session.CounterKey("behind", "k"), "", 9, nil)
			require.NoError(t, err)
			require.Len(t, found, 1)
			found, err = v.Find(session.Prefix(session.KindPool, "behind"), "", 9, nil)
			require.NoError(t, err)
			require.Len(t, found, 1)
			require.Len(t, found[0].Record.(*session.Pool).Leases, 1)
		}
	}
	s := sweep.New(noSweeping{r}, testLog(), prometheus.NewCounter(prometheus.CounterOpts{Name: "killed"}))
	defer s.Close()
	done, err := s.Sweep(t.Context(), "behind", h)
	require.NoError(t, err)
	require.Equal(t, 1, done.Closed)
}

// A snapshot has one time. Who saves one is told whose values are worth less in it, and
// nothing is said where no namespace is behind.
func TestRedisClusterSaveTellsWhoIsBehind(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	var log safeBuffer
	r := openCluster(t, all, "one", func(c *Config) { c.Logger = slog.New(slog.NewTextHandler(&log, nil)) })
	one(t, r, set("behind", "k", time.Hour))
	one(t, r, set("ahead", "k", time.Hour))
	const said = `namespaces=[behind]`
	require.NoError(t, r.Save(t.Context(), io.Discard))
	require.NotContains(t, log.String(), said)
	hurry(t, all, r, "ahead")
	require.NoError(t, r.Save(t.Context(), io.Discard))
	require.Contains(t, log.String(), said)
}

// A safeBuffer is written to and read by many.
type safeBuffer struct {
	mu  sync.Mutex
	all bytes.Buffer
}

func (b *safeBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.Write(p)
}

func (b *safeBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.all.String()
}

// After a restore no namespace is behind another, whether the snapshot has something of it
// or not.
func TestRedisClusterRestoreBringsClocksUp(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	r := openCluster(t, all, "one")
	one(t, r, set("behind", "k", time.Hour))
	one(t, r, set("ahead", "k", time.Hour))
	hurry(t, all, r, "ahead")
	require.NoError(t, r.Restore(t.Context(), bytes.NewReader(snapshotOf(t, "ahead", "k"))))
	key := r.domain("behind").key("clock")
	at, _, err := wire.ParseClock(serves(t, all, key).do("GET", key))
	require.NoError(t, err)
	require.GreaterOrEqual(t, at, 240*time.Hour)
	one(t, r, set("behind", "k", time.Hour))
}

// A view for which changes have to wait holds up those of its namespace alone.
func TestRedisClusterViewHoldsUpNoOther(t *testing.T) {
	t.Parallel()
	all := startCluster(t)
	writer, reader := openCluster(t, all, "writer"), openCluster(t, all, "reader")
	one(t, writer, set("a", "k", time.Hour))
	one(t, writer, set("b", "k", time.Hour))
	index := reader.place("a").Index(session.KindCounter)
	var left atomic.Int32
	looks := 0
	reader.client.AddHook(intruder{Hook: scriptWatch{reader.metrics}, after: index, left: &left, do: func() {
		looks++
		ns := "a"
		if looks > 1+lookTries {
			ns = "b"
		}
		ctx, cancel := context.WithTimeout(context.Background(), frozenFor/2)
		defer cancel()
		if _, _, err := storage.One(ctx, writer, set(ns, fmt.Sprint(looks), time.Hour)); err != nil {
			t.Error(ns, err)
		}
	}})
	left.Store(lookTries + 2)
	require.Len(t, listed(t, reader, session.KindCounter, "a"), 2+lookTries)
	require.EqualValues(t, lookTries+2, looks)
	require.Len(t, listed(t, reader, session.KindCounter, "b"), 2)
}
