package storage

import (
	"context"
	"errors"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"example.com/govnode/session"
)

const (
	// maxWaiting bounds the commands that wait on this node for a round.
	maxWaiting = 1 << 16
	// maxRoundBytes bounds what a round writes by its commands' own content.
	maxRoundBytes = 1 << 20
)

var (
	errRedisClosed = errors.New("this node is shutting down")
	errRedisFull   = errors.New("too many commands wait for Redis; try again later")
	errLate        = errors.New("its caller's deadline passed before it was sent")
	errFailedFirst = errors.New("a command before it in the same request has failed")
)

// A batch is the commands of one caller that share a round.
type batch struct {
	ctx     context.Context
	until   time.Time
	cmds    []session.Command
	size    int
	answers []Answer // once done is closed
	done    chan struct{}
	state   atomic.Int32
	sent    bool // in a round whose outcome is not known
}

const (
	batchWaits int32 = iota
	batchTaken
	batchGone // its caller went away before it was taken
)

func (r *Redis) newBatch(ctx context.Context, cmds []session.Command) *batch {
	b := &batch{ctx: ctx, cmds: cmds, answers: make([]Answer, len(cmds)), done: make(chan struct{})}
	b.until = time.Now().Add(r.cfg.Timeout)
	if d, ok := ctx.Deadline(); ok {
		b.until = d
	}
	for _, c := range cmds {
		b.size += weight(c)
	}
	return b
}

// weight is what of a command's content may be large.
func weight(c session.Command) int {
	switch c := c.(type) {
	case *session.PutPolicy:
		return len(c.Tree)
	case *session.Set:
		return len(c.Value.Text)
	case *session.End:
		return len(c.Output.Text)
	}
	return 0
}

// over reports whether its caller waits no longer.
func (b *batch) over() bool { return b.ctx.Err() != nil || time.Now().After(b.until) }

// fail answers all commands with an error; those that may have been applied
// with ErrUnknown.
func (b *batch) fail(err error) {
	if b.sent {
		err = unknownOutcome(err)
	}
	for i := range b.answers {
		b.answers[i] = Answer{Err: err}
	}
	close(b.done)
}

func (b *batch) finish(results []session.Result) {
	for i := range b.answers {
		b.answers[i] = Answer{Result: results[i]}
	}
	close(b.done)
}

// A lane puts the commands of one namespace in order on this node: those that
// arrive while a round is under way share the next.
type lane struct {
	r *Redis
	p *place

	mu      sync.Mutex
	waiting []*batch
	count   int
	running bool
}

// submit lets commands wait for a round and returns their answers.
func (l *lane) submit(ctx context.Context, cmds []session.Command) []Answer {
	b := l.r.newBatch(ctx, cmds)
	if err := l.add(b); err != nil {
		return failed(len(cmds), notApplied(err))
	}
	var timeout <-chan time.Time
	if _, ok := ctx.Deadline(); !ok {
		t := time.NewTimer(time.Until(b.until) + time.Second) // the round gives up by itself
		defer t.Stop()
		timeout = t.C
	}
	select {
	case <-b.done:
		return b.answers
	case <-ctx.Done():
	case <-timeout:
	}
	select {
	case <-b.done:
		return b.answers
	default:
	}
	if b.state.CompareAndSwap(batchWaits, batchGone) {
		return failed(len(cmds), notApplied(errLate))
	}
	return failed(len(cmds), unknownOutcome(context.Cause(ctx)))
}

func failed(n int, err error) []Answer {
	answers := make([]Answer, n)
	for i := range answers {
		answers[i].Err = err
	}
	return answers
}

func (l *lane) add(b *batch) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.r.ctx.Err() != nil {
		return errRedisClosed
	}
	if l.count+len(b.cmds) > maxWaiting {
		return errRedisFull
	}
	l.waiting = append(l.waiting, b)
	l.count += len(b.cmds)
	if !l.running {
		if !l.r.begin() {
			l.waiting, l.count = l.waiting[:len(l.waiting)-1], l.count-len(b.cmds)
			return errRedisClosed
		}
		l.running = true
		go l.run()
	}
	return nil
}

// run carries out rounds until nothing waits.
func (l *lane) run() {
	defer l.r.work.Done()
	for {
		l.gather()
		batches := l.take(nil)
		if batches == nil {
			l.mu.Lock()
			l.running = len(l.waiting) > 0
			again := l.running
			l.mu.Unlock()
			if again {
				continue
			}
			return
		}
		l.r.carryOut(l, batches)
	}
}

// gather lets those whose answers have just come ask again, as long as more do.
func (l *lane) gather() {
	for before := -1; ; {
		runtime.Gosched()
		l.mu.Lock()
		n := l.count
		l.mu.Unlock()
		if n == before || n >= l.r.cfg.RoundSize {
			return
		}
		before = n
	}
}

// take adds to the batches of a round what waits and has room in it.
func (l *lane) take(taken []*batch) []*batch {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, size := 0, 0
	for _, b := range taken {
		n, size = n+len(b.cmds), size+b.size
	}
	i := 0
	for ; i < len(l.waiting); i++ {
		b := l.waiting[i]
		if n > 0 && (n+len(b.cmds) > l.r.cfg.RoundSize || size+b.size > maxRoundBytes) {
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
