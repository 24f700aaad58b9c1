package members

import (
	"context"
	"time"

	"example.com/govnode/session"
)

// A Cluster changes and reports the members of a store that has some.
type Cluster interface {
	// Status tells how this node sees the cluster.
	Status(ctx context.Context) (Status, error)
	// AddNode makes a running node a member. The errors of changes are of type
	// *storage.Failure.
	AddNode(ctx context.Context, node, address string, nonvoter bool) error
	// RemoveNode ends the membership of a node. One without which no majority
	// would answer is refused, unless force is set.
	RemoveNode(ctx context.Context, node string, force bool) error
	// TransferLeadership makes another node lead; any that is caught up if the
	// name is empty.
	TransferLeadership(ctx context.Context, node string) error
	// Ready returns the check that fails: no leader, not caught up, draining.
	Ready(ctx context.Context) error
	// LeaderAPI is the API address of the present leader; empty if unknown.
	LeaderAPI() string
	// AdmitForwarded has this node, when it leads, ask about each command that
	// another node passes on to it. What is not admitted is not applied, and
	// its error has the method Overloaded at the node that passed it on. Nil
	// admits everything.
	AdmitForwarded(admit func(session.Command) bool)
}

// Status is a cluster as one node sees it.
type Status struct {
	Node         string
	Leader       string // empty if there is none
	Term         uint64
	AppliedIndex uint64
	SeenBy       string // whose view Peers is
	Peers        []Peer
	Health       string // ok, or the check that fails
}

// A Peer is a member of the cluster.
type Peer struct {
	Node       string
	Address    string // of its Raft port
	Role       string // leader, voter or nonvoter
	APIAddress string
	Known      bool          // it was heard of; else nothing of what follows is known
	Up         bool          // within the last seconds
	Silent     time.Duration // since it was heard of last
	AtLeast    bool          // it was before the node began that sees it, which is Silent ago
	Applied    uint64        // where it stood then
	Lag        uint64        // entries behind who sees it
}
