package serve

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// A log that cannot be opened at the start is refused, with what to do.
func TestAuditFileThatCannotBeOpened(t *testing.T) {
	t.Parallel()
	folder := t.TempDir()
	_, _, err := newAudit(&config.Config{Audit: folder}, io.Discard)
	require.ErrorContains(t, err, "audit: cannot append to "+folder)
	require.ErrorContains(t, err, "give another file with --audit")
}
