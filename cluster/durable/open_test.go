package durable

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	walfs "github.com/hashicorp/raft-wal/fs"
	"github.com/hashicorp/raft-wal/metrics"
	"github.com/hashicorp/raft-wal/segment"
	"github.com/hashicorp/raft-wal/types"
	"github.com/stretchr/testify/require"
)

// What a node keeps beside its log, among others.
var (
	keyTerm = []byte("CurrentTerm")
	keyNode = []byte("govnode/node")
)

// onEachStore runs a test with each of what may keep the log.
func onEachStore(t *testing.T, test func(t *testing.T, use func(*Options))) {
	for _, store := range []string{BoltDB, WAL} {
		t.Run(store, func(t *testing.T) {
			t.Parallel()
			test(t, func(o *Options) { o.LogStore = store })
		})
	}
}

// tempDir is in memory where the system has such a place: no test here pulls
// the plug, and flushing to a disk that others use takes most of the time.
func tempDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "durable-*")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() { require.NoError(t, os.RemoveAll(dir)) })
	return dir
}

func storeConfig(t *testing.T, use func(*Options)) *Options {
	t.Helper()
	cfg := Options{Dir: tempDir(t), Logger: hclog.NewNullLogger(), Segment: 4 << 10, Metrics: &metrics.NoOpCollector{}}
	use(&cfg)
	return &cfg
}

func mustOpenLog(t *testing.T, cfg *Options) Store {
	t.Helper()
	s, err := Open(*cfg)
	require.NoError(t, err)
	return s
}

// entryAt is an entry that tells where and when it was written.
func entryAt(index, term uint64, size int) *raft.Log {
	return &raft.Log{
		Index: index, Term: term, Type: raft.LogType(index % 6), Extensions: binary.BigEndian.AppendUint64(nil, term),
		Data:       bytes.Repeat([]byte(fmt.Sprintf("%d/%d;", index, term)), size),
		AppendedAt: time.Unix(int64(index), 0).UTC(),
	}
}

// A logModel is what a log must hold.
type logModel struct {
	t       *testing.T
	cfg     *Options
	store   Store
	entries map[uint64]*raft.Log
	first   uint64 // of those that follow each other up to last; 0 if there is none
	last    uint64
	term    uint64
}

func (m *logModel) append(skip uint64, sizes ...int) {
	m.t.Helper()
	var batch []*raft.Log
	for i, size := range sizes {
		l := entryAt(m.last+skip+uint64(i)+1, m.term, size)
		batch = append(batch, l)
		m.entries[l.Index] = l
	}
	require.NoError(m.t, m.store.StoreLogs(batch))
	if m.first == 0 || skip > 0 {
		m.first = batch[0].Index
	}
	m.last = batch[len(batch)-1].Index
}

// deleteTo removes the entries up to an index, which are those that a snapshot
// stands for; deleteFrom those from an index on, which another leader replaces.
func (m *logModel) deleteTo(i uint64) {
	m.t.Helper()
	from, err := m.store.FirstIndex()
	require.NoError(m.t, err)
	require.NoError(m.t, m.store.DeleteRange(from, i))
	if m.first = i + 1; i == m.last {
		m.first, m.last = 0, 0
	}
}

func (m *logModel) deleteFrom(i uint64) {
	m.t.Helper()
	require.NoError(m.t, m.store.DeleteRange(i, m.last))
	m.last = i - 1
	m.term++
}

// crash goes on with what the disk holds, as after a kill.
func (m *logModel) crash() {
	m.t.Helper()
	left := image(m.t, m.cfg.Dir)
	require.NoError(m.t, m.store.Close())
	m.cfg.Dir = left
	m.store = mustOpenLog(m.t, m.cfg)
}

func (m *logModel) check(what string) {
	m.t.Helper()
	first, err := m.store.FirstIndex()
	require.NoError(m.t, err)
	require.Equal(m.t, m.first, first, what)
	last, err := m.store.LastIndex()
	require.NoError(m.t, err)
	require.Equal(m.t, m.last, last, what)
	for i := m.first; i > 0 && i <= m.last; i++ {
		var got raft.Log
		require.NoError(m.t, m.store.GetLog(i, &got), "%s: entry %d", what, i)
		got.AppendedAt = got.AppendedAt.UTC()
		require.Equal(m.t, m.entries[i], &got, "%s: entry %d", what, i)
	}
	require.ErrorIs(m.t, m.store.GetLog(m.last+1, new(raft.Log)), raft.ErrLogNotFound, "Raft compares this error")
}

