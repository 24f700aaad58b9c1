package sim

import (
	"bytes"
	"encoding/binary"
	"fmt"

	"github.com/hashicorp/raft"

	"example.com/govnode/session"
	"example.com/govnode/test/check"
)

// A witness is the log of a cluster, put together from all that any disk was
// ever given, and what a state machine makes of it.
type witness struct {
	effects []check.Effect
	state   *session.State
	broken  []check.Violation
}

// restoreKind is where the extensions of an entry have the kind of an entry of a
// restore, behind the term.
const restoreKind = 8

// replay applies the log up to an index to an empty state.
func (f *fleet) replay(until uint64) (*witness, error) {
	w := &witness{state: session.New()}
	tokens := map[string]uint64{}
	for i := uint64(1); i <= until; i++ {
		l, err := f.entry(i)
		if err != nil {
			return nil, err
		}
		if l.Type != raft.LogCommand {
			continue
		}
		if len(l.Extensions) > restoreKind {
			return nil, fmt.Errorf("entry %d is one of a restore", i)
		}
		at, commands, err := session.DecodeEntry(l.Data)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		if binary.BigEndian.Uint64(l.Extensions) != l.Term {
			continue // stamped under another leadership than the one that gave it its place
		}
		for j, r := range w.state.ApplyAll(at, commands) {
			if e, ok := effectOf(commands[j], &r, tokens); ok {
				e.Index = i
				w.effects = append(w.effects, e)
			}
		}
	}
	return w, nil
}

// entry returns the entry at an index. One that was committed has the highest
// term of all that any disk was given for that index: each later leader has it.
func (f *fleet) entry(index uint64) (found *raft.Log, err error) {
	for _, h := range f.hosts {
		h.disk.mu.Lock()
		l := h.disk.ever[index]
		h.disk.mu.Unlock()
		switch {
		case l == nil:
		case found == nil || l.Term > found.Term:
			found = l
		case l.Term == found.Term && (l.Type != found.Type || !bytes.Equal(l.Data, found.Data) || !bytes.Equal(l.Extensions, found.Extensions)):
			return nil, fmt.Errorf("entry %d of term %d differs between disks", index, l.Term)
		}
	}
	if found == nil {
		return nil, fmt.Errorf("no disk was ever given entry %d", index)
	}
	return found, nil
}

// effectOf returns what a command has changed, if it did and clients ask for such
// changes. A slot may be granted before it is claimed: it is the claim that
// counts, once for each token.
func effectOf(c session.Command, r *session.Result, tokens map[string]uint64) (e check.Effect, ok bool) {
	granted := func(id string) bool {
		if r.Code != session.Admitted || len(r.Grants) == 0 || tokens[id] == r.Grants[0].Token {
			return false
		}
		tokens[id] = r.Grants[0].Token
		return true
	}
	switch c := c.(type) {
	case *session.Increment:
		return check.Effect{Kind: check.Increment, Object: c.Key, ID: c.By.Request}, r.Code == session.Done && !r.Repeat
	case *session.Acquire:
		return check.Effect{Kind: check.Acquire, Object: c.Pool, ID: c.Slot, Granted: true}, granted(c.Slot)
	case *session.Release:
		return check.Effect{Kind: check.Release, Object: c.Pool, ID: c.Slot}, r.Code == session.Released && !r.Repeat
	case *session.Begin:
		return check.Effect{Kind: check.Begin, Object: c.Session, ID: c.Call, Granted: true}, granted(c.Call)
	case *session.End:
		return check.Effect{Kind: check.End, Object: c.Session, ID: c.Call}, r.Code == session.Ended && !r.Repeat
	}
	return check.Effect{}, false
}
