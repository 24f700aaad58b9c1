package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func newLog(to io.Writer, lost func(int, error)) *auditLog {
	l := &auditLog{to: to, patience: time.Minute, lost: lost, state: func(error) {}}
	l.init()
	return l
}

// flushAll returns when all lines that were added have been written.
func (l *auditLog) flushAll() error {
	l.mu.Lock()
	last := l.added
	l.mu.Unlock()
	return l.flush(last)
}

// Whoever flushes finds its lines written, whole and in the order in which each
// writer added them, whoever else writes.
func TestLinesAreWrittenBeforeFlushReturns(t *testing.T) {
	var file written
	l := newLog(&file, nil)
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for n := range 200 {
				l.add(func(l line) line { return l.text("writer", fmt.Sprint(w)).number("n", uint64(n)) })
				if n%3 == 0 {
					_ = l.flushAll()
					require.Contains(t, file.text(), fmt.Sprintf(`{"writer":"%d","n":%d}`, w, n))
				}
			}
			_ = l.flushAll()
		})
	}
	all.Wait()
	next := map[string]int{}
	for text := range strings.Lines(file.text()) {
		var m struct {
			Writer string
			N      int
		}
		require.NoError(t, json.Unmarshal([]byte(text), &m), text)
		require.Equal(t, next[m.Writer], m.N)
		next[m.Writer]++
	}
	require.Len(t, next, 8)
}

// What is no UTF-8, or would end a string, cannot forge a field.
func TestLinesQuoteWhatTheyHold(t *testing.T) {
	var file written
	l := newLog(&file, nil)
	l.add(func(l line) line { return l.text("tool", "a\",\"allowed\":true,\"x\":\"\n\xff").bool("allowed", false) })
	_ = l.flushAll()
	var m map[string]any
	require.Equal(t, 1, strings.Count(file.text(), "\n"))
	require.NoError(t, json.Unmarshal([]byte(file.text()), &m))
	require.Equal(t, map[string]any{"tool": "a\",\"allowed\":true,\"x\":\"\n\ufffd", "allowed": false}, m)
}

// A write that fails is told with how many lines it has lost, and the next
// lines are written.
func TestAWriteThatFailsIsTold(t *testing.T) {
	var told []string
	file := written{err: errors.New("no space left on device")}
	l := newLog(&file, func(lines int, why error) { told = append(told, fmt.Sprint(lines, " ", why)) })
	l.add(func(l line) line { return l.number("n", 1) })
	l.add(func(l line) line { return l.number("n", 2) })
	_ = l.flushAll()
	require.Equal(t, []string{"2 no space left on device"}, told)
	file.err = nil
	l.add(func(l line) line { return l.number("n", 3) })
	_ = l.flushAll()
	require.Equal(t, "{\"n\":3}\n", file.text())
	require.Len(t, told, 1)
}

// Wherever a full disk cuts a write off, what is written later stands on lines
// of its own, and the lines that are not there to their end are told as lost.
func TestAWriteThatIsCutOffSpoilsNoOtherLine(t *testing.T) {
	const lines = "{\"n\":1}\n{\"n\":2}\n"
	for first := range len(lines) {
		for second := range len(lines) {
			lost := 0
			file := written{err: errors.New("no space left on device")}
			l := newLog(&file, func(n int, _ error) { lost += n })
			for i, room := range []int{first, second, 1 << 10, 1 << 10} {
				if file.room = room; i == 2 {
					file.err = nil
				}
				l.add(func(l line) line { return l.number("n", 1) })
				l.add(func(l line) line { return l.number("n", 2) })
				_ = l.flushAll()
			}
			whole := 0
			for text := range strings.Lines(file.text()) {
				if json.Valid([]byte(text)) && strings.HasSuffix(text, "\n") {
					whole++
				}
			}
			require.Equal(t, 8-lost, whole, "%d, then %d bytes: %q", first, second, file.text())
			before, well := strings.CutSuffix(file.text(), lines+lines)
			require.True(t, well && (before == "" || strings.HasSuffix(before, "\n")), file.text())
			require.NotContains(t, file.text(), "\n\n")
		}
	}
}

// An audit log that is opened anew takes the lines that come after, whole, and
// one that cannot be opened anew changes nothing.
func TestReopenAudit(t *testing.T) {
	file := &renamed{written: written{err: errors.New("no space left on device"), room: 3}}
	s := &Server{audit: &auditor{log: newLog(file, func(int, error) {})}}
	l := s.audit.log
	l.add(func(l line) line { return l.number("n", 1) })
	_ = l.flushAll()
	file.err = nil
	file.reopen = errors.New("permission denied")
	_, err := s.ReopenAudit()
	require.ErrorIs(t, err, file.reopen)
	l.add(func(l line) line { return l.number("n", 2) })
	_ = l.flushAll()
	require.Equal(t, "{\"n\n{\"n\":2}\n", file.text())

	file.err, file.room = errors.New("no space left on device"), 3
	l.add(func(l line) line { return l.number("n", 3) })
	_ = l.flushAll()
	file.err, file.reopen = nil, nil
	reopened, err := s.ReopenAudit()
	require.NoError(t, err)
	require.True(t, reopened)
	l.add(func(l line) line { return l.number("n", 4) })
	_ = l.flushAll()
	require.Equal(t, "{\"n\":4}\n", file.text(), "the new file begins with a line")

	reopened, err = (&Server{audit: &auditor{log: newLog(&written{}, nil)}}).ReopenAudit()
	require.NoError(t, err)
	require.False(t, reopened, "standard output stays what it is")
}

// renamed is a file that is empty when it is opened anew.
type renamed struct {
	written
	reopen error
}

func (r *renamed) Reopen() error {
	if r.reopen == nil {
		r.buf.Reset()
	}
	return r.reopen
}

type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
	err error // of all writes
	// room is how many bytes of a write that fails are written all the same.
	room int
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		n := min(w.room, len(b))
		w.buf.Write(b[:n])
		return n, w.err
	}
	return w.buf.Write(b)
}

func (w *written) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
