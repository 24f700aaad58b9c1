package bench

import (
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/config"
)

// Every combination of what is listed is a system of its own, under a name that
// tells it from the others.
func TestBenchSystems(t *testing.T) {
	o := &benchOptions{
		nodes: []int{1, 3}, transport: []string{"exchange", "unary"}, logStore: []string{"boltdb", "wal"}, snapshots: []string{snapshotsNone, snapshotsRaft},
		scenario: []string{bench.Apart, bench.HotPool}, slots: []int{100, 1000}, fill: []int{1000, 1_000_000},
	}
	b := &benchRun{options: o}
	all, err := b.systems()
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, s := range all {
		require.False(t, seen[s.name], s.name)
		seen[s.name] = true
	}
	require.Len(t, seen, 128)
	require.Equal(t, "govnode, 1 node, no snapshot, 100 slots, 1,000 sessions", all[0].name)
	require.Equal(t, "govnode, 3 nodes, wal, unary, during snapshots, hot-pool, 1,000 slots, 1,000,000 sessions", all[127].name)
	require.Equal(t, []any{bench.HotPool, 1000, 1_000_000}, []any{all[127].scenario, all[127].slots, all[127].fill})

	o = &benchOptions{nodes: []int{3}, transport: []string{"exchange"}, scenario: []string{bench.Apart}, callers: 9}
	all, err = (&benchRun{options: o}).systems()
	require.NoError(t, err)
	require.Len(t, all, 1)
	require.Equal(t, "govnode, 3 nodes", all[0].name, "what is not asked for is not in the name")
}

func TestBenchLoads(t *testing.T) {
	o := &benchOptions{callers: 5, sweep: []int{1, 8}, after: []int64{0, 100}, churners: 64}
	require.Equal(t, []bench.Load{{Callers: 1}, {Callers: 8}, {Callers: 1, After: 100}, {Callers: 8, After: 100}}, o.loads())
	require.Equal(t, 64, o.plan("n", benchSystem{}).Callers)
	o.rate, o.after = 10, nil
	require.Equal(t, []bench.Load{{Callers: 5, Rate: 1}, {Callers: 5, Rate: 8}}, o.loads())
	require.Equal(t, 5, o.plan("n", benchSystem{}).Callers)
}

// The settings of a cluster that dev has no flag for reach its nodes.
func TestBenchSnapshotSettings(t *testing.T) {
	for snapshots, want := range map[string]string{
		snapshotsRaft: "--raft-snapshot-bytes=65536", snapshotsNone: "--raft-snapshot-bytes=1099511627776", snapshotsSave: "--raft-snapshot-bytes=1099511627776",
	} {
		c, err := benchCluster{nodes: 1, snapshots: snapshots}.settings("folder")
		require.NoError(t, err)
		require.Contains(t, c.Args(config.OnServe), want)
	}
	c, err := benchCluster{nodes: 1}.settings("folder")
	require.NoError(t, err)
	for _, arg := range c.Args(config.OnServe) {
		require.NotContains(t, arg, "snapshot")
	}
	require.Contains(t, c.Args(config.OnServe), "--log-store=boltdb")
}
