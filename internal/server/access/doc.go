// Package access is who calls, and what they may do.
//
// A [Principal] is a caller as the node knows him: by a token, by a certificate, by
// a JWT, by the local socket, or nobody in particular where nobody is asked. An
// [Authenticator] finds him before the body of a request is read, by the record of
// his namespace as this node has it; the commands that he asks for carry its epoch, so
// that what has changed since is found out where they are put in order. The table of
// methods is made from the options of the API itself: a method without one ends the
// start of a node.
//
// It decides nothing about what a policy allows, and it keeps nothing: tokens stand
// in the state, by the hashes of their secrets.
package access
