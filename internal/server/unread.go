package server

import (
	"errors"
	"regexp"
	"strings"

	"connectrpc.com/connect"
)

// errUnread gives the reason to an error with which connect itself refuses a
// message that it cannot read or that is too large.
func errUnread(err *connect.Error) *fault {
	text := strings.TrimPrefix(err.Message(), "unmarshal message: ")
	switch err.Code() {
	case connect.CodeInvalidArgument:
		if f := (*unreadField)(nil); errors.As(err, &f) {
			return invalid(f.field, "%s", f.text)
		}
		return invalid("request", "%s", text)
	case connect.CodeUnimplemented: // a way to compress that is not spoken here
		return &fault{code: err.Code(), reason: reasonInvalidField, field: "request", text: text}
	case connect.CodeResourceExhausted:
		return &fault{code: err.Code(), reason: reasonTooLarge, field: "request", text: text + "; send less in one message"}
	}
	return newError(err.Code(), reasonOutcomeUnknown, err.Message())
}

// An unreadField is a field of a request in JSON that cannot be read.
type unreadField struct{ field, text string }

func (e *unreadField) Error() string { return e.field + ": " + e.text }

// unreadText is what connect makes of an unreadField. Names of keys in it are
// quoted, so that it has one reading.
var unreadText = regexp.MustCompile(`(?s)^unmarshal message: (\w+(?:\.\w+|\[(?:\d+|"(?:[^"\\]|\\.)*")\])*): (.*)$`)

// readUnread makes an unreadField again of what connect wrote; nil if it is none.
func readUnread(text string) *unreadField {
	if m := unreadText.FindStringSubmatch(text); m != nil {
		return &unreadField{m[1], m[2]}
	}
	return nil
}