// What was appended is there, unchanged, until it is deleted, whatever order
// things come in, and also after the process has ended or was killed.
func TestALogKeepsWhatItWasGiven(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		for seed := range uint64(4) {
			random := rand.New(rand.NewPCG(seed, 0))
			m := &logModel{t: t, cfg: storeConfig(t, use), entries: map[uint64]*raft.Log{}, term: 1}
			m.store = mustOpenLog(t, m.cfg)
			for step := range 150 {
				what := fmt.Sprintf("seed %d, step %d", seed, step)
				between := func() uint64 { return m.first + random.Uint64N(m.last-m.first+1) }
				switch kind := random.IntN(16); {
				case kind < 9 || m.first == 0:
					skip := uint64(0)
					if kind == 0 && m.last > 0 {
						skip = 1 + random.Uint64N(50) // behind a snapshot
					}
					sizes := make([]int, 1+random.IntN(5))
					for i := range sizes {
						sizes[i] = 1 + random.IntN(200)
					}
					m.append(skip, sizes...)
				case kind < 11:
					m.deleteTo(between())
				case kind < 13 && m.last > m.first:
					m.deleteFrom(m.first + 1 + random.Uint64N(m.last-m.first))
				case kind < 15:
					require.NoError(t, m.store.Close())
					m.store = mustOpenLog(t, m.cfg)
				default:
					m.crash()
				}
				m.check(what)
			}
			require.NoError(t, m.store.Close())
		}
	})
}

// Votes and identity outlive the process, whatever keeps the log.
func TestVotesAreKept(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		cfg := storeConfig(t, use)
		s := mustOpenLog(t, cfg)
		_, err := s.GetUint64(keyTerm)
		require.EqualError(t, err, "not found", "Raft compares the text")
		require.NoError(t, s.SetUint64(keyTerm, 7))
		require.NoError(t, s.Set(keyNode, []byte("n1")))
		require.NoError(t, s.Close())
		s = mustOpenLog(t, cfg)
		term, err := s.GetUint64(keyTerm)
		require.NoError(t, err)
		require.EqualValues(t, 7, term)
		require.NoError(t, s.Close())
	})
}

// raft-wal makes what is missing anew, and deletes what belonged to it.
func TestALostLogIsNotMadeAnew(t *testing.T) {
	forget := func(t *testing.T, cfg *Options) {
		votes := valuesOf(t, cfg.Dir)
		delete(votes.now.Values, string(keyWAL))
		require.NoError(t, votes.Set([]byte("other"), nil))
		closeValues(t, votes)
	}
	for what, lose := range map[string]func(t *testing.T, cfg *Options){
		"which files it has": forget,
		"that, and the files": func(t *testing.T, cfg *Options) {
			forget(t, cfg)
			require.NoError(t, os.RemoveAll(filepath.Join(cfg.Dir, walDir)))
		},
		"all but the files": func(t *testing.T, cfg *Options) {
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, votesFile)))
			require.NoError(t, os.Remove(filepath.Join(cfg.Dir, waterFile)))
		},
	} {
		t.Run(what, func(t *testing.T) {
			cfg := storeConfig(t, func(c *Options) { c.LogStore = WAL })
			s := mustOpenLog(t, cfg)
			require.NoError(t, s.StoreLog(entryAt(1, 1, 1)))
			require.NoError(t, s.Close())
			lose(t, cfg)
			before, err := FilesIn(filepath.Join(cfg.Dir, walDir), "*.wal")
			require.NoError(t, err)
			_, err = Open(*cfg)
			require.ErrorContains(t, err, "is damaged")
			after, err := FilesIn(filepath.Join(cfg.Dir, walDir), "*.wal")
			require.NoError(t, err)
			require.Equal(t, before, after, "what is left stays for whoever looks into it")
		})
	}
}

