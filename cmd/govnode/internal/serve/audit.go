package serve

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/server"
)

// newAudit opens where decisions are written, one JSON object a line (policy
// engine spec 17.1, adapter contract 19.1). The returned function closes it.
func newAudit(c *config.Config, stdout io.Writer) (io.Writer, func() error, error) {
	path := auditPath(c)
	if path == "" {
		return stdout, func() error { return nil }, nil
	}
	a := &auditFile{path: path}
	if err := a.Reopen(); err != nil {
		return nil, nil, fmt.Errorf("audit: %w; give another file with --audit", err)
	}
	return a, a.Close, nil
}

// auditPath is the file of the log; empty for standard output.
func auditPath(c *config.Config) string {
	switch {
	case c.Audit == "-":
		return ""
	case c.Audit == "" && c.Data != "":
		return filepath.Join(c.Data, "audit.jsonl")
	}
	return c.Audit
}

// auditChain is where the chain of the log's lines goes on; nil where none is kept.
func auditChain(c *config.Config) (*audit.Tail, error) {
	if !c.ChainsAudit() {
		return nil, nil
	}
	path := auditPath(c)
	if path == "" {
		return &audit.Tail{Node: c.Node}, nil
	}
	tail, err := audit.TailOf(path, c.Node)
	return &tail, err
}

// An auditFile is a file that may be renamed while it is written to.
type auditFile struct {
	path string

	mu   sync.Mutex
	file *os.File
	torn bool // the file ends in a line that a full disk or a crash has cut off
}

var _ server.Reopener = (*auditFile)(nil)

// Write implements io.Writer.
func (a *auditFile) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.torn { // lest the next line be lost with it
		if _, err := a.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		a.torn = false
	}
	return a.file.Write(p)
}

// Reopen implements server.Reopener.
func (a *auditFile) Reopen() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot append to %s: %w", a.path, err)
	}
	torn := endsInLine(a.path)
	a.mu.Lock()
	old := a.file
	a.file, a.torn = f, torn
	a.mu.Unlock()
	if old != nil {
		_ = old.Close() // every line has been handed to the system already
	}
	return nil
}

// Close ends the file.
func (a *auditFile) Close() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.file.Close()
}

// endsInLine reports whether a file ends without a newline. What is no file,
// such as a pipe, or may only be written does not.
func endsInLine(path string) bool {
	info, err := os.Stat(path)
	if err != nil || !info.Mode().IsRegular() || info.Size() == 0 {
		return false
	}
	f, err := os.Open(path)
	if err != nil {
		return false
	}
	defer func() { _ = f.Close() }()
	var last [1]byte
	_, err = f.ReadAt(last[:], info.Size()-1)
	return err == nil && last[0] != '\n'
}

// onHangup does something at each SIGHUP until ctx ends.
func onHangup(ctx context.Context, hangups <-chan os.Signal, do func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-hangups:
			do()
		}
	}
}
