package sim

import (
	"errors"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"example.com/govnode/client"
	"example.com/govnode/test/check"
)

// What clients saw, and what an error says of it.

// A recorder keeps what clients saw.
type recorder struct {
	start time.Time

	note func(Line) // told of everything at once; may be nil

	mu     sync.Mutex
	last   time.Duration // that was told
	ops    []check.Op
	holds  []check.Hold
	spans  []span            // that operations took, each attempt of those that are sent again here
	denied []check.Op        // that the policy refused, as somebody was told
	broken []check.Violation // by what an answer said
	steps  map[string]int    // of scripts that were played alone, by their names
}

// begun is told of each change before it is sent.
func (r *recorder) begun(o check.Op) {
	if r.note != nil {
		r.note(Line{Begun: &o})
	}
}

// now never returns the same time twice: virtual time stands still while things happen one
// after another, and what was told of before something else was asked for counts as before it.
func (r *recorder) now() time.Duration {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = max(time.Since(r.start), r.last+1)
	return r.last
}

func (r *recorder) done(o check.Op) {
	if r.note != nil {
		r.note(Line{Op: &o})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ops = append(r.ops, o)
}

// took notes that something was asked for and answered, or given up.
func (r *recorder) took(from, to, wait time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.spans = append(r.spans, span{from, to, wait})
}

// alone notes that so many steps of a script were answered.
func (r *recorder) alone(script string, steps int) {
	if r.note != nil {
		r.note(Line{Alone: &Played{script, steps}})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.steps == nil {
		r.steps = map[string]int{}
	}
	r.steps[script] += steps
}

func (r *recorder) held(h check.Hold) {
	if r.note != nil {
		r.note(Line{Hold: &h})
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.holds = append(r.holds, h)
}

// outcome says what an error of the Go client claims. That a STOP keeps a call out is
// remembered nowhere: where the call was sent before and nothing came back, that may be
// put in order yet, once the STOP is lifted.
func outcome(err error) check.Outcome {
	var no *client.Refused
	switch {
	case errors.As(err, &no) && no.Outcome == client.Stopped:
		return check.Unknown
	case err == nil:
		return check.Applied
	case errors.As(err, new(*client.Refused)), errors.Is(err, client.ErrLeaseLost):
		return check.Refused
	case errors.As(err, new(*client.Unavailable)), errors.As(err, new(*client.Error)):
		return check.NotApplied
	}
	return check.Unknown
}

func text(err error) string {
	if err == nil {
		return ""
	}
	return err.Error()
}

// definite reports whether an error says that nothing was applied.
func definite(err error) bool {
	var ce *connect.Error
	if !errors.As(err, &ce) || !connect.IsWireError(err) {
		return false
	}
	reason := reasonOf(err)
	return reason != "" && reason != client.ReasonOutcomeUnknown
}

// reasonOf is the reason that a node has given in an error; empty if it has none.
func reasonOf(err error) client.Reason {
	var ce *connect.Error
	if !errors.As(err, &ce) {
		return ""
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if i, ok := m.(*errdetails.ErrorInfo); ok {
				return client.Reason(i.Reason)
			}
		}
	}
	return ""
}
