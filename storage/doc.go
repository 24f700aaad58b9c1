// Package storage puts commands in order.
//
// A [Store] gives every command its place in one total order and returns what
// the state machine of package session answered. A store contains no rule: what
// a session, a limit or a slot means is decided in session alone. Memory orders
// commands by a mutex, package cluster by a Raft log, and package redis by
// compare-and-swap on versioned records. All of them pass one suite, package
// storagetest.
package storage
