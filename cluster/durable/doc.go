// Package durable is what a node keeps on its disk, and how it is told from what
// was never written there: the log, the values beside it (votes, identity,
// notes), and snapshots.
//
// [Open] opens a directory with a log in raft-boltdb or raft-wal, and checks all
// of it. Whichever it is, entries stand below one log with seals, values in one
// sealed record, and a mark notes what both hold at least. What does not hold
// what was written to it is [ErrDamaged], with what to do in its text; it is
// never mended by guessing. [Watched] gives a disk up that fails or hangs.
//
// The package knows nothing of members or of what entries mean, and does not
// decide what is kept: that is Raft's and the node's to say.
package durable