// Closing a store closes all that it is made of.
func TestAStoreIsClosedAsAWhole(t *testing.T) {
	onEachStore(t, func(t *testing.T, use func(*Options)) {
		s := mustOpenLog(t, storeConfig(t, use))
		require.NoError(t, s.StoreLog(entryAt(1, 1, 1)))
		require.NoError(t, s.Close())
		_, err := s.LastIndex()
		require.Error(t, err, "the log")
		require.Error(t, s.SetUint64(keyTerm, 1), "the votes")
		require.ErrorIs(t, s.(parts).StableStore.(*values).water.Close(), os.ErrClosed, "the mark")
	})
}

// What a node keeps is for nobody else to read.
func TestALogIsItsOwnersAlone(t *testing.T) {
	cfg := storeConfig(t, func(c *Options) { c.LogStore = WAL })
	require.NoError(t, mustOpenLog(t, cfg).Close())
	for _, name := range []string{votesFile, waterFile, walDir} {
		info, err := os.Stat(filepath.Join(cfg.Dir, name))
		require.NoError(t, err)
		require.Zero(t, info.Mode().Perm()&0o077, name)
	}
}

// valuesOf opens the values of a directory alone.
func valuesOf(t *testing.T, dir string) *values {
	t.Helper()
	bolt, err := openBolt(filepath.Join(dir, votesFile))
	require.NoError(t, err)
	water, err := openWatermark(filepath.Join(dir, waterFile))
	require.NoError(t, err)
	v, err := openValues(bolt, water)
	require.NoError(t, err)
	return v
}

func closeValues(t *testing.T, v *values) {
	t.Helper()
	require.NoError(t, errors.Join(v.water.Close(), v.store.(io.Closer).Close()))
}

// fillTail appends to the last file of a log that is closed until the file is
// full, as a process does that ends before it has noted that it is. It returns
// the last index and the path of the file.
func fillTail(t *testing.T, cfg *Options, size int) (uint64, string) {
	t.Helper()
	dir := filepath.Join(cfg.Dir, walDir)
	votes := valuesOf(t, cfg.Dir)
	state, err := walFiles{votes}.Load(dir)
	require.NoError(t, err)
	closeValues(t, votes)
	info := state.Segments[len(state.Segments)-1]
	tail, err := segment.NewFiler(dir, walfs.New()).RecoverTail(info)
	require.NoError(t, err)
	for {
		i := tail.LastIndex() + 1
		var b bytes.Buffer
		require.NoError(t, new(wal.BinaryCodec).Encode(sealEntry(entryAt(i, 1, size)), &b))
		require.NoError(t, tail.Append([]types.LogEntry{{Index: i, Data: b.Bytes()}}))
		full, _, err := tail.Sealed()
		require.NoError(t, err)
		if full {
			require.NoError(t, tail.Close())
			return i, filepath.Join(dir, segment.FileName(info))
		}
	}
}

// A process may end, or be killed in the middle of a write, when a file of the
// log is full and that is not noted yet. The log goes on all the same.
func TestALogWhoseFileWasFullGoesOn(t *testing.T) {
	for name, torn := range map[string]bool{"whole": false, "torn": true} {
		for _, head := range []uint64{0, 2} {
			t.Run(fmt.Sprint(name, head), func(t *testing.T) {
				cfg := storeConfig(t, func(c *Options) { c.LogStore = WAL })
				s := mustOpenLog(t, cfg)
				for i := range uint64(4) {
					require.NoError(t, s.StoreLog(entryAt(i+1, 1, 50)))
				}
				require.NoError(t, s.DeleteRange(1, head))
				require.NoError(t, s.Close())
				last, path := fillTail(t, cfg, 50)
				if torn {
					tearLast(t, path, last)
					last-- // it was never acknowledged
				}
				for range 2 { // the second time, there is nothing to mend
					s = mustOpenLog(t, cfg)
					first, err := s.FirstIndex()
					require.NoError(t, err)
					require.Equal(t, head+1, first)
					for i := first; i <= last; i++ {
						var l raft.Log
						require.NoError(t, s.GetLog(i, &l))
						require.Equal(t, entryAt(i, 1, 50).Data, l.Data)
					}
					end, err := s.LastIndex()
					require.NoError(t, err)
					require.Equal(t, last, end)
					for range 30 { // into the next file
						last++
						require.NoError(t, s.StoreLog(entryAt(last, 1, 50)))
					}
					require.NoError(t, s.Close())
				}
			})
		}
	}
}

