// Package seeded has bugs on purpose: the proof has to catch each of them, or it
// proves nothing. The code of the product says at the place where such a slip
// would be what it would look like, behind On.
//
// Without the build tag seeded On is false and the compiler drops what is behind
// it, so that nothing of this package is in the program; a test looks. With the
// tag the environment variable GOVNODE_SEEDED names the one bug that is there.
// Package test/seeded says which layer of the proof has to catch which, and runs
// them.
package seeded
