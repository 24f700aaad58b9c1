package order

import (
	"cmp"
	"context"
	"fmt"
	"io"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Trace is what an operation has left behind so far. It is written where
// commands are put in order and where lines are added to the audit log, and it is
// looked at where an error leaves: whatever failed last, a read or a claim, has no
// say in what became of what was proposed before.
type Trace struct {
	Changed bool   // something was put in order that took effect, or may have
	Line    uint64 // the last line of it in the audit log; 0 if it has none
}

// Note takes down what became of commands.
func (t *Trace) Note(answers []storage.Answer) {
	for i := range answers {
		a := &answers[i]
		switch {
		case a.Outcome == storage.NotApplied:
		case a.Outcome == storage.Applied && a.Result.Code.Failure(): // that is no answer, and nothing changed
		default:
			t.Changed = true
		}
	}
}

// Wrote takes down a line of the audit log.
func (t *Trace) Wrote(line uint64) { t.Line = max(t.Line, line) }

// Said is the error with which an operation is answered. One that claims that
// nothing was applied does not leave an operation of which something was, or may
// have been: then its outcome is unknown, and the same id brings its answer.
func (t *Trace) Said(err error) error {
	if err == nil || !t.Changed {
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

// Traced gives a request a trace.
func Traced(ctx context.Context) (context.Context, *Trace) {
	t := &Trace{}
	return context.WithValue(ctx, traceKey{}, t), t
}

// TraceOf returns the trace of a request that is one operation.
func TraceOf(ctx context.Context) *Trace {
	if t, ok := ctx.Value(traceKey{}).(*Trace); ok {
		return t
	}
	return &Trace{}
}

// A Reader is what handlers have of the store. What changes something goes
// through the steps of operations, Change and Restore, which leave a trace of it.
type Reader interface {
	Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error)
	View(ctx context.Context, r storage.Read) (storage.View, error)
	Save(ctx context.Context, w io.Writer) error
	DataID(ns string) string
}

// A Store is what handlers reach the store by.
type Store struct {
	Reader
	changes storage.Store // of Change and Restore alone
	retries prometheus.Counter
}

// New makes a Store. Retries counts the commands that are ordered again because
// what they took for granted had changed.
func New(store storage.Store, retries prometheus.Counter) *Store {
	return &Store{Reader: store, changes: store, retries: retries}
}

// MaxRounds bounds how often one request is ordered again because what it took
// for granted had changed. Eight losses in a row mean that something is wrong
// elsewhere, and the caller may ask again.
const MaxRounds = 8

// Change orders a command that has no premise. A result that is no answer
// becomes the error that refused makes of it.
func (s *Store) Change(ctx context.Context, cmd session.Command, refused func(*session.Result) error) (storage.Answer, error) {
	answers := s.changes.Apply(ctx, cmd)
	TraceOf(ctx).Note(answers)
	a := answers[0]
	switch {
	case a.Outcome != storage.Applied:
		return a, fault.OfAnswer(&a)
	case a.Result.Code.Failure():
		return a, refused(&a.Result)
	}
	return a, nil
}

// ChangeOn orders a command that takes something for granted. Build makes it of what
// this node has seen, for which stale is nil, and then of the answers that say what
// holds instead. A command is immutable once it was proposed.
func (s *Store) ChangeOn(ctx context.Context, build func(stale *session.Result) (session.Command, error), refused func(*session.Result) error) (storage.Answer, error) {
	var stale *session.Result
	for range MaxRounds {
		cmd, err := build(stale)
		if err != nil {
			return storage.Answer{}, err
		}
		a, err := s.Change(ctx, cmd, refused)
		if a.Outcome != storage.Applied || a.Result.Code != session.StalePremise {
			return a, err
		}
		s.retries.Inc()
		stale = &a.Result
	}
	return storage.Answer{}, fault.Stale()
}

// RequestFailure makes the error of a request that had no answer.
func RequestFailure(by session.Maker) func(*session.Result) error {
	return func(res *session.Result) error {
		return fault.OfResult(res, fmt.Sprintf("requestId %q of client %q", by.Request, by.Client))
	}
}

// Restore replaces the whole state.
func (s *Store) Restore(ctx context.Context, r io.Reader) error {
	err := s.changes.Restore(ctx, r)
	TraceOf(ctx).Changed = storage.OutcomeOf(err) != storage.NotApplied
	return err
}
