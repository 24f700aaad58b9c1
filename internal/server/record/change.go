package record

import "example.com/govnode/session"

// A Change is what somebody has done to a limit, or to what stands, as the audit log
// has it.
type Change struct {
	Event string // as audit lines name it, such as rate_put
	Name  string
	Says  string // what it was made; empty for what was deleted
	NS    string
	By    session.Maker
}
