package audit

import (
	"slices"

	"example.com/govnode/session"
)

// How a chain is followed through changes whose outcomes nobody has learned.

const (
	// maxUnknown is through how many changes in a row whose outcomes nobody has learned
	// a chain is followed.
	maxUnknown = 4096
	// maxTried bounds what is tried for that, in each way.
	maxTried = 1 << 16
)

// A search is for changes without a link between two places of a chain.
type search struct {
	to      *Link
	reaches func(*session.Chain) bool
	inOrder bool // of their lines
	all     bool // outcomes, and not the likely ones alone
	unusual int  // how many outcomes may be others than the likeliest
	tried   int
}

// searches are the ways that are tried, the likeliest first: so many outcomes in a row
// have too many combinations to try them all.
var searches = []search{
	{inOrder: true}, {inOrder: true, unusual: 1}, {inOrder: true, unusual: 2}, {inOrder: true, unusual: maxUnknown},
	{}, {unusual: 1}, {unusual: maxUnknown}, {all: true, unusual: maxUnknown},
}

var everyCode = func() (all []session.Code) {
	for code := range session.Codes {
		if code := session.Code(code); !code.Failure() {
			all = append(all, code)
		}
	}
	return all
}()

// through reports whether a chain comes to a link by changes that their nodes have not
// learned the outcomes of, by any outcomes that these may have had. More changes follow
// behind them, which reaches looks at.
func (v *verifier) through(to *Link, reaches func(*session.Chain) bool, more uint64, byN map[uint64][]*link) bool {
	v.tired = false
	all := slices.DeleteFunc(slices.Clone(v.unknown[to.Chain]), func(a *asked) bool { return a.used })
	for gap := uint64(1); gap <= min(maxUnknown, uint64(len(all))) && gap+more <= to.N; gap++ {
		n := to.N - more - gap // of the last one that is known
		if n > 0 && len(byN[n]) == 0 {
			continue
		}
		for _, s := range searches {
			s.to, s.reaches = to, reaches
			if n == 0 && s.try(nil, gap, all) {
				return true
			}
			for _, l := range byN[n] {
				if c, err := l.chain(); err == nil && s.try(c, gap, all) {
					l.last = false
					return true
				}
			}
			v.tired = v.tired || s.tried > maxTried
		}
		if n > 0 {
			return false // what is before that is known too
		}
	}
	return false
}

// lost says why there is no line of a change, behind a search for a way through.
func (v *verifier) lost() string {
	if v.tired {
		return "removed, lost when its node was killed, or one of those whose outcome nobody has learned, which are too many to try"
	}
	return "removed, or lost when its node was killed"
}

// try adds so many links of those changes to a chain.
func (s *search) try(c *session.Chain, gap uint64, all []*asked) bool {
	if gap == 0 {
		return s.reaches(c)
	}
	since := uint32(0)
	if c != nil {
		since = c.Generation
	}
	seen := make(map[session.Digest]struct{})
	for i, a := range all {
		if uint64(len(all)) < gap || s.inOrder && uint64(len(all)-i) < gap {
			return false
		}
		if _, ok := seen[a.digest]; ok {
			continue // several nodes may have asked for it
		}
		seen[a.digest] = struct{}{}
		rest := all[i+1:]
		if !s.inOrder {
			rest = slices.Concat(all[:i], rest)
		}
		codes := a.likely
		if s.all {
			codes = everyCode
		}
		for n, code := range codes {
			if n > 0 && s.unusual == 0 {
				break
			}
			s.unusual -= min(n, 1)
			for g := s.to.Generation; ; g-- {
				if s.tried++; s.tried > maxTried {
					return false
				}
				if s.try(c.Next(g, code, a.digest), gap-1, rest) {
					a.used = true
					return true
				}
				if g <= since || s.to.Generation-g >= 1 {
					break
				}
			}
			s.unusual += min(n, 1)
		}
	}
	return false
}
