package fault

import (
	"errors"
	"regexp"
	"strings"

	"connectrpc.com/connect"
)

// Unreadable gives the reason to an error with which connect itself refuses a
// message that it cannot read or that is too large.
func Unreadable(err *connect.Error) *Error {
	text := strings.TrimPrefix(err.Message(), "unmarshal message: ")
	switch err.Code() {
	case connect.CodeInvalidArgument:
		if f := (*Unread)(nil); errors.As(err, &f) {
			return Invalid(f.Field, "%s", f.Text)
		}
		return Invalid("request", "%s", text)
	case connect.CodeUnimplemented: // a way to compress that is not spoken here
		return &Error{Code: err.Code(), Reason: ReasonInvalidField, field: "request", text: text}
	case connect.CodeResourceExhausted:
		return &Error{Code: err.Code(), Reason: ReasonTooLarge, field: "request", text: text + "; send less in one message"}
	}
	return New(err.Code(), ReasonOutcomeUnknown, err.Message())
}

// An Unread is a field of a request that cannot be read.
type Unread struct{ Field, Text string }

// Error implements error.
func (e *Unread) Error() string { return e.Field + ": " + e.Text }

// unreadText is what connect makes of an Unread. Names of keys in it are
// quoted, so that it has one reading.
var unreadText = regexp.MustCompile(`(?s)^unmarshal message: (\w+(?:\.\w+|\[(?:\d+|"(?:[^"\\]|\\.)*")\])*): (.*)$`)

// ParseUnread makes an Unread again of what connect wrote; nil if it is none.
func ParseUnread(text string) *Unread {
	if m := unreadText.FindStringSubmatch(text); m != nil {
		return &Unread{m[1], m[2]}
	}
	return nil
}
