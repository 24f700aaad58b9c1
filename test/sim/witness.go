package sim

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/session"
	"example.com/govnode/test/alone"
	"example.com/govnode/test/check"
)

// A witness is the log of a cluster, put together from all that any disk was
// ever given, and what a state machine makes of it.
type witness struct {
	effects []check.Effect
	state   *session.State
	digests map[time.Duration][]string // of the states at a log time, which several entries may have
	staged  *restoring                 // nil if no restore is under way
	log     []logged
	time    timed
}

// An entry of a restore has its kind behind the term in its extensions, and in
// its data log time, restore and place of 8 bytes each, a body, and a checksum of
// 4 bytes. A body is the clock and the generation of a snapshot, a piece of it
// behind a byte that says whether a chunk ends with that, or a digest.
const (
	restoreKind = 8
	restoreHead = 24
	restoreTail = 4
)

// A restoring is a restore that is under way in the log.
type restoring struct {
	id, term, next uint64
	last           time.Duration
	loader         *session.Loader
	rest           []byte
}

// restoreRest is after how much log time without a piece a restore is given up.
const restoreRest = time.Minute

// replay applies a log, whose first entry has the index 1, to an empty state, and
// notes what that is at the log times at which nodes were looked at.
func replay(log []written, start time.Time, seen []replica) (*witness, error) {
	w := &witness{state: session.New(), digests: map[time.Duration][]string{}}
	tokens := map[string]uint64{}
	for i := uint64(1); i < uint64(len(log)); i++ {
		l := log[i].log
		if l.Type != raft.LogCommand {
			continue
		}
		if len(l.Extensions) > restoreKind {
			if err := w.restore(l); err != nil {
				return nil, fmt.Errorf("entry %d, of a restore: %w", i, err)
			}
			continue
		}
		at, commands, err := session.DecodeEntry(l.Data)
		if err != nil {
			return nil, fmt.Errorf("entry %d: %w", i, err)
		}
		if binary.BigEndian.Uint64(l.Extensions) != l.Term {
			w.stale(l.Term, w.state.Now())
			continue // stamped under another leadership than the one that gave it its place
		}
		w.log = append(w.log, logged{entry: l.Data})
		w.time.entry(i, at, log[i].at.Sub(start))
		for j, r := range w.state.ApplyAll(at, commands) {
			if e, ok := effectOf(commands[j], &r, tokens); ok && !alones(commands[j], e) {
				e.Index, e.At = i, w.state.Now()
				if e.Kind != check.Revoke {
					e.By = askedBy(commands[j], e.Kind)
				}
				w.look(&e)
				w.effects = append(w.effects, e)
			}
		}
		w.stale(l.Term, w.state.Now())
		if slices.ContainsFunc(seen, func(r replica) bool { return r.at == w.state.Now() }) {
			digest, err := digestOf(w.state)
			if err != nil {
				return nil, err
			}
			w.digests[w.state.Now()] = append(w.digests[w.state.Now()], digest)
		}
	}
	return w, nil
}

// alones reports whether it is a script of package alone that has had an effect, which it
// holds to what it knows by itself.
func alones(c session.Command, e check.Effect) bool {
	vote, is := c.(*session.Decide)
	return strings.HasPrefix(e.Object, alone.Prefix) || is && strings.HasPrefix(vote.By.Client, alone.Prefix)
}

// stale gives a restore up that entries of another term, or time, have passed by.
func (w *witness) stale(term uint64, at time.Duration) {
	if w.staged != nil && (w.staged.term != term || at-w.staged.last > restoreRest) {
		w.staged = nil
	}
}

