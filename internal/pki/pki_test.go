package pki

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	now  = time.Now()
	year = 365 * 24 * time.Hour
)

func newCA(t *testing.T, cluster string) *Pair {
	t.Helper()
	ca, err := NewCA(cluster, now)
	require.NoError(t, err)
	return ca
}

func issue(t *testing.T, ca *Pair, role Role, name string, hosts ...string) *Pair {
	t.Helper()
	if role == Node && hosts == nil {
		hosts = []string{"127.0.0.1", "localhost"}
	}
	p, err := Issue(ca, role, name, hosts, now, year)
	require.NoError(t, err)
	return p
}

func TestIssue(t *testing.T) {
	ca := newCA(t, "govnode")
	require.Equal(t, "govnode", ca.Cluster())
	pool := x509.NewCertPool()
	pool.AddCert(ca.Certificate)

	node := issue(t, ca, Node, "a", "host.example", "10.0.0.1", "::1").Certificate
	require.Equal(t, "spiffe://govnode/node/a", node.URIs[0].String())
	require.Equal(t, []string{"host.example"}, node.DNSNames)
	require.Len(t, node.IPAddresses, 2)
	for _, use := range []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth, x509.ExtKeyUsageClientAuth} {
		_, err := node.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{use}})
		require.NoError(t, err)
	}

	client := issue(t, ca, Client, "agent-1").Certificate
	require.Equal(t, "spiffe://govnode/client/agent-1", client.URIs[0].String())
	_, err := client.Verify(x509.VerifyOptions{Roots: pool, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}})
	require.Error(t, err, "a client cannot pose as a server")
}

func TestIssueRefuses(t *testing.T) {
	ca := newCA(t, "govnode")
	node := issue(t, ca, Node, "a")
	host := []string{"h"}
	for _, c := range []struct {
		ca       *Pair
		role     Role
		name     string
		hosts    []string
		validity time.Duration
		want     string
	}{
		{ca, Node, "a/b", host, year, "is no name"},
		{ca, Node, "..", host, year, "is no name"},
		{ca, "master", "a", host, year, "neither node nor client"},
		{ca, Node, "a", nil, year, "needs the names or addresses"},
		{ca, Node, "a", []string{"host:7070"}, year, "without a port"},
		{ca, Node, "a", []string{""}, year, "neither the name of a host"},
		{ca, Client, "a", host, year, "has no hosts"},
		{ca, Client, "a", nil, 0, "cannot be valid"},
		{ca, Client, "a", nil, 20 * year, "outlive the authority"},
		{node, Client, "a", nil, year, "not that of an authority"},
	} {
		_, err := Issue(c.ca, c.role, c.name, c.hosts, now, c.validity)
		require.ErrorContains(t, err, c.want)
	}
	for _, name := range []string{"", "Upper", "a/b", ".a", "a..b", "a:1", strings.Repeat("x", 64)} {
		_, err := NewCA(name, now)
		require.ErrorContains(t, err, "is no name of a cluster", name)
	}
}

func TestIdentityOf(t *testing.T) {
	for text, want := range map[string]Identity{
		"spiffe://govnode/node/a":         {"govnode", Node, "a"},
		"spiffe://a.b-c_d/client/X.y":     {"a.b-c_d", Client, "X.y"},
		"spiffe://govnode/master/a":       {},
		"spiffe://govnode/node/":          {},
		"spiffe://govnode/node":           {},
		"spiffe://govnode/node/a/b":       {},
		"spiffe://govnode//node/a":        {},
		"spiffe://govnode/node/..":        {},
		"spiffe://govnode/node/a%2fb":     {},
		"spiffe://govnode/node/%61":       {},
		"spiffe://govnode/node/a?x":       {},
		"spiffe://govnode/node/a#x":       {},
		"spiffe://govnode:1/node/a":       {},
		"spiffe://u@govnode/node/a":       {},
		"spiffe:///node/a":                {},
		"https://govnode/node/a":          {},
		"spiffe://Govnode/node/a":         {},
		"spiffe:govnode/node/a":           {},
		"spiffe://govnode/node/a%00":      {},
		"spiffe://govnode/node/caf%C3%A9": {},
	} {
		u, err := url.Parse(text)
		require.NoError(t, err, text)
		got, ok := IdentityOf(&x509.Certificate{URIs: []*url.URL{u}})
		require.Equal(t, want, got, text)
		require.Equal(t, want.Name != "", ok, text)
	}
	u, _ := url.Parse("spiffe://govnode/node/a")
	for _, c := range []*x509.Certificate{nil, {}, {URIs: []*url.URL{u, u}}, {URIs: []*url.URL{u}, IsCA: true}} {
		_, ok := IdentityOf(c)
		require.False(t, ok)
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "n.crt"), filepath.Join(dir, "n.key")
	ca := newCA(t, "govnode")
	p := issue(t, ca, Node, "n")
	require.NoError(t, p.Write(cert, key, false))
	info, err := os.Stat(key)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o600), info.Mode().Perm())
	read, err := ReadPair(cert, key)
	require.NoError(t, err)
	require.True(t, read.Certificate.Equal(p.Certificate))

	other := issue(t, ca, Node, "n")
	require.ErrorContains(t, other.Write(cert, key, false), "is not overwritten")
	require.NoError(t, os.Remove(cert))
	require.ErrorContains(t, other.Write(cert, key, false), "n.key is there already")
	require.NoError(t, other.Write(cert, key, true))
	read, err = ReadPair(cert, key)
	require.NoError(t, err)
	require.True(t, read.Certificate.Equal(other.Certificate))

	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		require.NoError(t, os.Chmod(key, mode))
		_, err = ReadPair(cert, key)
		require.ErrorContains(t, err, "run `chmod 600 "+key+"`")
	}
	require.NoError(t, os.Chmod(key, 0o400))
	_, err = ReadPair(cert, key)
	require.NoError(t, err)

	// A key that belongs to another certificate.
	otherCert, otherKey := filepath.Join(dir, "o.crt"), filepath.Join(dir, "o.key")
	require.NoError(t, p.Write(otherCert, otherKey, false))
	_, err = ReadPair(cert, otherKey)
	require.ErrorContains(t, err, "name the files of a certificate and of its key")
}

