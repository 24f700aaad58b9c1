package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Every node that a test opens has to be gone when it is closed. The timers of
// closed HTTP/2 connections may still fire for as long as a ping waits, and on
// a machine that is busy what ends takes its time: what is there after half a
// minute has leaked. Raft may stop without answering what was just handed to it:
// await turns away from that, and what stands there ends with the process.
func TestMain(m *testing.M) {
	unanswered := goleak.IgnoreTopFunction("github.com/hashicorp/raft.(*deferError).Error")
	code := m.Run()
	if code == 0 {
		leaked := goleak.Find(unanswered)
		for deadline := time.Now().Add(30 * time.Second); leaked != nil && time.Now().Before(deadline); {
			leaked = goleak.Find(unanswered)
		}
		if leaked != nil {
			fmt.Fprintln(os.Stderr, leaked)
			code = 1
		}
	}
	os.Exit(code)
}

func TestMetrics(t *testing.T) {
	r := prometheus.NewRegistry()
	c := newCluster(t, 1, func(cfg *Config) { cfg.Registry = r })
	_, _, err := storage.One(t.Context(), c.nodes[0], increment("r"))
	require.NoError(t, err)
	require.NoError(t, c.nodes[0].raft.Snapshot().Error())
	require.EqualValues(t, 1, count(t, c.nodes[0], storage.Latest))
	families, err := r.Gather()
	require.NoError(t, err)
	values := map[string]float64{}
	for _, f := range families {
		m := f.GetMetric()[0]
		values[f.GetName()] = m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	for _, name := range []string{
		"applied_index", "term", "leader", "entries_applied_total", "commands_applied_total", "entry_commands", "apply_seconds",
		"commit_seconds", "term_rounds_total", "snapshots_total", "snapshot_seconds", "leaderships_total", "log_time_seconds",
	} {
		require.Positive(t, values["gov_raft_"+name], name)
	}
	for _, name := range []string{"proposal_queue", "log_bytes", "forwarded_total", "resent_total", "restores_total", "entries_void_total"} {
		require.Contains(t, values, "gov_raft_"+name)
	}
}

// TestARestoreFromALogThatIsAhead: time goes on from where the snapshot was, or
// nothing would ever run out again.
func TestARestoreFromALogThatIsAhead(t *testing.T) { onEachStore(t, testARestoreFromALogThatIsAhead) }

func testARestoreFromALogThatIsAhead(t *testing.T, use func(*Config)) {
	c := newCluster(t, 3, use)
	ahead := session.New()
	ahead.ApplyAll(1000*time.Hour, []session.Command{&session.PutPool{NS: "default", Pool: "p", Slots: 1}})
	ahead.ApplyAll(1000*time.Hour, []session.Command{&session.Acquire{NS: "default", Client: "c", Slot: "old", Pool: "p", Weight: 1, TTL: time.Hour}})
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, ahead.Snapshot()))
	require.NoError(t, c.follower().Restore(t.Context(), &b))

	// The leader that restored goes on from there, and so do those after it.
	for i, slot := range []string{"first", "second", "third"} {
		short := &session.Acquire{NS: "default", Client: "c", Slot: slot, Pool: "p", Weight: 1, TTL: session.MinTTL}
		r, _, err := storage.One(t.Context(), c.follower(), short)
		require.NoError(t, err)
		require.Equal(t, session.Admitted, r.Code, "no other lease is alive")
		if i > 0 {
			require.NoError(t, c.leader().TransferLeadership(within(t, 10*time.Second), ""))
		}
		for _, n := range c.nodes {
			require.Eventually(t, func() bool {
				f := n.fsm.get(session.PoolKey("default", "p"))
				p, ok := f.Record.(*session.Pool)
				return ok && f.Now > 1000*time.Hour && f.Now < 1001*time.Hour && len(p.Leases) == 0
			}, 10*time.Second, 10*time.Millisecond)
		}
	}
	for _, n := range c.nodes {
		require.Empty(t, n.leftovers(t))
	}
}

func TestWhatARestoreLeftBehindIsRemoved(t *testing.T) {
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "restore-123"), []byte("half"), 0o600))
	newCluster(t, 1, func(c *Config) { c.Dir = dir })
	left, err := filepath.Glob(filepath.Join(dir, restoreFiles))
	require.NoError(t, err)
	require.Empty(t, left)
}

// The only voter of a cluster waits for nobody before it leads.
func TestTheOnlyVoterLeadsAtOnce(t *testing.T) {
	t.Parallel()
	require.True(t, newCluster(t, 1, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout = 10*time.Minute, 10*time.Minute
	}).nodes[0].Leader())
}

