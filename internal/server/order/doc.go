// Package order is how a request reaches the store: what it reads, the one command
// that it has put in order, and the trace of what it has left behind so far.
//
// It is no store and puts nothing in order itself. Operations, which may be ordered
// again and may wait, are of package server.
package order
