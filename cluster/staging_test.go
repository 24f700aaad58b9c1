package cluster

import (
	"bytes"
	"errors"
	"io"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// A restore is in several entries, and none of it is seen before the last one.

// entriesOf returns the entries of a restore of a state whose counter k is n, in
// as many pieces.
func entriesOf(t *testing.T, id, term uint64, at time.Duration, n, pieces int) []*raft.Log {
	t.Helper()
	s := session.New()
	for i := range n {
		s.ApplyAll(time.Second, []session.Command{increment(string(rune('a' + i)))})
	}
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, s.Snapshot()))
	var d digest
	var out []*raft.Log
	add := func(kind byte, body []byte) {
		e := &restoreEntry{kind: kind, at: at, id: id, place: uint64(len(out)), body: body}
		d = d.with(e)
		l := e.log(term)
		l.Term = term
		out = append(out, &l)
	}
	add(restoreBegin, make([]byte, 12))
	require.NoError(t, session.ReadChunks(&b, func(time.Duration, uint32) error { return nil }, func(chunk []byte) error {
		for i := range pieces {
			body := append([]byte{0}, chunk[i*len(chunk)/pieces:(i+1)*len(chunk)/pieces]...)
			if i == pieces-1 {
				body[0] = 1
			}
			add(restorePiece, body)
		}
		return nil
	}))
	all := d
	add(restoreEnd, all[:])
	return out
}

// A restore is done by its last entry and by nothing before it, if nothing has
// voided it.
func TestARestoreIsDoneByItsLastEntry(t *testing.T) {
	const term = 4
	whole := func(t *testing.T) []*raft.Log { return entriesOf(t, 1, term, time.Minute, 2, 3) }
	insert := func(l []*raft.Log, at int, more ...*raft.Log) []*raft.Log {
		return append(append(append([]*raft.Log(nil), l[:at]...), more...), l[at:]...)
	}
	for name, tt := range map[string]struct {
		log  func(t *testing.T) []*raft.Log
		want int64 // the counter at the end; it begins with 5
	}{
		"whole":              {whole, 2},
		"no end":             {func(t *testing.T) []*raft.Log { return whole(t)[:4] }, 5},
		"no begin":           {func(t *testing.T) []*raft.Log { return whole(t)[1:] }, 5},
		"a piece is missing": {func(t *testing.T) []*raft.Log { l := whole(t); return append(l[:2:2], l[3:]...) }, 5},
		"pieces change places": {func(t *testing.T) []*raft.Log {
			l := whole(t)
			l[1], l[2] = l[2], l[1]
			return l
		}, 5},
		"a piece of another": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 2, entriesOf(t, 2, term, time.Minute, 4, 3)[1])
		}, 2},
		"another begins": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 2, entriesOf(t, 2, term, time.Minute, 4, 3)...)
		}, 4},
		"another digest": {func(t *testing.T) []*raft.Log {
			l := whole(t)
			l[4] = entriesOf(t, 1, term, time.Minute, 4, 3)[4]
			return l
		}, 5},
		"given up": {func(t *testing.T) []*raft.Log {
			a := (&restoreEntry{kind: restoreAbandon, at: time.Minute, id: 1, place: 9}).log(term)
			a.Term = term
			return insert(whole(t), 3, &a)
		}, 5},
		"given up in its place": {func(t *testing.T) []*raft.Log {
			a := (&restoreEntry{kind: restoreAbandon, at: time.Minute, id: 1, place: 3}).log(term)
			a.Term = term
			return insert(whole(t), 3, &a)
		}, 5},
		"commands between": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 3, logEntry(0, term, time.Minute, increment("between")))
		}, 2},
		"a command of a later term between": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 3, logEntry(0, term+1, time.Minute, increment("between")))
		}, 6},
		"a later leadership": {func(t *testing.T) []*raft.Log {
			l := whole(t)
			for _, e := range l[3:] {
				e.Term = term + 1 // as it would be if it were proposed again
			}
			return l
		}, 5},
		"no progress": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 3, logEntry(0, term, time.Minute+restoreRest+1, increment("between")))
		}, 6},
		"slow": {func(t *testing.T) []*raft.Log {
			return insert(whole(t), 3, logEntry(0, term, time.Minute+restoreRest, increment("between")))
		}, 2},
		"slow from piece to piece": {func(t *testing.T) []*raft.Log {
			l := whole(t)
			for i, old := range l {
				e, err := readRestoreEntry(old)
				require.NoError(t, err)
				e.at += time.Duration(i) * restoreRest
				later := e.log(term)
				later.Term = term
				l[i] = &later
			}
			return l
		}, 2},
		"too slow from piece to piece": {func(t *testing.T) []*raft.Log {
			l := whole(t)
			for i, old := range l {
				e, err := readRestoreEntry(old)
				require.NoError(t, err)
				e.at += time.Duration(i) * (restoreRest + 1)
				later := e.log(term)
				later.Term = term
				l[i] = &later
			}
			return l
		}, 5},
		"twice": {func(t *testing.T) []*raft.Log { return append(whole(t), whole(t)...) }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			f := newFSM(noFatal(t), newMetrics())
			index := uint64(0)
			apply := func(l *raft.Log) any {
				index++
				l.Index = index
				return f.Apply(l)
			}
			for _, r := range []string{"1", "2", "3", "4", "5"} {
				apply(logEntry(0, term, time.Second, increment(r)))
			}
			generation := f.state.Generation()
			for _, l := range tt.log(t) {
				before, since := counterOf(f), f.logged.since()
				answer := apply(l)
				require.Equal(t, index, f.applied())
				require.Equal(t, since+int64(len(l.Data)), f.logged.since())
				switch _, done := answer.(*restored); {
				case done:
					require.Greater(t, f.state.Generation(), generation)
					require.GreaterOrEqual(t, f.now(), time.Minute)
					generation = f.state.Generation()
					_, err := f.Snapshot()
					require.NoError(t, err)
				case isRestore(l):
					require.Equal(t, before, counterOf(f), "nothing of it is seen before")
					_, err := f.Snapshot()
					require.Equal(t, f.staging != nil, err != nil)
				}
			}
			require.Equal(t, tt.want, counterOf(f))
		})
	}
}

