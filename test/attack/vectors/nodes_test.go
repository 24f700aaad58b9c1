//go:build attack

package vectors

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/test/processes"
)

// TestNodes attacks the members of a cluster: by nodes that pass for them, by folders and
// snapshots that are old or made up.
func TestNodes(t *testing.T) {
	s := secure(t, 3)
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 1000\n"})
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "s", "agentId": "a", "policy": object{"name": "p"}})
	s.must(0, s.admin, "CounterService/Increment", object{"key": "n", "amount": "1"})
	for _, attack := range []struct {
		name string
		of   func(t *testing.T, s *secured)
	}{{"twin", twin}, {"clone", clone}, {"snapshots", craftedSnapshots}, {"rollback", rolledBack}, {"old", oldFolder}, {"wiped", wiped}} {
		t.Run(attack.name, func(t *testing.T) { attack.of(t, s) })
	}
}

// impostor starts a process with the certificate, the name and the host of a node, and
// another folder. It has to end by itself, and to say why.
func (s *secured) impostor(t *testing.T, of *processes.Node, dir, says string, flags ...string) {
	t.Helper()
	host, _, err := net.SplitHostPort(of.Raft)
	require.NoError(t, err)
	api, _, err := net.SplitHostPort(of.API)
	require.NoError(t, err)
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	require.NoError(t, err)
	raft := l.Addr().String()
	require.NoError(t, l.Close())
	file := filepath.Join(s.Secured.Folder, of.Name, "node-"+of.Name)
	args := append([]string{"serve", "--node", of.Name, "--data", dir, "--listen", net.JoinHostPort(api, "0"), "--raft-listen", raft, "--advertise", host,
		"--cluster-name", processes.ClusterName, "--tls-cert", file + ".crt", "--tls-key", file + ".key", "--tls-ca", s.Secured.Authority(),
		"--auth", "tokens", "--socket", filepath.Join(filepath.Dir(of.Socket), "twin"), "--join-timeout", "20s", "--bootstrap-wait", "0s"}, flags...)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, program, args...).CombinedOutput()
	require.NoError(t, ctx.Err(), "it goes on: %s", out)
	require.Error(t, err)
	require.Contains(t, string(out), says)
}

// others are where the members other than one are.
func (s *secured) others(n *processes.Node) string {
	var all []string
	for _, other := range s.Nodes {
		if other != n {
			all = append(all, other.Raft)
		}
	}
	return strings.Join(all, ",")
}

// count is a counter, which all nodes say is the same.
func (s *secured) count(t *testing.T) string {
	t.Helper()
	var all []string
	for i := range s.Nodes {
		all = append(all, fmt.Sprint(s.must(i, s.admin, "CounterService/Get", object{"key": "n"})["value"]))
	}
	require.Equal(t, []string{all[0], all[0], all[0]}, all)
	return all[0]
}

func (s *secured) increment(n int) {
	s.t.Helper()
	for range n {
		s.must(0, s.admin, "CounterService/Increment", object{"key": "n", "amount": "1"})
	}
}

// follower is a node that does not lead.
func (s *secured) follower() *processes.Node {
	s.t.Helper()
	var follower *processes.Node
	s.until("somebody leads", func() bool {
		leader := s.Leader()
		for _, n := range s.Nodes {
			if leader != nil && n != leader {
				follower = n
			}
		}
		return follower != nil
	})
	return follower
}

// A node of the name of one that is alive is refused, with an empty folder and as the
// first of another cluster.
func twin(t *testing.T, s *secured) {
	n := s.follower()
	s.unchanged(t, func() {
		s.impostor(t, n, t.TempDir(), "is a member of this cluster already", "--join", s.others(n))
		s.impostor(t, n, t.TempDir(), "belongs to a cluster already", "--bootstrap", "--join", s.others(n))
	})
	require.NoError(t, s.Ready(20*time.Second))
	require.Empty(t, n.Failures())
}

// copied is a copy of a folder.
func copied(t *testing.T, dir string) string {
	t.Helper()
	to := t.TempDir()
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	require.NoError(t, os.Chmod(to, 0o700))
	return to
}

// A copy of the folder of a node that is alive is refused.
func clone(t *testing.T, s *secured) {
	n := s.follower()
	require.True(t, n.Stop(20*time.Second))
	dir := copied(t, n.Dir)
	require.NoError(t, s.Start(n))
	require.NoError(t, s.Ready(20*time.Second))
	s.unchanged(t, func() { s.impostor(t, n, dir, "this data folder is a copy", "--join", s.others(n)) })
	require.NoError(t, s.Ready(20*time.Second))
	require.Empty(t, n.Failures())
	s.increment(1)
	s.count(t)
}

// A node that has lost its folder is refused under its name, until it is replaced.
func wiped(t *testing.T, s *secured) {
	n := s.follower()
	require.True(t, n.Stop(20*time.Second))
	was := s.countBut(t, n)
	require.NoError(t, n.Wipe())
	n.Wiped.Store(false) // nobody says that it is to be replaced
	require.NoError(t, s.Start(n))
	s.until("it has ended", func() bool { return !n.Runs() })
	failed := n.Forgive()
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed[0], "is a member of this cluster already")
	require.ErrorContains(t, failed[0], "--replace")
	n.Wiped.Store(true)
	require.NoError(t, s.Start(n))
	require.NoError(t, s.Ready(30*time.Second))
	require.Equal(t, was, s.count(t))
}

