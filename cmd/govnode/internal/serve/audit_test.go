package serve

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
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

// A log that somebody removes while it is written to is begun anew, and whoever writes is
// told once: else nobody would find what was acknowledged since. One that was renamed is
// written to until it is opened anew.
func TestAuditThatIsRemoved(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	w, done, err := newAudit(&config.Config{Audit: path}, io.Discard)
	require.NoError(t, err)
	write := func(line string) error {
		n, err := w.Write([]byte(line + "\n"))
		require.Equal(t, len(line)+1, n)
		return err
	}
	holds := func(path, lines string) {
		content, err := os.ReadFile(path)
		require.NoError(t, err)
		require.Equal(t, lines, string(content))
	}
	require.NoError(t, write("first"))
	require.NoError(t, os.Rename(path, path+".1"))
	require.NoError(t, write("second"))
	holds(path+".1", "first\nsecond\n")
	require.NoFileExists(t, path)
	require.NoError(t, os.Remove(path+".1"))
	require.ErrorContains(t, write("third"), "was removed")
	require.NoError(t, write("fourth"))
	holds(path, "third\nfourth\n")
	require.NoError(t, done())
}

// While the disk is asked for what was written, lines are written on and the log is opened
// anew: every line is in the file under its name at the time.
func TestAuditThatIsWrittenMuch(t *testing.T) {
	t.Parallel()
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	a := &auditFile{path: path}
	require.NoError(t, a.Reopen())
	line := []byte(strings.Repeat("x", 1<<16-1) + "\n")
	const files, lines = 4, 48 // of each: three times as much as is asked for at once
	for i := range files {
		for range lines {
			n, err := a.Write(line)
			require.NoError(t, err)
			require.Equal(t, len(line), n)
		}
		require.NoError(t, os.Rename(path, fmt.Sprint(path, i)))
		require.NoError(t, a.Reopen())
	}
	require.NoError(t, a.Close())
	for i := range files {
		info, err := os.Stat(fmt.Sprint(path, i))
		require.NoError(t, err)
		require.EqualValues(t, lines*len(line), info.Size())
	}
	require.Eventually(t, func() bool { a.mu.Lock(); defer a.mu.Unlock(); return !a.asking }, time.Minute, time.Millisecond)
}
