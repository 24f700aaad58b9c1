package cluster

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math"

	"github.com/hashicorp/raft"
	wal "github.com/hashicorp/raft-wal"
	"go.etcd.io/bbolt"
)

// errNotFound is the answer for a key that nothing is kept under. Raft compares
// its text.
var errNotFound = errors.New("not found")

// The buckets of a bolt file: entries by index, in big endian; and the values
// beside them, sealed.
var (
	bucketLogs = []byte("logs")
	bucketConf = []byte("conf")
)

// keyEnd is where a file notes which entries it holds, in the transaction that
// changes them: an end that is missing looks like a log that is shorter.
var keyEnd = []byte("govnode/end")

// A boltStore is one bolt file. It is built on sound pages: see checkBolt, which
// looks at all of them before the file is opened.
type boltStore struct {
	db *bbolt.DB
}

// openBoltStore opens a file, or makes it.
func openBoltStore(path string, o *bbolt.Options) (*boltStore, error) {
	db, err := bbolt.Open(path, 0o600, o)
	if err != nil {
		return nil, err
	}
	err = db.Update(func(tx *bbolt.Tx) error {
		_, logs := tx.CreateBucketIfNotExists(bucketLogs)
		_, conf := tx.CreateBucketIfNotExists(bucketConf)
		return errors.Join(logs, conf)
	})
	if err != nil {
		return nil, errors.Join(err, db.Close())
	}
	return &boltStore{db}, nil
}

// view and update run a transaction; see guarded.
func (s *boltStore) view(f func(*bbolt.Tx) error) error {
	return guarded(func() error { return s.db.View(f) })
}

func (s *boltStore) update(f func(*bbolt.Tx) error) error {
	return guarded(func() error { return s.db.Update(f) })
}

// Close implements io.Closer.
func (s *boltStore) Close() error { return s.db.Close() }

func indexKey(i uint64) []byte { return binary.BigEndian.AppendUint64(nil, i) }

// keyIndex returns 0 where there is no key.
func keyIndex(k []byte) uint64 {
	if len(k) != 8 {
		return 0
	}
	return binary.BigEndian.Uint64(k)
}

// FirstIndex implements raft.LogStore.
func (s *boltStore) FirstIndex() (i uint64, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		k, _ := tx.Bucket(bucketLogs).Cursor().First()
		i = keyIndex(k)
		return nil
	})
	return i, err
}

// LastIndex implements raft.LogStore.
func (s *boltStore) LastIndex() (i uint64, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		k, _ := tx.Bucket(bucketLogs).Cursor().Last()
		i = keyIndex(k)
		return nil
	})
	return i, err
}

// GetLog implements raft.LogStore.
func (s *boltStore) GetLog(i uint64, l *raft.Log) error {
	return s.view(func(tx *bbolt.Tx) error {
		v := tx.Bucket(bucketLogs).Get(indexKey(i))
		if v == nil {
			return raft.ErrLogNotFound
		}
		return decodeLog(v, l)
	})
}

func decodeLog(b []byte, l *raft.Log) error {
	if err := new(wal.BinaryCodec).Decode(b, l); err != nil {
		return fmt.Errorf("%w: %w", errDamaged, err)
	}
	return nil
}

// StoreLog implements raft.LogStore.
func (s *boltStore) StoreLog(l *raft.Log) error { return s.StoreLogs([]*raft.Log{l}) }

// StoreLogs implements raft.LogStore.
func (s *boltStore) StoreLogs(logs []*raft.Log) error {
	if len(logs) == 0 {
		return nil
	}
	return s.update(func(tx *bbolt.Tx) error {
		b := tx.Bucket(bucketLogs)
		end, err := readEnd(tx)
		if err != nil {
			return err
		}
		if end.last == 0 || logs[0].Index > end.last+1 {
			end.from = logs[0].Index // a snapshot stands for all that is before the hole
		}
		for _, l := range logs {
			var v bytes.Buffer
			v.Grow(len(l.Data) + len(l.Extensions) + 64)
			if err := new(wal.BinaryCodec).Encode(l, &v); err != nil {
				return err
			}
			if err := b.Put(indexKey(l.Index), v.Bytes()); err != nil {
				return err
			}
		}
		end.last = logs[len(logs)-1].Index
		return end.write(tx)
	})
}

