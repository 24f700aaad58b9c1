package bench

import "fmt"

// A book is what one caller was answered. It is what the system must have
// counted for the caller's session.
type book struct {
	counted
	// unknown operations got no answer: each may have been counted or not.
	unknown int64
}

// counted is what a system has counted for a session.
type counted struct {
	attempts, calls, executions int64
}

// An Audit is what came out when books and counts were compared.
type Audit struct {
	Sessions int   `json:"sessions"`
	Attempts int64 `json:"attempts"`
	Calls    int64 `json:"calls"`
	Unknown  int64 `json:"unknown"`
	// Lapsed calls were begun by callers that then crashed.
	Lapsed int64 `json:"lapsed,omitempty"`
}

// audit compares books with counts, session by session. Where nothing is
// unknown the two must be equal.
func audit(books []book, system []counted) (Audit, error) {
	var a Audit
	if len(books) != len(system) {
		return a, fmt.Errorf("ledgers: %d callers kept books and the system has counted %d sessions", len(books), len(system))
	}
	wrong, first := 0, ""
	for i, b := range books {
		a.Sessions++
		a.Attempts += b.attempts
		a.Calls += b.calls
		a.Unknown += b.unknown
		if problem := b.against(system[i]); problem != "" {
			wrong++
			if first == "" {
				first = fmt.Sprintf("session of caller %d: %s", i, problem)
			}
		}
	}
	if wrong > 0 {
		return a, fmt.Errorf("ledgers: %d of %d sessions were counted otherwise than their callers were answered: %s", wrong, len(books), first)
	}
	return a, nil
}

func (b book) against(c counted) string {
	for _, k := range []struct {
		name       string
		own, found int64
	}{
		{"attempts", b.attempts, c.attempts},
		{"calls", b.calls, c.calls},
		{"executions", b.executions, c.executions},
	} {
		if k.found < k.own || k.found > k.own+b.unknown {
			return fmt.Sprintf("%s: the ledger has %d (%d more are unknown), the system %d", k.name, k.own, b.unknown, k.found)
		}
	}
	return ""
}
