package cluster

import (
	"context"
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
)

// How a restore is put into the log, entry by entry. What replicas make of it
// is in staging.go.

const (
	// restoreTimeout is the deadline of a restore whose caller has none.
	restoreTimeout = 10 * time.Minute
	// restoreInFlight is how many entries of a restore are under way at once:
	// enough that no disk waits for another, and little for who else waits.
	restoreInFlight = 4
)

// restoreFiles are where a snapshot lies until it is restored.
const restoreFiles = "restore-*"

// Restore implements storage.Store. The snapshot is read and checked as a whole
// before anything is put in order, on the leader, to whom other nodes pass it
// on. It is one step in the order of commands: see staging.go.
func (n *Node) Restore(ctx context.Context, r io.Reader) error {
	if n.draining.Load() {
		return notApplied(errDraining)
	}
	// A leader may turn out to be none; the next one needs it from the start.
	file, err := n.keep(r)
	if err != nil {
		return notApplied(err)
	}
	defer drop(file)
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, restoreTimeout)
		defer cancel()
	}
	return n.atLeader(ctx, func(ctx context.Context, l *leadership) error {
		return n.restoreHere(ctx, l, file)
	}, func(ctx context.Context, leader string) error {
		return n.restoreThere(ctx, leader, file)
	})
}

// keep copies a snapshot to a file, where it can be read more than once.
func (n *Node) keep(r io.Reader) (*os.File, error) {
	file, err := os.CreateTemp(n.cfg.Dir, restoreFiles)
	if err != nil {
		return nil, err
	}
	if _, err := io.Copy(file, r); err != nil {
		drop(file)
		return nil, err
	}
	return file, nil
}

// drop removes what keep returned. It was a copy.
func drop(file *os.File) { _, _ = file.Close(), os.Remove(file.Name()) }

// restoreThere sends a snapshot to the leader.
func (n *Node) restoreThere(ctx context.Context, leader string, file *os.File) error {
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return notApplied(err)
	}
	stream, err := n.peers.At(leader).Restore(ctx)
	if err != nil {
		return sent(err)
	}
	buf := make([]byte, 1<<20)
	for {
		k, err := io.ReadFull(file, buf)
		if k > 0 && stream.Send(&nodev1.RestoreRequest{Chunk: buf[:k]}) != nil {
			break // CloseAndReceive says why
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return notApplied(err) // the stream ends without its end, and so does what was sent
		}
	}
	_, err = stream.CloseAndReceive()
	return sent(err)
}

// restoreHere puts a snapshot in order on the leader.
func (n *Node) restoreHere(ctx context.Context, l *leadership, file *os.File) error {
	// One at a time: each would void the one before it.
	select {
	case n.restoring <- struct{}{}:
		defer func() { <-n.restoring }()
	case <-ctx.Done():
		return notApplied(ctx.Err())
	}
	// What is in it stands for commands of all kinds.
	if err := n.members.know(n.cfg.version); err != nil {
		return notApplied(err)
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return notApplied(err)
	}
	// The whole of it, with what only shows in the whole. It is read again for
	// the log: kept, it would be a third state beside the present one and the
	// one that is staged.
	if _, err := session.ReadSnapshot(file); err != nil {
		return invalid(fmt.Errorf("snapshot: %w", err))
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return notApplied(err)
	}
	w := newRestoring(ctx, l)
	if err := w.stage(file); err != nil {
		w.abandon()
		return notApplied(err)
	}
	return w.end()
}

// A restoring puts the entries of one restore into the log.
type restoring struct {
	ctx      context.Context
	l        *leadership
	id       uint64
	place    uint64
	digest   digest
	underWay []raft.ApplyFuture
}

func newRestoring(ctx context.Context, l *leadership) *restoring {
	var id [8]byte
	_, _ = rand.Read(id[:]) // it never fails
	return &restoring{ctx: ctx, l: l, id: binary.BigEndian.Uint64(id[:])}
}

// propose hands the next entry to Raft.
func (w *restoring) propose(kind byte, body []byte) raft.ApplyFuture {
	e := &restoreEntry{kind: kind, at: w.l.now(), id: w.id, place: w.place, body: body}
	w.place++
	w.digest = w.digest.with(e)
	return w.l.raft.ApplyLog(e.log(w.l.term), enqueueTimeout)
}

// stage stages a snapshot. It returns when all replicas of a majority have it,
// or why they will not: whatever that is, nothing was changed.
func (w *restoring) stage(r io.Reader) error {
	err := session.ReadChunks(r, func(now time.Duration, generation uint32) error {
		return w.add(restoreBegin, binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint64(nil, uint64(now)), generation))
	}, func(chunk []byte) error {
		for len(chunk) > 0 {
			k := min(len(chunk), restoreData)
			body := append(make([]byte, 1, 1+k), chunk[:k]...)
			if chunk = chunk[k:]; len(chunk) == 0 {
				body[0] = 1
			}
			if err := w.add(restorePiece, body); err != nil {
				return err
			}
		}
		return nil
	})
	for err == nil && len(w.underWay) > 0 {
		err = w.next()
	}
	return err
}

// add proposes an entry once few enough are under way.
func (w *restoring) add(kind byte, body []byte) error {
	if len(w.underWay) == restoreInFlight {
		if err := w.next(); err != nil {
			return err
		}
	}
	if w.l.ctx.Err() != nil {
		return errElsewhere
	}
	w.underWay = append(w.underWay, w.propose(kind, body))
	return nil
}

// next waits for the oldest entry that is under way.
func (w *restoring) next() error {
	future := w.underWay[0]
	w.underWay = w.underWay[1:]
	if err := w.l.settled(w.ctx, future); err != nil {
		if w.ctx.Err() != nil {
			return w.ctx.Err()
		}
		// What became of a part of it does not matter: it has not ended.
		return elsewhere(err)
	}
	if err, failed := future.Response().(error); failed {
		return elsewhere(err)
	}
	return nil
}

// abandon lets go of what was staged. Where it does not come so far, the next
// term or restoreRest does.
func (w *restoring) abandon() { w.propose(restoreAbandon, nil) }

// end puts what was staged in place.
func (w *restoring) end() error {
	all := w.digest
	future := &ending{w.propose(restoreEnd, all[:]), w.l.clock}
	if err := w.l.settled(w.ctx, future); err != nil {
		return err
	}
	switch r := future.Response().(type) {
	case *restored:
		return nil
	case error:
		if errors.Is(r, errVoid) || errors.Is(r, errNotStaged) {
			return notApplied(elsewhere(r))
		}
		return unknown(r)
	default:
		return unknown(fmt.Errorf("the state machine answered %T", r))
	}
}

// An ending is the future of the entry that ends a restore. Log time goes on from that of
// the new state, also where whoever asked for it has given up waiting.
type ending struct {
	raft.ApplyFuture
	clock *clock
}

// Error implements raft.Future.
func (e *ending) Error() error {
	err := e.ApplyFuture.Error()
	if err == nil {
		if r, ok := e.Response().(*restored); ok {
			e.clock.raise(r.at)
		}
	}
	return err
}

// settled waits for what was proposed to be applied. Otherwise it returns the
// outcome as far as it is known.
func (l *leadership) settled(ctx context.Context, future raft.Future) error {
	return settled(ctx, future, l.dead)
}

func settled(ctx context.Context, future raft.Future, dead <-chan struct{}) error {
	done := make(chan error, 1)
	go func() { done <- await(future, dead) }()
	select {
	case err := <-done:
		if err != nil {
			a := proposed(err)
			return a.Failure()
		}
		return nil
	case <-ctx.Done():
		return unknown(ctx.Err())
	}
}
