package ids

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"github.com/oklog/ulid/v2"
)

// A Source draws ULIDs whose time never falls: that of the clock, of the last id,
// or just above what the service has forgotten, whichever is latest.
type Source struct {
	now func() time.Time

	mu      sync.Mutex
	entropy *ulid.MonotonicEntropy
	least   uint64 // Unix ms
	last    ulid.ULID
}

// New makes a source.
func New(now func() time.Time, entropy io.Reader) *Source {
	return &Source{now: now, entropy: ulid.Monotonic(entropy, 0)}
}

// Next draws an id.
func (s *Source) Next() (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.least = max(s.least, ulid.Timestamp(s.now()))
	if err := s.draw(); err != nil {
		return "", fmt.Errorf("client: cannot draw an id: %w", err)
	}
	return s.last.String(), nil
}

// draw is ulid.New without its allocation.
func (s *Source) draw() error {
	if err := s.last.SetTime(s.least); err != nil {
		return err
	}
	return s.entropy.MonotonicRead(s.least, s.last[6:])
}

// maxAhead is how far ahead of its own clock a client makes ids: as far as the
// nodes take them, so that one clock that was wrong does not carry all the others
// along.
const maxAhead = time.Hour

// Raise makes ids newer than a time, unless that is too far ahead.
func (s *Source) Raise(newerThan uint64) error {
	now := ulid.Timestamp(s.now())
	if newerThan >= now && newerThan-now >= uint64(maxAhead.Milliseconds()) {
		return fmt.Errorf("the service takes ids only that are newer than %d (Unix ms), and the clock here says %d: "+
			"set this clock right if it is behind; else an id with a time of the future was used in the namespace, and an operator has to repair it (govnode repair)", newerThan, now)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.least = max(s.least, newerThan+1)
	return nil
}

// ProcessName is how this process calls itself where Config.Name is empty:
// who it is, for those who look at the holders of a pool, and a part that no
// other process draws.
var ProcessName = sync.OnceValue(func() string {
	host, err := os.Hostname()
	if err != nil {
		host = "unknown"
	}
	host = strings.Map(func(r rune) rune {
		if strings.ContainsRune(idCharacters, r) {
			return r
		}
		return '-'
	}, host)
	return fmt.Sprintf("%.64s:%d:%s", host, os.Getpid(), ulid.Make())
})

const (
	idCharacters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._:@/-"
	maxID        = 128 // bytes
)

// Check reports what is wrong with a name or an id, if it is not empty.
func Check(field, id string) error {
	if len(id) > maxID {
		return fmt.Errorf("client: %s: %d bytes are more than %d: shorten it", field, len(id), maxID)
	}
	if i := strings.IndexFunc(id, func(r rune) bool { return !strings.ContainsRune(idCharacters, r) }); i >= 0 {
		return fmt.Errorf("client: %s: %q at byte %d: use letters, digits and ._:@/- only", field, id[i:i+1], i)
	}
	return nil
}
