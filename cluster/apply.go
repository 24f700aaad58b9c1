package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"

	"example.com/govnode/internal/seeded"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Apply implements storage.Store. It returns when every command has an answer,
// at ctx's deadline at the latest (Config.ApplyTimeout where it has none).
//
// A command that was not applied is sent to whoever leads next. One whose
// outcome is unknown is sent again if it carries its caller's id. Commands that
// wait behind each other here go into the log together or in their order.
func (n *Node) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	ctx, cancel := n.deadline(ctx)
	defer cancel()
	until, _ := ctx.Deadline()
	var answers []storage.Answer // nil as long as all commands fit in one batch
	b := newBatch(len(cmds))
	encoded := make([]byte, 0, len(cmds)*commandSize)
	for i, c := range cmds {
		// The leader validates what is forwarded again; but what cannot be
		// encoded faithfully must not even be sent to it.
		if err := session.Validate(c); err != nil {
			answers = atLeast(answers, len(cmds))
			answers[i] = storage.Refused(wrong(err))
			continue
		}
		begin := len(encoded)
		encoded = session.AppendCommand(encoded, c)
		p := pending{cmd: c, raw: encoded[begin:len(encoded):len(encoded)], until: until, valid: true}
		if !b.fits(&p) {
			answers = atLeast(answers, len(cmds))
			n.applyBatch(ctx, &b, answers)
			b = newBatch(len(cmds) - i)
		}
		b.add(p, i)
	}
	if len(b.commands) > 0 {
		answers = n.applyBatch(ctx, &b, answers)
	}
	return answers
}

// commandSize is about what a command takes when it is encoded.
const commandSize = 192

func atLeast(answers []storage.Answer, n int) []storage.Answer {
	if answers == nil {
		return make([]storage.Answer, n)
	}
	return answers
}

// A batch is as much of one call of Apply as goes into the log together.
type batch struct {
	commands []pending
	at       []int   // whose answer
	maybe    []error // why it may have been applied before
	size     int
}

func newBatch(n int) batch {
	n = min(n, batchSize.Count)
	return batch{commands: make([]pending, 0, n), at: make([]int, 0, n), maybe: make([]error, 0, n)}
}

func (b *batch) fits(p *pending) bool {
	return len(b.commands) == 0 || b.size+len(p.raw) <= batchSize.Bytes && len(b.commands) < batchSize.Count
}

func (b *batch) add(p pending, at int) {
	b.commands = append(b.commands, p)
	b.at = append(b.at, at)
	b.maybe = append(b.maybe, nil)
	b.size += len(p.raw)
}

// applyBatch sends a batch to the leader until each command has an answer, and
// puts the answers where they belong. Where there are none yet, the batch is
// all there is, and its own answers are those.
func (n *Node) applyBatch(ctx context.Context, b *batch, answers []storage.Answer) []storage.Answer {
	for pause := (backoff{patience: n.cfg.LeaderPatience}); ; {
		tried, moved := n.try(ctx, b)
		hopeless := pause.found(tried[0].Err)
		if answers == nil {
			answers = tried
		}
		var again batch
		for i := range b.commands {
			a := &answers[b.at[i]]
			if a != &tried[i] { // as it is where the batch is all there is: answers are large
				*a = tried[i]
			}
			if final, maybe := settle(&b.commands[i], b.maybe[i], a); !final {
				again.add(b.commands[i], b.at[i])
				again.maybe[len(again.maybe)-1] = maybe
			}
		}
		if len(again.commands) == 0 || hopeless || !pause.wait(ctx, moved) {
			return answers
		}
		*b = again
	}
}

// settle decides whether an answer is the last word. What may have been applied
// once is never said not to have been, and keeps its error for that case.
func settle(p *pending, maybe error, a *storage.Answer) (final bool, _ error) {
	switch a.Outcome {
	case storage.Applied:
		if maybe != nil {
			a.Resent(maybe)
		}
		return true, nil
	case storage.Unknown:
		return !session.Repeatable(p.cmd) && !seeded.On(seeded.RelayTwice), a.Err
	}
	final = !errors.Is(a.Err, errElsewhere) && !errors.Is(a.Err, errNoLeader)
	if maybe != nil {
		*a = storage.Lost(maybe)
	}
	return final, maybe
}

