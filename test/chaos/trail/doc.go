// Package trail holds the audits of the nodes of a run to what befell these nodes.
//
// In the end `govnode audit verify` is given the files of all nodes, the heads of the
// state, and the anchors that were kept meanwhile. Nothing that it names may be a line
// that was changed, moved or removed. What it may miss are the lines that a node did not
// get to write or to flush, so each place that it names is held to the times at which
// nodes were killed: by the clock of the clients, between what stands before the place
// in its chain and what stands behind it. Where the power of a disk is cut the file is
// read just before, so that it is known which lines the cut took, and they have to be
// young. And whatever clients were told was applied has a line, unless a node was killed
// while they waited.
package trail