// A full file is copied before it is given up: whoever is stopped in between finds
// it as it was, and copies it anew. It is more than is copied at once.
func TestAFullFileStaysUntilItIsCopied(t *testing.T) {
	cfg := storeConfig(t, func(c *Options) { c.LogStore, c.Segment = WAL, 2<<20 })
	s := mustOpenLog(t, cfg)
	require.NoError(t, s.StoreLog(entryAt(1, 1, 50)))
	require.NoError(t, s.Close())
	const size = 60000
	last, path := fillTail(t, cfg, size)
	before, err := os.ReadFile(path)
	require.NoError(t, err)
	dir := filepath.Join(cfg.Dir, walDir)
	votes := valuesOf(t, cfg.Dir)
	for range 2 {
		require.ErrorIs(t, mendTail(dir, unnoted{walFiles{votes}}), errDisk)
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		require.True(t, bytes.Equal(before, after))
	}
	closeValues(t, votes)

	s = mustOpenLog(t, cfg)
	require.NoFileExists(t, path)
	for i := uint64(2); i <= last; i++ {
		var l raft.Log
		require.NoError(t, s.GetLog(i, &l))
		require.True(t, bytes.Equal(entryAt(i, 1, size).Data, l.Data), i)
	}
	for range 2 { // into other files
		last++
		require.NoError(t, s.StoreLog(entryAt(last, 1, 500_000)))
	}
	state, err := walFiles{s.(parts).StableStore.(*values)}.Load(dir)
	require.NoError(t, err)
	ids := map[uint64]bool{}
	for _, f := range state.Segments {
		require.Less(t, f.ID, state.NextSegmentID)
		require.False(t, ids[f.ID], "two files have one number")
		ids[f.ID] = true
	}
	require.NoError(t, s.Close())
}

// unnoted is where nobody gets to note which files a log consists of.
type unnoted struct{ types.MetaStore }

func (unnoted) CommitState(types.PersistentState) error { return errDisk }

// tearLast cuts the last batch that was written to a file short, in the middle of
// its entry.
func tearLast(t *testing.T, path string, index uint64) {
	t.Helper()
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	i := strings.LastIndex(string(b), fmt.Sprintf("%d/1;", index))
	require.Positive(t, i)
	clear(b[i:])
	require.NoError(t, os.WriteFile(path, b, 0o600))
}

// A batch may begin in the last bytes of a sector. If nothing but those was
// written, its end is missing, however much they look like an end themselves.
func TestABatchOfWhichTheFirstFrameWasWritten(t *testing.T) {
	for size := 10; ; size++ {
		require.Less(t, size, 200, "no batch ended where it was to end")
		cfg := storeConfig(t, func(c *Options) { c.LogStore, c.Segment = WAL, 64<<10 })
		s := mustOpenLog(t, cfg)
		require.NoError(t, s.StoreLog(entryAt(1, 1, size)))
		files, err := filepath.Glob(filepath.Join(cfg.Dir, walDir, "*.wal"))
		require.NoError(t, err)
		b, err := os.ReadFile(files[0])
		require.NoError(t, err)
		end := (len(bytes.TrimRight(b, "\x00")) + walFrame - 1) / walFrame * walFrame
		if end%walSector != walSector-walFrame {
			require.NoError(t, s.Close())
			continue
		}
		one, err := os.ReadFile(filepath.Join(cfg.Dir, waterFile))
		require.NoError(t, err)
		require.NoError(t, s.StoreLogs([]*raft.Log{entryAt(2, 1, 2000), entryAt(3, 1, 10)}))
		require.NoError(t, s.Close())
		b, err = os.ReadFile(files[0])
		require.NoError(t, err)
		require.EqualValues(t, walEntry, b[end])
		clear(b[end+walFrame:])
		require.NoError(t, os.WriteFile(files[0], b, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, waterFile), one, 0o600))
		s = mustOpenLog(t, cfg)
		last, err := s.LastIndex()
		require.NoError(t, err)
		require.EqualValues(t, 1, last)
		require.NoError(t, s.Close())
		return
	}
}

