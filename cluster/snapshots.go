package cluster

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/session"
)

// When a node writes a snapshot, and at which pace.

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
		if n.fsm.logged.since() < n.cfg.SnapshotBytes {
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
