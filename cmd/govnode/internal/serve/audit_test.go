package serve

import (
	"io"
	"os"
	"strings"
	"testing"
	"time"

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

// Who writes is told that what was written before may not be on the disk. What he writes
// is written all the same.
func TestAuditThatIsNotFlushed(t *testing.T) {
	t.Parallel()
	reads, writes, err := os.Pipe() // which cannot be flushed
	require.NoError(t, err)
	go func() { _, _ = io.Copy(io.Discard, reads) }()
	a := &auditFile{path: "pipe", file: writes, regular: true}
	require.Eventually(t, func() bool {
		n, err := a.Write([]byte("line\n"))
		require.Equal(t, 5, n)
		return err != nil && strings.Contains(err.Error(), "pipe was not flushed")
	}, time.Minute, 10*time.Millisecond)
	_ = a.Close()
	_, err = a.Write(nil)
	require.ErrorIs(t, err, os.ErrClosed)
}
