package durable

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/hashicorp/raft"
	raftboltdb "github.com/hashicorp/raft-boltdb/v2"
)

// What a node keeps beside its log.

// ErrNotFound is the answer for a key that nothing is kept under. Raft compares
// its text.
var ErrNotFound = errors.New("not found")

// values are what a node keeps beside its log: votes, identity, notes. They are
// one record, sealed and counted, so that none of them can be older than the
// others, and none be missing. They are few, small and seldom set.
type values struct {
	store raft.StableStore
	water *watermark

	mu  sync.Mutex
	now record
}

type record struct {
	Sets   uint64 // how often values were set
	Values map[string][]byte
}

// keyValues is where the store has the record.
var keyValues = []byte("govnode/values")

// openValues reads the values, or finds them damaged.
func openValues(store raft.StableStore, water *watermark) (*values, error) {
	v := &values{store: store, water: water}
	b, err := store.Get(keyValues)
	if err == nil {
		if b, err = unseal(b); err == nil {
			err = json.Unmarshal(b, &v.now)
		}
		if err != nil {
			return nil, fmt.Errorf("%q: %w", keyValues, err)
		}
	} else if !errors.Is(err, raftboltdb.ErrKeyNotFound) {
		return nil, err
	}
	if sets := water.mark().sets; v.now.Sets < sets {
		return nil, fmt.Errorf("%w: %q was set %d times, and is what it was after %d", ErrDamaged, keyValues, sets, v.now.Sets)
	}
	return v, nil
}

// Set implements raft.StableStore.
func (v *values) Set(key, value []byte) error {
	v.mu.Lock()
	defer v.mu.Unlock()
	next := record{v.now.Sets + 1, maps.Clone(v.now.Values)}
	if next.Values == nil {
		next.Values = map[string][]byte{}
	}
	next.Values[string(key)] = slices.Clone(value)
	b, err := json.Marshal(next)
	if err != nil {
		return err
	}
	if err := Guarded(func() error { return v.store.Set(keyValues, seal(b)) }); err != nil {
		return err
	}
	v.now = next
	return v.water.set(next.Sets)
}

// Get implements raft.StableStore.
func (v *values) Get(key []byte) ([]byte, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	value, known := v.now.Values[string(key)]
	if !known {
		return nil, ErrNotFound
	}
	return slices.Clone(value), nil
}

// SetUint64 implements raft.StableStore.
func (v *values) SetUint64(key []byte, n uint64) error {
	return v.Set(key, binary.BigEndian.AppendUint64(nil, n))
}

// GetUint64 implements raft.StableStore.
func (v *values) GetUint64(key []byte) (uint64, error) {
	b, err := v.Get(key)
	if err != nil {
		return 0, err
	}
	if len(b) != 8 {
		return 0, fmt.Errorf("%w: %q is no number", ErrDamaged, key)
	}
	return binary.BigEndian.Uint64(b), nil
}
