package order

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A Trace is what an operation has left behind so far. It is written where
// commands are put in order and where lines are added to the audit log, and it is
// looked at where an error leaves: whatever failed last, a read or a claim, has no
// say in what became of what was proposed before.
type Trace struct {
	Changed bool   // something was put in order that took effect, or may have
	Who     string // asks for it; empty where nobody is asked
	Line    uint64 // the last line of it in the audit log; 0 if it has none
}

// Note takes down what became of commands.
func (t *Trace) Note(answers []storage.Answer) {
	for i := range answers {
		a := &answers[i]
		t.Wrote(a.Line)
		switch {
		case a.Outcome == storage.NotApplied:
		case a.Outcome == storage.Applied && a.Result.Code.Failure(): // that is no answer, and nothing changed
		default:
			t.Changed = true
		}
	}
}

// Join takes over that an operation of the request has changed something. Its lines
// are its own.
func (t *Trace) Join(o *Trace) { t.Changed = t.Changed || o.Changed }

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
	case fault.ReasonQuotaExceeded: // of a part of it
		return fault.Unknown("a quota of the namespace keeps the rest of it out")
	case fault.ReasonUnauthenticated: // any more: his wait was counted, and its slot may be his
		return fault.Unknown("the token is not known any more, as it has expired or was revoked; ask an operator for another")
	default:
		return f
	}
}

// Within is a context in which what is changed is traced as the operation's, beside its
// own commands.
func (t *Trace) Within(ctx context.Context) context.Context {
	return context.WithValue(ctx, traceKey{}, t)
}

type traceKey struct{}

// Traced gives a request a trace.
func Traced(ctx context.Context) (context.Context, *Trace) {
	t := &Trace{Who: access.From(ctx).String()}
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
	View(ctx context.Context, ns string, r storage.Read) (storage.View, error)
	Save(ctx context.Context, w io.Writer) error
	DataID(ns string) string
}

// A Store is what handlers reach the store by.
type Store struct {
	Reader
	changes storage.Store // of Change and Restore alone
	retries prometheus.Counter
	auth    *access.Authenticator // nil where nobody is known
	quotas  *quota.Quotas         // nil where there are none
}

// New makes a Store. Retries counts the commands that are ordered again because
// what they took for granted had changed; auth knows who asks for them.
func New(store storage.Store, retries prometheus.Counter, auth *access.Authenticator, quotas *quota.Quotas) *Store {
	return &Store{Reader: store, changes: store, retries: retries, auth: auth, quotas: quotas}
}

// Get is Reader.Get for the principal of a request: what is not in his scope is not
// there.
func (s *Store) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	found, err := s.Reader.Get(ctx, k, r)
	if err == nil && !access.From(ctx).Visible(found.Record) {
		found.Record = nil
	}
	return found, err
}

// Hidden reports whether a record is there and not in the scope of who asks, as it stands
// now: this node may not have seen it yet, or may have seen another of its id.
func (s *Store) Hidden(ctx context.Context, k session.Key) (bool, error) {
	p := access.From(ctx)
	if !p.Scoped() {
		return false, nil
	}
	found, err := s.Reader.Get(ctx, k, storage.Latest)
	if err != nil {
		return false, fault.OfRead(err)
	}
	return !p.Visible(found.Record), nil
}

// MaxRounds bounds how often one request is ordered again because what it took
// for granted had changed. Eight losses in a row mean that something is wrong
// elsewhere, and the caller may ask again.
const MaxRounds = 8

// Change orders a command that has no premise. A result that is no answer
// becomes the error that refused makes of it.
func (s *Store) Change(ctx context.Context, cmd session.Command, refused func(*session.Result) error) (storage.Answer, error) {
	a, err := s.apply(ctx, cmd)
	if err != nil {
		return a, err
	}
	switch {
	case a.Outcome != storage.Applied:
		return a, fault.OfAnswer(&a)
	case a.Result.Code.Failure():
		return a, refused(&a.Result)
	}
	return a, nil
}

// Ending is the context of a command that belongs to the end of something: no quota keeps
// that from ending.
func Ending(ctx context.Context) context.Context { return context.WithValue(ctx, endingKey{}, true) }

type endingKey struct{}

// apply orders a command of the principal of a request, and again if who may do what
// has changed meanwhile.
func (s *Store) apply(ctx context.Context, cmd session.Command) (a storage.Answer, err error) {
	p := access.From(ctx)
	if s.quotas != nil && ctx.Value(endingKey{}) == nil {
		if err := s.quotas.Admit(ctx, cmd); err != nil {
			return a, err
		}
	}
	for range MaxRounds {
		if p.Expired(s.now()) {
			return a, access.ErrUnknown()
		}
		access.Authorize(p, cmd)
		answers := s.changes.Apply(ctx, cmd)
		TraceOf(ctx).Note(answers)
		if s.quotas != nil && answers[0].Outcome == storage.Applied {
			s.quotas.Missed(ctx, cmd, &answers[0].Result)
		}
		if a = answers[0]; a.Outcome != storage.Applied || a.Result.Code != session.StaleAccess {
			return a, nil
		}
		s.retries.Inc()
		if p, err = s.auth.Again(ctx, p); err != nil {
			return a, err
		}
	}
	return a, nil
}

func (s *Store) now() time.Time {
	if s.auth == nil {
		return time.Time{}
	}
	return s.auth.Now()
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

// Restore replaces the whole state. Its error is a *storage.Failure.
func (s *Store) Restore(ctx context.Context, r io.Reader) error {
	still := func() error {
		p := access.From(ctx)
		if p == nil {
			return nil
		}
		if _, err := s.auth.AsOfNow(ctx, p); err != nil {
			return storage.Fail(storage.NotApplied, err) // also where it could not be read
		}
		return nil
	}
	if err := still(); err != nil {
		return err
	}
	end := &asked{Reader: r, still: still}
	err := s.changes.Restore(ctx, end)
	if end.refused != nil {
		return end.refused
	}
	TraceOf(ctx).Changed = storage.OutcomeOf(err) != storage.NotApplied
	return err
}

// asked asks at the end of what is read whether its sender may still have it carried out.
type asked struct {
	io.Reader
	still   func() error
	refused error
}

// Read implements io.Reader.
func (a *asked) Read(b []byte) (int, error) {
	n, err := a.Reader.Read(b)
	if err == io.EOF && a.refused == nil {
		a.refused = a.still()
	}
	if a.refused != nil {
		return 0, a.refused
	}
	return n, err
}
