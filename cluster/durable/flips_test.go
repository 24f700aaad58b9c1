package durable

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"reflect"
	"strconv"
	"testing"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/require"
	"go.etcd.io/bbolt"
)

// flips is how many bits are flipped, one at a time, in each test: some, or as
// many as GOVNODE_FLIPS says.
func flips(t *testing.T) int {
	n := 20
	if s := os.Getenv("GOVNODE_FLIPS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return n
}

// image copies a directory, without the empty room at the end of its bolt file.
func image(t *testing.T, dir string) string {
	t.Helper()
	to := tempDir(t)
	require.NoError(t, filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		require.NoError(t, err)
		name, err := filepath.Rel(dir, path)
		require.NoError(t, err)
		if d.IsDir() {
			return os.MkdirAll(filepath.Join(to, name), 0o700)
		}
		f, err := os.Open(path)
		require.NoError(t, err)
		defer func() { require.NoError(t, f.Close()) }()
		end := int64(math.MaxInt64)
		if name == votesFile {
			c := boltCheck{file: f}
			_, err := c.metas()
			require.NoError(t, err)
			end = int64(c.high * c.pageSize)
		}
		b, err := io.ReadAll(io.LimitReader(f, end))
		require.NoError(t, err)
		return os.WriteFile(filepath.Join(to, name), b, 0o600)
	}))
	return to
}

// Every part of the files of a log is believed only if it is as it was written:
// with any bit changed the log is refused, or holds all that it held.
func TestEveryRegionOfALog(t *testing.T) { onEachStore(t, testEveryRegionOfALog) }

func testEveryRegionOfALog(t *testing.T, use func(*Options)) {
	m := &logModel{t: t, cfg: storeConfig(t, use), entries: map[uint64]*raft.Log{}, term: 1}
	m.store = mustOpenLog(t, m.cfg)
	for range 12 {
		m.append(0, 3, 30, 100)
	}
	m.deleteTo(5)
	m.deleteFrom(30)
	m.append(0, 10, 700, 10) // one is larger than a page
	for i := range 8 {
		m.append(0, i+1)
	}
	require.NoError(t, m.store.SetUint64(keyTerm, 7))
	require.NoError(t, m.store.Set(keyNode, []byte("n1")))
	require.NoError(t, m.store.Close())

	whole := image(t, m.cfg.Dir)
	files, err := filepath.Glob(filepath.Join(whole, walDir, "*.wal"))
	require.NoError(t, err)
	stride, refused, all := max(1, 4000/flips(t)), 0, 0
	for _, path := range append(files, filepath.Join(whole, votesFile), filepath.Join(whole, waterFile)) {
		good, err := os.ReadFile(path)
		require.NoError(t, err)
		var places []int
		for i := rand.IntN(stride); i < len(good); i += 1 + rand.IntN(stride) {
			places = append(places, i)
		}
		for i := 16 + rand.IntN(3); i < 80 && filepath.Base(path) == votesFile; i += 3 { // its two heads
			places = append(places, i, 4096+i)
		}
		for _, i := range places {
			m.cfg.Dir = tempDir(t)
			require.NoError(t, os.CopyFS(m.cfg.Dir, os.DirFS(whole)))
			bad := bytes.Clone(good)
			bit := rand.IntN(8)
			bad[i] ^= 1 << bit
			name, err := filepath.Rel(whole, path)
			require.NoError(t, err)
			require.NoError(t, os.WriteFile(filepath.Join(m.cfg.Dir, name), bad, 0o600))
			what := fmt.Sprintf("%s, byte %d, bit %d", name, i, bit)
			all++
			m.store, err = Open(*m.cfg)
			if err != nil {
				refused++
				require.ErrorContains(t, err, "damaged", what)
				require.ErrorContains(t, err, "--replace", what)
			} else {
				require.NoError(t, m.holds(), what)
				require.NoError(t, m.store.Close())
			}
			require.NoError(t, os.RemoveAll(m.cfg.Dir))
		}
	}
	t.Logf("%d of %d refused", refused, all)
}

// An entry that is missing is missed, at the end or in the middle.
func TestMissingEntriesAreNoticed(t *testing.T) {
	for missing, text := range map[uint64]string{3: "entry 3 ", 10: "it ends with entry 9, and entry 10 was written"} {
		cfg := storeConfig(t, func(c *Options) { c.LogStore = BoltDB })
		s := mustOpenLog(t, cfg)
		for i := range uint64(10) {
			require.NoError(t, s.StoreLog(entryAt(i+1, 1, 5)))
		}
		require.NoError(t, s.Close())
		bolt, err := openBolt(filepath.Join(cfg.Dir, votesFile))
		require.NoError(t, err)
		require.NoError(t, bolt.DeleteRange(missing, missing))
		require.NoError(t, bolt.Close())
		_, err = Open(*cfg)
		require.ErrorContains(t, err, text)
		require.ErrorContains(t, err, "damaged")
	}
}

