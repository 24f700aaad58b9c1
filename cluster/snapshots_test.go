package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
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
			require.InDelta(t, float64(1000*takes*4), float64(time.Since(start)), float64(8*time.Millisecond))
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
		require.Equal(t, time.Minute+100*time.Millisecond, time.Since(start))
		close(ended)
		_, err = p.Write([]byte("a"))
		require.NoError(t, err)
		require.Equal(t, 2*time.Minute+100*time.Millisecond, time.Since(start))
	})
}

// Work of less than two milliseconds is no reason to rest, and what was rested for does not
// count again.
func TestPaceBeginsWithWork(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &worker{takes: time.Millisecond}
		p := &paced{w: w, rest: snapshotRest}
		start := time.Now()
		for _, ms := range []time.Duration{1, 8, 9, 16} {
			_, err := p.Write(nil)
			require.NoError(t, err)
			require.Equal(t, ms*time.Millisecond, time.Since(start))
		}
		w.takes = 2*time.Millisecond - 1
		_, err := p.Write(nil)
		require.NoError(t, err)
		require.Equal(t, 18*time.Millisecond-1, time.Since(start))
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
	chunk := make([]byte, 2<<20)
	for i := range 16 {
		_, err := p.Write(chunk)
		if i == 15 {
			require.ErrorIs(t, err, full)
			break
		}
		require.NoError(t, err)
		require.Equal(t, (i+1)/4, synced)
	}

	synced = 0
	p = &paced{w: io.Discard, sync: func() error { synced++; return nil }}
	for i, n := range []int{8<<20 - 1, 1, 8<<20 - 1, 1} {
		_, err := p.Write(make([]byte, n))
		require.NoError(t, err)
		require.Equal(t, (i+1)/2, synced, "after each 8 MiB, to the byte")
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
	require.NoError(t, syncSnapshot(filepath.Join(dir, "snapshots"), "another"), "which is in no file")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "file"), nil, 0o600))
	require.ErrorIs(t, syncSnapshot(filepath.Join(dir, "file"), sink.ID()), syscall.ENOTDIR)
}

// The leader waits for every other voter, until that has said that it has less log to write
// down than half of what makes a snapshot due; for nobody else, and not for itself.
func TestWhomTheLeaderWaitsFor(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	require.NoError(t, c.nodes[0].AddNode(within(t, 20*time.Second), "n9", "127.0.0.1:1", true))
	for _, id := range []string{"n2", "n3"} {
		c.add(id, nil).waitReady(t)
	}
	for _, n := range c.nodes {
		ids := []string{"n1", "n2", "n3"}
		others := slices.DeleteFunc(slices.Clone(ids), func(id string) bool { return id == n.cfg.ID })
		for name, x := range map[string]struct {
			said map[string]uint64
			done bool
		}{
			"nobody was heard of": {nil, false},
			"one was not":         {map[string]uint64{others[0]: 0}, false},
			"nor the other":       {map[string]uint64{others[1]: 0}, false},
			"half":                {map[string]uint64{others[0]: 50, others[1]: 50}, true},
			"more than half":      {map[string]uint64{others[0]: 50, others[1]: 51}, false},
			"more, the other":     {map[string]uint64{others[0]: 51, others[1]: 50}, false},
			"itself":              {map[string]uint64{others[0]: 0, others[1]: 0, n.cfg.ID: 1000}, true},
			"one without a vote":  {map[string]uint64{others[0]: 0, others[1]: 0, "n9": 1000}, true},
		} {
			leader := &Node{cfg: n.Node.cfg, raft: n.raft, members: newMembers(n.cfg.ID, session.Version, silentAfter)}
			leader.cfg.SnapshotBytes = 100
			for id, logged := range x.said {
				leader.members.note(id, said{at: time.Now(), logged: logged})
			}
			require.Equal(t, x.done, leader.followersDone(), "%s: %s", n.cfg.ID, name)
		}
	}
}

// A leader whose snapshot is due writes it behind those of its followers, and says nothing
// of it.
func TestALeaderWritesItsSnapshotLast(t *testing.T) {
	t.Parallel()
	log := newAlarms()
	c := newCluster(t, 2, func(cfg *Config) {
		cfg.Logger, cfg.HelloInterval, cfg.SnapshotBytes = slog.New(log), 100*time.Millisecond, 4<<10
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 3*time.Second
		if !cfg.Bootstrap {
			cfg.SnapshotBytes = 1 << 40 // it writes one when it is told to
		}
	})
	leader, f := c.leader(), c.nodes[1]
	require.Equal(t, c.nodes[0], leader)
	grow := func(key string, to int64) {
		for i := 0; leader.fsm.logged.since() < to; i++ {
			_, _, err := storage.One(within(t, 20*time.Second), leader, &session.Set{NS: "n", By: session.Maker{Client: "c"}, Key: fmt.Sprint(key, i), Value: session.Value{Text: strings.Repeat("x", 200)}})
			require.NoError(t, err)
		}
	}
	grow("some", 3<<10)
	require.Eventually(t, func() bool {
		s, _ := leader.members.of(f.cfg.ID)
		return s.logged > 2<<10
	}, 20*time.Second, time.Millisecond)
	grow("more", 4<<10)
	written := func() bool {
		l, err := leader.disk.snapshots.List()
		return err == nil && len(l) > 0
	}
	require.Never(t, written, 2*snapshotCheck+100*time.Millisecond, 10*time.Millisecond)
	require.NoError(t, await(f.raft.Snapshot(), f.dead))
	require.Eventually(t, written, 20*time.Second, time.Millisecond)
	for _, line := range log.text() {
		require.NotContains(t, line, "snapshot")
	}
}
