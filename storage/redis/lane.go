package redis

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A lane puts the commands of one namespace in order on this node: those that
// arrive while a round is under way share the next.
type lane struct {
	r *Store
	p *place

	mu      sync.Mutex
	waiting []*batch
	count   int
	running bool

	// Of the goroutine that runs the lane.
	ahead      *round // decided while another is out
	unfinished func() // keeps and answers a round that was swapped in
	turns      turns
}

const (
	// maxWaiting bounds the commands that wait on this node for a round.
	maxWaiting = 1 << 16
	// maxRoundBytes bounds what a round writes by its commands' own content.
	maxRoundBytes = 1 << 20
)

var (
	errClosed      = errors.New("this node is shutting down")
	errFull        = errors.New("too many commands wait for Redis; try again later")
	errLate        = errors.New("its caller's deadline passed before it was sent")
	errFailedFirst = errors.New("a command before it in the same request has failed")
)

func newLane(r *Store, p *place) *lane {
	return &lane{r: r, p: p, turns: turns{called: make(chan []told, 1), hot: map[session.Key]time.Duration{}}}
}

// submit lets commands wait for a round and returns their answers. Those of
// callers without a deadline are answered by the round, once their time is over.
func (l *lane) submit(ctx context.Context, cmds []session.Command) []storage.Answer {
	b := l.r.newBatch(ctx, cmds)
	if err := l.add(b); err != nil {
		return failed(len(cmds), storage.Refused(err))
	}
	select {
	case <-b.done:
		return b.answers
	case <-ctx.Done():
	}
	select {
	case <-b.done:
		return b.answers
	default:
	}
	if b.state.CompareAndSwap(batchWaits, batchGone) {
		return failed(len(cmds), storage.Refused(errLate))
	}
	return failed(len(cmds), storage.Lost(context.Cause(ctx)))
}

func failed(n int, a storage.Answer) []storage.Answer {
	answers := make([]storage.Answer, n)
	for i := range answers {
		answers[i] = a
	}
	return answers
}

func (l *lane) add(b *batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.r.ctx.Err() != nil {
		return errClosed
	}
	if l.count+len(b.cmds) > maxWaiting {
		return errFull
	}
	l.waiting = append(l.waiting, b)
	l.count += len(b.cmds)
	if !l.start() {
		l.waiting, l.count = l.waiting[:len(l.waiting)-1], l.count-len(b.cmds)
		return errClosed
	}
	return nil
}

// start lets somebody run the lane; false if it is too late. The lane is locked.
func (l *lane) start() bool {
	if l.running {
		return true
	}
	if !l.r.begin() {
		return false
	}
	l.running = true
	go l.run()
	return true
}

// run carries out rounds until nothing waits.
func (l *lane) run() {
	defer l.r.work.Done()
	for {
		x := l.ahead
		l.ahead = nil
		if x == nil {
			l.gather()
			if l.idle() {
				return
			}
			l.await()
			l.gather()
			x = l.round(l.take(nil, l.r.cfg.RoundSize))
		}
		if len(x.batches) > 0 {
			l.r.carryOut(x)
		}
		if l.ahead == nil && l.waits() == 0 {
			l.pass()
		}
	}
}

func (l *lane) round(batches []*batch) *round {
	return &round{r: l.r, l: l, p: l.p, batches: batches}
}

// waits returns how many commands wait for a round.
func (l *lane) waits() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.count
}

// idle ends the run if there is nothing to do.
func (l *lane) idle() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running = len(l.waiting) > 0 || len(l.turns.called) > 0
	return !l.running
}

// gather lets those whose answers have just come ask again, as long as more do.
func (l *lane) gather() {
	for before := -1; ; {
		runtime.Gosched()
		n := l.waits()
		if n == before || n >= l.r.cfg.RoundSize {
			return
		}
		before = n
	}
}

// take adds to the batches of a round what waits and has room in it, which is
// that of so many commands.
func (l *lane) take(taken []*batch, most int) []*batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for _, b := range taken {
		n, size = n+len(b.cmds), size+b.size
	}
	i := 0
	for ; i < len(l.waiting); i++ {
		b := l.waiting[i]
		if n > 0 && (n+len(b.cmds) > most || size+b.size > maxRoundBytes) {
			break
		}
		l.count -= len(b.cmds)
		if b.state.CompareAndSwap(batchWaits, batchTaken) {
			taken = append(taken, b)
			n, size = n+len(b.cmds), size+b.size
		}
	}
	rest := copy(l.waiting, l.waiting[i:])
	clear(l.waiting[rest:])
	l.waiting = l.waiting[:rest]
	return taken
}
