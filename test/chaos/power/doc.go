// Package power runs three nodes as processes, each on a disk of its own, lets
// clients work on them, and breaks the disks: the power of one, of a majority or
// of all is cut again and again, and disks fail, are full, slow, hang, or turn
// bits. What was acknowledged is asked for again under the same id, and must
// have the same answer; counters must come to the sum of it.
//
// Control is the run that must fail: with disks that lie about what they flushed,
// what was acknowledged gets lost, and the same checks must say so.
//
// It needs what package disks needs. The network is the subject of others.
package power
