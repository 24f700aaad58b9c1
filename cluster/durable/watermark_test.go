package durable

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A cutter looks, before and after each change of a log store and of its mark, at
// what a power cut would leave: a store has flushed what it has done, and of the
// file of the mark each state since its last flush may be on the disk.
type cutter struct {
	t     *testing.T
	cfg   *Options
	log   *sealedLog // with the store itself in it
	sets  uint64     // of the values that the store has
	may   [][]byte   // states of the file
	busy  bool       // the store is at work: it is as before, or as afterwards
	looks int
}

func cut(t *testing.T, cfg *Options, s Store) *cutter {
	p := s.(parts)
	log, v := p.LogStore.(*sealedLog), p.StableStore.(*values)
	whole := *log
	c := &cutter{t: t, cfg: cfg, log: &whole, sets: v.now.Sets, may: [][]byte{readWater(t, cfg.Dir)}}
	log.LogStore, v.store, log.water.file = cutLog{log.LogStore, c}, cutValues{v.store, c}, &cutFile{log.water.file.(*os.File), c}
	return c
}

func readWater(t *testing.T, dir string) []byte {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, waterFile))
	require.NoError(t, err)
	return b
}

// look opens what a power cut would leave.
func (c *cutter) look(when string) {
	c.t.Helper()
	first, err := c.log.FirstIndex()
	require.NoError(c.t, err)
	last, err := c.log.LastIndex()
	require.NoError(c.t, err)
	cfg := *c.cfg
	cfg.Dir = image(c.t, c.cfg.Dir)
	for i, water := range c.may { // a store that is only opened changes nothing
		require.NoError(c.t, os.WriteFile(filepath.Join(cfg.Dir, waterFile), water, 0o600))
		s, err := Open(cfg)
		require.NoError(c.t, err, "%s, with state %d of the mark, %+v", when, i, decodeMark(water))
		begin, err := s.FirstIndex()
		require.NoError(c.t, err)
		end, err := s.LastIndex()
		require.NoError(c.t, err)
		require.True(c.t, c.busy || begin == first && end == last, "%s it held %d to %d, and holds %d to %d", when, first, last, begin, end)
		require.Equal(c.t, c.sets, s.(parts).StableStore.(*values).now.Sets, when)
		require.NoError(c.t, s.Close())
		c.looks++
	}
	require.NoError(c.t, os.RemoveAll(cfg.Dir))
}

type cutLog struct {
	raft.LogStore
	c *cutter
}

func (l cutLog) StoreLogs(logs []*raft.Log) error {
	return l.c.around("entries were stored", func() error { return l.LogStore.StoreLogs(logs) })
}

func (l cutLog) DeleteRange(from, to uint64) error {
	return l.c.around("entries were removed", func() error { return l.LogStore.DeleteRange(from, to) })
}

func (c *cutter) around(what string, f func() error) error {
	c.t.Helper()
	c.look("before " + what)
	c.busy = true
	err := f()
	c.busy = false
	c.look("after " + what)
	return err
}

type cutValues struct {
	raft.StableStore
	c *cutter
}

func (v cutValues) Set(k, b []byte) error {
	err := v.StableStore.Set(k, b)
	v.c.sets++
	return err
}

func (v cutValues) Close() error { return nil }

type cutFile struct {
	*os.File
	c *cutter
}

func (f *cutFile) WriteAt(b []byte, at int64) (int, error) {
	n, err := f.File.WriteAt(b, at)
	f.c.may = append(f.c.may, readWater(f.c.t, f.c.cfg.Dir))
	if len(f.c.may) > 3 { // the first, and the last two
		f.c.may = append(f.c.may[:1], f.c.may[2:]...)
	}
	f.c.look("after the mark was written")
	return n, err
}

func (f *cutFile) Sync() error {
	f.c.may = [][]byte{readWater(f.c.t, f.c.cfg.Dir)}
	return f.File.Sync()
}

// Whenever the power is cut, the node starts again with all that was flushed: the
// mark never says more, however much older or newer it is than the rest.
func TestPowerCuts(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		for seed := range uint64(4) {
			random := rand.New(rand.NewPCG(seed, 0))
			m := &logModel{t: t, cfg: storeConfig(t, use), entries: map[uint64]*raft.Log{}, term: 1}
			m.cfg.Segment = 64 << 10 // one file: others are made on the side
			m.store = mustOpenLog(t, m.cfg)
			c := cut(t, m.cfg, m.store)
			for step := range 30 {
				switch kind := random.IntN(8); {
				case kind < 3 || m.first == 0:
					m.append(0, 5, 5, 5)
				case kind == 3:
					m.append(1+random.Uint64N(3), 5) // behind a snapshot
				case kind == 4:
					m.deleteTo(m.first + random.Uint64N(m.last-m.first+1))
				case kind == 5 && m.last > m.first:
					m.deleteFrom(m.first + 1 + random.Uint64N(m.last-m.first))
				case kind == 6: // all of it
					require.NoError(t, m.store.DeleteRange(m.first, m.last))
					m.first, m.last = 0, 0
				default:
					require.NoError(t, m.store.SetUint64(keyTerm, uint64(step)))
				}
				m.check(fmt.Sprintf("seed %d, step %d", seed, step))
			}
			require.NoError(t, m.store.Close())
			require.Greater(t, c.looks, 40)
		}
	})
}

