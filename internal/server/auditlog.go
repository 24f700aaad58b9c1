package server

import (
	"bytes"
	"fmt"
	"io"
	"strconv"
	"sync"
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// An auditLog is the file of audit lines, one JSON object each. Lines are
// collected, and one write takes to the file what has come together; an answer
// leaves when its line has been written.
type auditLog struct {
	to     io.Writer                  // nil where nobody takes lines
	failed func(lines int, why error) // how many were lost in one write

	mu      sync.Mutex
	pending []byte

	writing sync.Mutex // held while lines are on their way, so that they keep their order
	spare   []byte
	torn    bool // the last write has left a line without its end

	losses losses
}

// maxSpareLines is how large a buffer of lines is kept for the next ones.
const maxSpareLines = 1 << 20

// add takes a line down that build appends, with the braces around it.
func (l *auditLog) add(build func(line) line) {
	if l.to == nil {
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.pending = append(build(append(l.pending, '{')), '}', '\n')
}

// flush returns when every line that was added before has been written, or
// could not be.
func (l *auditLog) flush() {
	if l.to == nil {
		return
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	l.mu.Lock()
	lines := l.pending
	l.pending = l.spare[:0]
	l.mu.Unlock()
	l.spare = nil
	if len(lines) > 0 {
		l.write(lines)
	}
	if cap(lines) <= maxSpareLines {
		l.spare = lines
	}
}

// write takes lines to the file. Where the write before was cut off in a line,
// as on a full disk, they begin a new one, lest the first of them be lost as
// well.
func (l *auditLog) write(lines []byte) {
	if l.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	n, err := l.to.Write(lines)
	n = min(max(n, 0), len(lines))
	if n > 0 {
		l.torn = lines[n-1] != '\n'
	}
	if err != nil {
		// Lost is each line of which something is missing, unless that is the
		// newline alone: the next write brings it.
		l.failed(bytes.Count(bytes.TrimPrefix(lines[n:], []byte{'\n'}), []byte{'\n'}), err)
	}
}

// A Reopener is an audit log that can be renamed while it is written to, and
// be opened anew under its name.
type Reopener interface {
	// Reopen makes all further writes go to what the name stands for now, on
	// lines of their own. After an error they go where they went before.
	Reopen() error
}

// ReopenAudit opens the audit log anew, for one that was renamed to be
// archived. No line is split between the two. It does nothing and returns false
// where Config.Audit is no Reopener.
func (s *Server) ReopenAudit() (reopened bool, err error) {
	l := &s.audit.log
	r, ok := l.to.(Reopener)
	if !ok {
		return false, nil
	}
	l.writing.Lock()
	defer l.writing.Unlock()
	if err := r.Reopen(); err != nil {
		return false, fmt.Errorf("server: audit: %w", err)
	}
	l.torn = false // Reopen has seen to it
	return true, nil
}

// auditFailed counts a write that failed, and says so. Answers go on: what was
// decided stands in the log of commands, and a full disk must not end the
// service.
func (s *Server) auditFailed(lines int, why error) {
	s.metrics.auditLost.Inc()
	s.audit.log.losses.add(lines, why, func(lines int, why error) {
		s.log.Error("the audit log cannot be written; make room, or give another file with --audit", "lines_lost", lines, "error", why)
	})
}

// lossesEvery is how often it is said that lines are lost. On a full disk every
// call loses one, and the node's own log may stand on the same disk.
const lossesEvery = time.Second

// losses are the lines that were lost and not told of yet. The first is told at
// once, and what follows together.
type losses struct {
	mu    sync.Mutex
	lines int
	why   error
	quiet bool // until lossesEvery after the last word
}

func (l *losses) add(lines int, why error, say func(lines int, why error)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.lines, l.why = l.lines+lines, why
	if !l.quiet {
		l.tell(say)
	}
}

// tell says what was lost, and sees to it that what is lost next is said too,
// though nothing should fail after it.
func (l *losses) tell(say func(lines int, why error)) {
	say(l.lines, l.why)
	l.lines, l.why, l.quiet = 0, nil, true
	time.AfterFunc(lossesEvery, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.quiet = l.why != nil; l.quiet {
			l.tell(say)
		}
	})
}

// A line is a JSON object that is being written, from behind its opening brace.
type line []byte

func (l line) name(name string) line {
	if l[len(l)-1] != '{' {
		l = append(l, ',')
	}
	l = append(append(l, '"'), name...) // names are ours and need no escapes
	return append(l, `":`...)
}

func (l line) text(name, text string) line {
	out, _ := jsontext.AppendQuote([]byte(l.name(name)), text) // what is not UTF-8 is replaced
	return out
}

func (l line) bool(name string, v bool) line { return strconv.AppendBool(l.name(name), v) }

func (l line) number(name string, v uint64) line { return strconv.AppendUint(l.name(name), v, 10) }
