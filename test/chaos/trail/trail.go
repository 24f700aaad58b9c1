package trail

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
)

const (
	// flushed is how old a line may be at most that a power cut takes. Nodes flush within
	// a second; this machine has other work. Without a flush it is half a minute.
	flushed = 8 * time.Second
	// held is for how long a node may have an answer that it has not written the line of:
	// while it is paused or starved, or its disk is slow.
	held = 6 * time.Second
)

// A Trail is the audits of the nodes of a run.
type Trail struct {
	// Start is from when on the times of clients count.
	Start time.Time

	cluster *processes.Cluster
	folder  string

	mu     sync.Mutex
	seen   map[*processes.Node]int64 // how much of its file was searched for anchors
	kept   bytes.Buffer              // anchors
	ends   []span                    // of nodes whose disks ended before they did
	lost   map[place]bool            // links whose lines were lost with a disk
	about  map[string]bool           // what those lines were about
	full   map[string]bool           // nodes whose lines could not be written for a while
	broken []check.Violation
}

// A span is a time in which a node ended.
type span struct{ from, until time.Duration }

// A place is one in the chain of a record.
type place struct {
	chain string
	n     uint64
}

// New begins a trail. What it needs is kept below folder; start is when the clock of the
// clients began.
func New(c *processes.Cluster, folder string, start time.Time) *Trail {
	return &Trail{
		Start: start, cluster: c, folder: folder, seen: map[*processes.Node]int64{},
		lost: map[place]bool{}, about: map[string]bool{}, full: map[string]bool{},
	}
}

func (t *Trail) violated(name, format string, args ...any) {
	t.broken = append(t.broken, check.Violation{Check: name, Text: fmt.Sprintf(format, args...)})
}

// Keep keeps the anchors that the file of a node has by now, of which none may be gone or
// be another in the end.
func (t *Trail) Keep(n *processes.Node) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	f, err := os.Open(n.Audit)
	if errors.Is(err, os.ErrNotExist) {
		return nil // it has written nothing yet
	}
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }()
	if _, err := f.Seek(t.seen[n], io.SeekStart); err != nil {
		return err
	}
	text, err := io.ReadAll(f)
	if err != nil {
		return err
	}
	text = text[:bytes.LastIndexByte(text, '\n')+1]
	t.seen[n] += int64(len(text))
	for line := range bytes.Lines(text) {
		if bytes.Contains(line, []byte(`"event_type":"anchor"`)) {
			_, _ = t.kept.Write(line)
		}
	}
	return nil
}

// Full notes that lines of a node could not be written for a while, which do ends.
func (t *Trail) Full(n *processes.Node, do func() error) error {
	from := t.now()
	err := do()
	t.mu.Lock()
	defer t.mu.Unlock()
	t.full[n.Name] = true
	t.ends = append(t.ends, span{from, t.now()})
	return err
}

// Lost notes that a node has lost its disk, with its whole file. Its anchors are nothing
// any more that a file could be held to.
func (t *Trail) Lost(n *processes.Node) error {
	text, err := os.ReadFile(n.Audit)
	if err != nil {
		return err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.gone(text, func(line, []byte) {})
	t.seen[n] = 0
	kept := bytes.Clone(t.kept.Bytes())
	t.kept.Reset()
	for text := range bytes.Lines(kept) {
		if !bytes.Contains(text, fmt.Appendf(nil, `,"node":%q,`, n.Name)) {
			_, _ = t.kept.Write(text)
		}
	}
	return nil
}

// gone notes that lines are lost. t.mu must be held.
func (t *Trail) gone(lines []byte, each func(l line, text []byte)) {
	for text := range bytes.Lines(lines) {
		l, err := parse(text)
		if err != nil {
			continue // it was not whole before, either
		}
		each(l, text)
		for _, at := range l.places() {
			t.lost[at] = true
		}
		t.about[l.about()] = true
	}
}

// Cut lets do cut the power of nodes and mount their disks again, and looks what that has
// taken of their files. What is there now stays.
func (t *Trail) Cut(nodes []*processes.Node, do func() error) error {
	from, clock := t.now(), time.Now()
	before := make([][]byte, len(nodes))
	for i, n := range nodes {
		var err error
		if before[i], err = os.ReadFile(n.Audit); err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
	}
	if err := do(); err != nil {
		return err
	}
	t.mu.Lock()
	t.ends = append(t.ends, span{from, t.now()})
	t.mu.Unlock()
	for i, n := range nodes {
		after, err := os.ReadFile(n.Audit)
		if err != nil && !errors.Is(err, os.ErrNotExist) {
			return err
		}
		t.took(n, before[i], after, clock)
		if err := t.Keep(n); err != nil {
			return err
		}
	}
	return nil
}

// took notes what a power cut has taken of the file of a node.
func (t *Trail) took(n *processes.Node, before, after []byte, cut time.Time) {
	t.mu.Lock()
	defer t.mu.Unlock()
	same := 0
	for same < min(len(before), len(after)) && before[same] == after[same] {
		same++
	}
	// The file may have got its length in a block whose end was not flushed: that is zeros.
	if same < len(before) && len(bytes.Trim(after[same:], "\x00")) > 0 {
		t.violated("audit", "%s has something else at byte %d of its file after a power cut than it had before it", n.Name, same)
		return
	}
	whole := bytes.LastIndexByte(after[:same], '\n') + 1
	if whole > len(before) {
		return
	}
	t.gone(before[whole:], func(l line, text []byte) {
		if age := cut.Sub(l.At); age > flushed {
			t.violated("flushed", "a power cut took a line of %s that had been written %v before: %s", n.Name, age, text)
		}
	})
}

func (t *Trail) now() time.Duration { return time.Since(t.Start) }

// Heads asks the nodes, which run, for the heads of the state: the last thing before they
// are stopped. The token is an auditor's of the namespace of the clients.
func (t *Trail) Heads(token string) error {
	var addresses []string
	for _, n := range t.cluster.Nodes {
		addresses = append(addresses, n.API)
	}
	path := filepath.Join(t.folder, "auditor")
	if err := os.WriteFile(path, []byte(token), 0o600); err != nil {
		return err
	}
	s := t.cluster.Secured
	heads, err := s.Run("audit", "heads", "--addr", strings.Join(addresses, ","), "--tls-ca", s.Authority(), "--token-file", path)
	if err != nil {
		return err
	}
	return os.WriteFile(t.headsPath(), []byte(heads+"\n"), 0o600)
}

func (t *Trail) headsPath() string { return filepath.Join(t.folder, "heads.jsonl") }