// A mark that was written in part, or changed since, or is not there, says
// nothing; the log is as it was.
func TestAMarkThatCannotBeRead(t *testing.T) {
	cfg := storeConfig(t, func(c *Options) { c.LogStore = BoltDB })
	s := mustOpenLog(t, cfg)
	require.NoError(t, s.StoreLogs([]*raft.Log{entryAt(1, 1, 5), entryAt(2, 1, 5)}))
	require.NoError(t, s.Close())
	path := filepath.Join(cfg.Dir, waterFile)
	good := readWater(t, cfg.Dir)
	require.Equal(t, mark{last: 2, sum: sumOf(entryAt(2, 1, 5)), sets: 1}, decodeMark(good))
	bad := [][]byte{append(bytes.Clone(good), 0), bytes.Repeat([]byte{0xff}, markLen), make([]byte, markLen)}
	for i := range good {
		flipped := bytes.Clone(good)
		flipped[i] ^= 1 << (i % 8)
		torn := append(bytes.Clone(good[:i]), make([]byte, markLen-i)...)
		bad = append(bad, flipped, good[:i])
		if !bytes.Equal(torn, good) {
			bad = append(bad, torn)
		}
	}
	for _, b := range bad {
		require.Equal(t, mark{}, decodeMark(b), "%x", b)
	}
	for _, b := range append(bad[:6:6], nil) {
		require.NoError(t, os.WriteFile(path, b, 0o600))
		if b == nil {
			require.NoError(t, os.Remove(path))
		}
		s := mustOpenLog(t, cfg)
		last, err := s.LastIndex()
		require.NoError(t, err)
		require.EqualValues(t, 2, last)
		require.NoError(t, s.SetUint64(keyTerm, 1))
		require.NoError(t, s.Close())
		require.Zero(t, decodeMark(readWater(t, cfg.Dir)).last, "what was read is not known to be flushed")
		require.EqualValues(t, len(readWater(t, cfg.Dir)), markLen)
	}
}

// older makes the head that bolt wrote before the last one the only one: with
// sound checksums, and without what was written last.
func older(t *testing.T, dir string) {
	t.Helper()
	path := filepath.Join(dir, votesFile)
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	size := int(binary.LittleEndian.Uint32(b[pageHead+8:]))
	written := func(i int) uint64 { return binary.LittleEndian.Uint64(b[i*size+pageHead+48:]) }
	from, to := 0, 1
	if written(1) < written(0) {
		from, to = 1, 0
	}
	copy(b[to*size+pageHead:(to+1)*size], b[from*size+pageHead:(from+1)*size])
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// What is sound and was replaced since is not taken for the present: an earlier
// log, an earlier vote, a log with other entries.
func TestWhatIsOlderIsNoticed(t *testing.T) {
	put := func(cfg *Options, name string, b []byte) {
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, name), b, 0o600))
	}
	get := func(cfg *Options, name string) []byte {
		b, err := os.ReadFile(filepath.Join(cfg.Dir, name))
		require.NoError(t, err)
		return b
	}
	for what, c := range map[string]struct {
		use    string
		change func(s Store) error // the last that is done
		spoil  func(cfg *Options, before []byte)
		text   string
	}{
		"the last entry": {BoltDB,
			func(s Store) error { return s.StoreLog(entryAt(10, 1, 5)) },
			func(cfg *Options, _ []byte) { older(t, cfg.Dir) },
			"it ends with entry 9, and entry 10 was written"},
		"the last vote": {BoltDB,
			func(s Store) error { return s.SetUint64(keyTerm, 8) },
			func(cfg *Options, _ []byte) { older(t, cfg.Dir) },
			`"govnode/values" was set 3 times, and is what it was after 2`},
		"the last vote beside a write-ahead log": {WAL,
			func(s Store) error { return s.SetUint64(keyTerm, 8) },
			func(cfg *Options, _ []byte) { older(t, cfg.Dir) },
			`"govnode/values" was set 4 times, and is what it was after 3`},
		"entries of another leader": {BoltDB,
			func(s Store) error { return replaceEnd(s, 8) },
			func(cfg *Options, before []byte) { put(cfg, votesFile, before) },
			"entry 8 in "},
		"a whole file": {BoltDB,
			func(s Store) error { return s.StoreLog(entryAt(10, 1, 5)) },
			func(cfg *Options, _ []byte) { put(cfg, votesFile, nil) },
			`"govnode/values" was set 2 times, and is what it was after 0`},
		"the mark of another log": {BoltDB,
			func(s Store) error { return nil },
			func(cfg *Options, _ []byte) { put(cfg, waterFile, mark{last: 9, sum: 1, sets: 1}.encode()) },
			"another one was written"},
		"the mark of a longer log": {BoltDB,
			func(s Store) error { return nil },
			func(cfg *Options, _ []byte) { put(cfg, waterFile, mark{last: 12, sum: 1, sets: 1}.encode()) },
			"it ends with entry 9, and entry 12 was written"},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := storeConfig(t, func(cfg *Options) { cfg.LogStore = c.use })
			s := mustOpenLog(t, cfg)
			for i := range uint64(9) {
				require.NoError(t, s.StoreLog(entryAt(i+1, 1, 5)))
			}
			require.NoError(t, s.SetUint64(keyTerm, 7))
			before := get(cfg, votesFile)
			require.NoError(t, c.change(s))
			require.NoError(t, s.Close())
			c.spoil(cfg, before)
			_, err := Open(*cfg)
			require.ErrorContains(t, err, c.text)
			require.ErrorContains(t, err, "damaged")
			require.ErrorContains(t, err, "--replace")

			// Nothing else would have noticed.
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, waterFile)))
			require.NoError(t, mustOpenLog(t, cfg).Close())
		})
	}
}

// replaceEnd has a log end with other entries, and one less.
func replaceEnd(s Store, last uint64) error {
	if err := s.DeleteRange(last-1, last+1); err != nil {
		return err
	}
	return s.StoreLogs([]*raft.Log{entryAt(last-1, 2, 5), entryAt(last, 2, 5)})
}
