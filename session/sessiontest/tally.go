package sessiontest

import (
	"sync"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
)

// A Tally counts what histories did with approvals, so that a test can want that
// each of it was done. It may be used by several tests at once.
type Tally struct {
	mu sync.Mutex
	n  map[string]int
}

// Note counts a command and its answer.
func (t *Tally) Note(c session.Command, r *session.Result) {
	if what := happened(c, r); what != "" {
		t.mu.Lock()
		defer t.mu.Unlock()
		if t.n == nil {
			t.n = map[string]int{}
		}
		t.n[what]++
	}
}

// Missing returns what did not happen.
func (t *Tally) Missing() (names []string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, what := range []string{"asked", "approved", "used", "used by time", "denied", "expired", "answered by what stands", "cancelled"} {
		if t.n[what] == 0 {
			names = append(names, what)
		}
	}
	return names
}

func happened(c session.Command, r *session.Result) string {
	switch c := c.(type) {
	case *session.Begin:
		a := r.Approval
		switch {
		case r.Code == session.ApprovalRequired && !r.Repeat:
			return "asked"
		case r.Code == session.ApprovalExpired:
			return "expired"
		case r.Code == session.Admitted && a != nil && a.State == approval.Used && a.For < a.Required:
			return "used by time"
		case r.Code == session.Admitted && a != nil && a.State == approval.Used:
			return "used"
		case r.Code == session.Admitted && a == nil && !r.Repeat && c.Asking != nil:
			return "answered by what stands"
		}
	case *session.Decide:
		if r.Code == session.Done && !r.Repeat && r.Value == 1 {
			if c.Approve {
				return "approved"
			}
			return "denied"
		}
	case *session.CancelApproval:
		if r.Code == session.Done && !r.Repeat && r.Value == 1 {
			return "cancelled"
		}
	}
	return ""
}
