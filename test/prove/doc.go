// Command prove runs the layers of the proof one after the other and makes one
// report of what they found, as JSON and as a page. It builds everything first,
// so that a layer has the machine for itself; one that waits for most of its time
// may share it with the next.
//
// It is no test of its own: it knows how each layer is run and how much it has to
// do, and not what is checked there. Its exit code is 1 where anything was
// violated, where a layer has not said what it did, and where one was left out
// that can run for the user who runs it.
package main
