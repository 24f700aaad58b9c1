package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

const (
	// snapshotCheck is how often a node looks whether a snapshot is due, and
	// snapshotRetry how soon one that failed is tried again.
	snapshotCheck = 500 * time.Millisecond
	snapshotRetry = 5 * time.Second
	// leaderWaits bounds how long the leader lets the followers write theirs
	// first: its disk is the one that callers wait for.
	leaderWaits = 30 * time.Second
)

const (
	// A node that writes a snapshot goes on answering, so it rests for so many
	// times as long as it worked: it takes a quarter of a core at most.
	snapshotRest = 3
	// A snapshot that is read by somebody is wanted sooner.
	saveRest = 1
	// paceAfter is how much work is done before a rest, and restMost how long a
	// rest may last, whatever kept the work from going on.
	paceAfter = 2 * time.Millisecond
	restMost  = 100 * time.Millisecond
	// syncEvery is after how many bytes what was written is brought to the disk.
	// Left to the end it would be all at once, and the log would wait for it.
	syncEvery = 8 << 20
)

// A paced writer rests between writes, so that who else needs the machine and
// its disk gets them.
type paced struct {
	w     io.Writer
	rest  time.Duration // per time of work
	ended <-chan struct{}
	sync  func() error // nil where there is nothing to bring to a disk

	begun   time.Time
	pending int // bytes since the last sync
}

func (p *paced) Write(b []byte) (int, error) {
	if p.begun.IsZero() {
		p.begun = time.Now()
	}
	n, err := p.w.Write(b)
	if p.pending += n; err == nil && p.sync != nil && p.pending >= syncEvery {
		p.pending = 0
		err = p.sync()
	}
	if worked := time.Since(p.begun); worked >= paceAfter {
		select {
		case <-time.After(min(p.rest*worked, restMost)):
		case <-p.ended:
		}
		p.begun = time.Now()
	}
	return n, err
}

// syncSnapshot brings to the disk what is written so far of a snapshot of
// Raft's, which does that itself at the end alone.
func syncSnapshot(dir, id string) error {
	f, err := os.Open(snapshotFile(dir, id))
	if errors.Is(err, os.ErrNotExist) {
		return nil // another kind of sink
	}
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

// snapshotFile is where Raft's store of snapshots writes one.
func snapshotFile(dir, id string) string { return filepath.Join(dir, id+".tmp", "state.bin") }

// restoreFiles are where a snapshot lies while it is put in place.
const restoreFiles = "restore-*"

// keepSnapshots writes a snapshot whenever enough log has been applied. Raft
// would count entries, which are of any size here.
func (n *Node) keepSnapshots() {
	t := time.NewTicker(snapshotCheck)
	defer t.Stop()
	var since, notBefore time.Time
	for {
		select {
		case <-n.ctx.Done():
			return
		case <-t.C:
		}
		if n.fsm.logged.Load() < n.cfg.SnapshotBytes {
			since = time.Time{}
			continue
		}
		if since.IsZero() {
			since = time.Now()
		}
		if time.Now().Before(notBefore) || n.raft.State() == raft.Leader && !n.followersDone() && time.Since(since) < leaderWaits {
			continue
		}
		if err := await(n.raft.Snapshot(), n.dead); err != nil && !errors.Is(err, raft.ErrNothingNewToSnapshot) && n.ctx.Err() == nil {
			n.cfg.Logger.Error("cannot write a snapshot; it will be tried again", "error", err)
			notBefore = time.Now().Add(snapshotRetry)
		}
	}
}

// followersDone reports whether all other voters have written a snapshot
// lately.
func (n *Node) followersDone() bool {
	for _, s := range n.servers() {
		if string(s.ID) == n.cfg.ID || !isVoter(&s) {
			continue
		}
		if told, ok := n.members.of(string(s.ID)); !ok || int64(told.logged) > n.cfg.SnapshotBytes/2 {
			return false
		}
	}
	return true
}

// Save implements storage.Store: it writes the state as of every change that
// was acknowledged before the call.
func (n *Node) Save(ctx context.Context, w io.Writer) error {
	if err := n.catchUp(ctx); err != nil {
		return err
	}
	s, _ := n.fsm.snapshot()
	return session.WriteSnapshot(&paced{w: w, rest: saveRest, ended: n.ctx.Done()}, s)
}

// Restore implements storage.Store. The snapshot is read and checked as a whole
// before anything changes, on the leader, to whom other nodes pass it on. Where
// the outcome is unknown it may have been done.
func (n *Node) Restore(ctx context.Context, r io.Reader) error {
	if n.draining.Load() {
		return notApplied(errDraining)
	}
	// A leader may turn out to be none; the next one needs it from the start.
	file, err := os.CreateTemp(n.cfg.Dir, restoreFiles)
	if err != nil {
		return notApplied(err)
	}
	defer func() { _, _ = file.Close(), os.Remove(file.Name()) }() // it was a copy
	if _, err := io.Copy(file, r); err != nil {
		return notApplied(err)
	}
	again := func() error {
		_, err := file.Seek(0, io.SeekStart)
		return err
	}
	if _, ok := ctx.Deadline(); !ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, restoreTimeout)
		defer cancel()
	}
	return changed(n.atLeader(ctx, func(ctx context.Context, l *leadership) error {
		return errors.Join(again(), n.restoreHere(ctx, l, file))
	}, func(ctx context.Context, leader string) error {
		return errors.Join(again(), n.restoreThere(ctx, leader, file))
	}))
}

