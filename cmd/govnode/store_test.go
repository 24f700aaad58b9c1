package main

import (
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/dev"
)

// Why a node of a Raft cluster does not start is said in the words of the
// command line: it begins with the flag, and what is advised are flags.
func TestWhyANodeDoesNotStartNamesFlags(t *testing.T) {
	t.Parallel()
	kept := t.TempDir()
	serve := func(args ...string) *process {
		return start(t, append([]string{"serve", "--listen", "127.0.0.1:0", "--raft-heartbeat", "100ms", "--raft-election", "100ms", "--raft-leader-lease", "80ms"}, args...)...)
	}
	raft, err := dev.FreePorts("127.0.0.1:0", 1)
	require.NoError(t, err)
	running := serve("--data", kept, "--raft-listen", raft, "--bootstrap")
	running.mustAwait(t, nodeLine, 1)
	fieldNames := regexp.MustCompile(`\b(ID|Dir|Join|Bootstrap|Replace|LogStore|cluster:)\b`)
	refused := func(begin string, holds []string, args ...string) {
		t.Helper()
		p := serve(append(args, "--raft-listen", "127.0.0.1:0")...)
		require.ErrorContains(t, p.wait(), "exit status 1", p.printed())
		last := regexp.MustCompile(`(?m)^govnode: .*$`).FindString(p.printed())
		require.Regexp(t, `^govnode: `+begin+`: `, last)
		for _, text := range holds {
			require.Contains(t, last, text)
		}
		require.NotRegexp(t, fieldNames, last)
	}
	refused("join", []string{"--join", "--bootstrap"}, "--data", t.TempDir())
	refused("bootstrap", []string{"without --bootstrap", "with --replace"}, "--data", t.TempDir(), "--node", "b", "--bootstrap", "--join", raft)
	refused("join", []string{"choose another"}, "--data", t.TempDir(), "--join", raft)
	refused("data", []string{"in use by another process"}, "--data", kept)
	require.NoError(t, running.stop())
	refused("node", []string{`belongs to node "node1"`}, "--data", kept, "--node", "b")
	refused("log-store", []string{"kept by boltdb"}, "--data", kept, "--log-store", "wal")
}
