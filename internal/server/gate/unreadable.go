package gate

import (
	"encoding/json"
	"errors"
	"net/http"
	"strings"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
)

// An unreadable is what a request of Connect is answered on. Connect reads the
// request before any interceptor runs, and an error of its own has no details:
// it gets them on its way out. All others have theirs.
type unreadable struct {
	http.ResponseWriter
	directory *directory
	request   *http.Request
	status    int // held back until the error is seen; 0 if nothing is
}

// connectUnary reports whether a type of content is that of Connect for methods
// of one request and one answer, whose errors are JSON.
func connectUnary(contentType string) bool {
	return strings.HasPrefix(contentType, "application/json") || strings.HasPrefix(contentType, "application/proto")
}

// WriteHeader implements http.ResponseWriter.
func (u *unreadable) WriteHeader(status int) {
	if status >= http.StatusBadRequest {
		u.status = status
		return
	}
	u.ResponseWriter.WriteHeader(status)
}

// Write implements io.Writer. Connect writes an error in one piece.
func (u *unreadable) Write(b []byte) (int, error) {
	if u.status == 0 {
		return u.ResponseWriter.Write(b)
	}
	status := u.status
	u.status = 0
	var bare struct {
		Code    connect.Code    `json:"code"`
		Message string          `json:"message"`
		Details json.RawMessage `json:"details"`
	}
	if json.Unmarshal(b, &bare) != nil || bare.Details != nil {
		u.ResponseWriter.WriteHeader(status)
		return u.ResponseWriter.Write(b)
	}
	cause := errors.New(bare.Message)
	if f := fault.ParseUnread(bare.Message); f != nil {
		cause = f
	}
	u.directory.refuse(u.ResponseWriter, u.request, status, fault.Unreadable(connect.NewError(bare.Code, cause)))
	return len(b), nil
}

// end sends a status that was held back and got no text.
func (u *unreadable) end() {
	if u.status != 0 {
		u.ResponseWriter.WriteHeader(u.status)
	}
}

// Unwrap lets http.ResponseController find what u stands for.
func (u *unreadable) Unwrap() http.ResponseWriter { return u.ResponseWriter }
