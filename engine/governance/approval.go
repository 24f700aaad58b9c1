package governance

import (
	"cmp"
	"strings"
	"time"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/nearest"
)

// How a policy asks people about a call, where it does not decide by itself.

// An Approval says who has to agree to a call, and how long is waited for them.
// Whether anybody is asked is said elsewhere: by rules with action: ask, and by
// require_human_approval.
type Approval struct {
	Required       uint32        // so many approvers let the call go on
	Denials        uint32        // so many end it
	Timeout        time.Duration // until they have spoken
	AllowOnTimeout bool          // what holds if they have not; else the call is denied
	MaxPending     uint32        // calls of one session that wait at one time
}

// Bounds of an Approval, ends included.
const (
	MaxApprovers       = 8
	MinApprovalTimeout = time.Second
	MaxApprovalTimeout = 24 * time.Hour
	MaxPendingCalls    = 64
)

// DefaultApproval is how a policy asks that does not say how.
func DefaultApproval() Approval {
	return Approval{Required: 1, Denials: 1, Timeout: 5 * time.Minute, MaxPending: 16}
}

var approvalFields = []string{"required", "denials", "timeout", "on_timeout", "max_pending"}

func (r reader) approval(g *Policy) {
	f := r.holding("approval", source.Map, "mapping with any of "+strings.Join(approvalFields, ", "))
	if f.Kind != source.Map {
		return
	}
	a := DefaultApproval()
	for i, k := range f.Keys {
		field, v := source.Join("approval", k.Text), &f.Items[i]
		switch k.Text {
		case "required":
			a.Required = uint32(r.Count(v, field, 1, MaxApprovers))
		case "denials":
			a.Denials = uint32(r.Count(v, field, 1, MaxApprovers))
		case "timeout":
			r.durationOf(v, field, MinApprovalTimeout, MaxApprovalTimeout, &a.Timeout)
		case "on_timeout":
			if v.Kind != source.String || v.Text != "deny" && v.Text != "allow" {
				r.Add(v.Line, field, "%s must be deny or allow, got %s", field, v.Repr())
			}
			a.AllowOnTimeout = v.Text == "allow"
		case "max_pending":
			a.MaxPending = uint32(r.Count(v, field, 1, MaxPendingCalls))
		default:
			r.Add(k.Line, field, "unknown field%s; known are %s", nearest.Hint(k.Text, "", approvalFields), strings.Join(approvalFields, ", "))
		}
	}
	g.Approval = &a
}

// approvalValue writes it as it is read.
func approvalValue(a *Approval) value.Value {
	onTimeout := "deny"
	if a.AllowOnTimeout {
		onTimeout = "allow"
	}
	return value.OfMap(
		value.Pair{Key: "required", Value: value.OfInt(int64(a.Required))},
		value.Pair{Key: "denials", Value: value.OfInt(int64(a.Denials))},
		value.Pair{Key: "timeout", Value: value.OfString(a.Timeout.String())},
		value.Pair{Key: "on_timeout", Value: value.OfString(onTimeout)},
		value.Pair{Key: "max_pending", Value: value.OfInt(int64(a.MaxPending))},
	)
}

// Asking is how the policy asks, also where it does not say it.
func (g *Policy) Asking() Approval {
	if g.Approval == nil {
		return DefaultApproval()
	}
	return *g.Approval
}

// compareApproval compares how two policies ask, negative where g is the
// stricter: more have to agree, fewer can end it, less time is waited, at its
// end it is denied, fewer may wait. Of two that allow at the end of the time
// the one that waits longer is the stricter.
func compareApproval(g, other *Policy) []int {
	a, b := g.Asking(), other.Asking()
	timeout := cmp.Compare(a.Timeout, b.Timeout)
	if a.AllowOnTimeout && b.AllowOnTimeout {
		timeout = -timeout
	}
	return []int{
		// What needs approval and has no way to ask for it is denied.
		cmp.Compare(approvalRank(other), approvalRank(g)),
		cmp.Compare(b.Required, a.Required),
		cmp.Compare(a.Denials, b.Denials),
		timeout,
		value.TrueFirst(!a.AllowOnTimeout, !b.AllowOnTimeout),
		cmp.Compare(a.MaxPending, b.MaxPending),
	}
}

// approvalRank orders what becomes of every call: it goes on, it is asked about,
// it is denied.
func approvalRank(g *Policy) int {
	switch {
	case !g.RequireHumanApproval:
		return 0
	case g.Approval != nil:
		return 1
	}
	return 2
}
