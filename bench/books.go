package bench

import "fmt"

// A Ledger is what the caller of a session was answered. It is what the system
// must have counted.
type Ledger struct {
	Counted
	// Unknown operations got no answer: each may have been counted or not.
	Unknown int64
}

// Counted is what a system has counted for a session.
type Counted struct {
	Attempts   int64 // begins, refused or not
	Calls      int64 // begins that were admitted
	Executions int64 // calls that have ended, or lapsed
}

// An Audit is what came out when ledgers and counts were compared.
type Audit struct {
	Sessions int   `json:"sessions"`
	Attempts int64 `json:"attempts"`
	Calls    int64 `json:"calls"`
	Unknown  int64 `json:"unknown"`
	// Lapsed calls were begun by callers that then crashed.
	Lapsed int64 `json:"lapsed,omitempty"`
}

// CompareLedgers compares what callers were answered with what the system has
// counted, session by session. Where nothing is unknown the two must be equal.
func CompareLedgers(books []Ledger, system []Counted) (Audit, error) {
	var a Audit
	if len(books) != len(system) {
		return a, fmt.Errorf("ledgers: %d callers kept ledgers and the system has counted %d sessions", len(books), len(system))
	}
	wrong, first := 0, ""
	for i, b := range books {
		a.Sessions++
		a.Attempts += b.Attempts
		a.Calls += b.Calls
		a.Unknown += b.Unknown
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

func (b Ledger) against(c Counted) string {
	for _, k := range []struct {
		name       string
		own, found int64
	}{
		{"attempts", b.Attempts, c.Attempts},
		{"calls", b.Calls, c.Calls},
		{"executions", b.Executions, c.Executions},
	} {
		if k.found < k.own || k.found > k.own+b.Unknown {
			return fmt.Sprintf("%s: the ledger has %d (%d more are unknown), the system %d", k.name, k.own, b.Unknown, k.found)
		}
	}
	return ""
}
