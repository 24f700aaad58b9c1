package main

import (
	"context"
	"encoding/json"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/remote"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// As logrotate does it: the audit log is renamed, a new one is made, and SIGHUP
// makes the node go on in the new one. The node does not end, and no line is
// lost or stands in both.
func TestAuditLogIsRotated(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	require.NoError(t, os.WriteFile(path, []byte(`{"cut_off_by":"a cra`), 0o600))
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--audit", path)
	r := remote.NewNode(http.DefaultClient, node.mustAwait(t, nodeLine, 1)[0][2])
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	put := func(name string) {
		_, err := r.PutPolicy(ctx, &govnodev1.PutPolicyRequest{Yaml: "name: " + name + "\nmax_tool_calls: 1\n"})
		require.NoError(t, err)
	}

	put("first")
	require.NoError(t, os.Rename(path, path+".1"))
	put("second") // still to where it stood
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	require.NoError(t, node.cmd.Process.Signal(syscall.SIGHUP))
	node.mustAwait(t, `the audit log was opened anew`, 1)
	put("third")
	require.Equal(t, []string{"first", "second"}, auditedPolicies(t, path+".1", `{"cut_off_by":"a cra`))
	require.Equal(t, []string{"third"}, auditedPolicies(t, path, ""))

	// What cannot be opened is told, and the lines go where they went before.
	require.NoError(t, os.Rename(path, path+".2"))
	require.NoError(t, os.Mkdir(path, 0o700))
	require.NoError(t, node.cmd.Process.Signal(syscall.SIGHUP))
	node.mustAwait(t, `the audit log cannot be opened anew and stays the one that it is.*cannot append to`, 1)
	put("fourth")
	require.Equal(t, []string{"third", "fourth"}, auditedPolicies(t, path+".2", ""))
	require.NoError(t, node.stop())
}

// Who follows the audit log is told each line of a rotation, in whichever file it is, and
// once.
func TestARotationIsFollowed(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--audit", path)
	r := remote.NewNode(http.DefaultClient, node.mustAwait(t, nodeLine, 1)[0][2])
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	tail := start(t, "audit", "tail", "--follow", path)
	put := func(name string) {
		_, err := r.PutPolicy(ctx, &govnodev1.PutPolicyRequest{Yaml: "name: " + name + "\nmax_tool_calls: 1\n"})
		require.NoError(t, err)
		tail.mustAwait(t, `"policy":"`+name+`"`, 1)
	}
	put("first")
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, os.WriteFile(path, nil, 0o600))
	put("second")
	put("third")
	require.NoError(t, node.cmd.Process.Signal(syscall.SIGHUP))
	node.mustAwait(t, `the audit log was opened anew`, 1)
	put("fourth")
	require.Equal(t, 4, strings.Count(tail.printed(), `"policy_put"`))
	require.Equal(t, []string{"fourth"}, auditedPolicies(t, path, ""))
}

// Standard output cannot be opened anew, and a hang-up is no reason to end.
func TestHangupWithoutAnAuditFile(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0", "--audit", "-")
	node.mustAwait(t, nodeLine, 1)
	require.NoError(t, node.cmd.Process.Signal(syscall.SIGHUP))
	node.mustAwait(t, `msg=.*standard output.*nothing to open anew`, 1)
	require.NoError(t, node.stop())
	require.Contains(t, node.printed(), "msg=ended")
}

// auditedPolicies returns the names of the policies that an audit log says were
// put, behind what it begins with.
func auditedPolicies(t *testing.T, path, begin string) (names []string) {
	t.Helper()
	content, err := os.ReadFile(path)
	require.NoError(t, err)
	lines := strings.TrimSuffix(string(content), "\n")
	if begin != "" {
		first, rest, _ := strings.Cut(lines, "\n")
		require.Equal(t, begin, first)
		lines = rest
	}
	for text := range strings.SplitSeq(lines, "\n") {
		var l struct {
			Event  string `json:"event_type"`
			Policy string
		}
		require.NoError(t, json.Unmarshal([]byte(text), &l), text)
		require.Equal(t, "policy_put", l.Event)
		names = append(names, l.Policy)
	}
	return names
}
