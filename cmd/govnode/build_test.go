package main

import (
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
)

// Every node tells what it was built from, whatever orders its commands.
func TestBuildInfoOfEveryNode(t *testing.T) {
	t.Parallel()
	for backend, args := range map[string]func(t *testing.T) []string{
		"memory": func(*testing.T) []string { return nil },
		"raft": func(t *testing.T) []string {
			return []string{"--data", t.TempDir(), "--raft-listen", "127.0.0.1:0", "--bootstrap"}
		},
		"redis": func(t *testing.T) []string {
			return []string{"--redis", startRedis(t)}
		},
	} {
		t.Run(backend, func(t *testing.T) {
			t.Parallel()
			node := start(t, append([]string{"serve", "--backend", backend, "--listen", "127.0.0.1:0"}, args(t)...)...)
			api := node.mustAwait(t, nodeLine, 1)[0][2]
			require.Regexp(t, `(?m)^govnode_build_info\{commit=".*",goversion="`+runtime.Version()+`",version="devel.*"\} 1$`, body(t, "http://"+api+"/metrics"))
		})
	}
}
