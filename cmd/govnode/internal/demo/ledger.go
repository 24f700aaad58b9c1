package demo

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"
)

// A ledger is a file that one worker appends to. A line is there or not: it is
// written at once, before what it announces is done.
type ledger struct {
	mu   sync.Mutex
	file *os.File
	err  error // the first that occurred; nothing is written after it
}

// What a line of a ledger says.
const (
	wroteSession = "session" // a session is about to be created
	wroteIntent  = "intent"  // a call or a slot is about to be asked for
	wroteUnknown = "unknown" // no answer came; it is asked for again with the same id
	wroteAnswer  = "answer"  // with its outcome
	wroteEnter   = "enter"   // the slot is in use from here on, until the lease's end at most
	wroteRenewed = "renewed" // the lease's end has moved
	wroteLost    = "lost"    // the lease is over
	wroteLeave   = "leave"   // the slot is in use no longer
	wroteFinish  = "finish"  // the end of a call is about to be reported
	wroteDone    = "done"    // it was reported, with its outcome
	wroteHolding = "holding" // the slot is kept until somebody kills this process
)

// An entry is one line of a ledger: what one worker saw, when it saw it.
type entry struct {
	At      time.Duration `json:"at"` // machineTime
	What    string        `json:"what"`
	Session string        `json:"session,omitempty"` // empty for a slot
	ID      string        `json:"id,omitempty"`      // of the call or slot
	Tool    string        `json:"tool,omitempty"`
	Outcome string        `json:"outcome,omitempty"`
	Token   uint64        `json:"token,omitempty"`  // of the shared pool
	Passed  uint64        `json:"passed,omitempty"` // the number of a call at the turnstile
	Index   uint64        `json:"index,omitempty"`  // in the log, of the answer
	Until   time.Duration `json:"until,omitempty"`  // when the lease ends, by machineTime
	Failed  bool          `json:"failed,omitempty"`
	Note    string        `json:"note,omitempty"`
}

func openLedger(path string) (*ledger, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &ledger{file: f}, nil
}

// write appends an entry with the time of now. A worker that cannot keep its
// ledger must not go on, since nobody could check it.
func (l *ledger) write(e entry) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.err != nil {
		return l.err
	}
	e.At = machineTime()
	line, err := json.Marshal(e)
	if err == nil {
		_, err = l.file.Write(append(line, '\n'))
	}
	if err != nil {
		l.err = fmt.Errorf("ledger: %w", err)
	}
	return l.err
}

func (l *ledger) close() error { return l.file.Close() }

// A ledgerReader reads a ledger while it grows.
type ledgerReader struct {
	path string
	read int64
	rest []byte // of a line whose end has not been read yet
}

// next returns the entries that were written since the last time.
func (r *ledgerReader) next() ([]entry, error) {
	f, err := os.Open(r.path)
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil // the worker has not begun
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(r.read, io.SeekStart); err != nil {
		return nil, err
	}
	content, err := io.ReadAll(f)
	if err != nil {
		return nil, err
	}
	r.read += int64(len(content))
	content = append(r.rest, content...)
	var entries []entry
	for {
		line, rest, whole := bytes.Cut(content, []byte{'\n'})
		if !whole {
			r.rest = bytes.Clone(content)
			return entries, nil
		}
		content = rest
		var e entry
		if err := json.Unmarshal(line, &e); err != nil {
			return nil, fmt.Errorf("%s: %w", r.path, err)
		}
		entries = append(entries, e)
	}
}
