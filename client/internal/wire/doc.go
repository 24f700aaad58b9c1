// Package wire is how the operations of a client travel on a stream to a node:
// what is made of requests, and what is read of answers.
//
// It has one interface and two implementations of it, Fast and Plain, and holds
// the one to the other in its tests.
//
// What it is not: it has no goroutine, no timer and no lock, and does not know who
// asks, what may be under way, or what to do when a stream breaks.
package wire
