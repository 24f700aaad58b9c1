// Package window bounds what is under way between two who work at unlike
// speeds, and gathers what comes meanwhile.
//
// A Window counts members: those in flight have a bound, and their bytes have
// one. A member that turns out to take long changes its class, and its place is
// another's. A Queue is a Window with a line before it. What waits there goes
// together as the next message, as soon as there is a place for one, so that
// messages grow with the load and nothing waits for a timer.
//
// Nothing here locks: a Window is used under a lock of its user's, as a sync.Cond
// is, since what it counts is part of what its user knows of each member. Only
// the methods that wait let go of it. They have one waiter at a time, who needs
// no goroutine beside it. An operation costs no allocation.
//
// What it is not: it sends nothing, knows no answers, and has no timer. Who
// closes a window tells those it still had in line, and those under way, what
// became of them.
package window