// A file of bolt's is refused for what bolt has not written, also where nothing
// else would notice.
func TestAFileThatBoltHasNotWritten(t *testing.T) {
	for what, spoil := range map[string]func(path string){
		"an entry under 0": func(path string) {
			bolt, err := openBolt(path)
			require.NoError(t, err)
			require.NoError(t, bolt.DeleteRange(1, 2))
			require.NoError(t, bolt.StoreLog(sealEntry(entryAt(0, 1, 5))))
			require.NoError(t, bolt.Close())
		},
		"the first head": func(path string) { flipAt(t, path, pageHead+40) },
		"the other head": func(path string) { flipAt(t, path, os.Getpagesize()+pageHead+40) },
	} {
		cfg := storeConfig(t, func(o *Options) { o.LogStore = BoltDB })
		s := mustOpenLog(t, cfg)
		require.NoError(t, s.StoreLogs([]*raft.Log{entryAt(1, 1, 5), entryAt(2, 1, 5)}))
		require.NoError(t, s.Close())
		require.NoError(t, os.Remove(filepath.Join(cfg.Dir, waterFile)))
		spoil(filepath.Join(cfg.Dir, votesFile))
		_, err := Open(*cfg)
		require.ErrorIs(t, err, ErrDamaged, what)
	}
}

// The list of free pages of a file into which nothing was written yet is as bolt
// writes it.
func TestTheFreePagesOfANewFile(t *testing.T) {
	path := filepath.Join(tempDir(t), "new")
	o := boltOptions(path)
	db, err := bbolt.Open(path, 0o600, o.BoltOptions)
	require.NoError(t, err)
	require.NoError(t, db.Close())
	require.NoError(t, checkBolt(path, o.BoltOptions))
	for i := range pageHead {
		page := 2*os.Getpagesize() + i
		flipAt(t, path, page)
		require.ErrorIs(t, checkBolt(path, o.BoltOptions), ErrDamaged, "byte %d", i)
		flipAt(t, path, page)
	}
	require.NoError(t, checkBolt(path, o.BoltOptions))
}

func flipAt(t *testing.T, path string, i int) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	b[i] ^= 1
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// What is read later, for replication or to be applied, is looked at as well.
func TestEntriesAreCheckedWhenTheyAreRead(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		for kind := range raft.LogType(6) {
			cfg := storeConfig(t, use)
			s := mustOpenLog(t, cfg)
			l := entryAt(1, 1, 5)
			l.Type = kind
			require.NoError(t, s.StoreLog(l))
			inner := s.(parts).LogStore.(*sealedLog)
			for what, spoil := range map[string]func(*raft.Log){
				"index": func(l *raft.Log) { l.Index++ }, "term": func(l *raft.Log) { l.Term ^= 2 }, "type": func(l *raft.Log) { l.Type ^= 1 },
				"data": func(l *raft.Log) { l.Data[7] ^= 1 }, "extensions": func(l *raft.Log) { l.Extensions[7] ^= 1 },
				"checksum": func(l *raft.Log) { l.Extensions[8] ^= 1 }, "length": func(l *raft.Log) { l.Extensions = l.Extensions[:3] },
			} {
				damaged := sealEntry(l)
				damaged.Data = bytes.Clone(l.Data)
				spoil(damaged)
				read := &sealedLog{spoiled{inner.LogStore, damaged}, "file", inner.water}
				err := read.GetLog(1, new(raft.Log))
				require.ErrorIs(t, err, ErrDamaged, "%v: %s", kind, what)
				require.ErrorContains(t, err, "entry 1 in file: damaged")
			}
			require.ErrorContains(t, openEntry(2, sealEntry(l)), "it is entry 1", "a sound entry in another's place")
			moved := sealEntry(l)
			moved.Index = 2
			require.ErrorContains(t, openEntry(2, moved), "its checksum is wrong", "an entry that says it is another one")
			require.NoError(t, s.GetLog(1, new(raft.Log)))
			require.NoError(t, s.Close())
		}
	})
}

// spoiled gives back something else than was stored.
type spoiled struct {
	raft.LogStore
	instead *raft.Log
}

func (s spoiled) GetLog(_ uint64, l *raft.Log) error {
	*l = *s.instead
	return nil
}

