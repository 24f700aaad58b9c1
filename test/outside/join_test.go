//go:build outside

package outside

import (
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"maps"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A joining is a cluster over TLS whose members let in nobody without a join token.
type joining struct {
	*cluster
	sockets string
	raft    map[string]string // addresses of nodes
}

func newJoining(t *testing.T) *joining {
	c := newCluster(t, "raft")
	c.scheme = "https"
	j := &joining{cluster: c, raft: map[string]string{}}
	j.run("tls", "init", "--cluster", "example", "--out", j.path("ca"))
	pem, err := os.ReadFile(j.path("ca", "ca.crt"))
	require.NoError(t, err)
	roots := x509.NewCertPool()
	require.True(t, roots.AppendCertsFromPEM(pem))
	c.http.Transport.(*http.Transport).TLSClientConfig = &tls.Config{RootCAs: roots, MinVersion: tls.VersionTLS13}
	j.sockets, err = os.MkdirTemp("", "gov") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(j.sockets) })
	return j
}

func (j *joining) path(names ...string) string {
	return filepath.Join(append([]string{j.dir}, names...)...)
}

// run runs a command of the program that has to succeed.
func (j *joining) run(args ...string) string {
	j.t.Helper()
	out, err := exec.Command(program, args...).Output()
	require.NoError(j.t, err, "govnode %v: %s", args, out)
	return strings.TrimSpace(string(out))
}

// args are those of a node, which has its certificate from then on.
func (j *joining) args(node string, more ...string) []string {
	j.t.Helper()
	if j.raft[node] == "" {
		j.run("tls", "node", node, "--hosts", "127.0.0.1", "--ca-dir", j.path("ca"), "--out", j.path(node))
		j.raft[node] = freePort(j.t, slices.Collect(maps.Values(j.raft))...)
	}
	args := []string{
		"serve", "--node", node, "--listen", "127.0.0.1:0", "--raft-listen", j.raft[node], "--data", j.path("data", node),
		"--socket", filepath.Join(j.sockets, node), "--auth", "tokens", "--admission", "token", "--cluster-name", "example", "--join-timeout", "20s",
		"--tls-cert", j.path(node, "node-"+node+".crt"), "--tls-key", j.path(node, "node-"+node+".key"), "--tls-ca", j.path("ca", "ca.crt"),
	}
	return append(args, more...)
}

// serve starts a node and waits until it takes work.
func (j *joining) serve(node string, more ...string) {
	j.t.Helper()
	j.runs = append(j.runs, run{node: node, args: j.args(node, more...)})
	j.startRun(&j.runs[len(j.runs)-1])
	j.await(node+" takes work", func() bool { return j.takesWork(j.at(node)) == nil })
}

func (j *joining) at(name string) node {
	j.mu.Lock()
	defer j.mu.Unlock()
	return j.nodes[name]
}

// make makes a join token, over the socket of a node.
func (j *joining) make(at string, more ...string) string {
	j.t.Helper()
	token := j.run(append([]string{"token", "create", "--join", "--socket", filepath.Join(j.sockets, at)}, more...)...)
	require.Regexp(j.t, `^gnj_[a-z0-9]+\.[^.]+\.[^.]{43}$`, token)
	return token
}

// file is a file with a token.
func (j *joining) file(token string) string {
	j.t.Helper()
	f, err := os.CreateTemp(j.dir, "token")
	require.NoError(j.t, err)
	defer func() { require.NoError(j.t, f.Close()) }()
	_, err = fmt.Fprintln(f, token)
	require.NoError(j.t, err)
	return f.Name()
}

// join are the settings of a node that joins where others are.
func (j *joining) join(token string, others ...string) []string {
	var at []string
	for _, o := range others {
		at = append(at, j.raft[o])
	}
	args := []string{"--join", strings.Join(at, ",")}
	if token != "" {
		args = append(args, "--join-token-file", j.file(token))
	}
	return args
}

// refused starts a node that has to end with a sentence.
func (j *joining) refused(node, says string, more ...string) {
	j.t.Helper()
	cmd := exec.Command(program, j.args(node, more...)...)
	late := time.AfterFunc(60*time.Second, func() { _ = cmd.Process.Kill() })
	defer late.Stop()
	out, err := cmd.CombinedOutput()
	require.Error(j.t, err, "%s", out)
	require.Contains(j.t, string(out), says)
	require.NotContains(j.t, string(out), "api=", "it serves nobody")
}

// members are those whom a node knows, by their roles.
func (j *joining) members(at string) map[string]string {
	j.t.Helper()
	var status struct{ Peers []struct{ Node, Role string } }
	j.post(j.at(at), "ClusterService/Status", object{}, &status)
	all := map[string]string{}
	for _, p := range status.Peers {
		all[p.Node] = p.Role
	}
	return all
}

