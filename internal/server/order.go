package server

import (
	"context"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// maxRounds bounds how often one request is ordered again because what it took
// for granted had changed. Eight losses in a row mean that something is wrong
// elsewhere, and the caller may ask again.
const maxRounds = 8

// An operation is a request that becomes commands. Commands carry premises:
// which pools a call holds, what a name points to, what a verdict rests on.
// Where one no longer holds, the answer brings what holds now, and the
// operation is ordered again.
type operation interface {
	// commands returns what is to be ordered now.
	commands() []session.Command
	// take looks at the answers, and reports whether the operation has to be
	// ordered again.
	take(ctx context.Context, answers []storage.Answer) (again bool, err error)
	// left is its trace.
	left() *trace
}

// order puts one operation in order, until it has an answer.
func (s *Server) order(ctx context.Context, op operation) error {
	for range maxRounds {
		answers := s.apply(ctx, op.commands()...)
		op.left().note(answers)
		again, err := op.take(ctx, answers)
		if err != nil || !again {
			return err
		}
		s.metrics.premises.Inc()
	}
	return errRounds()
}

// orderAll puts many operations in order together, and returns an error for
// each that has none of its answers. Operations keep their order as long as
// their premises hold.
func (s *Server) orderAll(ctx context.Context, ops []operation) []error {
	errs := make([]error, len(ops))
	s.orderRounds(ctx, ops, func(i int, err error) { errs[i] = err }, func() {})
	return errs
}

// orderRounds is orderAll for those who do not wait for the last: it tells what
// became of each operation as soon as that is known, and when a round is over.
func (s *Server) orderRounds(ctx context.Context, ops []operation, settled func(i int, err error), over func()) {
	open := make([]int, len(ops))
	for i := range ops {
		open[i] = i
	}
	counts := make([]int, len(ops))
	cmds := make([]session.Command, 0, len(ops))
	for range maxRounds {
		cmds = cmds[:0]
		for n, i := range open {
			c := ops[i].commands()
			counts[n] = len(c)
			cmds = append(cmds, c...)
		}
		answers := s.apply(ctx, cmds...)
		again := open[:0]
		for n, i := range open {
			own := answers[:counts[n]]
			answers = answers[counts[n]:]
			ops[i].left().note(own)
			more, err := ops[i].take(ctx, own)
			if err == nil && more {
				again = append(again, i)
				continue
			}
			settled(i, err)
		}
		over()
		if open = again; len(open) == 0 {
			return
		}
		s.metrics.premises.Add(float64(len(open)))
	}
	for _, i := range open {
		settled(i, errRounds())
	}
	over()
}

func errRounds() error {
	f := failings[session.StalePremise]
	return newError(f.code, f.reason, f.text)
}

func (s *Server) lapsed(ns string, calls []session.Lapse) {
	for _, l := range calls {
		s.audit.lapse(ns, l)
		s.metrics.lapsed.Inc()
	}
}

// findSession returns the session of that id, which f found in a request. A
// record that is not there nearby is looked for once more.
func (s *Server) findSession(ctx context.Context, ns string, f *fields, id string, read storage.Read) (storage.Found, error) {
	k := session.SessionKey(ns, id)
	for {
		found, err := s.store.Get(ctx, k, read)
		if err != nil {
			return found, readError(err)
		}
		if x, ok := found.Record.(*session.Session); ok && x != nil {
			return found, nil
		}
		if read == storage.Latest {
			return found, notFound(f.path("sessionId"), "there is no session %q; create it with CreateSession", id)
		}
		if quick(ctx) {
			return found, errTakesLong
		}
		read = storage.Latest // the session may be younger than what this node has seen
	}
}
