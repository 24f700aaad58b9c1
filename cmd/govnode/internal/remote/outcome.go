package remote

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/spf13/cobra"
)

// What is known of a change that has no answer, and how it is asked for again.

// An Unknown is the error of a request that may have been carried out: a node that it
// was sent to has not said what became of it.
type Unknown struct {
	Err    error
	Advice string // what to do
}

// Error implements error.
func (u *Unknown) Error() string {
	return u.Err.Error() + "; it is not known whether a change was made: " + u.Advice
}

// Unwrap returns why there is no answer.
func (u *Unknown) Unwrap() error { return u.Err }

// Advise replaces what an error says to do, if it leaves the outcome open.
func Advise(err error, format string, args ...any) error {
	if u := (*Unknown)(nil); errors.As(err, &u) {
		return &Unknown{u.Err, fmt.Sprintf(format, args...)}
	}
	return err
}

// AdviseOnDeleted is Advise for what is deleted by its name: who deletes again may find
// nothing, or what was made anew under that name.
func AdviseOnDeleted(err error, list, name string) error {
	return Advise(err, "`govnode %s` shows whether %s is gone; ask again only if it is there, and is not another of that name", list, name)
}

// The reasons by which nodes say what became of a change.
const (
	reasonNotApplied     = "NOT_APPLIED"
	reasonOutcomeUnknown = "OUTCOME_UNKNOWN"
)

// mayBeDone reports whether a request that had a connection, and ended with an error,
// may have been carried out all the same.
func mayBeDone(address string, err error) bool {
	var e *connect.Error
	switch {
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return true
	case !errors.As(err, &e):
		return false // it comes from here: what was sent is not complete
	case explainTLS(address, err) != nil:
		return false
	case !connect.IsWireError(err):
		switch e.Code() {
		case connect.CodeUnimplemented, connect.CodeUnauthenticated, connect.CodePermissionDenied:
			return false // an HTTP status: there is no node at that address
		}
		return true
	}
	switch said := reasons(e); {
	case slices.Contains(said, reasonOutcomeUnknown):
		return true
	case slices.Contains(said, reasonNotApplied):
		return false
	}
	switch e.Code() {
	case connect.CodeUnavailable, connect.CodeDeadlineExceeded, connect.CodeCanceled:
		return true
	}
	return false
}

// NewRequestID draws the id of one change.
func NewRequestID() string { return ulid.Make().String() }

// An ID is that of a change which adds up: asked for twice it would be made twice, but
// for the id.
type ID struct{ text string }

// Flag gives a command --id.
func (i *ID) Flag(cmd *cobra.Command) {
	cmd.Flags().StringVar(&i.text, "id", "", "id of the request, under which it can be sent again; drawn if empty")
}

// Text is the id; it is drawn if none was given.
func (i *ID) Text() string {
	if i.text == "" {
		i.text = NewRequestID()
	}
	return i.text
}

// Tell says in an error that leaves the outcome open how to ask again.
func (i *ID) Tell(err error) error {
	return Advise(err, "ask again with --id %s, and it is done once", i.Text())
}
