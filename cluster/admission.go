package cluster

import (
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What the leader does not admit of what other nodes pass on to it.

// errOverloaded is the answer to a command that this node, as the leader, was
// passed on by another and has no room for.
var errOverloaded error = overloaded{}

type overloaded struct{}

func (overloaded) Error() string { return "the leader is near its memory limit and takes nothing new" }

// Overloaded tells those who do not know this package what the error means.
func (overloaded) Overloaded() bool { return true }

// AdmitForwarded has the node, when it leads, ask admit about each command that
// another node passes on to it, before the command has a place in the log. One
// that is not admitted is not applied, for a reason with the method Overloaded,
// which returns true; the others of its batch go on. What is asked of this node
// directly is for its caller to look at. Nil, as in the beginning, admits
// everything.
//
// admit is called on the goroutines of the connections and must not block.
func (n *Node) AdmitForwarded(admit func(session.Command) bool) {
	if admit == nil {
		n.admission.Store(nil)
		return
	}
	n.admission.Store(&admit)
}

// admitForwarded answers what is not admitted of a group.
func (n *Node) admitForwarded(g *group) {
	admit := n.admission.Load()
	if admit == nil {
		return
	}
	for i := range g.commands {
		if a := &g.answers[i]; !answered(a) && !(*admit)(g.commands[i].cmd) {
			*a = storage.Refused(errOverloaded)
		}
	}
}
