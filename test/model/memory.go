package model

import (
	"strings"

	"example.com/govnode/session"
)

// What is remembered of ids that were finished.

// A memory is that of one session or one client: the last 1,024 at least. They
// are forgotten 128 at a time.
type memory struct {
	done   []finished // in the order in which they were finished
	forgot uint64     // newest time among those that are not there any more
	newest uint64     // of all that were ever finished here
}

type finished struct {
	id      string
	content session.Fingerprint
	code    session.Code
	rule    uint16
	value   uint64
}

func (m *memory) add(f finished) {
	m.done, m.newest = append(m.done, f), max(m.newest, timeOf(f.id))
	if len(m.done) < 1024+128 {
		return
	}
	for _, old := range m.done[:128] {
		m.forgot = max(m.forgot, timeOf(old.id))
	}
	m.done = append([]finished(nil), m.done[128:]...)
}

func (m *memory) find(id string) *finished {
	for i := range m.done {
		if m.done[i].id == id {
			return &m.done[i]
		}
	}
	return nil
}

// forgotten is a memory that remembers nothing, up to a time.
func forgotten(t uint64) memory { return memory{forgot: t, newest: t} }

// stale refuses an unknown id that may be one of those that were forgotten.
func stale(id string, forgot uint64, r *session.Result) bool {
	if t := timeOf(id); t == 0 || t > forgot {
		return false
	}
	r.Code, r.NewerThan = session.StaleID, forgot
	return true
}

// timeOf is the time of a ULID or a UUIDv7, in Unix milliseconds, at most that
// of the year 2527; 0 for all other ids.
func timeOf(id string) (t uint64) {
	digits, base, bits := "0123456789ABCDEFGHJKMNPQRSTVWXYZ", strings.ToUpper(id), 5
	switch {
	case len(id) == 26 && id[0] <= '7':
		base += "......"
	case len(id) == 36 && id[14] == '7' && id[8] == '-' && id[13] == '-' && id[18] == '-' && id[23] == '-':
		digits, base, bits = "0123456789ABCDEF", id[:8]+id[9:13]+id[14:18]+id[19:23]+id[24:], 4
		base = strings.ToUpper(base)
	default:
		return 0
	}
	for i, c := range base[:len(strings.TrimRight(base, "."))] {
		d := strings.IndexRune(digits, c)
		if d < 0 {
			return 0
		}
		if i < 48/bits+min(1, 48%bits) { // the time is of 48 bits
			t = t<<bits | uint64(d)
		}
	}
	return min(t, 1<<44-1)
}