// restoreTimeout is the deadline of a restore whose caller has none.
const restoreTimeout = 10 * time.Minute

// restoreThere sends a snapshot to the leader.
func (n *Node) restoreThere(ctx context.Context, leader string, r io.Reader) error {
	stream, err := n.peers.at(leader).Restore(ctx)
	if err != nil {
		return err
	}
	buf := make([]byte, 1<<20)
	for {
		k, err := io.ReadFull(r, buf)
		if k > 0 && stream.Send(&nodev1.RestoreRequest{Chunk: buf[:k]}) != nil {
			break // CloseAndReceive says why
		}
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			break
		}
		if err != nil {
			return err
		}
	}
	_, err = stream.CloseAndReceive()
	if err = remote(err); err != nil && !errors.Is(err, errElsewhere) && !errors.Is(err, storage.ErrInvalid) {
		return unknown(err)
	}
	return err
}

// restoreHere replaces the state on the leader, and so on all nodes.
//
// The state that is put in place has been through session.Restore already:
// nobody ever sees one in which the leases of the snapshot live, or in which
// tokens begin again below those that were given out, not even if this node
// dies at the worst time.
func (n *Node) restoreHere(ctx context.Context, l *leadership, r io.Reader) error {
	state, err := session.ReadSnapshot(r)
	if err != nil {
		return invalid(fmt.Errorf("snapshot: %w", err))
	}
	n.restoring.Lock()
	defer n.restoring.Unlock()
	now, generation := n.fsm.clock()
	state.SetClock(max(now, l.now()), generation)
	state.ApplyAll(state.Now(), []session.Command{&session.Restore{}})
	file, err := os.CreateTemp(n.cfg.Dir, restoreFiles)
	if err != nil {
		return err
	}
	defer func() { _, _ = file.Close(), os.Remove(file.Name()) }() // it was a copy
	if err := writeSnapshot(file, n.fsm.applied(), state.Snapshot()); err != nil {
		return err
	}
	at := state.Now()
	state = nil // Raft reads the file, and this would be a third state beside the present one and that
	size, err := file.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	if _, err := file.Seek(0, io.SeekStart); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	err = n.raft.Restore(&raft.SnapshotMeta{Version: raft.SnapshotVersionMax, Size: size}, file, 0)
	if errors.Is(err, raft.ErrNotLeader) || errors.Is(err, raft.ErrLeadershipTransferInProgress) {
		return errElsewhere
	}
	if err != nil {
		return unknown(err)
	}
	l.clock.raise(at)
	// The place of the snapshot in the log is no entry. One that is lets those
	// who wait for an index have one.
	if err := l.tick(ctx, &session.Tick{}); err != nil {
		return unknown(err)
	}
	return nil
}
