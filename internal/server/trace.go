package server

import (
	"cmp"
	"context"
	"io"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A trace is what an operation has left behind so far. It is written where
// commands are put in order and where lines are added to the audit log, and it is
// looked at where an error leaves: whatever failed last, a read or a claim, has no
// say in what became of what was proposed before.
type trace struct {
	changed bool   // something was put in order that took effect, or may have
	line    uint64 // the last line of it in the audit log; 0 if it has none
}

// note takes down what became of commands.
func (t *trace) note(answers []storage.Answer) {
	for i := range answers {
		a := &answers[i]
		switch {
		case a.Outcome == storage.NotApplied:
		case a.Outcome == storage.Applied && a.Result.Code.Failure(): // that is no answer, and nothing changed
		default:
			t.changed = true
		}
	}
}

// wrote takes down a line of the audit log.
func (t *trace) wrote(line uint64) { t.line = max(t.line, line) }

// said is the error with which an operation is answered. One that claims that
// nothing was applied does not leave an operation of which something was, or may
// have been: then its outcome is unknown, and the same id brings its answer.
func (t *trace) said(err error) error {
	if err == nil || !t.changed {
		return err
	}
	switch f := fault.Of(err); f.Reason {
	case fault.ReasonNotApplied, fault.ReasonOverloaded:
		return fault.Unknown(cmp.Or(f.Cause, "the node could not see it through"))
	default:
		return f
	}
}

type traceKey struct{}

// traced gives a request a trace.
func traced(ctx context.Context) (context.Context, *trace) {
	t := &trace{}
	return context.WithValue(ctx, traceKey{}, t), t
}

// traceOf returns the trace of a request that is one operation.
func traceOf(ctx context.Context) *trace {
	if t, ok := ctx.Value(traceKey{}).(*trace); ok {
		return t
	}
	return &trace{}
}

// A reader is what handlers have of the store. What changes something goes
// through proceed, change and restore, which leave a trace of it.
type reader interface {
	Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error)
	View(ctx context.Context, r storage.Read) (storage.View, error)
	Save(ctx context.Context, w io.Writer) error
	DataID(ns string) string
}

// lapsed writes down calls that the store found to have run out.
func (s *Server) lapsed(calls []session.Lapse) {
	for _, l := range calls {
		s.audit.lapse(l)
		s.metrics.lapsed.Inc()
	}
}

// change orders a command that has no premise. A result that is no answer
// becomes the error that refused makes of it.
func (s *Server) change(ctx context.Context, cmd session.Command, refused func(*session.Result) error) (storage.Answer, error) {
	answers := s.changes.Apply(ctx, cmd)
	traceOf(ctx).note(answers)
	a := answers[0]
	switch {
	case a.Outcome != storage.Applied:
		return a, fault.OfAnswer(&a)
	case a.Result.Code.Failure():
		return a, refused(&a.Result)
	}
	return a, nil
}

// restore replaces the whole state.
func (s *Server) restore(ctx context.Context, r io.Reader) error {
	err := s.changes.Restore(ctx, r)
	traceOf(ctx).changed = storage.OutcomeOf(err) != storage.NotApplied
	return err
}