// Whoever is sent a snapshot from before a restore, and the log behind it, comes
// to the same state as those who were there; also after another leader began.
func TestAReplicaThatComesInTheMiddleOfARestore(t *testing.T) {
	f := newFSM(noFatal(t), newMetrics())
	f.Apply(logEntry(1, 4, time.Second, increment("1")))
	taken, err := f.Snapshot()
	require.NoError(t, err)
	var before sink
	require.NoError(t, taken.Persist(&before))
	log := entriesOf(t, 1, 4, time.Minute, 3, 3)
	for i, l := range log {
		l.Index = uint64(i + 2)
	}
	g := newFSM(noFatal(t), newMetrics())
	for _, l := range log[:3] {
		f.Apply(l)
	}
	// It had part of another restore, of which the others know nothing.
	for i, l := range entriesOf(t, 1, 4, time.Minute, 5, 3)[:3] {
		l.Index = uint64(i + 1)
		g.Apply(l)
	}
	require.NoError(t, g.Restore(io.NopCloser(&before.Buffer)))
	_, err = g.Snapshot()
	require.NoError(t, err, "nothing of it is left")
	for _, l := range log[:3] {
		g.Apply(l)
	}
	for _, l := range log[3:] {
		f.Apply(l)
		g.Apply(l)
	}
	var a, b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&a, f.state.Snapshot()))
	require.NoError(t, session.WriteSnapshot(&b, g.state.Snapshot()))
	require.EqualValues(t, 3, counterOf(f))
	require.Equal(t, a.Bytes(), b.Bytes())
	require.Equal(t, f.applied(), g.applied())
}

// A bit that flips in an entry of a restore stops the node.
func TestADamagedEntryOfARestoreStopsTheNode(t *testing.T) {
	for kind, l := range entriesOf(t, 1, 4, time.Minute, 3, 1) {
		for _, flip := range []func(*raft.Log){
			func(l *raft.Log) { l.Data[0] ^= 1 }, func(l *raft.Log) { l.Data[len(l.Data)-5] ^= 0x80 },
			func(l *raft.Log) { l.Data = l.Data[:len(l.Data)-1] }, func(l *raft.Log) { l.Data = nil },
			func(l *raft.Log) { l.Extensions[8] ^= 1 },
		} {
			bad := *l
			bad.Data, bad.Extensions = bytes.Clone(l.Data), bytes.Clone(l.Extensions)
			flip(&bad)
			var stopped error
			f := newFSM(func(err error) { stopped = err }, newMetrics())
			require.Equal(t, errStopped, f.Apply(&bad), kind)
			require.ErrorIs(t, stopped, session.ErrDamaged, kind)
		}
	}
}

// An entry of a restore is as long as its kind asks for, or it was damaged, and with all
// that a piece may carry it is no longer than others; a kind that is not known is one of
// another build.
func TestTheLengthOfAnEntryOfARestore(t *testing.T) {
	for _, x := range []struct {
		kind byte
		body int
		good bool
	}{
		{restoreBegin, 11, false}, {restoreBegin, 12, true}, {restoreBegin, 13, false},
		{restorePiece, 0, false}, {restorePiece, 1, true}, {restorePiece, 1 + restoreData, true},
		{restoreEnd, 31, false}, {restoreEnd, 32, true}, {restoreEnd, 33, false},
		{restoreAbandon, 0, true}, {restoreAbandon, 1, false},
	} {
		l := (&restoreEntry{kind: x.kind, body: make([]byte, x.body)}).log(1)
		require.Less(t, len(l.Data), 256<<10)
		_, err := readRestoreEntry(&l)
		require.Equal(t, !x.good, errors.Is(err, session.ErrDamaged), "%c with %d bytes: %v", x.kind, x.body, err)
		require.Equal(t, x.good, err == nil)
	}
	l := (&restoreEntry{kind: 'X'}).log(1)
	_, err := readRestoreEntry(&l)
	require.ErrorIs(t, err, session.ErrUnknownKind)
	require.NotErrorIs(t, err, session.ErrDamaged)
}

// The digest of a restore is that of all its entries, in their order.
func TestTheDigestOfARestore(t *testing.T) {
	of := map[digest]string{}
	for _, entries := range []string{"", "Pa", "Pb", "Ba", "PaPb", "PbPa", "PbPb", "BaPb", "PaPaPb"} {
		var d digest
		for i := 0; i < len(entries); i += 2 { // a kind and a body
			d = d.with(&restoreEntry{kind: entries[i], body: []byte{entries[i+1]}})
		}
		require.NotContains(t, of, d, entries)
		of[d] = entries
	}
}
