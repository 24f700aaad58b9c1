// Package health is what probes are told of a node, over HTTP and by the gRPC health
// protocol. What makes a node ready is not decided here.
package health
