// Package members is what the server knows of a cluster: the interface by which it
// changes and reports the members, and the watch that refuses what needs a leader
// while none is known.
//
// It is not the cluster, and imports none: the program brings one.
package members
