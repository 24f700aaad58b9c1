package pki

import (
	"crypto/x509"
	"fmt"
	"net/url"
	"regexp"
	"strings"
)

// Who somebody is, as a certificate says it.

// A Role is what somebody is to a cluster.
type Role string

const (
	// Node is a member of the cluster, or one that wants to be: it serves, and
	// calls other nodes.
	Node Role = "node"
	// Client calls nodes and is never called.
	Client Role = "client"
)

// An Identity is who a certificate is for.
type Identity struct {
	Cluster string
	Role    Role
	Name    string // the id of the node, or the name of the client
}

// scheme is that of the URI in a certificate, as SPIFFE has it.
const scheme = "spiffe"

// String returns the URI that stands in the certificate.
func (i Identity) String() string { return i.uri().String() }

func (i Identity) uri() *url.URL {
	return &url.URL{Scheme: scheme, Host: i.Cluster, Path: "/" + string(i.Role) + "/" + i.Name}
}

// words is how a person reads it.
func (i Identity) words() string {
	return fmt.Sprintf("%s %s of cluster %s", i.Role, i.Name, i.Cluster)
}

var (
	// A cluster is the host of a URI, where capitals have no meaning.
	clusterName = regexp.MustCompile(`^[a-z0-9_-]+(\.[a-z0-9_-]+)*$`)
	// Others are a part of its path.
	ownName = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)
)

// CheckCluster reports what is wrong with the name of a cluster.
func CheckCluster(name string) error {
	if len(name) > 63 || !clusterName.MatchString(name) {
		return fmt.Errorf("%q is no name of a cluster: use 1 to 63 small letters, digits, '-' or '_', and dots between them", name)
	}
	return nil
}

// CheckName reports what is wrong with the name of a node or a client.
func CheckName(name string) error {
	if !ownName.MatchString(name) || name == "." || name == ".." {
		return fmt.Errorf("%q is no name: use 1 to 64 letters, digits, '.', '_' or '-'", name)
	}
	return nil
}

func (i Identity) check() error {
	if i.Role != Node && i.Role != Client {
		return fmt.Errorf("%q is neither %s nor %s", i.Role, Node, Client)
	}
	if err := CheckCluster(i.Cluster); err != nil {
		return err
	}
	return CheckName(i.Name)
}

// IdentityOf returns who a certificate is for. It is false for one that does not
// say it, or says something else beside it: of two URIs nobody knows which one
// is meant.
func IdentityOf(cert *x509.Certificate) (Identity, bool) {
	if cert == nil || cert.IsCA || len(cert.URIs) != 1 {
		return Identity{}, false
	}
	u := cert.URIs[0]
	role, name, _ := strings.Cut(strings.TrimPrefix(u.Path, "/"), "/")
	i := Identity{Cluster: u.Host, Role: Role(role), Name: name}
	if i.check() != nil || u.String() != i.String() { // no port, user, query or other spelling
		return Identity{}, false
	}
	return i, true
}

// clusterOf returns the cluster that the certificate of an authority names, and
// "" if it names none.
func clusterOf(ca *x509.Certificate) string {
	for _, u := range ca.URIs {
		if u.Scheme == scheme {
			return u.Host
		}
	}
	return ""
}