// What was cut short is dropped: a batch of which a sector, or the end, was never
// written, and which is not known to be. What was written and has changed since is damage, also in the last
// batch.
func TestWhatWasCutShort(t *testing.T) {
	cfg := storeConfig(t, func(c *Options) { c.LogStore, c.Segment = WAL, 64<<10 })
	s := mustOpenLog(t, cfg)
	for i := range uint64(4) {
		require.NoError(t, s.StoreLog(entryAt(i+1, 1, 1000)))
	}
	require.NoError(t, s.Close())
	files, err := filepath.Glob(filepath.Join(cfg.Dir, walDir, "*.wal"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	good, err := os.ReadFile(files[0])
	require.NoError(t, err)
	whole, err := os.ReadFile(filepath.Join(cfg.Dir, waterFile))
	require.NoError(t, err)
	end := len(bytes.TrimRight(good, "\x00"))
	batch := end - 2000 // within the last one
	for what, c := range map[string]struct {
		spoil func(b []byte)
		last  uint64 // 0: damage
	}{
		"whole":                    {func([]byte) {}, 4},
		"a bit beside the commit":  {func(b []byte) { b[(end-1)/8*8+1] ^= 1 }, 0},
		"another bit beside it":    {func(b []byte) { b[(end-1)/8*8+2] ^= 1 }, 0},
		"a third bit beside it":    {func(b []byte) { b[(end-1)/8*8+3] ^= 1 }, 0},
		"a sector is missing":      {func(b []byte) { clear(b[batch/512*512 : batch/512*512+512]) }, 3},
		"the end is missing":       {func(b []byte) { clear(b[batch:]) }, 3},
		"the commit is missing":    {func(b []byte) { clear(b[(end-1)/8*8:]) }, 3},
		"a bit of an entry":        {func(b []byte) { b[batch] ^= 4 }, 0},
		"a bit of the commit":      {func(b []byte) { b[(end-1)/8*8] ^= 2 }, 0},
		"a bit of the checksum":    {func(b []byte) { b[(end-1)/8*8+4] ^= 2 }, 0},
		"a bit of an earlier one":  {func(b []byte) { b[batch-2500] ^= 4 }, 0},
		"a sector of an earlier":   {func(b []byte) { clear(b[1024:1536]) }, 0},
		"rubbish behind the end":   {func(b []byte) { b[end+5000] = 1 }, 4},
		"rubbish just behind":      {func(b []byte) { b[(end+7)/8*8] = 1 }, 0},
		"a bit of the file's head": {func(b []byte) { b[9] ^= 1 }, 0},
	} {
		b := bytes.Clone(good)
		c.spoil(b)
		require.NoError(t, os.WriteFile(files[0], b, 0o600))
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, waterFile), whole, 0o600))
		if c.last == 3 {
			_, err := Open(*cfg)
			require.ErrorContains(t, err, "it ends with entry 3, and entry 4 was written", what)
			require.NoError(t, os.WriteFile(files[0], b, 0o600))
		}
		water := mark{last: 3, sum: sumOf(entryAt(3, 1, 1000))}.encode()
		if c.last == 0 {
			water = nil // nothing else would notice
		}
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, waterFile), water, 0o600))
		s, err := Open(*cfg)
		if c.last == 0 {
			require.ErrorContains(t, err, "damaged", what)
			continue
		}
		require.NoError(t, err, what)
		last, err := s.LastIndex()
		require.NoError(t, err)
		require.Equal(t, c.last, last, what)
		for range 3 { // what was dropped does not come back
			last++
			require.NoError(t, s.StoreLog(entryAt(last, 1, 600))) // over some of it
			require.NoError(t, s.Close())
			s = mustOpenLog(t, cfg)
		}
		require.NoError(t, s.Close())
	}
}