// restore applies an entry of a restore.
func (w *witness) restore(l *raft.Log) error {
	at := time.Duration(binary.BigEndian.Uint64(l.Data))
	id, place := binary.BigEndian.Uint64(l.Data[8:]), binary.BigEndian.Uint64(l.Data[16:])
	body := l.Data[restoreHead : len(l.Data)-restoreTail]
	w.stale(l.Term, at)
	if binary.BigEndian.Uint64(l.Extensions) != l.Term {
		return nil
	}
	if l.Extensions[restoreKind] == 'B' {
		now, generation := time.Duration(binary.BigEndian.Uint64(body)), binary.BigEndian.Uint32(body[8:])
		w.staged = &restoring{id: id, term: l.Term, next: 1, last: at, loader: session.NewLoader(now, generation)}
		return nil
	}
	r := w.staged
	if r == nil || r.id != id {
		return nil
	}
	if r.next != place || l.Extensions[restoreKind] == 'A' {
		w.staged = nil
		return nil
	}
	r.next, r.last = r.next+1, at
	if l.Extensions[restoreKind] == 'E' {
		w.staged = nil
		was := w.state
		w.state = r.loader.State()
		var saved bytes.Buffer
		if err := session.WriteSnapshot(&saved, w.state.Snapshot()); err != nil {
			return err
		}
		w.log = append(w.log, logged{restored: saved.Bytes(), at: at})
		follow(w.state, was, at)
		w.effects = append(w.effects, check.Effect{Kind: check.Restored, ID: fmt.Sprint(l.Index), Index: l.Index})
		return nil
	}
	r.rest = append(r.rest, body[1:]...)
	if body[0] == 0 {
		return nil
	}
	err := r.loader.Put(r.rest)
	r.rest = nil
	return err
}

// follow makes a snapshot the state that comes behind another: time and tokens go on
// from there, and who may do what is as it was known there.
func follow(state, was *session.State, at time.Duration) {
	state.SetClock(max(was.Now(), at), was.Generation())
	for k := range was.Snapshot().All() {
		if k.Kind() == session.KindAccess {
			state.Put(k, was.Stored(k))
		}
	}
	state.ApplyAll(state.Now(), []session.Command{&session.Restore{}})
}

// committed returns the entries up to an index, by their index. The entry there is
// that of the leader; from each follows the one before it.
func (f *fleet) committed(until uint64) ([]written, error) {
	l := f.leader()
	if l == nil {
		return nil, errors.New("nobody leads")
	}
	l.disk.mu.Lock()
	last := l.disk.now.log[until]
	l.disk.mu.Unlock()
	if last == nil {
		return nil, fmt.Errorf("%s leads and has no entry %d", l.name, until)
	}
	log := make([]written, until+1)
	at := place{until, last.Term}
	for ; at.index > 0; at.index-- {
		e, err := f.entry(at)
		if err != nil {
			return nil, err
		}
		log[at.index], at.term = e, e.before
	}
	return log, nil
}

// entry returns what disks were given for a place. It was written when the first of
// them had it.
func (f *fleet) entry(at place) (found written, err error) {
	for _, h := range f.hosts {
		h.disk.mu.Lock()
		e := h.disk.ever[at]
		h.disk.mu.Unlock()
		switch {
		case e == nil:
			continue
		case found.log == nil:
			found = *e
			continue
		case e.log.Type != found.log.Type || !bytes.Equal(e.log.Data, found.log.Data) || !bytes.Equal(e.log.Extensions, found.log.Extensions):
			return found, fmt.Errorf("entry %d of term %d differs between disks", at.index, at.term)
		case found.before == 0 || e.before != 0 && e.at.Before(found.at):
			found.before = e.before // the leader that made it knows best: others may have what a snapshot has passed by
		}
		if e.at.Before(found.at) {
			found.at = e.at
		}
	}
	if found.log == nil {
		return found, fmt.Errorf("no disk was ever given entry %d of term %d", at.index, at.term)
	}
	return found, nil
}

// look adds to an effect what the state says of it.
func (w *witness) look(e *check.Effect) {
	switch e.Kind {
	case check.Begin:
		if x, ok := w.state.Get(session.SessionKey("default", e.Object)).(*session.Session); ok {
			e.Agent = x.Agent.Value()
		}
	case check.Swept:
		e.Open = len(w.state.Snapshot().Find(session.Prefix(session.KindSession, "default"), "", 1<<20, func(_ session.Key, r session.Record) bool {
			x := r.(*session.Session)
			return x.Phase == session.PhaseOpen && x.Agent.Value() == e.Object
		}))
	}
}

