package server

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sync/errgroup"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The steps of operations, from a request to its answer: prepare checks and judges,
// proceed orders many together, await lets one stand in its queue, and settle makes
// the answer. A request of its own, a batch and a stream differ in what they do with
// operations that take long to be judged and with those that are queued.

// prepare checks and judges an operation, of which f is the place in its message.
// It returns false where that would take long and the context does not allow it:
// then it is to be prepared once more.
func (s *Server) prepare(ctx context.Context, f *input.Fields, op operation) (done bool) {
	p := op.state()
	err := s.guarded(op, func() error {
		p.who = access.From(ctx)
		p.trace.Who = p.who.String()
		if p.kind != nil { // else it was admitted at the boundary
			if err := s.auth.Methods.Admit(p.who, p.kind.procedure); err != nil {
				return err
			}
			if err := s.admit(p.kind.procedure); err != nil {
				return err
			}
		}
		if err := s.spend(ctx, op); err != nil {
			return err
		}
		if err := op.check(ctx, f); err != nil {
			return err
		}
		p.checked = true
		return op.judge(ctx)
	})
	if errors.Is(err, order.ErrTakesLong) {
		p.checked = false
		return false
	}
	if err != nil {
		s.settle(op, err)
	}
	return true
}

// spend takes an operation from what its namespace may do in a second at this node.
// What ends something or gives it back costs nothing, unless there is nothing (see
// quota.Missed).
func (s *Server) spend(ctx context.Context, op operation) error {
	switch op.(type) {
	case *end, *cancel, *release, *renewal, *closing, *forced:
		return nil
	}
	p := op.state()
	if p.spent { // it is prepared once more
		return nil
	}
	p.spent = true
	if _, begins := op.(*opening); begins {
		if err := s.quotas.Turn(ctx, p.ns); err != nil {
			return err
		}
	}
	return s.quotas.Spend(ctx, p.ns)
}

// A course is what becomes of operations that are put in order together, by their
// places in the list.
type course struct {
	// queued takes an operation over that waits. Nil: its place in the queue is
	// its answer.
	queued func(i int, w *waiting.Wait)
	// answered is told at the end of each round who has its answer by then, and
	// that what the audit holds of it is written. Nil: nobody waits for that.
	answered func(done []int)
}

// proceed puts operations in order together until each has an answer or waits. They
// keep their order as long as their premises hold. What is settled is left as it is.
func (s *Server) proceed(ctx context.Context, ops []operation, c course) {
	open, done := make([]int, 0, len(ops)), make([]int, 0, len(ops))
	for i, op := range ops {
		if op.state().settled {
			done = append(done, i)
		} else {
			open = append(open, i)
			s.room(ctx, op)
		}
	}
	for round := 1; ; round++ {
		again := open[:0]
		for n, r := range s.round(ctx, ops, open) {
			i := open[n]
			if r.again && round < order.MaxRounds {
				again = append(again, i)
				continue
			}
			if r.again {
				r.err = fault.Stale()
			}
			if r.err == nil && c.queued != nil {
				var w *waiting.Wait
				if w, r.err = s.waitOf(ops[i]); w != nil {
					c.queued(i, w)
					continue
				}
			}
			s.settle(ops[i], r.err)
			done = append(done, i)
		}
		for _, i := range done {
			s.written(ops[i])
		}
		if c.answered != nil {
			c.answered(done)
		}
		if open, done = again, done[:0]; len(open) == 0 {
			return
		}
	}
}

// room has an operation that may come to wait ordered as one that does not, where as many
// of its namespace wait as may: to be refused when it is queued would be too late, since
// it is counted by then. Who waits already goes on.
func (s *Server) room(ctx context.Context, op operation) {
	if op.state().waits || op.patience() == 0 {
		return
	}
	// What cannot be told now keeps nobody out.
	_ = s.guarded(op, func() error {
		if s.quotas.Full(ctx, op.state().ns, quota.Waiters) {
			op.hurry()
		}
		return nil
	})
}

