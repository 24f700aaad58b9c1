// Package waiting is those who wait for a slot at this node: it claims for them
// what the queues hand them, renews their places, gives up those of callers that
// are gone, and keeps those of a node that goes.
//
// The queues themselves are replicated state and no part of it: it looks at them
// and proposes commands. What a claim's answer means is its operation's.
package waiting
