package redis

import (
	"context"
	"errors"
	"slices"
	"sync/atomic"
	"time"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// A batch is the commands of one caller that share a round.
type batch struct {
	ctx     context.Context
	until   time.Time
	cmds    []session.Command
	asks    []ask
	size    int
	answers []storage.Answer // once done is closed
	done    chan struct{}
	state   atomic.Int32

	// Of the goroutine that runs the lane.
	answered bool
	open     bool                 // it is in an attempt of which nobody knows what became
	doubtful bool                 // it was in one of which nobody will ever know
	then     func(storage.Answer) // instead of done: is told the answer to its one command
}

// An ask is what a command touches: records, and of one of them a part of the
// ids that it remembers.
type ask struct {
	keys []session.Key
	ids  int // place of that record, -1 if no ids are looked at
	part int
}

// parts returns those that are looked at of the record at a place.
func (a *ask) parts(i int) uint16 {
	if i != a.ids {
		return 0
	}
	return 1 << a.part
}

func askOf(c session.Command) ask {
	a := ask{keys: session.Footprint(c), ids: -1}
	if k, part, ok := session.IDOf(c); ok {
		a.ids, a.part = slices.Index(a.keys, k), part
	}
	return a
}

const (
	batchWaits int32 = iota
	batchTaken
	batchGone // its caller went away before it was taken
)

func (r *Store) newBatch(ctx context.Context, cmds []session.Command) *batch {
	b := &batch{}
	if len(cmds) == 1 { // as most are: in one piece
		one := &struct {
			batch
			answer [1]storage.Answer
			ask    [1]ask
		}{}
		b = &one.batch
		b.answers, b.asks = one.answer[:], one.ask[:]
	} else {
		b.answers, b.asks = make([]storage.Answer, len(cmds)), make([]ask, len(cmds))
	}
	b.ctx, b.cmds, b.done = ctx, cmds, make(chan struct{})
	d, ok := ctx.Deadline()
	if !ok {
		d = time.Now().Add(r.cfg.Timeout)
	}
	b.until = d
	for i, c := range cmds {
		b.asks[i] = askOf(c)
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
	case *session.Append:
		n := 0
		for _, item := range c.Items {
			n += len(item)
		}
		return n
	case *session.End:
		return len(c.Output.Text)
	}
	return 0
}

// over reports whether its caller waits no longer.
func (b *batch) over(now time.Time) bool { return now.After(b.until) || b.ctx.Err() != nil }

// repeatable reports whether applying it a second time has no second effect.
func (b *batch) repeatable() bool {
	for _, c := range b.cmds {
		if !session.Repeatable(c) {
			return false
		}
	}
	return true
}

// errDoubtful is why nobody will ever know what became of an attempt.
var errDoubtful = errors.New("the connection broke, and others have changed the records since")

// fail gives all commands an answer without a result; where they may have been
// applied that is unknown.
func (b *batch) fail(a storage.Answer) {
	if b.open || b.doubtful {
		a.Outcome = storage.Unknown
	}
	for i := range b.answers {
		b.answers[i] = a
	}
	b.end()
}

func (b *batch) finish(results []session.Result) {
	for i := range b.answers {
		b.answers[i] = storage.Done(results[i], 0)
		if b.doubtful {
			b.answers[i].Resent(errDoubtful)
		}
	}
	b.end()
}

func (b *batch) end() {
	b.answered = true
	if b.then != nil {
		b.then(b.answers[0])
	} else {
		close(b.done)
	}
}

// split returns a batch for each of its commands, which answer it when all of
// them are answered: then each has an outcome of its own.
func (b *batch) split() []*batch {
	if len(b.cmds) == 1 {
		return []*batch{b}
	}
	all, left := make([]*batch, len(b.cmds)), len(b.cmds)
	for i := range all {
		all[i] = &batch{ctx: b.ctx, until: b.until, cmds: b.cmds[i : i+1], asks: b.asks[i : i+1], answers: make([]storage.Answer, 1), doubtful: b.doubtful}
		all[i].then = func(a storage.Answer) {
			b.answers[i] = a
			if left--; left == 0 {
				b.end()
			}
		}
	}
	return all
}

// touches reports whether a command of it needs one of the records.
func (b *batch) touches(records map[session.Key]*wire.BadRecord) *wire.BadRecord {
	for i := range b.asks {
		for _, k := range b.asks[i].keys {
			if bad := records[k]; bad != nil {
				return bad
			}
		}
	}
	return nil
}
