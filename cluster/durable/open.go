package durable

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metrics"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"

	"example.com/govnode/internal/seeded"
)

// How the stores of a directory are opened, and out of which files they are
// made.

// What may keep the log of a node; see Config.LogStore.
const (
	// BoltDB is raft-boltdb: one file, a tree, two flushes for each append.
	BoltDB = "boltdb"
	// WAL is raft-wal: files that are only appended to, one flush for each
	// append. Votes, the node's identity, and which files the log consists of,
	// are in bolt all the same.
	WAL = "wal"
)

// Store is what keeps the log, the votes and the identity of a node.
type Store interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// The files of a directory. Each has votesFile, whose lock says that a process
// has the directory, and waterFile, which says what the others hold at least;
// with BoltDB the log is in votesFile as well, with WAL it is in walDir.
const (
	votesFile = "raft.db"
	waterFile = "end"
	walDir    = "wal"
)

// keyLog is under which value a node notes what keeps its log.
var keyLog = []byte("govnode/log")

// initialMap is how much address space the log's file is given at once, so that
// it never has to be mapped anew under the feet of readers. It is no memory.
const initialMap = 1 << 30

// SegmentSize is the size of one file of a write-ahead log. As much is taken
// from the disk beforehand: appending to what is there is flushed faster.
const SegmentSize = 64 << 20

// boltOptions are those of the log. NoSync is false and stays so: an entry that
// was acknowledged is on disk.
func boltOptions(path string) raftboltdb.Options {
	return raftboltdb.Options{Path: path, NoSync: seeded.On(seeded.NoSync), BoltOptions: &bbolt.Options{
		Timeout: time.Second, // for the lock that another process may hold
		// The list of free pages is rebuilt at start rather than written with
		// every entry; as a map it is found quickly.
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		InitialMmapSize: initialMap,
	}}
}

// Options say where a node keeps its log, and in what.
type Options struct {
	Dir      string
	LogStore string // BoltDB or WAL
	Segment  int    // bytes of one file of a write-ahead log
	Logger   hclog.Logger
	Metrics  metrics.Collector // of a write-ahead log
}

// Open opens what o.LogStore names, in a directory that is empty or was made
// with the same. All of it is checked.
func Open(o Options) (_ Store, err error) {
	path := filepath.Join(o.Dir, votesFile)
	bolt, err := openBolt(path)
	if err != nil {
		return nil, openError(path, err)
	}
	opened := closers{bolt}
	defer func() {
		if err != nil {
			err = errors.Join(err, opened.Close())
		}
	}()
	water, err := openWatermark(filepath.Join(o.Dir, waterFile))
	if err != nil {
		return nil, openError(path, err)
	}
	opened = append(closers{water}, opened...)
	values, err := openValues(bolt, water)
	if err != nil {
		return nil, openError(path, err)
	}
	log := &sealedLog{bolt, path, water}
	kept, _ := values.Get(keyLog) // nil in a directory that is new
	if kept != nil && string(kept) != o.LogStore {
		// It would look empty, and the node would have forgotten what it has
		// acknowledged.
		return nil, fmt.Errorf("cluster: LogStore: the log in %s is kept by %s and not by %s; start the node with %[2]s, or remove it from the cluster and let it join again with %[3]s and an empty directory",
			o.Dir, kept, o.LogStore)
	}
	dir := filepath.Join(o.Dir, walDir)
	if o.LogStore == WAL {
		err = os.MkdirAll(dir, 0o700)
	}
	// What is noted of a file must not outlive it.
	if err := errors.Join(err, syncDir(o.Dir)); err != nil {
		return nil, openError(o.Dir, err)
	}
	if o.LogStore == WAL {
		w, err := openWAL(o, dir, values, kept != nil)
		if err != nil {
			return nil, openError(dir, err)
		}
		opened = append(closers{w}, opened...)
		log = &sealedLog{w, dir, water}
	}
	if err := log.check(); err != nil {
		return nil, openError(log.where, err)
	}
	if kept == nil {
		if err := values.Set(keyLog, []byte(o.LogStore)); err != nil {
			return nil, openError(path, err)
		}
	}
	return parts{log, values, opened}, nil
}

// openError says why what is in a path cannot be used.
func openError(path string, err error) error {
	if errors.Is(err, bolterrors.ErrTimeout) {
		return fmt.Errorf("cluster: Dir: %s is in use by another process; stop that one first or choose another directory", filepath.Dir(path))
	}
	for _, damage := range []error{ErrDamaged, wal.ErrCorrupt, bolterrors.ErrInvalid, bolterrors.ErrChecksum, bolterrors.ErrVersionMismatch} {
		if errors.Is(err, damage) {
			return DamagedFile(path, err)
		}
	}
	return fmt.Errorf("cluster: Dir: cannot open the log in %s: %w", path, err)
}

// openBolt opens the file of the votes, whose pages are all checked.
func openBolt(path string) (s *raftboltdb.BoltStore, err error) {
	o := boltOptions(path)
	err = Guarded(func() error {
		if err := checkBolt(path, o.BoltOptions); err != nil {
			return err
		}
		s, err = raftboltdb.New(o)
		return err
	})
	return s, err
}

// syncDir makes sure that a directory has the files that were made in it.
func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}

// parts are a log and what is kept beside it.
type parts struct {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// closers are closed in their order: the log before the lock of the directory is
// given up.
type closers []io.Closer

func (all closers) Close() (err error) {
	for _, c := range all {
		err = errors.Join(err, c.Close())
	}
	return err
}

// FilesIn returns the paths of what has such a name in a folder. What stands in the path of
// the folder itself is no pattern, as a [ would be; of a folder that is not there it has none.
func FilesIn(dir, pattern string) (paths []string, err error) {
	names, err := fs.Glob(os.DirFS(dir), pattern)
	for _, name := range names {
		paths = append(paths, filepath.Join(dir, name))
	}
	return paths, err
}

// openWAL opens the write-ahead log in dir, which is empty unless it was made.
func openWAL(o Options, dir string, values *values, made bool) (w *wal.WAL, err error) {
	files, err := FilesIn(dir, "*.wal")
	if err != nil {
		return nil, err
	}
	if _, err := values.Get(keyWAL); err != nil && (made || len(files) > 0) {
		// raft-wal would make it anew, without a word and without what was in it.
		return nil, fmt.Errorf("%w: its files are not known: %w", ErrDamaged, err)
	}
	err = Guarded(func() error {
		if err := mendTail(dir, walFiles{values}); err != nil {
			return err
		}
		w, err = wal.Open(dir, wal.WithMetaStore(walFiles{values}), wal.WithLogger(o.Logger),
			wal.WithSegmentSize(o.Segment), wal.WithMetricsCollector(o.Metrics))
		return err
	})
	return w, err
}
