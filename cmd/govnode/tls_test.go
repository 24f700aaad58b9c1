package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// certificates are those of three nodes and a client, as the program makes them.
func certificates(t *testing.T) (dir string) {
	t.Helper()
	dir = t.TempDir()
	for _, args := range [][]string{
		{"init", "--cluster", "prod", "--out", dir},
		{"node", "a", "--hosts", "127.0.0.1", "--ca-dir", dir, "--out", dir},
		{"node", "b", "--hosts", "127.0.0.1", "--ca-dir", dir, "--out", dir},
		{"node", "c", "--hosts", "127.0.0.1", "--ca-dir", dir, "--out", dir},
		{"client", "agent", "--ca-dir", dir, "--out", dir},
	} {
		certificate(t, args...)
	}
	return dir
}

func certificate(t *testing.T, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	require.Equal(t, terminal.ExitYes, execute(append([]string{"tls"}, args...), &stdout, &stderr), stderr.String())
}

// startSecured runs a Raft node with the certificate of its name, and returns where
// its API is.
func startSecured(t *testing.T, dir, node string, args ...string) (p *process, api string) {
	t.Helper()
	p = start(t, append([]string{
		"serve", "--node", node, "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0", "--cluster-name", "prod",
		"--tls-cert", filepath.Join(dir, "node-"+node+".crt"), "--tls-key", filepath.Join(dir, "node-"+node+".key"), "--tls-ca", filepath.Join(dir, "ca.crt"),
	}, args...)...)
	return p, p.mustAwait(t, nodeLine, 1)[0][2]
}

type securedStatus struct {
	Leader string
	Health string
	Peers  []struct {
		Node, Address, APIAddress, Role string
		Up                              bool
	}
}

// Three nodes with TLS are a cluster, whose users know it by its authority. It goes
// on without its leader, and takes a new certificate while it runs.
func TestTLSCluster(t *testing.T) {
	t.Parallel()
	dir := certificates(t)
	ca := filepath.Join(dir, "ca.crt")
	cert, key := filepath.Join(dir, "client-agent.crt"), filepath.Join(dir, "client-agent.key")
	shown := []string{"--tls-ca", ca, "--tls-cert", cert, "--tls-key", key}

	nodes, apis := map[string]*process{}, map[string]string{}
	nodes["a"], apis["a"] = startSecured(t, dir, "a", "--bootstrap", "--tls-client-auth", "require")
	var s securedStatus
	require.Eventually(t, func() bool {
		var stdout, stderr bytes.Buffer
		return execute(append([]string{"cluster", "status", "--addr", apis["a"]}, shown...), &stdout, &stderr) == terminal.ExitYes
	}, longEnough, 10*time.Millisecond)
	cli(t, &s, append([]string{"cluster", "status", "--addr", apis["a"]}, shown...)...)
	require.Len(t, s.Peers, 1)
	for _, node := range []string{"b", "c"} {
		nodes[node], apis[node] = startSecured(t, dir, node, "--join", s.Peers[0].Address, "--tls-client-auth", "require")
	}
	all := apis["a"] + "," + apis["b"] + "," + apis["c"]
	status := func(addr string) (s securedStatus) {
		cli(t, &s, append([]string{"cluster", "status", "--addr", addr}, shown...)...)
		return s
	}
	require.Eventually(t, func() bool { return len(status(all).Peers) == 3 }, longEnough, 10*time.Millisecond)

	secure, err := client.LoadTLS(ca, cert, key)
	require.NoError(t, err)
	c, err := client.New(client.Config{Addresses: []string{apis["a"], apis["b"], apis["c"]}, TLS: secure, Timeout: longEnough})
	require.NoError(t, err)
	defer func() { _ = c.Close() }()
	ctx, cancel := context.WithTimeout(t.Context(), 2*longEnough)
	defer cancel()
	policy := filepath.Join(dir, "p.yaml")
	require.NoError(t, os.WriteFile(policy, []byte("name: p\nallowed_tools: [read]\n"), 0o600))
	cli(t, &struct{}{}, append([]string{"policy", "put", policy, "--addr", "https://" + apis["b"]}, shown...)...)
	session, err := c.CreateSession(ctx, client.Session{Agent: "agent", Policy: "p"})
	require.NoError(t, err)
	call := func() (decision string) {
		t.Helper()
		begun, err := session.Begin(ctx, client.Call{Tool: "read"})
		require.NoError(t, err)
		require.NoError(t, begun.End(ctx, client.Succeeded))
		return begun.Begun().GetDecisionId()
	}

	// Each node asks the others for what they have decided.
	decision := call()
	for _, node := range []string{"a", "b", "c"} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, terminal.ExitYes, execute(append([]string{"explain", decision, "--addr", apis[node]}, shown...), &stdout, &stderr), stderr.String())
	}

	// A new certificate is taken at SIGHUP.
	serial := func(api string) string {
		conn, err := tls.Dial("tcp", api, secure)
		require.NoError(t, err)
		defer func() { _ = conn.Close() }()
		return conn.ConnectionState().PeerCertificates[0].SerialNumber.String()
	}
	leader := status(all).Leader
	follower := "a"
	if leader == follower {
		follower = "b"
	}
	first := serial(apis[follower])
	certificate(t, "node", follower, "--hosts", "127.0.0.1", "--ca-dir", dir, "--out", dir, "--overwrite")
	require.NoError(t, nodes[follower].cmd.Process.Signal(syscall.SIGHUP))
	nodes[follower].mustAwait(t, "the certificates were read again", 1)
	require.NotEqual(t, first, serial(apis[follower]))
	call()

	nodes[leader].kill()
	call()
	require.NotEqual(t, leader, status(all).Leader)
}

