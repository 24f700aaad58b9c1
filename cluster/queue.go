package cluster

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

const (
	// maxEntry and maxEntryCommands bound what one entry gathers. A command
	// that is larger by itself has an entry of its own.
	maxEntry         = 256 << 10
	maxEntryCommands = 1024
	// maxGroup and maxGroupCommands bound what is gathered before it is known
	// who else has something: two batches of two followers fit in an entry.
	maxGroup         = maxEntry / 2
	maxGroupCommands = maxEntryCommands / 2
	// maxQueueBytes bounds what waits, whatever its number.
	maxQueueBytes = 32 << 20
	// inFlight is how many entries, or batches, are under way at once: one
	// leaves the disk idle while the followers work, more make entries small.
	inFlight = 2
)

var (
	errFull     = errors.New("too many commands wait for a place in the log; try again later")
	errDraining = errors.New("this node is shutting down")
	errTooLate  = errors.New("its caller's deadline passed before it was proposed")
)

// The errors of what changes something by another way than a command.
func notApplied(err error) error { return storage.Fail(storage.NotApplied, err) }
func unknown(err error) error    { return storage.Fail(storage.Unknown, err) }
func invalid(err error) error    { return notApplied(wrong(err)) }

// wrong is the reason of what is refused because of what it says.
func wrong(err error) error { return storage.Invalid(err) }

// A pending command waits for its place.
type pending struct {
	cmd   session.Command
	raw   []byte    // cmd, encoded, as it is forwarded and goes into the log
	until time.Time // its caller's deadline
	valid bool      // it was validated on this node
}

// A group of commands shares its fate: it goes into one entry as a whole, in
// its order, or is not proposed. So the commands of one caller keep their order
// whatever fails.
type group struct {
	commands []pending
	size     int
	answers  []storage.Answer // once done is closed
	done     chan struct{}
	state    atomic.Int32
	check    bool // it orders a check of the states, and has no commands
}

// The states of a group.
const (
	groupWaits int32 = iota
	groupTaken
	groupGone // its caller went away before it was taken
)

func newGroup(commands []pending) *group {
	g := &group{commands: commands, answers: make([]storage.Answer, len(commands)), done: make(chan struct{})}
	for i := range commands {
		g.size += len(commands[i].raw)
	}
	return g
}

// leave withdraws the group and reports whether it had not been taken yet.
func (g *group) leave() bool { return g.state.CompareAndSwap(groupWaits, groupGone) }

// fail gives a to all commands that have no answer yet.
func (g *group) fail(a storage.Answer) {
	for i := range g.answers {
		if !answered(&g.answers[i]) {
			g.answers[i] = a
		}
	}
	close(g.done)
}

// answered reports whether a command of a group that is under way has its
// answer already.
func answered(a *storage.Answer) bool { return a.Err != nil || a.Outcome == storage.Applied }

// A queue gathers groups until somebody has a place for them: the leader's
// proposer, or the stream to the leader.
type queue struct {
	max int // commands

	mu     sync.Mutex
	groups []*group
	count  int
	size   int
	closed error
	wake   chan struct{} // has a token if something may wait
}

func newQueue(maxCommands int) *queue {
	return &queue{max: maxCommands, wake: make(chan struct{}, 1)}
}

// add lets a group wait, or refuses it at once.
func (q *queue) add(g *group) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return q.closed
	}
	if q.count+len(g.commands) > q.max || q.size+g.size > maxQueueBytes && q.count > 0 {
		return errFull
	}
	q.groups = append(q.groups, g)
	q.count += len(g.commands)
	q.size += g.size
	q.ring()
	return nil
}

// first lets a group of the leadership's own wait before all others, however many
// there are: log time does not stand still because callers ask for much.
func (q *queue) first(g *group) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.closed != nil {
		return q.closed
	}
	q.groups = slices.Insert(q.groups, 0, g)
	q.count += len(g.commands)
	q.size += g.size
	q.ring()
	return nil
}

// take waits until something is there and returns what fits in one entry or
// batch, at least one group. It returns nil when ctx is done or the queue is
// closed.
func (q *queue) take(ctx context.Context, maxSize, maxCommands int) []*group {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-q.wake:
		}
		// Those whose answers have just come are about to ask again.
		runtime.Gosched()
		taken, closed := q.drain(maxSize, maxCommands)
		if len(taken) > 0 || closed {
			return taken
		}
	}
}

func (q *queue) drain(maxSize, maxCommands int) (taken []*group, closed bool) {
	q.mu.Lock()
	defer q.mu.Unlock()
	size, count, i := 0, 0, 0
	for ; i < len(q.groups); i++ {
		g := q.groups[i]
		if len(taken) > 0 && (g.check || taken[0].check || size+g.size > maxSize || count+len(g.commands) > maxCommands) {
			break
		}
		q.count -= len(g.commands)
		q.size -= g.size
		if g.state.CompareAndSwap(groupWaits, groupTaken) {
			taken = append(taken, g)
			size += g.size
			count += len(g.commands)
		}
	}
	rest := copy(q.groups, q.groups[i:])
	clear(q.groups[rest:])
	q.groups = q.groups[:rest]
	if rest > 0 {
		q.ring()
	}
	return taken, q.closed != nil
}

func (q *queue) ring() {
	select {
	case q.wake <- struct{}{}:
	default:
	}
}

// close refuses what waits and what will be added. It may be called again.
func (q *queue) close(err error) {
	q.mu.Lock()
	groups := q.groups
	q.groups, q.count, q.size = nil, 0, 0
	if q.closed == nil {
		q.closed = err
	}
	q.ring()
	q.mu.Unlock()
	for _, g := range groups {
		if g.state.CompareAndSwap(groupWaits, groupTaken) {
			g.fail(storage.Refused(err))
		}
	}
}

// len returns how many commands wait.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.count
}
