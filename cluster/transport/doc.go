// Package transport is how the nodes of a cluster reach each other: one address
// for all of it.
//
// A [Port] is the listener of a node. The first byte of a connection says what
// it is: Raft's own protocol, which [Raft] speaks, or HTTP/2 for what nodes say
// to each other beside it (package nodev1), with [Peers] at one end and
// [NewServer] at the other. Whatever else arrives is closed, and so is what
// names another cluster. With TLS the handshake says which protocol it is, and
// whoever is at the other end has to show the certificate of a node.
//
// An error says whether a request did nothing, so that whoever sent it knows:
// [Refused] and [ErrUnreached]. The package knows nothing of what is asked for,
// and who is a member it is told.
package transport
