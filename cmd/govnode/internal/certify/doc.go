// Package certify is `govnode tls`: it makes the authority of a cluster, and
// certificates for its nodes and clients. It writes files and asks no node.
package certify
