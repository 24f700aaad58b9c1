package durable

import (
	"errors"
	"fmt"
	"io/fs"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// What Raft has given it is given back, also an entry that has nothing but data.
func TestAnEntryComesBackAsItWas(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		s := mustOpenLog(t, storeConfig(t, use))
		given := &raft.Log{Index: 1, Term: 1, Data: []byte("x"), AppendedAt: time.Unix(1, 0).UTC()}
		require.NoError(t, s.StoreLog(given))
		var got raft.Log
		require.NoError(t, s.GetLog(1, &got))
		got.AppendedAt = got.AppendedAt.UTC()
		require.Equal(t, given, &got)
		require.NoError(t, s.Close())
	})
}

// A log begins anew behind a hole, however short it was and the hole is.
func TestALogBeginsAnewBehindAHole(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		for before := range uint64(3) {
			for hole := range uint64(3) {
				cfg := storeConfig(t, use)
				s := mustOpenLog(t, cfg)
				for i := range before {
					require.NoError(t, s.StoreLog(entryAt(i+1, 1, 5)))
				}
				next := before + hole + 1
				require.NoError(t, s.StoreLogs([]*raft.Log{entryAt(next, 1, 5), entryAt(next+1, 1, 5)}))
				want := next
				if before > 0 && hole == 0 {
					want = 1
				}
				for range 2 {
					first, err := s.FirstIndex()
					require.NoError(t, err)
					require.Equal(t, want, first, "%d entries, and %d are missing", before, hole)
					last, err := s.LastIndex()
					require.NoError(t, err)
					require.Equal(t, next+1, last)
					require.NoError(t, s.Close())
					s = mustOpenLog(t, cfg)
				}
				require.NoError(t, s.Close())
			}
		}
	})
}

// failing is a log of which no entry can be read.
type failing struct {
	raft.LogStore
	read func() error
}

func (f failing) GetLog(uint64, *raft.Log) error { return f.read() }

// A disk that cannot be read is not one that holds something else than was written:
// what to do about them differs.
func TestWhyAnEntryCannotBeRead(t *testing.T) {
	for what, c := range map[string]struct {
		err     error
		text    string
		damaged bool
	}{
		"there is none":         {raft.ErrLogNotFound, "log not found", false},
		"the disk fails":        {&fs.PathError{Op: "read", Path: "raft.db", Err: errDisk}, "entry 1 in file: read raft.db: input/output error", false},
		"it cannot be made out": {errors.New("no entry"), "entry 1 in file: damaged: no entry", true},
		"it is damaged":         {fmt.Errorf("%w: page 7", ErrDamaged), "entry 1 in file: damaged: page 7", true},
	} {
		s := &sealedLog{failing{read: func() error { return c.err }}, "file", nil}
		err := s.GetLog(1, new(raft.Log))
		require.EqualError(t, err, c.text, what)
		require.ErrorIs(t, err, c.err, what)
		require.Equal(t, c.damaged, errors.Is(err, ErrDamaged), what)
	}
}
