package cluster

import (
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
	wal "github.com/hashicorp/raft-wal"
	"github.com/hashicorp/raft-wal/metadb"
	"go.etcd.io/bbolt"
	bolterrors "go.etcd.io/bbolt/errors"
)

// What may keep the log of a node; see Config.LogStore.
const (
	// LogBoltDB is raft-boltdb: one file, a tree, two flushes for each append.
	LogBoltDB = "boltdb"
	// LogWAL is raft-wal: files that are only appended to, one flush for each
	// append. Votes and the node's identity are in bolt all the same.
	LogWAL = "wal"
)

// logStore is what keeps the log, the votes and the identity of a node.
type logStore interface {
	raft.LogStore
	raft.StableStore
	io.Closer
}

// The files of a directory. Each has votesFile, whose lock says that a process
// has the directory; with LogBoltDB the log is in it as well, with LogWAL the
// log is in walDir.
const (
	votesFile = "raft.db"
	walDir    = "wal"
)

// keyLog is where votesFile notes what keeps the log. Nothing is noted with
// LogBoltDB.
var keyLog = []byte("govnode/log")

// initialMap is how much address space the log's file is given at once, so that
// it never has to be mapped anew under the feet of readers. It is no memory.
const initialMap = 1 << 30

// walSegment is the size of one file of a write-ahead log. As much is taken
// from the disk beforehand: appending to what is there is flushed faster.
const walSegment = 64 << 20

// boltOptions are those of the log. NoSync is false and stays so: an entry that
// was acknowledged is on disk.
func boltOptions(path string) raftboltdb.Options {
	return raftboltdb.Options{Path: path, NoSync: false, BoltOptions: &bbolt.Options{
		Timeout: time.Second, // for the lock that another process may hold
		// The list of free pages is rebuilt at start rather than written with
		// every entry; as a map it is found quickly.
		NoFreelistSync: true, FreelistType: bbolt.FreelistMapType,
		InitialMmapSize: initialMap,
	}}
}

// openLogStore opens what cfg.LogStore names, in a directory that is empty or
// was made with the same.
func openLogStore(cfg *Config, m *metrics) (logStore, error) {
	votes, err := openBolt(cfg.Dir)
	if err != nil {
		return nil, err
	}
	store, err := openLog(cfg, m, votes)
	if err != nil {
		return nil, errors.Join(err, votes.Close())
	}
	return store, nil
}

func openBolt(dir string) (*raftboltdb.BoltStore, error) {
	path := filepath.Join(dir, votesFile)
	var s *raftboltdb.BoltStore
	err := checkBolt(path)
	if err == nil {
		err = guarded(func() (err error) { s, err = raftboltdb.New(boltOptions(path)); return err })
	}
	if errors.Is(err, bolterrors.ErrTimeout) {
		return nil, fmt.Errorf("cluster: Dir: %s is in use by another process; stop that one first or choose another directory", dir)
	}
	if err != nil {
		return nil, unusable(dir, err)
	}
	return s, nil
}

// openLog opens the log beside the votes, or refuses a directory whose log is
// kept by something else: it would look empty, and the node would have
// forgotten what it has acknowledged.
func openLog(cfg *Config, m *metrics, votes *raftboltdb.BoltStore) (logStore, error) {
	var kept string
	err := guarded(func() (err error) { kept, err = keptBy(votes); return err })
	if err != nil {
		return nil, unusable(cfg.Dir, err)
	}
	if kept != "" && kept != cfg.LogStore {
		return nil, fmt.Errorf("cluster: LogStore: the log in %s is kept by %s and not by %s; start the node with %[2]s, or remove it from the cluster and let it join again with %[3]s and an empty directory",
			cfg.Dir, kept, cfg.LogStore)
	}
	if cfg.LogStore == LogBoltDB {
		return votes, nil
	}
	dir := filepath.Join(cfg.Dir, walDir)
	if kept == LogWAL {
		// What is missing would be made anew, without a word and without what
		// was in it.
		if _, err := os.Stat(filepath.Join(dir, metadb.FileName)); err != nil {
			return nil, fmt.Errorf("cluster: Dir: the log in %s is damaged: %w; %s", cfg.Dir, err, adviceReplace)
		}
	}
	var w *wal.WAL
	err = guarded(func() (err error) { w, err = openWAL(cfg, m, dir); return err })
	if err != nil {
		return nil, unusable(cfg.Dir, err)
	}
	if err := votes.Set(keyLog, []byte(LogWAL)); err != nil {
		return nil, errors.Join(fmt.Errorf("cluster: Dir: %w", err), w.Close())
	}
	return &walStore{LogStore: w, StableStore: votes, wal: w, votes: votes}, nil
}

// keptBy returns what keeps the log of a directory: a LogStore, or "" if that
// is not settled yet.
func keptBy(votes *raftboltdb.BoltStore) (string, error) {
	kept, err := votes.Get(keyLog)
	if err == nil {
		return string(kept), nil
	}
	if !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	if _, err = votes.Get(keyNode); err == nil {
		return LogBoltDB, nil
	}
	if !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return "", err
	}
	return "", nil
}

// openWAL opens the write-ahead log in dir, which it creates for good if need
// be: what is noted of it must not outlive it.
func openWAL(cfg *Config, m *metrics, dir string) (*wal.WAL, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, err
	}
	parent, err := os.Open(cfg.Dir)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(parent.Sync(), parent.Close()); err != nil {
		return nil, err
	}
	if err := checkBolt(filepath.Join(dir, metadb.FileName)); err != nil {
		return nil, err
	}
	if err := mendTail(dir); err != nil {
		return nil, err
	}
	return wal.Open(dir, wal.WithLogger(newHclog(cfg.Logger)), wal.WithSegmentSize(cfg.segment), wal.WithMetricsCollector(m.wal))
}

// A walStore keeps the log in files that are only appended to.
//
// Raft is not told that such a log has no holes (raft.MonotonicLogStore): it
// would empty the log at every snapshot that it is sent, entries behind the
// snapshot that the node has acknowledged included, and then read them. Here
// the log is emptied when the first entry behind the hole is written, as bolt
// would have kept the hole.
type walStore struct {
	raft.LogStore // wal
	raft.StableStore
	wal   *wal.WAL
	votes io.Closer
}

// StoreLog implements raft.LogStore.
func (s *walStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *walStore) StoreLogs(logs []*raft.Log) error {
	last, err := s.wal.LastIndex()
	if err != nil {
		return err
	}
	if len(logs) > 0 && last > 0 && logs[0].Index > last+1 {
		// A snapshot stands for all that is before the hole.
		if err := s.wal.DeleteRange(0, last); err != nil {
			return err
		}
	}
	return s.wal.StoreLogs(logs)
}

// Close closes the log before the lock of the directory is given up.
func (s *walStore) Close() error { return errors.Join(s.wal.Close(), s.votes.Close()) }