// A call without a deadline has the default one, and one with a deadline keeps it.
func TestDeadlines(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{cfg: Config{ApplyTimeout: 3 * time.Second}}
		for ctx, want := range map[context.Context]time.Duration{
			t.Context(): 3 * time.Second, within(t, time.Second): time.Second, within(t, time.Hour): time.Hour,
		} {
			ctx, cancel := n.deadline(ctx)
			at, ok := ctx.Deadline()
			require.True(t, ok)
			require.Equal(t, want, time.Until(at))
			cancel()
			require.ErrorIs(t, ctx.Err(), context.Canceled)
		}
	})
}

// Raft keeps to the configuration of its node, and takes no snapshots by itself.
func TestRaftIsToldWhatTheNodeIs(t *testing.T) {
	cfg, err := Config{
		ID: "n1", Dir: "data", BindAddr: "127.0.0.1:0", TrailingLogs: 7,
		HeartbeatTimeout: 30 * time.Millisecond, ElectionTimeout: 40 * time.Millisecond, LeaderLeaseTimeout: 20 * time.Millisecond, CommitTimeout: 10 * time.Millisecond,
	}.withDefaults()
	require.NoError(t, err)
	notify := make(chan bool)
	c := (&Node{cfg: cfg}).raftConfig(notify)
	require.NoError(t, raft.ValidateConfig(c))
	require.Equal(t, []time.Duration{cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout, cfg.CommitTimeout},
		[]time.Duration{c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout, c.CommitTimeout})
	require.EqualValues(t, cfg.ID, c.LocalID)
	require.Equal(t, cfg.TrailingLogs, c.TrailingLogs)
	require.Equal(t, (chan<- bool)(notify), c.NotifyCh)
	require.Greater(t, c.SnapshotThreshold, uint64(1)<<40)
}

// What is committed, or was applied, stays in the log.
func TestWhatIsKeptOfALog(t *testing.T) {
	leader := newCluster(t, 1, nil).leader()
	n := leader.as(t, "n1", leader.Address())
	n.fsm = newFSM(noFatal(t), newMetrics())
	committed := leader.raft.CommitIndex()
	require.Positive(t, committed)
	require.GreaterOrEqual(t, n.kept(), committed)
	n.fsm.Apply(logEntry(1<<40, 1, 0, increment("r")))
	require.EqualValues(t, 1<<40, n.kept())
	require.EqualValues(t, 1<<40, (&Node{fsm: n.fsm}).kept(), "before Raft has started")
}

// BenchmarkApply measures commands of one kind from many callers at once, as
// one caller of the leader sees them. Its disk is that of the temporary folder.
func BenchmarkApply(b *testing.B) {
	for _, nodes := range []int{1, 3} {
		for _, callers := range []int{1, 64, 256, 1024} {
			for _, store := range []string{LogBoltDB, LogWAL} {
				b.Run(fmt.Sprintf("nodes=%d/callers=%d/log=%s", nodes, callers, store), func(b *testing.B) {
					benchmarkApply(b, openBenchmark(b, nodes, store), callers)
				})
			}
		}
	}
}

func benchmarkApply(b *testing.B, n *Node, callers int) {
	var next atomic.Int64
	var wg sync.WaitGroup
	b.ResetTimer()
	for range callers {
		wg.Go(func() {
			for i := next.Add(1); i <= int64(b.N); i = next.Add(1) {
				if _, _, err := storage.One(b.Context(), n, increment(fmt.Sprint("r", i))); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "commands/s")
}

// openBenchmark opens nodes with the defaults of the product, and returns the
// one that leads.
func openBenchmark(b *testing.B, nodes int, store string) *Node {
	var join []string
	var first *Node
	for i := range nodes {
		n, err := Open(Config{ID: fmt.Sprint("n", i), BindAddr: "127.0.0.1:0", Dir: b.TempDir(), LogStore: store, Bootstrap: i == 0, Join: join, Logger: testLogger()})
		require.NoError(b, err)
		b.Cleanup(func() { require.NoError(b, n.Close()) })
		for n.Ready(b.Context()) != nil {
			time.Sleep(time.Millisecond)
		}
		if first == nil {
			first, join = n, []string{n.cfg.Address}
		}
	}
	require.True(b, first.Leader())
	return first
}

// TestRubbishOnThePort shows that a node takes no harm.
func TestRubbishOnThePort(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	for _, text := range []string{
		"GET / HTTP/1.1\r\n\r\n", "\x00\x00\x00\x00", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\nrubbish that is no frame of anything at all",
		"R\x1a" + n.clusterID() + "\x63rubbish", "R\x1a" + n.clusterID() + "\x00\xdb\xff\xff\xff\xff",
	} {
		conn, err := net.Dial("tcp", n.Address())
		require.NoError(t, err)
		_, err = io.WriteString(conn, text)
		require.NoError(t, err)
		_ = conn.(*net.TCPConn).CloseWrite() // it may be closed by now
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = io.Copy(io.Discard, conn)
		var timeout net.Error
		require.False(t, errors.As(err, &timeout) && timeout.Timeout(), "%q is not closed", text)
	}
	require.NoError(t, n.Ready(t.Context()))
	require.Equal(t, raft.Leader, n.raft.State())
}
