package serve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

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

	mu      sync.Mutex
	file    *os.File
	torn    bool  // the file ends in a line that a full disk or a crash has cut off
	regular bool  // it can be flushed, which a pipe cannot
	due     bool  // it will be flushed, or is being flushed
	dirty   bool  // it was written to since the latest flush began
	unasked int   // bytes that were written since the disk was asked for them
	asking  bool  // it is being asked
	failed  error // of the latest flush, which nobody was told of yet
}

// flushEvery bounds what a power cut may take: answers wait for their lines to be
// written, and not to be flushed.
const flushEvery = time.Second

// flushPatience is how long the end waits for the last flush, since a disk may hang.
const flushPatience = 2 * time.Second

// askEvery is how many bytes are written before the disk is asked to take them. A flush
// that finds all those of a second would keep the flushes of the Raft log waiting, which
// answers wait for.
const askEvery = 1 << 20

var _ server.Reopener = (*auditFile)(nil)

// Write implements io.Writer.
func (a *auditFile) Write(p []byte) (int, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.regular && isRemoved(a.file) { // what is written to it is nowhere
		if err := a.reopen(); err != nil {
			return 0, err
		}
		a.failed = fmt.Errorf("%s was removed, and its lines are lost; it is written anew", a.path)
	}
	if a.torn { // lest the next line be lost with it
		if _, err := a.file.Write([]byte{'\n'}); err != nil {
			return 0, err
		}
		a.torn = false
	}
	n, err := a.file.Write(p)
	if a.unasked += n; a.regular && a.unasked >= askEvery && !a.asking {
		a.unasked, a.asking = 0, true
		go a.ask(a.file)
	}
	if a.dirty = true; a.regular && !a.due {
		a.due = true
		time.AfterFunc(flushEvery, a.beat)
	}
	if err == nil && a.failed != nil {
		err, a.failed = a.failed, nil
	}
	return n, err
}

// ask has the disk begin to take what was written. It is no flush: nothing is promised.
func (a *auditFile) ask(f *os.File) {
	beginFlush(f)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.asking = false
}

// beat flushes, and sees to it that what is written meanwhile is flushed too.
func (a *auditFile) beat() {
	a.flush()
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.due = a.dirty; a.due {
		time.AfterFunc(flushEvery, a.beat)
	}
}

// flush takes what was written to the disk. Whoever writes next is told of an error.
func (a *auditFile) flush() {
	a.mu.Lock()
	f := a.file
	a.dirty = false
	a.mu.Unlock()
	if err := f.Sync(); err != nil && !errors.Is(err, os.ErrClosed) {
		a.mu.Lock()
		a.failed = fmt.Errorf("%s was not flushed, and its last lines may be lost: %w", a.path, err)
		a.mu.Unlock()
	}
}

// Reopen implements server.Reopener.
func (a *auditFile) Reopen() error {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.reopen()
}

// reopen is Reopen; a.mu is held.
func (a *auditFile) reopen() error {
	f, err := os.OpenFile(a.path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return fmt.Errorf("cannot append to %s: %w", a.path, err)
	}
	torn := endsInLine(a.path)
	info, err := f.Stat()
	old := a.file
	a.file, a.torn, a.regular = f, torn, err == nil && info.Mode().IsRegular()
	if old != nil {
		go func() { // every line has been handed to the system already
			_ = old.Sync()
			_ = old.Close()
		}()
	}
	return nil
}

// Close flushes the file and ends it.
func (a *auditFile) Close() error {
	if a.regular {
		flushed := make(chan struct{})
		go func() {
			a.flush()
			close(flushed)
		}()
		select {
		case <-flushed:
		case <-time.After(flushPatience):
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return errors.Join(a.failed, a.file.Close())
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