// try sends a batch once. Its answers have an error each where there is no
// result.
func (n *Node) try(ctx context.Context, b *batch) (answers []storage.Answer, moved <-chan struct{}) {
	g := newGroup(b.commands)
	refuse := func(err error) []storage.Answer {
		for i := range g.answers {
			g.answers[i] = storage.Refused(err)
		}
		return g.answers
	}
	for _, m := range b.maybe {
		if m != nil {
			n.metrics.resent.Inc()
		}
	}
	l, address, moved := n.leader()
	var err error
	switch {
	case n.ctx.Err() != nil:
		err = errClosed
	case n.draining.Load():
		err = errDraining
	case ctx.Err() != nil:
		err = ctx.Err()
	case l != nil:
		err = l.submit(g)
	case address != "":
		err = n.forwardTo(address).queue.add(g)
	default:
		err = n.noLeader()
	}
	if err != nil {
		return refuse(err), moved
	}
	select {
	case <-g.done:
		return g.answers, moved
	case <-ctx.Done():
		err = ctx.Err()
	case <-n.ctx.Done():
		err = errClosed
	}
	if g.leave() {
		return refuse(err), moved
	}
	answers = make([]storage.Answer, len(b.commands)) // g's are still being written
	for i := range answers {
		answers[i] = storage.Lost(err)
	}
	return answers, moved
}

// A backoff paces attempts: they follow at once when the leader has changed,
// and ever more slowly while nothing happens.
type backoff struct {
	next     time.Duration
	patience time.Duration // with there being no leader; 0 has no end
	none     time.Time     // since when attempts found none; zero if the last one found one
}

// found takes note of what became of an attempt, and reports whether there was
// no leader for so long that none is to be expected soon.
func (b *backoff) found(err error) (hopeless bool) {
	switch {
	case !errors.Is(err, errNoLeader):
		b.none = time.Time{}
	case b.none.IsZero():
		b.none = time.Now()
	default:
		return b.patience > 0 && time.Since(b.none) >= b.patience
	}
	return false
}

// wait returns false when ctx is done.
func (b *backoff) wait(ctx context.Context, moved <-chan struct{}) bool {
	b.next = min(max(2*b.next, 5*time.Millisecond), 200*time.Millisecond)
	t := time.NewTimer(b.next)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-moved:
	case <-t.C:
	}
	return ctx.Err() == nil
}

// atLeader runs here on the leader, or there with the leader's address, until
// one succeeds, says that what was asked for is wrong or may have been done, or
// ctx is done. An error of either that is no *storage.Failure says that nothing
// was done, and such an attempt is made again. The error of atLeader is a
// *storage.Failure.
func (n *Node) atLeader(ctx context.Context, here func(context.Context, *leadership) error, there func(ctx context.Context, leader string) error) error {
	for pause := (backoff{patience: n.cfg.LeaderPatience}); ; {
		l, address, moved := n.leader()
		var err error
		switch {
		case n.ctx.Err() != nil:
			return notApplied(errClosed)
		case l != nil:
			err = here(ctx, l)
		case address != "":
			err = there(ctx, address)
		default:
			err = n.noLeader()
		}
		if err == nil || isUnknown(err) {
			return err
		}
		if errors.Is(err, errRemoved) || errors.Is(err, storage.ErrInvalid) {
			return notApplied(err)
		}
		if pause.found(err) {
			return notApplied(err)
		}
		if !pause.wait(ctx, moved) {
			if f, ok := err.(*storage.Failure); ok {
				err = f.Err
			}
			if !errors.Is(err, ctx.Err()) {
				err = fmt.Errorf("%w: %w", err, ctx.Err())
			}
			return notApplied(err)
		}
	}
}

// isUnknown reports whether an error says that something may have been changed.
func isUnknown(err error) bool {
	f, ok := err.(*storage.Failure)
	return ok && f.Outcome == storage.Unknown
}
