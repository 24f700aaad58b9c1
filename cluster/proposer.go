package cluster

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/hashicorp/raft"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// How what waits on the leader becomes entries of the log, and gets its
// answers.

// enqueueTimeout is how long Raft may take to look at an entry. It is not
// busier than its disk, and a disk that takes longer is given up.
const enqueueTimeout = 10 * time.Second

// A leadership is one time that this node leads, from its barrier on. What was
// gathered under one leadership is never proposed under another: the queue and
// the clock end with it, and an entry that is stamped with another term than
// the one in which it reaches the log changes nothing.
type leadership struct {
	term    uint64
	ctx     context.Context // done when it ends
	now     func() time.Duration
	clock   *clock
	queue   *queue
	rounds  rounds
	raft    *raft.Raft
	known   *members
	metrics *metrics
	lapses  *storage.Lapses
	tasks   *sync.WaitGroup // of the node
	dead    <-chan struct{} // closed when Raft has stopped
	own     *atomic.Int64   // entries under way; see fsm
	idle    chan struct{}   // closed when nothing is proposed any more, and all is answered
}

// submit lets a group wait for its place. Commands that are not valid get their
// own answer and the others go on.
func (l *leadership) submit(g *group) error {
	for i := range g.commands {
		if answered(&g.answers[i]) {
			continue // could not even be decoded
		}
		if err := l.check(&g.commands[i]); err != nil {
			g.answers[i] = storage.Refused(err)
		}
	}
	err := l.queue.add(g)
	if errors.Is(err, errFull) {
		l.metrics.refused.WithLabelValues("full").Add(float64(len(g.commands)))
	}
	return err
}

// check holds a command against what the state machine relies on, and against
// what all members understand.
func (l *leadership) check(p *pending) error {
	if !p.valid {
		if err := session.Validate(p.cmd); err != nil {
			return wrong(err)
		}
	}
	return l.known.know(uint32(p.cmd.Kind()))
}

// propose puts everything that waits into one entry at a time, until the
// leadership or its queue ends. There is no timer: the entries under way are
// the time in which the next one gathers.
func (l *leadership) propose() {
	defer close(l.idle)
	defer l.queue.idle()
	for {
		groups := l.queue.take(l.ctx)
		if groups == nil {
			return
		}
		e := l.entry(groups)
		if len(e.commands) == 0 && !groups[0].check {
			e.fail(storage.Answer{})
			l.queue.free(groups)
			continue
		}
		start := time.Now()
		l.own.Add(1)
		future := l.raft.ApplyLog(raft.Log{Data: session.JoinEntry(make([]byte, 0, e.size+entrySpare), l.now(), e.commands), Extensions: termOf(l.term)}, enqueueTimeout)
		if seeded.On(seeded.AnswerEarly) && seededAnswer(l, e) {
			l.tasks.Go(func() {
				_ = await(future, l.dead)
				l.own.Add(-1)
				l.queue.free(groups)
			})
			continue
		}
		l.tasks.Go(func() {
			l.finish(e, future)
			l.own.Add(-1)
			l.metrics.commitSeconds.Observe(time.Since(start).Seconds())
			l.queue.free(groups)
		})
	}
}

// An entry is a set of groups on its way into the log.
type entry struct {
	groups   []*group
	commands [][]byte // as their nodes encoded them
	size     int
}

// entrySpare is what an entry takes beside its commands, and their lengths.
const entrySpare = 32

// entry gathers what is still wanted.
func (l *leadership) entry(groups []*group) *entry {
	e := &entry{groups: groups}
	now := time.Now()
	for _, g := range groups {
		for i := range g.commands {
			a := &g.answers[i]
			if answered(a) {
				continue
			}
			if p := &g.commands[i]; now.After(p.until) {
				*a = storage.Refused(errTooLate)
			} else {
				e.commands = append(e.commands, p.raw)
				e.size += len(p.raw) + 4
			}
		}
	}
	return e
}

// finish waits for what became of an entry, and answers its commands.
func (l *leadership) finish(e *entry, future raft.ApplyFuture) {
	if err := await(future, l.dead); err != nil {
		e.fail(proposed(err))
		return
	}
	switch r := future.Response().(type) {
	case []session.Result:
		l.lapses.TellLapses(r)
		e.answer(r, future.Index())
	case error:
		if errors.Is(r, errVoid) {
			l.metrics.voided.Inc()
			e.fail(storage.Refused(elsewhere(r)))
			return
		}
		e.fail(storage.Lost(r))
	default:
		e.fail(storage.Lost(fmt.Errorf("the state machine answered %T", r)))
	}
}

// await waits for a future. Raft may stop without answering one that was just
// handed to the state machine.
func await(future raft.Future, dead <-chan struct{}) error {
	answered := make(chan error, 1)
	go func() { answered <- future.Error() }()
	select {
	case err := <-answered:
		return err
	case <-dead:
		return raft.ErrRaftShutdown
	}
}

// answer gives the commands of an entry that was applied their results.
func (e *entry) answer(results []session.Result, index uint64) {
	for _, g := range e.groups {
		for i := range g.answers {
			if a := &g.answers[i]; !answered(a) {
				// In place: results are large, and many.
				a.Outcome, a.Result, a.Index = storage.Applied, results[0], index
				results = results[1:]
			}
		}
		close(g.done)
	}
}

// fail gives a to the commands of an entry that have no results.
func (e *entry) fail(a storage.Answer) { failAll(e.groups, a) }

// proposed says what an error of Raft's means for what was proposed. What is not
// known to be harmless is unknown: it may be in the log of a majority.
func proposed(err error) storage.Answer {
	switch {
	case errors.Is(err, raft.ErrNotLeader), errors.Is(err, raft.ErrLeadershipTransferInProgress), errors.Is(err, raft.ErrEnqueueTimeout):
		return storage.Refused(elsewhere(err))
	}
	return storage.Lost(err)
}
