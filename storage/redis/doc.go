// Package redis puts commands in order by compare-and-swap on versioned records
// in a Redis.
//
// A [Store] reads the records that a round of commands touches, lets package
// session decide, and swaps the outcome in; where another node was faster it
// decides anew. Nothing here is a rule: what a session, a limit or a slot means
// stands in session alone, and the scripts that Redis runs compare and write.
package redis
