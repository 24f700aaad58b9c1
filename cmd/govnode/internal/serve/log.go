package serve

import (
	"bytes"
	"io"
	"log/slog"
	"sync"
	"time"

	"example.com/govnode/cmd/govnode/internal/config"
)

// The log of a node.

var logLevels = map[string]slog.Level{
	"debug": slog.LevelDebug,
	"info":  slog.LevelInfo,
	"warn":  slog.LevelWarn,
	"error": slog.LevelError,
}

// newLogger makes the log of a node.
func newLogger(c *config.Config, w io.Writer) *slog.Logger {
	opts := &slog.HandlerOptions{Level: logLevels[c.LogLevel]}
	if c.LogFormat == "json" {
		return slog.New(slog.NewJSONHandler(w, opts))
	}
	return slog.New(slog.NewTextHandler(w, opts))
}

// A logWriter is for an output that may hang, as a pipe does whose reader has stopped.
// Who writes waits until his line is out, so that a process that ends next has said it,
// but never for long: then lines are queued, and those that find no room are counted.
type logWriter struct {
	to  io.Writer
	gap func(lost int) []byte // the line that says so

	mu    sync.Mutex
	queue []byte        // whole lines
	lost  int           // lines that came behind these and found no room
	idle  chan struct{} // closed when everything is out; nil if it is
	hangs bool          // somebody has waited in vain: nobody does again until everything is out
}

const (
	// maxQueued is how many bytes of lines wait for the output.
	maxQueued = 1 << 20
	// logPatience is how long a line waits to be out.
	logPatience = 100 * time.Millisecond
	// lastLinesTimeout is how long the end of the process waits for the last lines.
	lastLinesTimeout = 500 * time.Millisecond
)

func newLogWriter(c *config.Config, to io.Writer) *logWriter {
	return &logWriter{to: to, gap: func(lost int) []byte {
		var line bytes.Buffer
		newLogger(c, &line).Error("lines of this log are lost here, since what reads it has not done so for too long", "lines", lost)
		return line.Bytes()
	}}
}

// Write implements io.Writer for one line.
func (w *logWriter) Write(line []byte) (int, error) {
	w.mu.Lock()
	if w.lost > 0 || len(w.queue) > 0 && len(w.queue)+len(line) > maxQueued {
		w.lost++ // also one that would fit, lest it stand before those that do not
	} else {
		w.queue = append(w.queue, line...)
	}
	if w.idle == nil {
		w.idle = make(chan struct{})
		go w.drain()
	}
	hangs := w.hangs
	w.mu.Unlock()
	if !hangs && !w.flush(logPatience) {
		w.mu.Lock()
		w.hangs = w.idle != nil
		w.mu.Unlock()
	}
	return len(line), nil
}

// drain writes until nothing is left.
func (w *logWriter) drain() {
	for {
		w.mu.Lock()
		lines, lost := w.queue, w.lost
		w.queue, w.lost = nil, 0
		if len(lines) == 0 && lost == 0 {
			close(w.idle)
			w.idle, w.hangs = nil, false
			w.mu.Unlock()
			return
		}
		w.mu.Unlock()
		if lost > 0 {
			lines = append(lines, w.gap(lost)...)
		}
		_, _ = w.to.Write(lines) // there is nowhere to say that it failed
	}
}

// flush reports whether everything is out, for which it waits so long.
func (w *logWriter) flush(patience time.Duration) bool {
	w.mu.Lock()
	idle := w.idle
	w.mu.Unlock()
	if idle == nil {
		return true
	}
	select {
	case <-idle:
		return true
	case <-time.After(patience):
		return false
	}
}
