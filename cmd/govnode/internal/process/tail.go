package process

import (
	"bytes"
	"sync"
)

// A Tail keeps the end of what is written to it.
type Tail struct {
	mu  sync.Mutex
	end []byte
}

const tailLength = 4 << 10

// Write implements io.Writer.
func (t *Tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end = append(t.end, p...)
	if n := len(t.end) - tailLength; n > 0 {
		t.end = bytes.Clone(t.end[n:])
	}
	return len(p), nil
}

// String is what is kept, as one text.
func (t *Tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(bytes.TrimSpace(t.end))
}
