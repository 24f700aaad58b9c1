package audit

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"

	"example.com/govnode/session"
)

// A Tail is where the chain of a node's lines stands.
type Tail struct {
	Node string
	Seq  uint64 // of the latest line; 0 if there is none
	Hash session.Digest
}

// sealField begins the last field of a line. Quotes in a text are escaped, so that it is
// the first of its bytes in no other place.
var sealField = []byte(`,"sha256":"`)

const sealed = 64 + 2 // hex, a quote and the closing brace

// Seal ends a line that has its opening brace and at least one field: with its node, its
// number and the hash of all lines up to it. The line begins at from.
func (t *Tail) Seal(lines []byte, from int) []byte { return t.end(t.place(lines), from) }

// place says whose line it is and which.
func (t *Tail) place(lines []byte) []byte {
	t.Seq++
	lines = appendText(lines, `,"node":`, t.Node)
	return strconv.AppendUint(append(lines, `,"seq":`...), t.Seq, 10)
}

func (t *Tail) end(lines []byte, from int) []byte {
	t.Hash = next(t.Hash, lines[from:])
	lines = hex.AppendEncode(append(lines, sealField...), t.Hash[:])
	return append(lines, '"', '}')
}

func next(was session.Digest, line []byte) session.Digest {
	h := sha256.New()
	_, _ = h.Write([]byte("govnode.line.1\x00"))
	_, _ = h.Write(was[:])
	_, _ = h.Write(line)
	return session.Digest(h.Sum(nil))
}

// unseal divides a line into what its hash is over and the hash. It reports false of a
// line without one.
func unseal(line []byte) (body []byte, hash session.Digest, ok bool) {
	at := len(line) - sealed - len(sealField)
	if at < 1 || !bytes.Equal(line[at:at+len(sealField)], sealField) || !bytes.HasSuffix(line, []byte(`"}`)) {
		return nil, hash, false
	}
	n, err := hex.Decode(hash[:], line[at+len(sealField):len(line)-2])
	return line[:at], hash, err == nil && n == len(hash)
}

// tailSize is how much of the end of a file is looked at for its last line.
const tailSize = 1 << 20

// TailOf returns where the chain in a file stands: at its last whole line. A file that is
// not there, or has no such line, has a tail of no lines.
func TailOf(path, node string) (Tail, error) {
	none := Tail{Node: node}
	f, err := os.Open(path)
	if errors.Is(err, os.ErrNotExist) {
		return none, nil
	}
	if err != nil {
		return none, fmt.Errorf("audit: %w", err)
	}
	defer func() { _ = f.Close() }()
	info, err := f.Stat()
	if err != nil || !info.Mode().IsRegular() {
		return none, err
	}
	from := max(0, info.Size()-tailSize)
	text, err := io.ReadAll(io.NewSectionReader(f, from, info.Size()-from))
	if err != nil {
		return none, fmt.Errorf("audit: %w", err)
	}
	for len(text) > 0 {
		start := bytes.LastIndexByte(text, '\n') + 1
		if _, hash, ok := unseal(text[start:]); ok {
			var l Line
			if err := json.Unmarshal(text[start:], &l); err == nil && l.Node == node {
				return Tail{node, l.Seq, hash}, nil
			}
		}
		text = text[:max(0, start-1)]
	}
	return none, nil
}

// A Line is what verifying looks at in a line of the log.
type Line struct {
	At        string  `json:"timestamp"`
	Event     string  `json:"event_type"`
	Namespace string  `json:"namespace"`
	Principal string  `json:"principal"`
	Outcome   string  `json:"outcome"`
	Change    *Change `json:"change"`
	Fold      *Fold   `json:"fold"`
	Anchor    *Anchor `json:"anchor"`
	// Generation is that of the state, in a line that tells of a restore: if it came
	// into force, where the outcome is unknown.
	Generation uint32 `json:"generation"`
	Node       string `json:"node"`
	Seq        uint64 `json:"seq"`
}

// A Link is one of the chain of a record.
type Link struct {
	Chain      session.Key `json:"chain"` // the key of its record
	N          uint64      `json:"n"`
	Generation uint32      `json:"generation"`
	Head       string      `json:"head"` // hexadecimal
}

// A Change is what became of a command. Without a link nobody knows whether it was
// applied, or its node knows an answer and not whether that was the first.
type Change struct {
	Link
	Said json.RawMessage `json:"said"`
	Code session.Code    `json:"code"`
	// Learned says that the answer was lost, and its node learned later what became of it.
	Learned bool `json:"learned"`
}

// A Fold is the end of a chain, which goes on in the namespace's: Link is that one.
type Fold struct {
	Link
	Of Link `json:"of"`
}
