//go:build !noopa

package main

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Rego is judged here as on a node.
func TestRego(t *testing.T) {
	folder := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(folder, "p.rego"),
		[]byte("package agentos\ndefault allow := false\nallow if input.tool_name == \"read\"\n"), 0o600))
	for tool, code := range map[string]int{"read": terminal.ExitYes, "write": terminal.ExitNo} {
		var stdout, stderr bytes.Buffer
		require.Equal(t, code, execute([]string{"policy", "eval", folder, "--tool", tool}, &stdout, &stderr), stderr.String())
		require.Regexp(t, `BACKEND +opa`, stdout.String())
	}
}
