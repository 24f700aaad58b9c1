package pattern

import "fmt"

// Caps on the instructions of all expressions of the conditions of a tree together, and of
// all patterns of a set. What one takes of memory and of time to compile is little; a few
// thousand of the dearest would take gigabytes and minutes. The first thousand patterns of
// the corpus have 300,000.
const (
	MaxOfConditions = 150_000
	MaxOfSet        = 400_000
)

// Searches compiles the expressions of the conditions of a tree, each once, and bounds
// what all of them together take.
type Searches struct {
	compiled             map[string]*Searcher
	ranges, instructions int
}

// Compile is Search, within these bounds.
func (s *Searches) Compile(expr string) (*Searcher, error) {
	if re, ok := s.compiled[expr]; ok {
		return re, nil
	}
	if s.instructions > MaxOfConditions { // whoever asks goes on, to name all that is wrong
		return nil, tooManyTogether(MaxOfConditions)
	}
	if len(expr) <= MaxText {
		if _, ranges, err := rewrite(expr, dialectRE2, false); err == nil {
			s.ranges += ranges
		}
	}
	if s.ranges > MaxRanges {
		return nil, fmt.Errorf("the expressions of the tree up to here have more than %d ranges in their character classes; use fewer of \\w, \\W and \\p", MaxRanges)
	}
	re, err := Search(expr)
	if err != nil {
		return nil, err
	}
	if s.instructions += re.instructions; s.instructions > MaxOfConditions {
		return nil, tooManyTogether(MaxOfConditions)
	}
	if s.compiled == nil {
		s.compiled = map[string]*Searcher{}
	}
	s.compiled[expr] = re
	return re, nil
}

func tooManyTogether(most int) error {
	return fmt.Errorf("the expressions up to here make programs of more than %d instructions together; use fewer, or smaller repeat counts", most)
}