// Who does not speak TLS, or does not know the authority, or is not known, is told
// what to do.
func TestTLSRefusals(t *testing.T) {
	t.Parallel()
	dir, other := certificates(t), certificates(t)
	file := func(dir, name string) string { return filepath.Join(dir, name) }
	a, api := startSecured(t, dir, "a", "--bootstrap", "--tls-client-auth", "require")
	plain := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0").mustAwait(t, nodeLine, 1)[0][2]
	known := []string{"--tls-cert", file(dir, "client-agent.crt"), "--tls-key", file(dir, "client-agent.key"), "--tls-ca", file(dir, "ca.crt")}
	for _, c := range []struct {
		addr, want string
		args       []string
	}{
		{api, "if it has TLS, name the ca.crt of the cluster with --tls-ca", nil},
		{"https://" + api, "signed by somebody who is not trusted here: name the ca.crt", nil},
		{api, "signed by somebody who is not trusted here", []string{"--tls-ca", file(other, "ca.crt")}},
		{api, "give one with --tls-cert and --tls-key", []string{"--tls-ca", file(dir, "ca.crt")}},
		{api, "give one with --tls-cert and --tls-key", []string{"--tls-ca", file(dir, "ca.crt"), "--tls-cert", file(other, "client-agent.crt"), "--tls-key", file(other, "client-agent.key")}},
		{"https://localhost:" + api[len("127.0.0.1:"):], "is for another host", known},
		{plain, "does not speak TLS", known},
		{"http://" + plain, "", known},
		{api, "", known},
		{api, "no such file", []string{"--tls-ca", file(dir, "none.crt")}},
	} {
		var stdout, stderr bytes.Buffer
		code := execute(append([]string{"session", "list", "--addr", c.addr}, c.args...), &stdout, &stderr)
		require.Equal(t, c.want == "", code == terminal.ExitYes, "%v: %s", c, stderr.String())
		require.Contains(t, stderr.String(), c.want, fmt.Sprint(c.args))
	}
	_, err := tls.Dial("tcp", api, &tls.Config{InsecureSkipVerify: true, MaxVersion: tls.VersionTLS12})
	require.ErrorContains(t, err, "protocol version")

	// Other programs, over HTTP/2 and over HTTP/1.1.
	pool := x509.NewCertPool()
	text, err := os.ReadFile(file(dir, "ca.crt"))
	require.NoError(t, err)
	require.True(t, pool.AppendCertsFromPEM(text))
	pair, err := tls.LoadX509KeyPair(file(dir, "client-agent.crt"), file(dir, "client-agent.key"))
	require.NoError(t, err)
	for _, version := range []int{1, 2} {
		protocols := new(http.Protocols)
		protocols.SetHTTP1(version == 1)
		protocols.SetHTTP2(version == 2)
		transport := &http.Transport{Protocols: protocols, TLSClientConfig: &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}}
		res, err := (&http.Client{Transport: transport}).Get("https://" + api + "/readyz")
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, version, res.ProtoMajor)
		transport.CloseIdleConnections()
	}

	// Nodes that must not start.
	for _, c := range []struct {
		want string
		args []string
	}{
		{"is that of node b, and this is node a", []string{"--tls-cert", file(dir, "node-b.crt"), "--tls-key", file(dir, "node-b.key"), "--tls-ca", file(dir, "ca.crt")}},
		{"a node needs one of its own", []string{"--tls-cert", file(dir, "client-agent.crt"), "--tls-key", file(dir, "client-agent.key"), "--tls-ca", file(dir, "ca.crt")}},
		{"not one that the authorities in", []string{"--tls-cert", file(dir, "node-a.crt"), "--tls-key", file(dir, "node-a.key"), "--tls-ca", file(other, "ca.crt")}},
		{"give --cluster-name prod", []string{"--tls-cert", file(dir, "node-a.crt"), "--tls-key", file(dir, "node-a.key"), "--tls-ca", file(dir, "ca.crt"), "--cluster-name", "govnode"}},
		{"have to know each other by their certificates", []string{"--tls-cert", file(dir, "node-a.crt"), "--tls-key", file(dir, "node-a.key")}},
	} {
		var stdout, stderr bytes.Buffer
		args := append([]string{"serve", "--node", "a", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0", "--bootstrap", "--cluster-name", "prod"}, c.args...)
		require.NotEqual(t, terminal.ExitYes, execute(args, &stdout, &stderr), c.want)
		require.Contains(t, stderr.String(), c.want)
	}
	require.NoError(t, a.stop())
}
