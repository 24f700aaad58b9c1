package storage

import (
	"errors"

	"example.com/govnode/session"
)

// An Outcome says what became of a change. It is set where the change is put in
// order and carried as it is to whoever asked for it: nothing that happens
// later, such as a read that fails, has a say in it.
type Outcome uint8

const (
	// Unknown means that the change may have been applied or not, or may still
	// be. Sending it again is safe if it carries its caller's id. It is the zero
	// value, so that what nobody has said is not known.
	Unknown Outcome = iota
	// NotApplied means that the change had no effect and will have none.
	NotApplied
	// Applied means that the change has its place in the order, and a result.
	Applied
)

func (o Outcome) String() string {
	switch o {
	case NotApplied:
		return "not applied"
	case Applied:
		return "applied"
	}
	return "outcome unknown"
}

// An Answer is what became of one command: its result if it was applied, or the
// reason why there is none.
type Answer struct {
	Outcome Outcome
	Result  session.Result // of a command that was applied
	Index   uint64         // its place in the order, 0 where the store has none
	Err     error          // why there is no result; wraps ErrInvalid where the command is wrong
	Line    uint64         // of the audit of who asked, who sets it; 0 if it has none
	// Again says that the store had sent the command before without learning what became
	// of that. A result that is a repeat may then be one of its own.
	Again bool
}

// Resent notes of the answer to a command that the store had sent it before, and why it
// did not learn what became of that. Who may do what is looked at before the id of a
// command is, and the id may have been forgotten: a refusal for what has changed
// meanwhile says nothing about the first time.
func (a *Answer) Resent(why error) {
	a.Again = true
	if a.Outcome == Applied && (a.Result.Code == session.StaleAccess || a.Result.Code == session.StaleID) {
		*a = Lost(why)
	}
}

// First reports whether whoever tells of changes has to tell of this one: it is no repeat,
// or may be one of what the store itself had sent before, of which nobody has told then.
func (a *Answer) First() bool { return !a.Result.Repeat || a.Again }

// Done is the answer to a command that was applied.
func Done(r session.Result, index uint64) Answer {
	return Answer{Outcome: Applied, Result: r, Index: index}
}

// Refused is the answer to a command that was not applied.
func Refused(why error) Answer { return Answer{Outcome: NotApplied, Err: why} }

// Lost is the answer to a command of which nobody knows what became.
func Lost(why error) Answer { return Answer{Outcome: Unknown, Err: why} }

// Failure returns what became of the command as an error: nil if it was
// applied, a *Failure otherwise.
func (a *Answer) Failure() error {
	if a.Outcome == Applied {
		return nil
	}
	return Fail(a.Outcome, a.Err)
}

// A Failure is the error of a change that has no result.
type Failure struct {
	Outcome Outcome // Unknown or NotApplied
	Err     error   // why
}

// Fail returns a *Failure. An outcome that err itself has is replaced.
func Fail(o Outcome, err error) error {
	if f, ok := err.(*Failure); ok {
		err = f.Err
	}
	return &Failure{o, err}
}

func (f *Failure) Error() string {
	if f.Err == nil {
		return "storage: " + f.Outcome.String()
	}
	return "storage: " + f.Outcome.String() + ": " + f.Err.Error()
}

// Unwrap returns the reason.
func (f *Failure) Unwrap() error { return f.Err }

// OutcomeOf returns what the error of a change says became of it. What is no
// Failure says nothing: the outcome is unknown.
func OutcomeOf(err error) Outcome {
	if err == nil {
		return Applied
	}
	// The outcome is that of the error itself: one that is wrapped may speak of
	// something else.
	if f, ok := err.(*Failure); ok {
		return f.Outcome
	}
	return Unknown
}

// ErrInvalid is what errors.Is finds in an *InvalidError.
var ErrInvalid = errors.New("storage: invalid command")

// An InvalidError is the reason of a change that was refused before it was ordered
// because of what it says.
type InvalidError struct{ Why error }

// Invalid returns an *InvalidError.
func Invalid(why error) error { return &InvalidError{why} }

func (e *InvalidError) Error() string { return ErrInvalid.Error() + ": " + e.Why.Error() }

// Is reports whether target is ErrInvalid.
func (e *InvalidError) Is(target error) bool { return target == ErrInvalid }

// Unwrap returns what is wrong.
func (e *InvalidError) Unwrap() error { return e.Why }

// A ReadError says that a read had no answer. It says nothing about any change.
type ReadError struct{ Err error }

// Unread returns a *ReadError; nil for nil.
func Unread(err error) error {
	switch e := err.(type) {
	case nil:
		return nil
	case *ReadError:
		return e
	case *Failure:
		return &ReadError{e.Err}
	}
	return &ReadError{err}
}

func (e *ReadError) Error() string { return "storage: no answer to a read: " + e.Err.Error() }

// Unwrap returns the reason.
func (e *ReadError) Unwrap() error { return e.Err }