// askedBy is the principal that a command is of. What a node does for somebody to give
// up what he waits for, or to keep it, is nobody's; what lets him in is his.
func askedBy(c session.Command, does check.Kind) string {
	a := c.Authority()
	if a == nil || a.Principal == (session.Principal{}) || a.Behalf && does != check.Begin && does != check.Acquire && does != check.Take {
		return ""
	}
	return fmt.Sprintf("%x", a.Principal)
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
		id := c.By.Request
		if id == "" {
			id = c.Key // it is its alone
		}
		return check.Effect{Kind: check.Increment, Object: c.Key, ID: id}, r.Code == session.Done && !r.Repeat
	case *session.Set:
		return check.Effect{Kind: check.Increment, Object: c.Key, ID: c.By.Request}, c.Key == compared && r.Code == session.Done && !r.Repeat
	case *session.Append:
		return check.Effect{Kind: check.Increment, Object: c.Key, ID: c.By.Request}, r.Code == session.Done && !r.Repeat
	case *session.Acquire:
		return check.Effect{Kind: check.Acquire, Object: c.Pool, ID: c.Slot, Granted: true}, granted(c.Slot)
	case *session.TakeRate:
		admitted := r.Code == session.Admitted && tokens[c.ID] == 0
		if admitted {
			tokens[c.ID] = 1 // it has none, and is admitted once
		}
		return check.Effect{Kind: check.Take, Object: c.Rate, ID: c.ID, Amount: int64(c.Cost)}, admitted
	case *session.PutBudget: // put again it is the one that there was
		id := "made " + c.Budget
		first := r.Code == session.Done && tokens[id] == 0
		tokens[id] = 1
		return check.Effect{Kind: check.Made, Object: c.Budget, ID: id}, first
	case *session.AdjustBudget:
		return check.Effect{Kind: check.Adjust, Object: c.Budget, ID: c.By.Request, Amount: c.Amount}, r.Code == session.Done && !r.Repeat
	case *session.Release:
		return check.Effect{Kind: check.Release, Object: c.Pool, ID: c.Slot}, r.Code == session.Released && !r.Repeat
	case *session.Decide:
		amount := int64(-1)
		if c.Approve {
			amount = 1
		}
		return check.Effect{Kind: check.Vote, Object: c.ID, ID: c.By.Request, Agent: c.Approver, Amount: amount}, r.Code == session.Done && !r.Repeat
	case *session.Signal:
		kind := map[session.SignalKind]check.Kind{session.Stop: check.Stop, session.Continue: check.Continue, session.Kill: check.Kill}[c.Signal]
		return check.Effect{Kind: kind, Object: c.Target.Name, ID: c.By.Request}, r.Code == session.Done && !r.Repeat
	case *session.RevokeToken:
		of := session.PrincipalOf(c.NS, "token:"+c.ID)
		return check.Effect{Kind: check.Revoke, Object: c.ID, ID: c.By.Request, By: fmt.Sprintf("%x", of)}, c.Node == "" && r.Code == session.Done && !r.Repeat
	case *session.Swept: // marked again and again it is one mark
		id := fmt.Sprint("swept ", c.Target.Name, c.Number)
		first := tokens[id] == 0
		tokens[id] = 1
		return check.Effect{Kind: check.Swept, Object: c.Target.Name, ID: id}, first
	case *session.Begin:
		e = check.Effect{Kind: check.Begin, Object: c.Session, ID: c.Call, Granted: true}
		if q := c.Asking; q != nil {
			e.Asks, e.Needs, e.Ends = session.ApprovalID(c.NS, c.Session, c.Call), int(q.Required), int(q.Denials)
		}
		for _, n := range c.Budgets {
			e.Costs = append(e.Costs, check.Cost{Budget: n.Budget, Amount: n.Amount})
		}
		return e, granted(c.Call)
	case *session.End:
		e = check.Effect{Kind: check.End, Object: c.Session, ID: c.Call}
		for _, n := range c.Spent {
			e.Costs = append(e.Costs, check.Cost{Budget: n.Budget, Amount: n.Amount})
		}
		return e, r.Code == session.Ended && !r.Repeat
	}
	return check.Effect{}, false
}
