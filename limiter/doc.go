// Package limiter is a bounded semaphore whose slots are leased and whose
// waiters stand in a queue.
//
// A [Pool] is a data structure and nothing else: it keeps no clock, takes no
// lock, starts no timer and draws no random number. Every operation is given
// the time as a duration since the origin of the caller's log, so that equal
// pools given equal operations at equal times become equal pools.
//
// Expiry is a function of the pool and the time. A lease that has run out is
// not there, whether or not anybody removed it: every operation first settles
// the pool, and [Pool.Settle] replays what time did in the order in which it
// happened, so that settling at a and then at b is settling at b.
//
// A pool whose slots return by themselves, some time after they were spent, is a
// rate; all else is as in any pool.
//
// The package is not a lock service: it does not know who its holders are, what
// they do, or how a command reached it.
package limiter
