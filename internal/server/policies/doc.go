// Package policies is how the policies of a node are put, compiled, kept, read, listed
// and deleted, and with them the content hashes of tools.
//
// It judges nothing: calls, Evaluate and Scan, which do, are of package server.
package policies
