package client_test

import (
	"crypto/tls"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/internal/pki"
)

// environment sets the variables that are given, and none else that a client reads.
func environment(t *testing.T, set map[string]string) {
	for _, name := range []string{"ADDRESSES", "TOKEN", "TOKEN_FILE", "TLS_CA", "TLS_CERT", "TLS_KEY", "NAMESPACE"} {
		t.Setenv("GOVNODE_"+name, set["GOVNODE_"+name])
	}
}

// pemFiles are those of an authority, a node and a client.
func pemFiles(t *testing.T) (dir string) {
	dir = t.TempDir()
	ca, err := pki.NewCA("govnode", time.Now())
	require.NoError(t, err)
	put := func(name string, p *pki.Pair) {
		require.NoError(t, p.Write(filepath.Join(dir, name+".crt"), filepath.Join(dir, name+".key"), false))
	}
	put("ca", ca)
	for name, role := range map[string]pki.Role{"node": pki.Node, "me": pki.Client} {
		p, err := pki.Issue(ca, role, name, map[pki.Role][]string{pki.Node: {"127.0.0.1"}}[role], time.Now(), 1000*time.Hour)
		require.NoError(t, err)
		put(name, p)
	}
	return dir
}

func TestFromEnvironment(t *testing.T) {
	dir := pemFiles(t)
	file := func(name, text string) string {
		path := filepath.Join(t.TempDir(), name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	in := func(name string) string { return filepath.Join(dir, name) }
	for name, test := range map[string]struct {
		set   map[string]string
		wrong string
		check func(t *testing.T, c client.Config)
	}{
		"nothing": {nil, "", func(t *testing.T, c client.Config) {
			require.Equal(t, client.Config{Addresses: []string{"127.0.0.1:7070"}}, c)
		}},
		"addresses": {map[string]string{"GOVNODE_ADDRESSES": "a:1, b:2 ,,https://c"}, "", func(t *testing.T, c client.Config) {
			require.Equal(t, client.Config{Addresses: []string{"a:1", "b:2", "https://c"}}, c)
		}},
		"blanks for addresses": {map[string]string{"GOVNODE_ADDRESSES": " , "}, "", func(t *testing.T, c client.Config) {
			require.Equal(t, []string{"127.0.0.1:7070"}, c.Addresses)
		}},
		"a token": {map[string]string{"GOVNODE_TOKEN": "gn_team.id.s"}, "", func(t *testing.T, c client.Config) {
			require.Equal(t, "gn_team.id.s", c.Token)
			require.Nil(t, c.TokenSource)
			require.Nil(t, c.TLS)
		}},
		"a file with a token": {map[string]string{"GOVNODE_TOKEN_FILE": file("t", " gn_team.id.s\n")}, "", func(t *testing.T, c client.Config) {
			require.Empty(t, c.Token)
			token, err := c.TokenSource()
			require.NoError(t, err)
			require.Equal(t, "gn_team.id.s", token)
		}},
		"a token beside a file": {map[string]string{"GOVNODE_TOKEN": "gn_team.id.s", "GOVNODE_TOKEN_FILE": "nowhere"}, "", func(t *testing.T, c client.Config) {
			require.Equal(t, "gn_team.id.s", c.Token)
			require.Nil(t, c.TokenSource)
		}},
		"a file that is not there": {map[string]string{"GOVNODE_TOKEN_FILE": "nowhere"}, "client: GOVNODE_TOKEN_FILE: nowhere: no such file", nil},
		"a folder for a token":     {map[string]string{"GOVNODE_TOKEN_FILE": dir}, "client: GOVNODE_TOKEN_FILE: " + dir + ": is a directory", nil},
		"an empty file":            {map[string]string{"GOVNODE_TOKEN_FILE": file("e", "\n")}, "has to hold one token", nil},
		"two tokens in a file":     {map[string]string{"GOVNODE_TOKEN_FILE": file("d", "a b\n")}, "has to hold one token", nil},
		"an authority": {map[string]string{"GOVNODE_TLS_CA": in("ca.crt")}, "", func(t *testing.T, c client.Config) {
			require.Empty(t, c.Token)
			require.NoError(t, reach(t, c, dir, tls.NoClientCert))
			require.Error(t, reach(t, c, dir, tls.RequireAndVerifyClientCert))
		}},
		"a certificate": {map[string]string{"GOVNODE_TLS_CA": in("ca.crt"), "GOVNODE_TLS_CERT": in("me.crt"), "GOVNODE_TLS_KEY": in("me.key")}, "", func(t *testing.T, c client.Config) {
			require.NoError(t, reach(t, c, dir, tls.RequireAndVerifyClientCert))
		}},
		"a certificate for authorities of the system": {map[string]string{"GOVNODE_TLS_CERT": in("me.crt"), "GOVNODE_TLS_KEY": in("me.key")}, "", func(t *testing.T, c client.Config) {
			require.Error(t, reach(t, c, dir, tls.NoClientCert))
			shown, err := c.TLS.GetClientCertificate(&tls.CertificateRequestInfo{})
			require.NoError(t, err)
			require.NotEmpty(t, shown.Certificate)
		}},
		"an authority that is not there": {map[string]string{"GOVNODE_TLS_CA": in("none.crt")}, "GOVNODE_TLS_CA", nil},
		"a certificate without its key":  {map[string]string{"GOVNODE_TLS_CERT": in("me.crt")}, "a certificate and its key go together", nil},
		"a key without its certificate":  {map[string]string{"GOVNODE_TLS_KEY": in("me.key")}, "a certificate and its key go together", nil},
		"the key of another":             {map[string]string{"GOVNODE_TLS_CERT": in("me.crt"), "GOVNODE_TLS_KEY": in("node.key")}, "GOVNODE_TLS_CERT", nil},
	} {
		t.Run(name, func(t *testing.T) {
			environment(t, test.set)
			c, err := client.FromEnvironment()
			if test.wrong != "" {
				require.ErrorContains(t, err, test.wrong)
				return
			}
			require.NoError(t, err)
			test.check(t, c)
			made, err := client.New(c)
			require.NoError(t, err)
			require.NoError(t, made.Close())
		})
	}
}

// reach asks a node with the certificate of dir by a configuration.
func reach(t *testing.T, c client.Config, dir string, ask tls.ClientAuthType) error {
	pair, err := tls.LoadX509KeyPair(filepath.Join(dir, "node.crt"), filepath.Join(dir, "node.key"))
	require.NoError(t, err)
	pem, err := os.ReadFile(filepath.Join(dir, "ca.crt"))
	require.NoError(t, err)
	pool := x509.NewCertPool()
	require.True(t, pool.AppendCertsFromPEM(pem))
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	s.Config.ErrorLog = quiet()
	s.TLS = &tls.Config{Certificates: []tls.Certificate{pair}, ClientCAs: pool, ClientAuth: ask, MinVersion: tls.VersionTLS13}
	s.StartTLS()
	defer s.Close()
	transport := &http.Transport{TLSClientConfig: c.TLS.Clone()}
	defer transport.CloseIdleConnections()
	res, err := (&http.Client{Transport: transport}).Get(s.URL)
	if err == nil {
		_ = res.Body.Close()
	}
	return err
}

// The token of a file is that which it holds now; an error says what is wrong with it.
func TestATokenFileIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	at := time.Now()
	put := func(text string) {
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		require.NoError(t, os.Chtimes(path, at, at))
	}
	put("one")
	environment(t, map[string]string{"GOVNODE_TOKEN_FILE": path})
	c, err := client.FromEnvironment()
	require.NoError(t, err)
	is := func(want string) {
		t.Helper()
		got, err := c.TokenSource()
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	put("two") // of the same age and size: nobody can tell
	is("one")
	put("three")
	is("three")
	at = at.Add(time.Second)
	put("seven")
	is("seven")
	put("")
	_, err = c.TokenSource()
	require.ErrorContains(t, err, "has to hold one token")
	put("a fourth")
	_, err = c.TokenSource()
	require.ErrorContains(t, err, "has to hold one token")
	put("fourth")
	is("fourth")
	require.NoError(t, os.Remove(path))
	_, err = c.TokenSource()
	require.ErrorContains(t, err, "GOVNODE_TOKEN_FILE: "+path)
}

// A certificate that is replaced is shown from then on; what cannot be read is not, and
// the one before stays.
func TestLoadTLSReadsACertificateAgain(t *testing.T) {
	dir := pemFiles(t)
	other := pemFiles(t)
	in := func(dir, name string) string { return filepath.Join(dir, name) }
	secure, err := client.LoadTLS(in(dir, "ca.crt"), in(dir, "me.crt"), in(dir, "me.key"))
	require.NoError(t, err)
	require.Equal(t, uint16(tls.VersionTLS13), secure.MinVersion)
	shown := func() []byte {
		c, err := secure.GetClientCertificate(&tls.CertificateRequestInfo{})
		require.NoError(t, err)
		return c.Certificate[0]
	}
	of := func(dir string) []byte {
		pair, err := tls.LoadX509KeyPair(in(dir, "me.crt"), in(dir, "me.key"))
		require.NoError(t, err)
		return pair.Certificate[0]
	}
	first := of(dir)
	require.Equal(t, first, shown())
	at := time.Now().Add(time.Minute)
	move := func(name string, from []byte) {
		require.NoError(t, os.WriteFile(in(dir, name), from, 0o600))
		require.NoError(t, os.Chtimes(in(dir, name), at, at))
	}
	for _, name := range []string{"me.crt", "me.key"} {
		b, err := os.ReadFile(in(other, name))
		require.NoError(t, err)
		move(name, b)
	}
	require.Equal(t, of(other), shown())
	require.NotEqual(t, first, shown())
	at = at.Add(time.Minute)
	move("me.crt", []byte("nothing"))
	require.Equal(t, of(other), shown())

	none, err := client.LoadTLS(in(dir, "ca.crt"), "", "")
	require.NoError(t, err)
	empty, err := none.GetClientCertificate(&tls.CertificateRequestInfo{})
	require.NoError(t, err)
	require.Empty(t, empty.Certificate)
}