// countBut is the count at the nodes but one.
func (s *secured) countBut(t *testing.T, without *processes.Node) string {
	t.Helper()
	for i, n := range s.Nodes {
		if n != without {
			return fmt.Sprint(s.must(i, s.admin, "CounterService/Get", object{"key": "n"})["value"])
		}
	}
	return ""
}

// Snapshots that are made up are refused by whoever is asked to restore them.
func craftedSnapshots(t *testing.T, s *secured) {
	ctx := t.Context()
	api := govnodev1connect.NewClusterServiceClient(s.HTTP, s.URL(s.Nodes[0]))
	stream, err := api.Snapshot(ctx, &v1.SnapshotRequest{})
	require.NoError(t, err)
	var good []byte
	for stream.Receive() {
		good = append(good, stream.Msg().Chunk...)
	}
	require.NoError(t, stream.Err())
	require.NoError(t, stream.Close())
	changed := func(change func(b []byte) []byte) []byte { return change(bytes.Clone(good)) }
	s.unchanged(t, func() {
		for name, b := range map[string][]byte{
			"nothing":         nil,
			"something else":  []byte("PK\x03\x04 something else"),
			"cut off":         good[:len(good)-1],
			"cut in half":     good[:len(good)/2],
			"a bit turned":    changed(func(b []byte) []byte { b[len(b)/2] ^= 1; return b }),
			"its end changed": changed(func(b []byte) []byte { b[len(b)-1] ^= 1; return b }),
			"a later version": changed(func(b []byte) []byte { b[8]++; return b }),
			"a huge length":   changed(func(b []byte) []byte { binary.LittleEndian.PutUint32(b[11:], 1<<31-1); return b }),
			"more behind it":  append(bytes.Clone(good), good...),
		} {
			to, err := api.Restore(ctx)
			require.NoError(t, err)
			for rest := b; ; {
				n := min(len(rest), 64<<10)
				if to.Send(&v1.RestoreRequest{Chunk: rest[:n]}) != nil {
					break // it was refused already
				}
				if rest = rest[n:]; len(rest) == 0 {
					break
				}
			}
			_, err = to.CloseAndReceive()
			require.Equal(t, connect.CodeInvalidArgument, connect.CodeOf(err), "%s: %v", name, err)
		}
	})
	require.NoError(t, s.Ready(20*time.Second))
}

// rollBack puts a copy in the place of the folder of a node that does not run.
func rollBack(t *testing.T, n *processes.Node, copy string) {
	t.Helper()
	require.NoError(t, os.RemoveAll(n.Dir))
	require.NoError(t, os.CopyFS(n.Dir, os.DirFS(copy)))
	require.NoError(t, os.Chmod(n.Dir, 0o700))
}

// A node with an old copy of its folder ends, and nothing that was counted is lost.
func oldFolder(t *testing.T, s *secured) {
	n := s.follower()
	require.True(t, n.Stop(20*time.Second))
	old := copied(t, n.Dir)
	require.NoError(t, s.Start(n))
	require.NoError(t, s.Ready(20*time.Second))
	s.increment(5)
	was := s.count(t)
	require.True(t, n.Stop(20*time.Second))
	now := copied(t, n.Dir)
	rollBack(t, n, old)
	require.NoError(t, s.Start(n))
	s.until("it has ended", func() bool { return !n.Runs() })
	failed := n.Forgive()
	require.Len(t, failed, 1)
	require.ErrorContains(t, failed[0], "old copy of that of node "+n.Name)
	require.Equal(t, was, s.countBut(t, n))
	rollBack(t, n, now)
	require.NoError(t, s.Start(n))
	require.NoError(t, s.Ready(30*time.Second))
	require.Equal(t, was, s.count(t))
}

// A cluster of which all is rolled back, with the audits, is seamless to itself. Anchors
// that were kept elsewhere tell.
func rolledBack(t *testing.T, s *secured) {
	stop := func() {
		var all sync.WaitGroup
		for _, n := range s.Nodes {
			all.Go(func() { n.Stop(20 * time.Second) })
		}
		all.Wait()
	}
	begin := func() {
		for _, n := range s.Nodes {
			require.NoError(t, s.Start(n))
		}
		require.NoError(t, s.Ready(30*time.Second))
	}
	stop()
	var old []string
	for _, n := range s.Nodes {
		old = append(old, copied(t, n.Dir))
	}
	begin()
	s.increment(5)
	stop()
	kept := filepath.Join(t.TempDir(), "anchors.jsonl")
	query := []string{"audit", "query", "--event", "anchor"}
	for _, n := range s.Nodes {
		query = append(query, n.Audit)
	}
	anchors, err := exec.Command(program, query...).Output()
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(kept, anchors, 0o600))
	authority := []string{"--tls-ca", s.Secured.Authority()}
	out, err := s.verify(append(authority, "--anchors", kept)...)
	require.NoError(t, err, out)

	for i, n := range s.Nodes {
		rollBack(t, n, old[i])
	}
	begin()
	s.increment(7) // so that the files are longer than they were
	out, err = s.verify(append(s.at(0, s.admin), "--state")...)
	require.NoError(t, err, "nothing in the cluster tells: %s", out)
	out, err = s.verify(append(authority, "--anchors", kept)...)
	require.Error(t, err, out)
	for _, n := range s.Nodes {
		require.Regexp(t, `lines? [0-9to ]+ of node `+n.Name+` is not the anchor that was kept`, out)
	}
}
