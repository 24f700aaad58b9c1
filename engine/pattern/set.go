package pattern

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"
)

// Set is the list of blocked patterns of one policy, ready to be searched for
// all at once. It is safe for concurrent use.
type Set struct {
	patterns []*Compiled
	filter   *filter
	scans    sync.Pool // of *scan
}

// Caps on a set.
const (
	// MaxPatterns is how many patterns a set may have.
	MaxPatterns = 1000
	// MaxBacktracking is how many of them may need the backtracking engine.
	MaxBacktracking = 50
	// MaxRanges bounds what the character classes of a set take of memory and of
	// time to compile. \w counts 800, \d 60, \s 10, [a-z] 1; the 1,789 patterns
	// of the corpus count 260,000 together.
	MaxRanges = 2_000_000
)

// NewSet prepares a list of patterns. Its error names the first that is refused
// by its place in blocked_patterns.
func NewSet(patterns []Pattern) (*Set, error) {
	if len(patterns) > MaxPatterns {
		return nil, fmt.Errorf("blocked_patterns has %d entries, %d are allowed", len(patterns), MaxPatterns)
	}
	s := &Set{patterns: make([]*Compiled, len(patterns))}
	ranges, instructions, slow := 0, 0, 0
	for i, p := range patterns {
		c, err := Compile(p)
		if err != nil {
			return nil, refusal(i, p, err)
		}
		s.patterns[i] = c
		if ranges += c.cost; ranges > MaxRanges {
			return nil, refusal(i, p, fmt.Errorf("the character classes up to here have more than %d ranges; use fewer of \\w, \\W and \\p", MaxRanges))
		}
		if instructions += c.instructions; instructions > MaxOfSet {
			return nil, refusal(i, p, tooManyTogether(MaxOfSet))
		}
		if c.slow != nil {
			slow++
		}
		if slow > MaxBacktracking {
			return nil, refusal(i, p, fmt.Errorf("more than %d patterns have engine: backtracking", MaxBacktracking))
		}
	}
	s.filter = newFilter(s.patterns)
	s.scans.New = func() any { return s.filter.newScan() }
	return s, nil
}

// refusal is the error for entry i in the words of the reference.
func refusal(i int, p Pattern, err error) error {
	if p.Type == Regex && p.Text != "" {
		text := p.Text
		if len(text) > MaxText {
			text = strings.ToValidUTF8(text[:MaxText], "") + "…" // long enough to find it by
		}
		return fmt.Errorf("blocked_patterns[%d] has invalid regex '%s': %w", i, text, err)
	}
	return fmt.Errorf("blocked_patterns[%d]: %w", i, err)
}

// Len returns how many patterns the set has.
func (s *Set) Len() int { return len(s.patterns) }

// Pattern returns entry i.
func (s *Set) Pattern(i int) Pattern { return s.patterns[i].pattern }

// Match returns the places of all patterns that occur in any of the forms, in
// the order of the list (policy engine spec 9.4).
func (s *Set) Match(f *Forms) []int {
	hits, _ := s.Hits(context.Background(), f)
	return indexes(hits)
}

// First returns the place of the first pattern that occurs, or -1.
func (s *Set) First(f *Forms) int {
	hits, _ := s.search(context.Background(), f, true)
	if len(hits) == 0 {
		return -1
	}
	return hits[0].Index
}

// Hits is Match with all that is known about each hit. Between two searches it
// looks at ctx, and if that is done it returns its error with the hits so far:
// the caller must then deny.
func (s *Set) Hits(ctx context.Context, f *Forms) ([]Hit, error) {
	return s.search(ctx, f, false)
}

// FirstHit is First with all that is known about the hit, and with the error of
// ctx as Hits has it. ok is false if nothing was hit.
func (s *Set) FirstHit(ctx context.Context, f *Forms) (hit Hit, ok bool, err error) {
	hits, err := s.search(ctx, f, true)
	if len(hits) == 0 {
		return Hit{}, false, err
	}
	return hits[0], true, err
}

// search runs the patterns that the filter names on each piece. With firstOnly
// it skips patterns behind the first one hit so far.
func (s *Set) search(ctx context.Context, f *Forms, firstOnly bool) ([]Hit, error) {
	if len(s.patterns) == 0 {
		return nil, nil
	}
	memory := s.scans.Get().(*scan)
	defer s.scans.Put(memory)
	var hits []Hit
	pieces := f.all()
	for k := range pieces {
		for _, i := range s.filter.candidates(memory, pieces[k].text) {
			if err := ctx.Err(); err != nil {
				return ordered(hits, firstOnly), err
			}
			if known(hits, int(i), firstOnly) {
				continue
			}
			if hit, limited := s.run(int(i), &pieces[k], &f.slow); hit {
				hits = append(hits, Hit{int(i), limited})
			}
		}
	}
	return ordered(hits, firstOnly), nil
}

// known reports whether another hit of pattern i would add nothing.
func known(hits []Hit, i int, firstOnly bool) bool {
	return slices.ContainsFunc(hits, func(h Hit) bool { return h.Index == i || firstOnly && h.Index < i })
}

func ordered(hits []Hit, firstOnly bool) []Hit {
	slices.SortFunc(hits, func(a, b Hit) int { return a.Index - b.Index })
	if firstOnly && len(hits) > 1 {
		hits = hits[:1]
	}
	return hits
}

// run searches a piece for pattern i. All backtracking searches of one call
// share one allowance of time; when it is used up the rest count as hits.
func (s *Set) run(i int, p *piece, slow *allowance) (hit, limited bool) {
	c := s.patterns[i]
	if c.slow == nil {
		return c.run(p)
	}
	if slow.spent >= maxBacktrackingTime {
		return true, true
	}
	start := time.Now()
	hit, limited = c.run(p)
	slow.spent += time.Since(start)
	return hit, limited
}
