package check

import "fmt"

// Revoked holds that the log has nothing behind the revocation of a token that somebody
// asked for who had shown it: neither what was in flight nor what had waited. A restore
// brings no token back.
func Revoked(h History) (broken []Violation) {
	gone := map[string]Effect{}
	for _, e := range h.Effects {
		if e.Kind == Revoke {
			gone[e.By] = e
			continue
		}
		if r, ok := gone[e.By]; ok && e.By != "" {
			broken = append(broken, Violation{"revoked", fmt.Sprintf("%s %s of %s at %d is by token %s, which was revoked at %d", e.Kind, e.ID, e.Object, e.Index, r.Object, r.Index)})
		}
	}
	return broken
}

// RevokedAnswers holds, without a log, that nothing was applied that was asked for with a
// token whose revocation had been acknowledged before, or that stands behind it by what
// the answers say.
func RevokedAnswers(h History) (broken []Violation) {
	gone := map[string]Op{}
	for _, o := range h.Ops {
		if o.Kind == Revoke && o.Outcome == Applied {
			gone[o.Object] = o
		}
	}
	for _, o := range h.Ops {
		r, ok := gone[o.Shown]
		if ok && o.Shown != "" && o.Outcome == Applied && (o.Call > r.Return || o.Index > r.Index && r.Index > 0) {
			broken = append(broken, Violation{"revoked", fmt.Sprintf("applied by a token behind its revocation: %v; %v", o, r)})
		}
	}
	return broken
}