// DeleteRange implements raft.LogStore.
func (s *boltStore) DeleteRange(from, to uint64) error {
	return s.update(func(tx *bbolt.Tx) error {
		end, err := readEnd(tx)
		if err != nil {
			return err
		}
		c := tx.Bucket(bucketLogs).Cursor()
		if from <= end.from {
			end.from = to + 1
		}
		if to >= end.last {
			// bbolt would look for what is left behind the deletion without end.
			k, _ := c.Seek(indexKey(from))
			if k != nil {
				k, _ = c.Prev()
			}
			end.last = keyIndex(k)
			end.from = min(end.from, end.last)
		}
		for k, _ := c.Seek(indexKey(from)); k != nil && keyIndex(k) <= to; k, _ = c.Next() {
			if err := c.Delete(); err != nil {
				return err
			}
		}
		return end.write(tx)
	})
}

// Set implements raft.StableStore.
func (s *boltStore) Set(k, v []byte) error {
	return s.update(func(tx *bbolt.Tx) error { return tx.Bucket(bucketConf).Put(k, sealValue(k, v)) })
}

// Get implements raft.StableStore.
func (s *boltStore) Get(k []byte) (v []byte, err error) {
	err = s.view(func(tx *bbolt.Tx) error {
		v, err = readValue(tx, k)
		return err
	})
	return v, err
}

func readValue(tx *bbolt.Tx, k []byte) ([]byte, error) {
	v := tx.Bucket(bucketConf).Get(k)
	if v == nil {
		return nil, errNotFound
	}
	return openValue(k, v)
}

// SetUint64 implements raft.StableStore.
func (s *boltStore) SetUint64(k []byte, v uint64) error {
	return s.Set(k, binary.BigEndian.AppendUint64(nil, v))
}

// GetUint64 implements raft.StableStore.
func (s *boltStore) GetUint64(k []byte) (uint64, error) {
	v, err := s.Get(k)
	if err != nil {
		return 0, err
	}
	if len(v) != 8 {
		return 0, fmt.Errorf("%w: %q is no number", errDamaged, k)
	}
	return binary.BigEndian.Uint64(v), nil
}

// An extent tells which entries a file holds: all of those from one index to
// another, and maybe some before a hole. Both are 0 where there is none.
type extent struct{ from, last uint64 }

func readEnd(tx *bbolt.Tx) (extent, error) {
	v, err := readValue(tx, keyEnd)
	if errors.Is(err, errNotFound) {
		return extent{}, nil
	}
	if err != nil {
		return extent{}, err
	}
	return parseEnd(v)
}

func parseEnd(v []byte) (extent, error) {
	if len(v) != 16 {
		return extent{}, fmt.Errorf("%w: %q is too short", errDamaged, keyEnd)
	}
	return extent{binary.BigEndian.Uint64(v), binary.BigEndian.Uint64(v[8:])}, nil
}

func (e extent) write(tx *bbolt.Tx) error {
	v := binary.BigEndian.AppendUint64(binary.BigEndian.AppendUint64(nil, e.from), e.last)
	return tx.Bucket(bucketConf).Put(keyEnd, sealValue(keyEnd, v))
}

// A contents gathers what the pages of a file hold, in the order of the keys,
// and checks it.
type contents struct {
	end   extent
	first uint64 // of the entries that follow each other up to last
	last  uint64
}

// entry takes the next entry.
func (c *contents) entry(k, v []byte) error {
	i := keyIndex(k)
	if i == 0 || i == math.MaxUint64 {
		return fmt.Errorf("%w: an entry under %x", errDamaged, k)
	}
	var l raft.Log
	err := guarded(func() error { return decodeLog(v, &l) })
	if err == nil {
		err = openEntry(i, &l)
	}
	if err != nil {
		return fmt.Errorf("entry %d: %w", i, err)
	}
	if i != c.last+1 || c.first == 0 {
		c.first = i
	}
	c.last = i
	return nil
}

// value takes what is kept under a key.
func (c *contents) value(k, v []byte) error {
	b, err := openValue(k, v)
	if err == nil && bytes.Equal(k, keyEnd) {
		c.end, err = parseEnd(b)
	}
	return err
}

// whole reports whether all entries were there.
func (c *contents) whole() error {
	if c.last != c.end.last || c.end.last > 0 && c.first > c.end.from {
		return fmt.Errorf("%w: it holds entries %d to %d, and should hold %d to %d", errDamaged, c.first, c.last, c.end.from, c.end.last)
	}
	return nil
}
