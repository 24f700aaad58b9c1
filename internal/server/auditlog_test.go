package server

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever flushes finds its lines written, whole and in the order in which each
// writer added them, whoever else writes.
func TestLinesAreWrittenBeforeFlushReturns(t *testing.T) {
	var file written
	l := auditLog{to: &file}
	var all sync.WaitGroup
	for w := range 8 {
		all.Go(func() {
			for n := range 200 {
				l.add(func(l line) line { return l.text("writer", fmt.Sprint(w)).number("n", uint64(n)) })
				if n%3 == 0 {
					l.flush()
					require.Contains(t, file.text(), fmt.Sprintf(`{"writer":"%d","n":%d}`, w, n))
				}
			}
			l.flush()
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
	l := auditLog{to: &file}
	l.add(func(l line) line { return l.text("tool", "a\",\"allowed\":true,\"x\":\"\n\xff").bool("allowed", false) })
	l.flush()
	var m map[string]any
	require.Equal(t, 1, strings.Count(file.text(), "\n"))
	require.NoError(t, json.Unmarshal([]byte(file.text()), &m))
	require.Equal(t, map[string]any{"tool": "a\",\"allowed\":true,\"x\":\"\n\ufffd", "allowed": false}, m)
}

// A write that fails is told, and the next lines are written.
func TestAWriteThatFailsIsTold(t *testing.T) {
	var told []error
	file := written{err: errors.New("no space left on device")}
	l := auditLog{to: &file, failed: func(err error) { told = append(told, err) }}
	l.add(func(l line) line { return l.number("n", 1) })
	l.flush()
	require.Equal(t, []error{file.err}, told)
	file.err = nil
	l.add(func(l line) line { return l.number("n", 2) })
	l.flush()
	require.Equal(t, "{\"n\":2}\n", file.text())
	require.Len(t, told, 1)
}

type written struct {
	mu  sync.Mutex
	buf bytes.Buffer
	err error
}

func (w *written) Write(b []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.err != nil {
		return 0, w.err
	}
	return w.buf.Write(b)
}

func (w *written) text() string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.buf.String()
}
