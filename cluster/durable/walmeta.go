package durable

import (
	"encoding/json"
	"errors"
	"fmt"

	"github.com/hashicorp/raft"
	"github.com/hashicorp/raft-wal/types"
)

// Where a write-ahead log keeps which files it consists of.

// keyWAL is under which value a node keeps which files a write-ahead log consists
// of.
var keyWAL = []byte("govnode/wal")

// walFiles keeps what raft-wal notes of its files among the values of the node,
// which are sealed. raft-wal's own store of that believes whatever it reads.
type walFiles struct{ values raft.StableStore }

var _ types.MetaStore = walFiles{}

// Load implements types.MetaStore.
func (w walFiles) Load(string) (s types.PersistentState, err error) {
	b, err := w.values.Get(keyWAL)
	if errors.Is(err, ErrNotFound) {
		return s, nil
	}
	if err == nil {
		err = json.Unmarshal(b, &s)
	}
	if err != nil {
		return s, fmt.Errorf("%s: %w", keyWAL, err)
	}
	return s, nil
}

// CommitState implements types.MetaStore.
func (w walFiles) CommitState(s types.PersistentState) error {
	b, err := json.Marshal(s)
	if err != nil {
		return err
	}
	return w.values.Set(keyWAL, b)
}

// GetStable implements types.MetaStore. The values are not kept by way of
// raft-wal.
func (walFiles) GetStable([]byte) ([]byte, error) { return nil, errors.ErrUnsupported }

// SetStable implements types.MetaStore.
func (walFiles) SetStable(_, _ []byte) error { return errors.ErrUnsupported }

// Close implements io.Closer. The values are closed by who has opened them.
func (walFiles) Close() error { return nil }
