package main

import (
	"bytes"
	"cmp"
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/spf13/cobra"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// completed is what a shell is told that the last word may become, and how it
// goes on if it is none of these.
func completed(t *testing.T, line ...string) (words []string, directive string) {
	t.Helper()
	var out, stderr bytes.Buffer
	require.Equal(t, terminal.ExitYes, execute(append([]string{"__complete"}, line...), &out, &stderr), stderr.String())
	for text := range strings.Lines(out.String()) {
		word, _, _ := strings.Cut(strings.TrimSuffix(text, "\n"), "\t")
		if directive = word; !strings.HasPrefix(word, ":") {
			words = append(words, word)
		}
	}
	return words, directive
}

const (
	filesMayFollow   = ":0"
	nothingElse      = ":4"
	foldersMayFollow = ":16"
)

func TestCompletion(t *testing.T) {
	for line, want := range map[string]struct {
		words     string
		directive string
	}{
		"ses":                              {"session", nothingElse},
		"session ":                         {"close get list", nothingElse},
		"session list --nam":               {"--namespace", nothingElse},
		"serve --backend ":                 {"memory raft redis", nothingElse},
		"serve --backend=r":                {"--backend=raft --backend=redis", nothingElse},
		"serve --data ":                    {"", foldersMayFollow},
		"serve --config ":                  {"", filesMayFollow},
		"serve --raft-heartbeat ":          {"", nothingElse},
		"serve --redis-accept-risk ":       {"eviction no-aof", nothingElse},
		"session list -o ":                 {"json text", nothingElse},
		"version -o ":                      {"json text", nothingElse},
		"policy test -o ":                  {"json junit text", nothingElse},
		"policy eval --kind ":              {"agent handoff model sampling tool", nothingElse},
		"policy put ":                      {"", filesMayFollow},
		"policy put a.yaml ":               {"", nothingElse},
		"policy diff a.yaml ":              {"", filesMayFollow},
		"policy validate a.yaml b.yaml ":   {"", filesMayFollow},
		"events --types policy_check,tool": {"policy_check,tool_call_blocked", nothingElse},
		"bench --against redis,":           {"redis,etcd redis,redis", nothingElse},
		"bench --html ":                    {"", filesMayFollow},
		"bench compare ":                   {"", filesMayFollow},
		"demo --log-store ":                {"boltdb wal", nothingElse},
		"serve --tls-client-auth ":         {"none optional require", nothingElse},
		"serve --tls-key ":                 {"", filesMayFollow},
		"tls ":                             {"client init node", nothingElse},
		"tls node --out ":                  {"", foldersMayFollow},
		"tls client --ca-dir ":             {"", foldersMayFollow},
	} {
		words, directive := completed(t, strings.Split(line, " ")...)
		for i, w := range words {
			if flag, _, ok := strings.Cut(want.words, "="); ok && strings.HasPrefix(flag, "--") {
				words[i] = flag + "=" + w
			}
		}
		require.ElementsMatch(t, strings.Fields(want.words), words, line)
		require.Equal(t, want.directive, directive, line)
	}
}

// What exists is completed, asked from the node that the command line names.
func TestCompletionOfLiveNames(t *testing.T) {
	t.Parallel()
	node := start(t, "dev", "--backend", "memory", "--listen", "127.0.0.1:0")
	node.mustAwait(t, `^ready$`, 1)
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	caller(t, api)("c1", "read") // of session s with policy p
	for _, pool := range []string{"gpu", "gpu2", "cpu"} {
		cli(t, &struct{}{}, "pool", "put", pool, "--slots", "1", "--addr", api)
	}
	for line, want := range map[string]string{
		"session get ":                  "s",
		"session close ":                "s",
		"session close s ":              "",
		"explain id --session ":         "s",
		"pool delete g":                 "gpu gpu2",
		"slot release gpu ":             "",
		"slot release policy/p ":        "c1",
		"policy get ":                   "p",
		"cluster remove ":               "node1",
		"policy get --namespace=other ": "",
	} {
		command, last, _ := strings.Cut(line, " ")
		words, directive := completed(t, append([]string{command, "--addr", api}, strings.Split(last, " ")...)...)
		require.ElementsMatch(t, strings.Fields(want), words, line)
		require.Equal(t, nothingElse, directive, line)
	}
	digests, _ := completed(t, "session", "list", "--addr", api, "--policy-digest", "sha")
	require.Len(t, digests, 1)
	cli(t, &struct{}{}, "approval", "stand", "pay", "--agent", "a", "--for", "1h", "--addr", api)
	standing, _ := completed(t, "approval", "unstand", "--addr", api, "")
	require.Len(t, standing, 1)
	pending, _ := completed(t, "approval", "approve", "--addr", api, "")
	require.Empty(t, pending)
}

// Who may do what is completed of the namespace that the command line names.
func TestCompletionOfTokens(t *testing.T) {
	t.Setenv("HOME", t.TempDir()) // nobody is logged in
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
	mux := http.NewServeMux()
	mux.Handle(govnodev1connect.NewAccessServiceHandler(keeper{}))
	node := httptest.NewServer(mux)
	defer node.Close()
	for line, want := range map[string]string{
		"token revoke ":                  "own1 own2",
		"token revoke --namespace=team ": "team1 team2",
		"token allow ":                   "cert:own",
		"token allow --namespace=team ":  "cert:team",
		"token revoke --namespace=team1": "", // it is that flag which is completed
	} {
		command, last, _ := strings.Cut(line, " ")
		words, directive := completed(t, append([]string{command, "--addr", node.Listener.Addr().String()}, strings.Split(last, " ")...)...)
		require.ElementsMatch(t, strings.Fields(want), words, line)
		require.Equal(t, nothingElse, directive, line)
	}
}

// A keeper is a node that has tokens of each namespace.
type keeper struct {
	govnodev1connect.UnimplementedAccessServiceHandler
}

func (keeper) ListTokens(_ context.Context, req *govnodev1.ListTokensRequest) (*govnodev1.ListTokensResponse, error) {
	ns := cmp.Or(req.Namespace, "own")
	return &govnodev1.ListTokensResponse{
		Tokens: []*govnodev1.Token{{TokenId: ns + "1"}, {TokenId: ns + "2"}},
		Denied: []*govnodev1.DeniedSubject{{Subject: "cert:" + ns}},
	}, nil
}

// Where nobody answers, nothing is completed and nothing is said.
func TestCompletionWithoutANode(t *testing.T) {
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer func() { _ = silent.Close() }()
	for _, line := range [][]string{
		{"session", "get", "--addr", "127.0.0.1:1", ""},
		{"session", "get", "--addr", "nowhere", ""},
		{"session", "get", "--addr", silent.Addr().String(), "--timeout", "20ms", ""},
		{"session", "get", "--config", "no-such-file", ""},
	} {
		words, directive := completed(t, line...)
		require.Empty(t, words)
		require.Equal(t, nothingElse, directive)
	}
}

// Every word that stands for an argument is one that completion knows, so that a
// new command does not go without.
func TestCompletionKnowsAllArguments(t *testing.T) {
	known := []string{
		"SESSION", "POOL", "RATE", "BUDGET", "SLOT", "NODE", "NAME|DIGEST", "APPROVAL", "STANDING", "POLICY", "FILE", "FILE...", "DIR", "FILE|DIR", "FILE|DIR|-", "FILE|DIR|-...", "BEFORE.json", "AFTER.json", "RESULT.json...",
		"ADDRESS", "DECISION_ID", "TOOL", "N", "KEY", "KEY...", "VALUE", "ITEM...", "TIME", "NAME", "STAGE", "ID", "SUBJECT", "NAMESPACE", // nobody knows them beforehand
	}
	var look func(cmd *cobra.Command)
	look = func(cmd *cobra.Command) {
		for _, word := range strings.Fields(cmd.Use)[1:] {
			if word = strings.Trim(word, "[]"); !strings.HasPrefix(word, "-") {
				require.Contains(t, known, word, cmd.CommandPath())
			}
		}
		for _, c := range cmd.Commands() {
			look(c)
		}
	}
	look(rootCommand())
}
