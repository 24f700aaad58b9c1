package server

import (
	"io"
	"strconv"
	"sync"

	"github.com/go-json-experiment/json/jsontext"
)

// An auditLog is the file of audit lines, one JSON object each. Lines are
// collected, and one write takes to the file what has come together; an answer
// leaves when its line has been written.
type auditLog struct {
	to     io.Writer // nil where nobody takes lines
	failed func(error)

	mu      sync.Mutex
	pending []byte

	writing sync.Mutex // held while lines are on their way, so that they keep their order
	spare   []byte
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
		if _, err := l.to.Write(lines); err != nil {
			l.failed(err)
		}
	}
	if cap(lines) <= maxSpareLines {
		l.spare = lines
	}
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

// auditFailed says that lines are lost. Answers go on: what was decided stands
// in the log of commands, and a full disk must not end the service.
func (s *Server) auditFailed(err error) {
	s.metrics.auditLost.Inc()
	s.log.Error("the audit log cannot be written; make room, or give another file with --audit", "error", err)
}

func (l line) text(name, text string) line {
	out, _ := jsontext.AppendQuote([]byte(l.name(name)), text) // what is not UTF-8 is replaced
	return out
}

func (l line) bool(name string, v bool) line { return strconv.AppendBool(l.name(name), v) }

func (l line) number(name string, v uint64) line { return strconv.AppendUint(l.name(name), v, 10) }
