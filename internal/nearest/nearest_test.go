package nearest

import (
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

func TestNearest(t *testing.T) {
	words := []string{"session", "slot", "serve", "status", "max_tool_calls", "max_tokens", "raft-listen", "list", "allowed_tools"}
	for unknown, want := range map[string]string{
		"sesion": "session", "lsit": "list", "staus": "status", "max_calls": "max_tool_calls", "max_tokns": "max_tokens",
		"raft_listen": "raft-listen", "SESSION": "session", "frobnicate": "", "": "", "slo": "slot", "x": "",
		"policy": "", "blocked_tools": "", "alowedtools": "allowed_tools", "llowed_tools": "allowed_tools",
		"max_token": "max_tokens", strings.Repeat("s", 1000): "",
	} {
		require.Equal(t, want, Of(unknown, words), unknown)
	}
	require.Equal(t, "a1", Of("a0", []string{"a2", "a1"}), "neither the order nor chance decides")
	require.Equal(t, "test", Of("tset", []string{"get", "test"}), "people hit the first letter")
	require.Equal(t, " (did you mean --slot?)", Hint("slo", "--", words))
	require.Empty(t, Hint("frobnicate", "--", words))
}
