package sim

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"sync"
	"syscall"
	"time"

	"example.com/govnode/test/check"
)

// A site is where the work of those who hold slots is done: a file that all
// processes of clients share. Whoever begins to work enters, and is seen there by
// everybody else until it leaves, so that two at work at once are noticed where
// they meet. It has a lock, which ends with the process that holds it.
type site struct {
	path  string
	start time.Time
	mu    sync.Mutex // a lock of a file is held by the whole process
}

// A bench is the place at a site for those who hold slots of one pool.
type bench struct {
	Newest uint64 // token that ever came in
	Inside []inside
}

// An inside is one who works. Who was killed is inside for as long as it believed
// that its lease would last.
type inside struct {
	Token  uint64
	Weight int
	Until  time.Duration
}

// visit lets do change the bench of a pool while nobody else sees it.
func (s *site) visit(pool string, do func(b *bench, now time.Duration) string) (broken *check.Violation, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	f, err := os.OpenFile(s.path+".lock", os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, f.Close()) }() // and with it the lock
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		return nil, err
	}
	all := map[string]*bench{}
	text, err := os.ReadFile(s.path)
	if err == nil {
		err = json.Unmarshal(text, &all)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, err
	}
	if all[pool] == nil {
		all[pool] = &bench{}
	}
	if wrong := do(all[pool], time.Since(s.start)); wrong != "" {
		broken = &check.Violation{Check: "site", Text: pool + ": " + wrong}
	}
	text, err = json.Marshal(all)
	if err != nil {
		return broken, err
	}
	// Whoever is killed leaves the old file or the new one.
	return broken, errors.Join(os.WriteFile(s.path+".new", text, 0o600), os.Rename(s.path+".new", s.path))
}

// enter begins work. One who comes when its own lease is over is turned away, as
// by whatever looks at tokens. One who believes in its lease has to find room,
// beside those who do as well, and in a pool of one slot a token that is the
// newest ever seen.
func (s *site) enter(pool string, limit int, x inside) (admitted bool, broken *check.Violation, err error) {
	broken, err = s.visit(pool, func(b *bench, now time.Duration) string {
		if x.Until <= now {
			return ""
		}
		if limit == 1 && x.Token < b.Newest {
			return fmt.Sprintf("token %d, which has %v left, came after token %d", x.Token, x.Until-now, b.Newest)
		}
		admitted = true
		b.Newest = max(b.Newest, x.Token)
		slices.SortFunc(b.Inside, func(a, b inside) int { return int(a.Until - b.Until) })
		for len(b.Inside) > 0 && used(b.Inside)+x.Weight > limit && b.Inside[0].Until <= now {
			b.Inside = b.Inside[1:] // it has not said that it went, and may no longer be there
		}
		b.Inside = append(b.Inside, x)
		if n := used(b.Inside); n > limit {
			return fmt.Sprintf("%d of %d are at work at %v: %+v", n, limit, now, b.Inside)
		}
		return ""
	})
	return admitted, broken, err
}

// stay says until when the lease is good now. Nobody may have taken the place of
// one who believes in its lease.
func (s *site) stay(pool string, token uint64, until time.Duration) (broken *check.Violation, err error) {
	return s.visit(pool, func(b *bench, now time.Duration) string {
		i := slices.IndexFunc(b.Inside, func(x inside) bool { return x.Token == token })
		if i >= 0 {
			b.Inside[i].Until = until
		} else if until > now {
			return fmt.Sprintf("another has the place of token %d, which has %v left: %+v", token, until-now, b.Inside)
		}
		return ""
	})
}

// leave ends work.
func (s *site) leave(pool string, token uint64) error {
	_, err := s.visit(pool, func(b *bench, _ time.Duration) string {
		b.Inside = slices.DeleteFunc(b.Inside, func(x inside) bool { return x.Token == token })
		return ""
	})
	return err
}

func used(all []inside) (n int) {
	for _, x := range all {
		n += x.Weight
	}
	return n
}