// add asks a member to add a node by a join token, as a node does.
func (j *joining) add(token, at, node string) (int, error) {
	parts := strings.Split(strings.TrimPrefix(token, "gnj_"), ".")
	return j.tryAs("gn_$cluster."+parts[0]+"."+parts[1], j.at(at), "ClusterService/AddNode", object{"node": node, "address": j.raft[node], "nonvoter": true}, nil)
}

// A node becomes the fourth member by a token, though the answer to its first request was
// lost and the leader that took it was killed; no other node comes in by that token, nor
// by one that has run out, is wrong, or is another cluster's, nor without one. A token does
// nothing else, and all of it is in the audit, whose chains hold.
func TestJoinByOneToken(t *testing.T) {
	j := newJoining(t)
	j.serve("n1", "--bootstrap")
	j.token = j.makeToken(filepath.Join(j.sockets, "n1"), "$cluster", "operator,auditor")
	for _, n := range []string{"n2", "n3"} {
		j.serve(n, j.join(j.make("n1", "--node", n), "n1")...)
	}
	voters := func(at string, want ...string) {
		t.Helper()
		j.await("the voters are there", func() bool {
			all := j.members(at)
			for _, n := range want {
				if all[n] != "voter" && all[n] != "leader" {
					return false
				}
			}
			return len(all) == len(want)
		})
	}
	voters("n1", "n1", "n2", "n3")

	// The first request is applied, nobody hears of it, and the leader dies.
	token := j.make("n2")
	j.args("n4")
	j.args("n5")
	leader, others := j.leader()
	_, err := j.add(token, leader.name, "n4")
	require.NoError(t, err)
	j.kill(leader)
	first := others[0].name
	j.await("another one leads", func() bool {
		var status struct{ Leader string }
		_, err := j.try(j.at(first), "ClusterService/Status", object{}, &status)
		return err == nil && status.Leader != "" && status.Leader != leader.name
	})
	args := j.join(token, "n1", "n2", "n3")
	j.serve("n4", args...)
	j.back(leader)
	voters("n4", "n1", "n2", "n3", "n4")

	// A fifth does not come in.
	j.refused("n5", "the token lets one node join, and that is another one", j.join(token, "n1", "n2", "n3", "n4")...)
	j.refused("n5", "takes nobody who was not added first", j.join("", "n1", "n2")...)
	short := j.make("n3", "--expires", "1s")
	j.await("it has run out", func() bool {
		code, err := j.add(short, "n3", "n1")
		return err != nil && code == http.StatusUnauthorized
	})
	j.refused("n5", "the token is not known, or it has expired or was revoked", j.join(short, "n2")...)
	parts := strings.Split(j.make("n1"), ".")
	j.refused("n5", "the token is not known", j.join(parts[0]+"."+strings.Repeat("x", len(parts[1]))+"."+parts[2], "n2")...)
	j.refused("n5", "none of the authorities in --tls-ca is the one of the token", j.join(parts[0]+"."+parts[1]+"."+strings.Repeat("A", 43), "n2")...)
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		require.Len(t, j.members(n), 4, n)
	}

	// A token that is whole does nothing but this.
	whole := "gn_$cluster." + strings.TrimPrefix(parts[0], "gnj_") + "." + parts[1]
	for _, method := range []string{"ClusterService/Status", "ClusterService/RemoveNode", "AccessService/WhoAmI", "AccessService/CreateToken", "AccessService/ListTokens"} {
		code, err := j.tryAs(whole, j.at("n1"), method, object{}, nil)
		require.Error(t, err)
		require.Equal(t, http.StatusForbidden, code, method)
	}

	// A node that is a member needs no token any more.
	require.NoError(t, os.Remove(args[len(args)-1]))
	n4 := j.at("n4")
	j.kill(n4)
	j.back(n4)

	var lines strings.Builder
	files := []string{}
	for _, n := range []string{"n1", "n2", "n3", "n4"} {
		files = append(files, j.path("data", n, "audit.jsonl"))
		text, err := os.ReadFile(files[len(files)-1])
		require.NoError(t, err)
		lines.Write(text)
	}
	for event, want := range map[string]int{"token_used": 3, "node_refused": 3} {
		require.GreaterOrEqual(t, strings.Count(lines.String(), `"event_type":"`+event+`"`), want, event)
	}
	require.NotContains(t, lines.String(), strings.Split(token, ".")[1], "no secret")
	t.Log(j.run(append([]string{"audit", "verify"}, files...)...))
}
