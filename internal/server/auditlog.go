package server

import (
	"bytes"
	"encoding/hex"
	"errors"
	"io"
	"math"
	"strconv"
	"sync"
	"time"

	"example.com/govnode/engine/value"
	"example.com/govnode/internal/audit"
	"example.com/govnode/internal/seeded"
	"example.com/govnode/internal/server/fault"
)

// An auditLog is the file of audit lines, one JSON object each. Lines are
// collected, and one write takes to the file what has come together; an answer
// leaves when its line has been written.
//
// The file is written to by a goroutine of its own, which is there while there is
// something to write: a disk or a pipe may hang, and an answer waits for it only
// as long as patience. Where lines are required an answer then says so, and what
// could not be written is kept and tried again; else answers go on without.
type auditLog struct {
	to       io.Writer     // nil where nobody takes lines
	required bool          // answers depend on their lines
	patience time.Duration // how long one write may take until nobody waits for it any more

	// Both are called with mu held, and wait for nothing.
	lost  func(lines int, why error)
	state func(trouble error) // told when lines cannot be written, and with nil when they can again

	mu      sync.Mutex
	chain   *audit.Tail // of the lines; nil where they have none
	pending []byte
	spare   []byte
	added   uint64        // lines so far; the number of the latest
	done    uint64        // of the latest line that is written, or lost for good
	turn    chan struct{} // closed when the above moves or there is trouble; nil if nobody waits
	runs    bool          // somebody writes
	began   time.Time     // when the write under way did; zero if there is none
	alarm   *time.Timer   // goes off when that has taken too long
	trouble error         // why the latest write failed, or that one hangs; nil if all is well
	torn    bool          // the last write has left a line without its end

	file   semaphore // held while the file is written to or opened anew
	closed chan struct{}
	ends   sync.Once // closes closed
}

const (
	// maxSpareLines is how large a buffer of lines is kept for the next ones.
	maxSpareLines = 1 << 20
	// maxPendingLines bounds what is kept while nothing can be written. What comes
	// on top of it is lost. Where lines are required nothing more is decided from
	// fullPendingLines on, which leaves room for what is under way.
	maxPendingLines  = 16 << 20
	fullPendingLines = maxPendingLines / 2
	// auditRetry is how soon lines that are required are tried again.
	auditRetry = 250 * time.Millisecond
)

// errAuditHangs is the trouble with a write that does not come back, and
// errAuditFull that with too many lines that have not been written yet.
var (
	errAuditHangs = errors.New("a write does not come back")
	errAuditFull  = errors.New("it falls behind")
)

// lostLine is the number of every required line that was lost. It is never
// written.
const lostLine = math.MaxUint64

// A semaphore is a lock that can be given up on.
type semaphore chan struct{}

func (l *auditLog) init() {
	l.file, l.closed = make(semaphore, 1), make(chan struct{})
	l.alarm = time.AfterFunc(time.Hour, l.overdue)
	l.alarm.Stop()
}

// add takes a line down that build appends, with the braces around it, and
// returns its number.
func (l *auditLog) add(build func(line) line) uint64 {
	return l.addSealed(build, func(lines []byte, from int) []byte {
		if l.chain != nil {
			return l.chain.Seal(lines, from)
		}
		return append(lines, '}')
	})
}

// addSealed likewise, with an end of its own.
func (l *auditLog) addSealed(build func(line) line, seal func(lines []byte, from int) []byte) uint64 {
	if l.to == nil {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.pending) > maxPendingLines {
		if l.chain != nil {
			l.chain.Seq++ // so that its absence is seen
		}
		l.lost(1, l.why())
		return lostLine
	}
	l.added++
	from := len(l.pending)
	l.pending = build(append(l.pending, '{'))
	l.pending = append(seal(l.pending, from), '\n')
	return l.added
}

// push has the lines that were added written soon.
func (l *auditLog) push() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.begin()
}

// begin starts the writing. l.mu must be held.
func (l *auditLog) begin() {
	if !l.runs && len(l.pending) > 0 {
		l.runs = true
		go l.write()
	}
}

