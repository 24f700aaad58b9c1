package durable

import (
	"bytes"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// restored is what Raft does with snapshots at its start: it takes the newest that it
// can open. The error is that of the oldest.
func restored(s *Snapshots, err error) error {
	if err != nil {
		return err
	}
	all, err := s.List()
	for _, m := range all {
		var r io.ReadCloser
		if _, r, err = s.Open(m.ID); err == nil {
			return r.Close()
		}
	}
	return err
}

// An older snapshot does not stand for the newest one, which cannot be read, where the
// log does not reach as far: what the node has said to hold would be forgotten.
func TestOlderSnapshotInThePlaceOfTheNewest(t *testing.T) {
	for name, test := range map[string]struct {
		log     uint64 // goes so far
		damaged string // file of the newest
		refused bool
	}{
		"both are there":                     {10, "", false},
		"the log ends before":                {10, "meta.json", true},
		"the log ends with it":               {50, "meta.json", false},
		"the log goes on behind it":          {60, "meta.json", false},
		"there is no log any more":           {0, "meta.json", true},
		"there is none, and no need":         {0, "", false},
		"the log ends before a state":        {10, "state.bin", true},
		"the log ends with a state":          {50, "state.bin", false},
		"the log goes on behind a state":     {60, "state.bin", false},
		"there is no log, and no state":      {0, "state.bin", true},
		"the log ends before another index":  {10, "index", true},
		"the log goes on behind another one": {60, "index", false},
		"the log goes on, and all are away":  {60, "all", true},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			store, err := Open(Options{Dir: dir, LogStore: BoltDB, Logger: hclog.NewNullLogger()})
			require.NoError(t, err)
			defer store.Close()
			for i := uint64(1); i <= test.log; i++ {
				require.NoError(t, store.StoreLog(&raft.Log{Index: i, Term: 1, Data: []byte("x")}))
			}
			open := func() (*Snapshots, error) { return OpenSnapshots(dir, 2, store, hclog.NewNullLogger()) }
			s, err := open()
			require.NoError(t, err)
			newest := ""
			for _, index := range []uint64{1, 50} {
				sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
				require.NoError(t, err)
				_, err = sink.Write([]byte("state"))
				require.NoError(t, err)
				newest = sink.ID()
				require.NoError(t, sink.Close())
			}
			switch meta := filepath.Join(dir, "snapshots", newest, "meta.json"); test.damaged {
			case "index":
				b, err := os.ReadFile(meta)
				require.NoError(t, err)
				require.Contains(t, string(b), `"Index":50`)
				require.NoError(t, os.WriteFile(meta, bytes.Replace(b, []byte(`"Index":50`), []byte(`"Index":70`), 1), 0o600))
			case "":
			case "all":
				require.NoError(t, os.RemoveAll(filepath.Join(dir, "snapshots")))
			default:
				require.NoError(t, os.WriteFile(filepath.Join(dir, "snapshots", newest, test.damaged), []byte("{"), 0o600))
			}
			err = restored(open())
			if test.refused {
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, "the snapshot at index 50 is missing or damaged")
				require.ErrorContains(t, err, "--replace")
				return
			}
			require.NoError(t, err)
		})
	}
}

// What a node had begun to write when it was killed does not stay for ever.
func TestSnapshotsThatWereCutShort(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "a[b]c") // which is no pattern
	require.NoError(t, os.Mkdir(dir, 0o700))
	store, err := Open(Options{Dir: dir, LogStore: BoltDB, Logger: hclog.NewNullLogger()})
	require.NoError(t, err)
	defer store.Close()
	s, err := OpenSnapshots(dir, 2, store, hclog.NewNullLogger())
	require.NoError(t, err)
	for _, whole := range []bool{true, false} {
		sink, err := s.Create(raft.SnapshotVersionMax, 5, 1, raft.Configuration{}, 1, nil)
		require.NoError(t, err)
		if whole {
			require.NoError(t, sink.Close())
		}
	}
	s, err = OpenSnapshots(dir, 2, store, hclog.NewNullLogger())
	require.NoError(t, err)
	left, err := os.ReadDir(filepath.Join(dir, "snapshots"))
	require.NoError(t, err)
	require.Len(t, left, 1)
	require.NoError(t, restored(s, nil))
}

// What was written is read again, and nothing of what stands beside it.
func TestASnapshotIsReadAsItWasWritten(t *testing.T) {
	dir := tempDir(t)
	store := mustOpenLog(t, &Options{Dir: dir, LogStore: BoltDB, Logger: hclog.NewNullLogger()})
	defer store.Close()
	s, err := OpenSnapshots(dir, 2, store, hclog.NewNullLogger())
	require.NoError(t, err)
	members := raft.Configuration{Servers: []raft.Server{{ID: "n1", Address: "one:1"}}}
	_, others := raft.NewInmemTransport("one:1")
	sink, err := s.Create(raft.SnapshotVersionMax, 7, 3, members, 2, others)
	require.NoError(t, err)
	_, err = io.WriteString(sink, "state")
	require.NoError(t, err)
	require.NoError(t, sink.Close())
	m, r, err := s.Open(sink.ID())
	require.NoError(t, err)
	state, err := io.ReadAll(r)
	require.NoError(t, err)
	require.NoError(t, r.Close())
	require.Equal(t, "state", string(state))
	require.EqualValues(t, len(state), m.Size)
	require.Equal(t, raft.SnapshotMeta{
		Version: raft.SnapshotVersionMax, ID: sink.ID(), Index: 7, Term: 3, Configuration: members, ConfigurationIndex: 2,
		Size: m.Size, Peers: m.Peers,
	}, *m)
}
