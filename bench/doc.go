// Package bench measures: the state machine alone, and clusters under load. It
// asserts no time.
package bench