// flush returns when a line has been written. It returns an error where lines
// are required and this one was not written in time.
func (l *auditLog) flush(line uint64) error {
	if line == 0 {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	for l.done < line {
		switch hangs := l.trouble == errAuditHangs; {
		case l.required && (l.trouble != nil || line == lostLine):
			return l.refusal()
		case hangs, line == lostLine:
			return nil
		}
		l.begin()
		if l.turn == nil {
			l.turn = make(chan struct{})
		}
		turn := l.turn
		l.mu.Unlock()
		<-turn
		l.mu.Lock()
	}
	return nil
}

// refusal is why nothing is decided, or a decision is not told. l.mu must be held.
func (l *auditLog) refusal() error {
	return fault.NotApplied("the audit log of this node cannot be written (" + l.why().Error() + "), and nothing is decided without it")
}

// why is why lines are not written. l.mu must be held.
func (l *auditLog) why() error {
	if l.trouble == nil {
		return errAuditFull
	}
	return l.trouble
}

// admit refuses decisions while their lines could not be written.
func (l *auditLog) admit() error {
	if !l.required {
		return nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.trouble != nil || len(l.pending) > fullPendingLines {
		return l.refusal()
	}
	return nil
}

// failing returns why lines cannot be written now; nil if they can.
func (l *auditLog) failing() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.trouble
}

// turned tells those who wait that something has changed. l.mu must be held.
func (l *auditLog) turned() {
	if l.turn != nil {
		close(l.turn)
		l.turn = nil
	}
}

// troubled notes how it stands with the file. l.mu must be held.
func (l *auditLog) troubled(now error) {
	if (now == nil) != (l.trouble == nil) || now == errAuditHangs {
		l.state(now)
	}
	l.trouble = now
	l.turned()
}

// overdue notes that the write under way has taken too long.
func (l *auditLog) overdue() {
	l.mu.Lock()
	defer l.mu.Unlock()
	// The alarm may be that of the write before.
	if !l.began.IsZero() && time.Since(l.began) >= l.patience {
		l.troubled(errAuditHangs)
	}
}

// write takes what was added to the file until there is no more. Lines that are
// required have it tried until the file is well again, though nothing but the end
// of a line should be missing.
func (l *auditLog) write() {
	l.mu.Lock()
	defer l.mu.Unlock()
	for len(l.pending) > 0 || l.required && l.trouble != nil {
		lines, upTo := l.pending, l.added
		l.pending, l.spare = l.spare, nil
		rest, err := l.writeOnce(lines)
		left := uint64(bytes.Count(rest, []byte{'\n'}))
		if err != nil && l.required && !seeded.On(seeded.AuditGap) {
			l.done = max(l.done, upTo-left)
			l.pending = append(append(make([]byte, 0, len(rest)+len(l.pending)), rest...), l.pending...)
			l.troubled(err)
			if !l.rest() {
				break
			}
			continue
		}
		l.done = upTo
		if err != nil {
			l.lost(int(left), err)
		}
		l.troubled(err)
		if cap(lines) <= maxSpareLines {
			l.spare = lines[:0]
		}
	}
	l.runs = false
}

// rest waits until the file may be tried again, and reports whether it may.
// l.mu must be held.
func (l *auditLog) rest() bool {
	l.mu.Unlock()
	defer l.mu.Lock()
	t := time.NewTimer(auditRetry)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.closed:
		return false
	}
}

// writeOnce takes lines to the file, and returns those that did not get there
// whole. Where the write before was cut off in a line, as on a full disk, they
// begin a new one, lest the first of them be lost as well. l.mu must be held, and
// is not while the file is written to.
func (l *auditLog) writeOnce(lines []byte) (rest []byte, err error) {
	if l.torn {
		lines = append([]byte{'\n'}, lines...)
	}
	l.began = time.Now()
	l.alarm.Reset(l.patience)
	l.mu.Unlock()
	l.file <- struct{}{}
	n, err := l.to.Write(lines)
	<-l.file
	l.mu.Lock()
	l.alarm.Stop()
	l.began = time.Time{}
	n = min(max(n, 0), len(lines))
	if n > 0 {
		l.torn = lines[n-1] != '\n'
	}
	if err == nil {
		return nil, nil
	}
	rest = lines[n:]
	switch {
	case len(rest) > 0 && rest[0] == '\n':
		rest = rest[1:] // the newline alone is missing, or was there to begin with: the next write brings it
	case l.torn:
		rest = lines[bytes.LastIndexByte(lines[:n], '\n')+1:]
	}
	return rest, err
}

// close gives what is not written yet the time that an answer would have waited
// for it.
func (l *auditLog) close() {
	if l.to == nil {
		return
	}
	l.mu.Lock()
	last := l.added
	l.mu.Unlock()
	_ = l.flush(last) // what is not written is said below
	l.ends.Do(func() { close(l.closed) })
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.done < last {
		l.lost(int(last-l.done), l.why())
	}
}

// A Reopener is an audit log that can be renamed while it is written to, and
// be opened anew under its name.
type Reopener interface {
	// Reopen makes all further writes go to what the name stands for now, on
	// lines of their own. After an error they go where they went before.
	Reopen() error
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
	return value.AppendQuote(l.name(name), text)
}

func (l line) bool(name string, v bool) line { return strconv.AppendBool(l.name(name), v) }

func (l line) hex(name string, b []byte) line {
	return append(hex.AppendEncode(append(l.name(name), '"'), b), '"')
}

func (l line) number(name string, v uint64) line { return strconv.AppendUint(l.name(name), v, 10) }
