// Package cluster is the Store whose order is a Raft log: the third
// implementation of storage.Store, beside memory and Redis.
//
// A [Node] is one member. Each has the whole state and answers reads from it;
// changes are proposed by the leader alone, to whom the others forward theirs.
// What a command means is decided in package session; this package decides
// when a command has its place, at what log time, and what may be said to its
// caller when things go wrong:
//
//   - An answer is given after a majority has the entry on disk.
//   - storage.NotApplied is said only where it is certain,
//     and storage.Unknown wherever it is not.
//   - A command that carries its caller's id is sent again, to whoever leads
//     by then, until its caller's deadline; the state machine knows it again.
//     One that carries none is never proposed twice.
//
// # One port
//
// A node listens on one address, for Raft's own protocol and for what nodes say
// to each other beside it: see package transport.
//
// # Time
//
// Log time is metered by the leader's clocks in capped steps and stamped on
// entries; see clock. No lease ends before its time, and none lasts much longer
// however often the leader changes.
//
// # Failing
//
// A node that cannot trust its disk, whose state is not that of the others, or
// that meets a command it does not know, stops (Config.Fatal). Its peers go on
// without it; going on with it could let copies of the state differ.
//
// The package knows nothing of policies, requests or clients, and takes no
// decision that a limit depends on.
package cluster
