// Package pki is who is who where TLS is on: the certificates of a cluster, what
// they say, and how connections are held to it.
//
// A cluster has a certificate authority of its own, [NewCA], whose certificate
// names the cluster, and which vouches for nodes and for clients, [Issue]. Who
// somebody is stands in one URI of the certificate,
// spiffe://CLUSTER/node/ID or spiffe://CLUSTER/client/NAME, and [IdentityOf]
// reads it; host names stand beside it for programs that know nothing of that.
//
// A [Source] is the certificate, the key and the authorities of one process, read
// from files and read again when these change. The configurations that it makes
// always use what was read last, so that a certificate is replaced without a
// restart and without ending a connection. TLS 1.3 is the only version.
//
// There are no name constraints in the certificate of an authority: programs that
// do not know those on URIs have to refuse every certificate below it. Instead an
// authority that names a cluster is taken for that cluster's alone.
package pki
