// Package processes runs the built program as real processes: nodes on a network
// that loses, delays and cuts, which are killed, paused and started again.
//
// As root the nodes are in network namespaces of their own, joined by a switch
// that this process is: it decides about every frame. Without root they are on
// addresses of the loopback, each behind a proxy, which can cut and slow a node
// and not the way between two of them.
//
// It knows nothing of what is asked of the nodes, and holds them to nothing.
package processes