// Wherever a replacement is cut short, there is the old pair, or the new one, or whoever
// reads them is told by which command it is the new one; and another replacement succeeds.
func TestAReplacementThatIsCutShort(t *testing.T) {
	ca := newCA(t, "govnode")
	old, next := issue(t, ca, Node, "n"), issue(t, ca, Node, "n")
	mv := regexp.MustCompile("run `mv (\\S+) (\\S+)`")
	told := 0
	for done := 0; ; done++ {
		dir := t.TempDir()
		cert, key := filepath.Join(dir, "n.crt"), filepath.Join(dir, "n.key")
		require.NoError(t, old.Write(cert, key, false))
		steps, err := next.steps(cert, key, true)
		require.NoError(t, err)
		if done > len(steps) {
			break
		}
		for _, step := range steps[:done] {
			require.NoError(t, step())
		}
		found, err := ReadPair(cert, key)
		if err != nil {
			told++
			command := mv.FindStringSubmatch(err.Error())
			require.NotNil(t, command, err.Error())
			require.NoError(t, os.Rename(command[1], command[2]))
			found, err = ReadPair(cert, key)
			require.NoError(t, err)
			require.True(t, found.Certificate.Equal(next.Certificate))
		}
		require.True(t, found.Certificate.Equal(old.Certificate) || found.Certificate.Equal(next.Certificate))
		if done == len(steps) {
			require.True(t, found.Certificate.Equal(next.Certificate))
			left, err := filepath.Glob(filepath.Join(dir, "*"+beside))
			require.NoError(t, err)
			require.Empty(t, left)
		}
		again := issue(t, ca, Node, "n")
		require.NoError(t, again.Write(cert, key, true))
		found, err = ReadPair(cert, key)
		require.NoError(t, err)
		require.True(t, found.Certificate.Equal(again.Certificate))
	}
	require.Equal(t, 1, told, "between the renames")
}

// A replacement that cannot be carried out leaves the pair that is there.
func TestAReplacementThatFails(t *testing.T) {
	ca := newCA(t, "govnode")
	old, next := issue(t, ca, Node, "n"), issue(t, ca, Node, "n")
	dir := t.TempDir()
	cert, key := filepath.Join(dir, "n.crt"), filepath.Join(dir, "n.key")
	require.NoError(t, old.Write(cert, key, false))
	// The certificate cannot be written beside its place.
	require.NoError(t, os.MkdirAll(filepath.Join(cert+".new", "full"), 0o700))
	require.Error(t, next.Write(cert, key, true))
	found, err := ReadPair(cert, key)
	require.NoError(t, err)
	require.True(t, found.Certificate.Equal(old.Certificate))
}

// Half of a replacement is told with what mends it, whichever half a crash has kept.
func TestHalfOfAReplacementIsTold(t *testing.T) {
	ca := newCA(t, "govnode")
	old, next := issue(t, ca, Node, "n"), issue(t, ca, Node, "n")
	for _, late := range []string{"n.crt", "n.key"} {
		dir, was := t.TempDir(), t.TempDir()
		cert, key, file := filepath.Join(dir, "n.crt"), filepath.Join(dir, "n.key"), filepath.Join(dir, late)
		require.NoError(t, next.Write(cert, key, false))
		require.NoError(t, old.Write(filepath.Join(was, "n.crt"), filepath.Join(was, "n.key"), false))
		require.NoError(t, os.Rename(file, file+".new"))
		require.NoError(t, os.Rename(filepath.Join(was, late), file))
		_, err := ReadPair(cert, key)
		require.ErrorContains(t, err, "run `mv "+file+".new "+file+"`")
	}
}

func TestReadAuthorities(t *testing.T) {
	file := filepath.Join(t.TempDir(), "ca.crt")
	a, b := newCA(t, "a"), newCA(t, "b")
	both := append(a.CertPEM(), b.CertPEM()...)
	key, err := a.KeyPEM()
	require.NoError(t, err)
	for text, want := range map[string]int{
		string(both): 2, "# a comment\n" + string(both): 2,
		"": 0, "nothing": 0, string(both[:len(both)-40]): 0, string(both) + string(key): 0,
	} {
		require.NoError(t, os.WriteFile(file, []byte(text), 0o600))
		all, err := readAuthorities(file)
		require.Len(t, all, want)
		require.Equal(t, want == 0, err != nil)
	}
}

func newKey(t *testing.T) *ecdsa.PrivateKey {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	require.NoError(t, err)
	return key
}
