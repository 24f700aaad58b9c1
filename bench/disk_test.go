package bench

import (
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// Only snapshots that are finished while it is measured count, also those that
// are gone by the end, and the share is of the measured time.
func TestDiskMeter(t *testing.T) {
	a, b := t.TempDir(), t.TempDir()
	write := func(size int, path ...string) {
		file := filepath.Join(path...)
		require.NoError(t, os.MkdirAll(filepath.Dir(file), 0o700))
		require.NoError(t, os.WriteFile(file, make([]byte, size), 0o600))
	}
	write(100, a, "raft.db")
	write(20, b, "wal", "1.wal")
	write(3, a, "audit.jsonl")
	write(5000, a, "snapshots", "1-1-1", "state.bin")
	synctest.Test(t, func(t *testing.T) {
		m := WatchDisk([]string{a, b}, Load{Warmup: time.Second, Duration: 4 * time.Second})
		time.Sleep(1500 * time.Millisecond) // of virtual time, as are those below
		write(7000, b, "snapshots", "1-2-2.tmp", "state.bin")
		time.Sleep(time.Second)
		require.NoError(t, os.Rename(filepath.Join(b, "snapshots", "1-2-2.tmp"), filepath.Join(b, "snapshots", "1-2-2")))
		time.Sleep(time.Second)
		require.NoError(t, os.RemoveAll(filepath.Join(b, "snapshots", "1-2-2")))
		time.Sleep(2 * time.Second)
		write(9000, a, "snapshots", "1-3-3", "state.bin")
		synctest.Wait()
		d, err := m.Stop()
		require.NoError(t, err)
		require.InDelta(t, 0.25, d.SnapshotShare, 0.01)
		d.SnapshotShare = 0
		require.Equal(t, &Disk{Log: 120, Audit: 3, Snapshots: 14000, SnapshotsTaken: 1}, d)
	})
	d, err := WatchDisk(nil, Load{}).Stop()
	require.NoError(t, err)
	require.Nil(t, d, "nothing is known of a cluster that was not started here")
}