// taken is what an operation made of its answers.
type taken struct {
	again bool
	err   error
}

// round puts those operations in order that are open. What fails one of them does
// not fail the others.
func (s *Server) round(ctx context.Context, ops []operation, open []int) []taken {
	all := make([]taken, len(open))
	if len(open) == 0 {
		return nil
	}
	// Looked up once for all, who are of one namespace: most have none.
	limited := s.quotas.Of(ctx, ops[open[0]].state().ns) != (session.Quotas{})
	counts := make([]int, len(open))
	cmds := make([]session.Command, 0, len(open))
	for n, i := range open {
		before := len(cmds)
		all[n].err = s.guarded(ops[i], func() error {
			cmds = append(cmds, ops[i].commands()...)
			if limited {
				return s.withinQuotas(ctx, cmds[before:])
			}
			return nil
		})
		if all[n].err != nil {
			cmds = cmds[:before]
		}
		if who := ops[i].state().who; who != nil && all[n].err == nil {
			if all[n].err = s.authorize(who, cmds[before:]); all[n].err != nil {
				cmds = cmds[:before]
			}
		}
		counts[n] = len(cmds) - before
	}
	var answers []storage.Answer
	if err := s.guarded(s.changes, func() error { answers = s.changes.Apply(ctx, cmds...); return nil }); err != nil {
		for n := range all {
			all[n].err = err
		}
		return all
	}
	var others errgroup.Group
	others.SetLimit(maxJudged)
	tellBy := time.Now().Add(tellsFor)
	for n, i := range open {
		own := answers[:counts[n]]
		for j := range own {
			if limited && own[j].Outcome == storage.Applied {
				s.quotas.Missed(ctx, cmds[j], &own[j].Result)
			}
		}
		answers, cmds = answers[counts[n]:], cmds[counts[n]:]
		if all[n].err != nil {
			continue
		}
		e, ends := ops[i].(*end)
		if ends {
			e.tellBy = tellBy
		}
		if ends && e.tells() || judgesAnew(own) { // which takes long, and others wait behind it
			others.Go(func() error { all[n] = s.take(ctx, ops[i], own); return nil })
		} else {
			all[n] = s.take(ctx, ops[i], own)
		}
	}
	_ = others.Wait() // none of them returns an error
	for n := range all {
		if all[n].again {
			s.metrics.premises.Inc()
		}
	}
	return all
}

// judgesAnew reports whether an operation with these answers finds out anew what it took for
// granted, and judges by that.
func judgesAnew(answers []storage.Answer) bool {
	for i := range answers {
		switch answers[i].Result.Code {
		case session.StalePremise, session.StaleSession, session.StaleAccess:
			return true
		}
	}
	return false
}

// withinQuotas refuses commands that add to what a namespace has too much of.
func (s *Server) withinQuotas(ctx context.Context, cmds []session.Command) error {
	for _, c := range cmds {
		if err := s.quotas.Admit(ctx, c); err != nil {
			return err
		}
	}
	return nil
}

// authorize has commands carry who asks for them.
func (s *Server) authorize(who *access.Principal, cmds []session.Command) error {
	if who.Expired(s.cfg.Now()) {
		return access.ErrUnknown()
	}
	for _, c := range cmds {
		access.Authorize(who, c)
	}
	return nil
}

// take lets an operation look at its answers, if it has them. Where who may do what has
// changed, its principal is looked up anew and all of it is ordered again: what of it was
// done is known by its ids.
func (s *Server) take(ctx context.Context, op operation, answers []storage.Answer) (t taken) {
	op.state().trace.Note(answers)
	for i := range answers {
		if answers[i].Outcome != storage.Applied && !op.apart() {
			return taken{err: fault.OfAnswer(&answers[i])}
		}
	}
	for i := range answers {
		if answers[i].Result.Code == session.StaleAccess {
			p := op.state()
			p.who, t.err = s.auth.Again(ctx, p.who)
			return taken{again: t.err == nil, err: t.err}
		}
	}
	t.err = s.guarded(op, func() (err error) {
		t.again, err = op.take(ctx, answers)
		return err
	})
	t.again = t.again && t.err == nil
	return t
}

