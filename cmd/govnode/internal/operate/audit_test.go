package operate

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// auditLog writes an audit log and returns its name.
func auditLog(t *testing.T, text string) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "audit.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(text), 0o600))
	return name
}

// runAudit is what `govnode audit` prints with these arguments.
func runAudit(args ...string) (string, error) {
	var out bytes.Buffer
	cmd := Audit()
	cmd.SilenceErrors, cmd.SilenceUsage = true, true
	cmd.SetOut(&out)
	cmd.SetErr(&out)
	cmd.SetArgs(args)
	err := cmd.Execute()
	return out.String(), err
}

// So many of the last lines are printed as are asked for, and no number below 0.
func TestTailPrintsTheLastLines(t *testing.T) {
	const log = "{\"n\":1}\n{\"n\":2}\n{\"n\":3}\n"
	for n, want := range map[string]string{"0": "", "1": "{\"n\":3}\n", "3": log, "9": log} {
		said, err := runAudit("tail", "--lines", n, auditLog(t, log))
		require.NoError(t, err)
		require.Equal(t, want, said, n)
	}
	_, err := runAudit("tail", "--lines", "-1", auditLog(t, log))
	var coded *terminal.ExitError
	require.ErrorAs(t, err, &coded)
	require.Equal(t, terminal.ExitUsage, coded.Code)
	require.ErrorContains(t, err, "lines: -1 (flag --lines)")
}