// holds returns how a store differs from what a log must hold.
func (m *logModel) holds() error {
	first, err := m.store.FirstIndex()
	last, err2 := m.store.LastIndex()
	if err := errors.Join(err, err2); err != nil || first != m.first || last != m.last {
		return fmt.Errorf("it holds %d to %d: %w", first, last, err)
	}
	for i := first; i <= last; i++ {
		var l raft.Log
		if err := m.store.GetLog(i, &l); err != nil {
			return err
		}
		l.AppendedAt = m.entries[i].AppendedAt // which has no checksum
		if !reflect.DeepEqual(m.entries[i], &l) {
			return fmt.Errorf("entry %d is %v", i, l)
		}
	}
	term, err := m.store.GetUint64(keyTerm)
	node, err2 := m.store.Get(keyNode)
	if err := errors.Join(err, err2); err != nil || term != 7 || string(node) != "n1" {
		return fmt.Errorf("term %d, node %s: %w", term, node, err)
	}
	return nil
}

// No bit of a page but those of what it holds, which is sealed, may change.
func TestPagesAreAsTheyAreWritten(t *testing.T) {
	page, key := make([]byte, 64), []byte("\x00\x00\x00\x00\x00\x00\x00\x07")
	page[8], page[10] = leafPage, 1         // one element
	page[20], page[24], page[28] = 16, 8, 3 // behind the head, a key of 8 bytes, a value of 3
	copy(page[32:], string(key)+"abc")      // at once behind the element
	n, used, err := parseNode(page)
	require.NoError(t, err)
	require.Equal(t, 43, used)
	require.Equal(t, []element{{key: key, value: []byte("abc")}}, n.elements)
	for bit := range 32 {
		bad := bytes.Clone(page)
		bad[20+bit/8] ^= 1 << (bit % 8)
		_, _, err := parseNode(bad)
		require.Error(t, err, "position, bit %d", bit)
	}
}

// Whatever of an entry is another, its checksum is: each bit of where it stands, and of
// what is in it, and where the one ends and the other begins.
func TestEverythingIsInTheSeal(t *testing.T) {
	entry := func() *raft.Log {
		return &raft.Log{Index: 0x0102030405060708, Term: 0x1112131415161718, Type: raft.LogCommand, Data: []byte("data"), Extensions: []byte("more")}
	}
	require.EqualValues(t, 0xf36c567a, sumOf(entry()), "as earlier versions have written it")
	sums := map[uint32]string{sumOf(entry()): "the entry"}
	differs := func(what string, change func(l *raft.Log)) {
		l := entry()
		change(l)
		sum := sumOf(l)
		require.NotContains(t, sums, sum, what)
		sums[sum] = what
	}
	for bit := range 64 {
		differs(fmt.Sprintf("bit %d of the index", bit), func(l *raft.Log) { l.Index ^= 1 << bit })
		differs(fmt.Sprintf("bit %d of the term", bit), func(l *raft.Log) { l.Term ^= 1 << bit })
	}
	for bit := range 8 {
		differs(fmt.Sprintf("bit %d of the type", bit), func(l *raft.Log) { l.Type ^= 1 << bit })
	}
	for bit := range 32 {
		differs(fmt.Sprintf("bit %d of the data", bit), func(l *raft.Log) { l.Data[bit/8] ^= 1 << (bit % 8) })
		differs(fmt.Sprintf("bit %d behind them", bit), func(l *raft.Log) { l.Extensions[bit/8] ^= 1 << (bit % 8) })
	}
	for n := range 4 {
		differs(fmt.Sprintf("%d bytes of the data", n), func(l *raft.Log) { l.Data, l.Extensions = l.Data[:n], append(l.Data[n:4:4], l.Extensions...) })
	}
}

// The room that is made for entries is that of all of them, from the first to the last.
func TestRoomForAllEntries(t *testing.T) {
	s := sizes{entries: []int{10, 20, 30}}
	for from, want := range map[uint64]uint32{1: 60 + 3*32, 2: 50 + 2*32, 3: 30 + 32, 4: 0} {
		got, err := sizeOf(s, from)
		require.NoError(t, err)
		require.Equal(t, want, got, from)
	}
}

// sizes are those of the entries of a segment, from 1 on.
type sizes struct {
	types.SegmentWriter
	entries []int
}

func (s sizes) LastIndex() uint64 { return uint64(len(s.entries)) }

func (s sizes) GetLog(i uint64) (*types.PooledBuffer, error) {
	return &types.PooledBuffer{Bs: make([]byte, s.entries[i-1])}, nil
}