// await lets an operation stand in its queue until it has its answer, and be held
// while it is kept out: then it is judged and put in order again, as one that is sent
// again would be.
func (s *Server) await(ctx context.Context, op operation, w *waiting.Wait) {
	ctx, stop := s.auth.Guard(ctx)
	defer stop()
	defer s.quotas.Add(ctx, op.state().ns, quota.Waiters)()
	op.state().waits = true
	for {
		var next *waiting.Wait
		err := s.guarded(op, func() error { return s.waits.Stand(ctx, w) })
		if w.Answer != nil {
			op.state().trace.Wrote(w.Answer.Line)
		}
		goesOn := err == nil && w.Held != nil && !w.Held.Over
		if goesOn {
			err = s.guarded(op, func() error { return op.judgeAgain(context.WithValue(ctx, order.QuickKey{}, false)) })
		}
		if goesOn && err == nil {
			s.proceed(ctx, []operation{op}, course{queued: func(_ int, again *waiting.Wait) { next = again }})
			if next == nil {
				return
			}
		} else if err == nil && w.Held == nil && w.Answer.Result.Code == session.StaleAccess {
			p := op.state()
			if p.who, err = s.auth.Again(ctx, p.who); err == nil {
				err = s.guarded(op, func() error { return op.judgeAgain(context.WithValue(ctx, order.QuickKey{}, false)) })
			}
			if err == nil {
				s.proceed(ctx, []operation{op}, course{queued: func(_ int, again *waiting.Wait) { next = again }})
				if next == nil {
					return
				}
			} else if !errors.Is(context.Cause(ctx), waiting.ErrStreamEnded) {
				s.waits.Abandon(w) // others may ask for it, and he again where it could not be found out what he may
			}
		} else if err == nil && w.Held == nil {
			next, err = s.waitOf(op)
		}
		if next == nil {
			s.settle(op, err)
			s.written(op)
			return
		}
		w = next
	}
}

// waitOf describes the wait of an operation that was queued; nil if it was not. The node
// keeps its place for whoever asked.
func (s *Server) waitOf(op operation) (w *waiting.Wait, err error) {
	err = s.guarded(op, func() error { w = op.waiting(); return nil })
	if who := op.state().who; who != nil && w != nil && w.Renew != nil {
		w.Gone = func() bool { return who.Expired(s.cfg.Now()) }
		behalf := who.Behalf()
		w.Renew.Authorize(behalf)
		w.Cancel.Authorize(behalf)
	}
	return w, err
}

// settle makes the answer of an operation, or the error that it is answered with.
func (s *Server) settle(op operation, err error) {
	p := op.state()
	if err == nil {
		err = s.guarded(op, func() error { return op.respond() })
	}
	if err != nil {
		err = fault.Of(p.trace.Said(err))
		if p.checked {
			// A panic is in the log of the node; there is an error already.
			_ = s.guarded(op, func() error { op.failed(err); return nil })
		}
	}
	p.err, p.settled = err, true
}

// written returns when what the audit holds of an operation is written. Where that
// is required and does not come about, it is no answer.
func (s *Server) written(op operation) {
	p := op.state()
	if err := s.audit.written(&p.trace); p.err == nil {
		p.err = err
	}
}

// guarded does a step, and makes an error of a panic, so that one bad operation
// costs one answer and not the node. Of names whose step it is.
func (s *Server) guarded(of any, step func() error) (err error) {
	defer func() {
		if cause := recover(); cause != nil {
			err = s.panicked(fmt.Sprintf("%T", of), cause)
		}
	}()
	return step()
}
