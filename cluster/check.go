package cluster

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
)

// All members have the same state at the same index of the log. Memory, disks and
// builds fail, and a node that has another one would give other answers for ever:
// so they compare. The leader orders a check every so often, by an entry without
// commands. Each member makes a digest of its state as it stands at that entry,
// beside its work, tells it to all others and learns theirs, and decides for
// itself: see judge. No leader is asked, and none is trusted.
//
// The hashes of what nobody writes to are kept. A bit that flips there is damage
// that only this node can see, until somebody writes beside it: so each round
// makes half of the kept hashes anew, and one that does not come out the same
// stops the node without a word of the others.

// A check is the state to make a digest of.
type check struct {
	index, term uint64 // of the entry that ordered it
	state       *session.Snapshot
}

// noteCheck keeps a check until compareStates takes it. One that has not begun
// when the next is ordered is left out. f.mu is held.
func (f *fsm) noteCheck(c check) {
	f.checked = time.Now()
	select {
	case <-f.checks:
	default:
	}
	f.checks <- c
}

// lastCheck returns when a check was applied last, whoever led, or when the node
// began.
func (f *fsm) lastCheck() time.Time {
	f.mu.RLock()
	defer f.mu.RUnlock()
	return f.checked
}

// orderChecks orders a check whenever it is time for one, until the leadership
// ends.
func (n *Node) orderChecks(l *leadership) {
	var tried time.Time
	for {
		last := n.fsm.lastCheck()
		if last.Before(tried) {
			last = tried
		}
		select {
		case <-l.ctx.Done():
			return
		case <-time.After(n.cfg.CheckInterval - time.Since(last)):
		}
		g := newCheck()
		tried = time.Now()
		if l.queue.first(g) != nil {
			return
		}
		select {
		case <-l.ctx.Done():
			return
		case <-g.done:
		}
	}
}

// states is what the members have said of theirs, by index, for the latest
// checks.
type states struct {
	mu sync.Mutex
	by map[uint64]map[string]session.Digest
}

// statesKept is how many checks are remembered: members are not equally fast.
const statesKept = 4

func (s *states) note(index uint64, node string, d session.Digest) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.by == nil {
		s.by = map[uint64]map[string]session.Digest{}
	}
	if s.by[index] == nil {
		s.by[index] = map[string]session.Digest{}
	}
	s.by[index][node] = d
	for len(s.by) > statesKept {
		oldest := index
		for i := range s.by {
			oldest = min(oldest, i)
		}
		delete(s.by, oldest)
	}
}

// indexes returns those that digests are known of.
func (s *states) indexes() []uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.by))
}

// of returns the digests at an index.
func (s *states) of(index uint64) map[string]session.Digest {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := make(map[string]session.Digest, len(s.by[index]))
	for node, d := range s.by[index] {
		all[node] = d
	}
	return all
}

// digest makes the digest of a check, the round-th of this process. The term
// counts, too: two nodes that have applied different entries at an index differ.
func (n *Node) digest(c check, round int) (session.Digest, error) {
	start := time.Now()
	rests := &paced{w: io.Discard, rest: snapshotRest, ended: n.ctx.Done()}
	half := func(shard int) bool { return (shard+round)%2 == 0 }
	d, err := c.state.Digest(half, func() error {
		_, err := rests.Write(nil)
		return errors.Join(err, n.ctx.Err())
	})
	n.metrics.checkSeconds.Observe(time.Since(start).Seconds())
	return sha256.Sum256(binary.BigEndian.AppendUint64(d[:], c.term)), err
}

// compareStates carries out the checks that are ordered, one at a time.
func (n *Node) compareStates() {
	for round := 0; ; round++ {
		select {
		case <-n.ctx.Done():
			return
		case c := <-n.fsm.checks:
			d, err := n.digest(c, round)
			if errors.Is(err, session.ErrDamaged) {
				n.metrics.checks.WithLabelValues("damaged").Inc()
				n.fatal(fmt.Errorf("cluster: the state that this node has in memory changed by itself, as seen at index %d of the log: %w; the memory of this machine may be failing; %s", c.index, err, adviceReplace))
			}
			if err != nil {
				return // the node ends
			}
			n.latest.Store(&stateAt{c.index, d})
			n.states.note(c.index, n.cfg.ID, d)
			n.compare(c.index, d)
		}
	}
}

