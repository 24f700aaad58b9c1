package cluster

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A worker takes a while for each write.
type worker struct {
	bytes.Buffer
	takes time.Duration
}

func (w *worker) Write(b []byte) (int, error) {
	time.Sleep(w.takes)
	return w.Buffer.Write(b)
}

// Whoever writes at a pace works for a quarter of the time, whatever a write
// takes, and what is written is what was given.
func TestPace(t *testing.T) {
	for _, takes := range []time.Duration{10 * time.Microsecond, time.Millisecond, 20 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			w := &worker{takes: takes}
			p := &paced{w: w, rest: snapshotRest}
			start := time.Now()
			for range 1000 {
				n, err := p.Write([]byte("abc"))
				require.NoError(t, err)
				require.Equal(t, 3, n)
			}
			require.Equal(t, bytes.Repeat([]byte("abc"), 1000), w.Bytes())
			require.InDelta(t, float64(1000*takes*(1+snapshotRest)), float64(time.Since(start)), float64(paceAfter*(1+snapshotRest)))
		})
	}
}

// A write that hung is no reason to rest for as long again, and the end of the
// node is none to rest at all.
func TestPaceIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ended := make(chan struct{})
		p := &paced{w: &worker{takes: time.Minute}, rest: snapshotRest, ended: ended}
		start := time.Now()
		_, err := p.Write([]byte("a"))
		require.NoError(t, err)
		require.Equal(t, time.Minute+restMost, time.Since(start))
		close(ended)
		_, err = p.Write([]byte("a"))
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute+restMost, time.Since(start))
	})
}

// What is written reaches the disk as it goes, and a disk that refuses it ends
// the snapshot.
func TestPaceSyncs(t *testing.T) {
	synced, full := 0, errors.New("no space left on device")
	p := &paced{w: &bytes.Buffer{}, sync: func() error {
		if synced++; synced > 3 {
			return full
		}
		return nil
	}}
	chunk := make([]byte, syncEvery/4)
	for i := range 16 {
		_, err := p.Write(chunk)
		if i == 15 {
			require.ErrorIs(t, err, full)
			break
		}
		require.NoError(t, err)
		require.Equal(t, (i+1)/4, synced)
	}
}

// A snapshot that somebody reads has all that was acknowledged before; a node that cannot
// tell what that is saves nothing.
func TestANodeThatIsCutOffSavesNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	f := c.follower()
	c.net.isolate(f.Address(), true)
	_, _, err := storage.One(within(t, 20*time.Second), c.leader(f), increment("1"))
	require.NoError(t, err)
	var saved bytes.Buffer
	require.ErrorAs(t, f.Save(within(t, 200*time.Millisecond), &saved), new(*storage.ReadError))
	require.Zero(t, saved.Len())
	c.net.isolate(f.Address(), false)
	require.NoError(t, f.Save(within(t, 20*time.Second), &saved))
	state, err := session.ReadSnapshot(&saved)
	require.NoError(t, err)
	require.NotNil(t, state.Get(session.CounterKey("default", "k")))
}

// The file that is synced is the one that Raft writes.
func TestSnapshotFile(t *testing.T) {
	dir := t.TempDir()
	store, err := raft.NewFileSnapshotStoreWithLogger(dir, 1, hclog.NewNullLogger())
	require.NoError(t, err)
	sink, err := store.Create(raft.SnapshotVersionMax, 1, 1, raft.Configuration{}, 1, nil)
	require.NoError(t, err)
	defer func() { require.NoError(t, sink.Cancel()) }()
	_, err = sink.Write(make([]byte, 1<<20))
	require.NoError(t, err)
	info, err := os.Stat(snapshotFile(filepath.Join(dir, "snapshots"), sink.ID()))
	require.NoError(t, err)
	require.NotZero(t, info.Size())
	require.NoError(t, syncSnapshot(filepath.Join(dir, "snapshots"), sink.ID()))
}
