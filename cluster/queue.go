package cluster

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/internal/window"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What waits on a node for its place in the log, until it is taken and
// answered.

const (
	// maxEntry and maxEntryCommands bound what one entry gathers. A command
	// that is larger by itself has an entry of its own.
	maxEntry         = 256 << 10
	maxEntryCommands = 1024
	// maxQueueBytes bounds what waits, whatever its number.
	maxQueueBytes = 32 << 20
	// inFlight is how many entries, or batches, are under way at once: one
	// leaves the disk idle while the followers work, more make entries small.
	inFlight = 2
)

var (
	entrySize = window.Size{Count: maxEntryCommands, Bytes: maxEntry}
	// batchSize bounds what is gathered before it is known who else has
	// something: two batches of two followers fit in an entry.
	batchSize = window.Size{Count: maxEntryCommands / 2, Bytes: maxEntry / 2}
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

// elsewhere is the reason of what another node may be asked for.
func elsewhere(err error) error { return &because{errElsewhere, err} }

// A because is a reason of a kind that others have to know again.
type because struct{ kind, why error }

func (b *because) Error() string   { return b.kind.Error() + ": " + b.why.Error() }
func (b *because) Unwrap() []error { return []error{b.kind, b.why} }

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
	size     window.Size
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
	g.size.Count = len(commands)
	for i := range commands {
		g.size.Bytes += len(commands[i].raw)
	}
	return g
}

// newCheck makes a group that orders a check. It counts as a whole entry, and so
// has one of its own.
func newCheck() *group {
	g := newGroup(nil)
	g.check, g.size.Bytes = true, maxEntry
	return g
}

// Size implements window.Item.
func (g *group) Size() window.Size { return g.size }

// Take implements window.Item.
func (g *group) Take() bool { return g.state.CompareAndSwap(groupWaits, groupTaken) }

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

// failAll does that for groups.
func failAll(groups []*group, a storage.Answer) {
	for _, g := range groups {
		g.fail(a)
	}
}

// answered reports whether a command of a group that is under way has its
// answer already.
func answered(a *storage.Answer) bool { return a.Err != nil || a.Outcome == storage.Applied }

// A queue gathers groups until there is a place for them: in the log, by the
// leader's proposer, or on the stream to the leader.
type queue struct {
	mu     sync.Mutex
	window *window.Queue[*group]
}

// newQueue makes a queue in which as many commands may wait, and that gives
// messages of a size.
func newQueue(maxCommands int, message window.Size) *queue {
	q := &queue{}
	q.window = window.NewQueue[*group](&q.mu, window.Limits{
		Line: window.Size{Count: maxCommands, Bytes: maxQueueBytes}, Message: message, Messages: inFlight,
	})
	return q
}

// add lets a group wait, or refuses it at once.
func (q *queue) add(g *group) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	err := q.window.Add(g)
	if errors.Is(err, window.ErrFull) {
		return errFull
	}
	return err
}

// first lets a group of the leadership's own wait before all others, however many
// there are: log time does not stand still because callers ask for much.
func (q *queue) first(g *group) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.window.AddFirst(g)
}

// take waits until something is there and may be under way, and returns what
// fits in one entry or batch; free must be called when that is over. It
// returns nil when ctx is done, or the queue is closed.
func (q *queue) take(ctx context.Context) []*group {
	q.mu.Lock()
	defer q.mu.Unlock()
	groups, _ := q.window.Next(ctx, nil) // why there are none is known by who ended it
	return groups
}

// free gives the place of what take returned to others.
func (q *queue) free(groups []*group) {
	q.mu.Lock()
	defer q.mu.Unlock()
	for _, g := range groups {
		q.window.Leave(window.InFlight, g.size)
	}
	q.window.Heard()
}

// idle waits until nothing is under way.
func (q *queue) idle() {
	q.mu.Lock()
	defer q.mu.Unlock()
	q.window.Idle()
}

// close refuses what waits and what will be added. It may be called again.
func (q *queue) close(err error) {
	q.mu.Lock()
	groups := q.window.Close(err)
	q.mu.Unlock()
	for _, g := range groups {
		if g.Take() {
			g.fail(storage.Refused(err))
		}
	}
}

// len returns how many commands wait.
func (q *queue) len() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	_, size := q.window.Line()
	return size.Count
}

// underWay returns how many entries, or batches, are under way.
func (q *queue) underWay() int {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.window.Messages()
}