// compare tells all members the digest of this node, again and again until there
// is a verdict or another check. The verdict is acted on after all were told: a
// node that has stopped tells nothing. So earlier checks are looked at again:
// who stopped at one has no digest for the next.
func (n *Node) compare(index uint64, d session.Digest) {
	for {
		n.tell(index, d)
		voters := n.voterNames()
		for _, i := range n.states.indexes() {
			all := n.states.of(i)
			if _, mine := all[n.cfg.ID]; !mine {
				continue
			}
			switch v := judge(n.cfg.ID, voters, all); {
			case v == differs || v == split:
				n.metrics.checks.WithLabelValues("differ").Inc()
				n.fatal(v.sentence(i, voters, all))
				return
			case v == agrees && i == index:
				n.metrics.checks.WithLabelValues("agree").Inc()
				return
			}
		}
		select {
		case <-n.ctx.Done():
			return
		case <-time.After(min(n.cfg.CheckInterval/8, n.cfg.RPCTimeout)):
		}
		if len(n.fsm.checks) > 0 {
			n.metrics.checks.WithLabelValues("undecided").Inc()
			return
		}
	}
}

// tell tells the digest to all other members, and notes theirs.
func (n *Node) tell(index uint64, d session.Digest) {
	ctx, cancel := context.WithTimeout(n.ctx, n.cfg.RPCTimeout)
	defer cancel()
	var told sync.WaitGroup
	for _, s := range n.servers() {
		if string(s.ID) == n.cfg.ID {
			continue
		}
		told.Go(func() {
			r, err := n.peers.At(string(s.Address)).CompareState(ctx, &nodev1.CompareStateRequest{Node: n.cfg.ID, Index: index, Digest: d[:]})
			if theirs := r.GetDigest(); err == nil && len(theirs) == len(d) {
				n.states.note(index, string(s.ID), session.Digest(theirs))
			}
		})
	}
	told.Wait()
}

// A stateAt is the digest of a state.
type stateAt struct {
	index  uint64
	digest session.Digest
}

// LatestDigest returns the latest digest that this node has made of its state, and the
// index in the log of that state; 0 before there is one. All members that have one of
// the same index have the same.
func (n *Node) LatestDigest() (index uint64, digest session.Digest) {
	if l := n.latest.Load(); l != nil {
		return l.index, l.digest
	}
	return 0, session.Digest{}
}

func (n *Node) voterNames() (names []string) {
	for _, s := range n.servers() {
		if isVoter(&s) {
			names = append(names, string(s.ID))
		}
	}
	return names
}

// A verdict is what a node finds when it compares its state with the others.
type verdict int

const (
	undecided verdict = iota // too few have said theirs
	agrees                   // a majority of the voters has this node's
	differs                  // a majority of the voters has another one
	split                    // no majority can have the same one any more
)

// judge decides what the digests at one index, as far as they are known, mean for
// a node. What is missing decides nothing; those without a vote are held to the
// voters and do not count.
func judge(self string, voters []string, digests map[string]session.Digest) verdict {
	count := map[session.Digest]int{}
	most, missing, enough := 0, 0, len(voters)/2+1
	for _, v := range voters {
		d, known := digests[v]
		if !known {
			missing++
			continue
		}
		count[d]++
		most = max(most, count[d])
		if count[d] < enough {
			continue
		}
		if digests[self] == d {
			return agrees
		}
		return differs
	}
	if most+missing < enough {
		return split
	}
	return undecided
}

// sentence says why a node stops, and what to do.
func (v verdict) sentence(index uint64, voters []string, digests map[string]session.Digest) error {
	by := map[string][]string{}
	for _, name := range voters {
		if d, known := digests[name]; known {
			short := hex.EncodeToString(d[:4])
			by[short] = append(by[short], name)
		}
	}
	var groups []string
	for short, names := range by {
		slices.Sort(names)
		groups = append(groups, fmt.Sprintf("%s have %s", strings.Join(names, ", "), short))
	}
	slices.Sort(groups)
	all := strings.Join(groups, "; ")
	if v == differs {
		return fmt.Errorf("cluster: the state of this node at index %d of the log differs from that of a majority of the voters (%s): it is damaged; %s", index, all, adviceReplace)
	}
	return fmt.Errorf("cluster: at index %d of the log no majority of the voters has the same state (%s), so that nobody knows which is right, and all nodes stop; found a new cluster and restore a backup in it", index, all)
}
