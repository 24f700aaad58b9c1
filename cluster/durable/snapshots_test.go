package durable

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// An older snapshot does not stand for the newest one, which cannot be read, where the
// log does not reach as far: what the node has said to hold would be forgotten.
func TestOlderSnapshotInThePlaceOfTheNewest(t *testing.T) {
	for name, test := range map[string]struct {
		log     uint64 // goes so far
		damaged bool
		refused bool
	}{
		"both are there":             {10, false, false},
		"the log ends before":        {10, true, true},
		"the log ends with it":       {50, true, false},
		"the log goes on behind it":  {60, true, false},
		"there is no log any more":   {0, true, true},
		"there is none, and no need": {0, false, false},
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
			for _, index := range []uint64{5, 50} {
				sink, err := s.Create(raft.SnapshotVersionMax, index, 1, raft.Configuration{}, 1, nil)
				require.NoError(t, err)
				_, err = sink.Write([]byte("state"))
				require.NoError(t, err)
				newest = sink.ID()
				require.NoError(t, sink.Close())
			}
			if test.damaged {
				require.NoError(t, os.WriteFile(filepath.Join(dir, "snapshots", newest, "meta.json"), []byte("{"), 0o600))
			}
			_, err = open()
			if test.refused {
				require.ErrorIs(t, err, ErrDamaged)
				require.ErrorContains(t, err, "the snapshot at index 50 is missing")
				return
			}
			require.NoError(t, err)
		})
	}
}
