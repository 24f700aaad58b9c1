// Package bench measures: clusters under load, and the state machine alone.
//
// A Target is a system under load; Drive lets callers work on it, in a closed
// loop or by a schedule, and returns a Run. Every target keeps books of what its
// callers were answered, and Verify holds them to what the system has counted.
// Results are compared, searched for the knee of their curve, and written as
// text, JSON and HTML. Nothing here asserts a time, and nothing starts a
// process: that is left to the program.
package bench
