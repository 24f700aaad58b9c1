package document

import (
	"fmt"
	"strings"

	"example.com/govnode/engine/pattern"
)

// Searches compiles the expressions of matches conditions, each once per tree,
// and bounds what all of them together take.
type Searches struct {
	compiled map[string]*pattern.Searcher
	ranges   int
}

// maxSearchRanges bounds the character classes of all expressions of a tree,
// counted in the ranges they stand for. A class such as \w has hundreds, and
// a thousand rules full of them would take minutes to compile and gigabytes
// to keep.
const maxSearchRanges = 2_000_000

func (s *Searches) compile(text string) (*pattern.Searcher, error) {
	if re, ok := s.compiled[text]; ok {
		return re, nil
	}
	if s.ranges += classRanges(text); s.ranges > maxSearchRanges {
		return nil, fmt.Errorf("the expressions of the tree up to here have more than %d ranges in their character classes; use fewer of \\w, \\W and \\p", maxSearchRanges)
	}
	re, err := pattern.Search(text)
	if err != nil {
		return nil, err
	}
	if s.compiled == nil {
		s.compiled = map[string]*pattern.Searcher{}
	}
	s.compiled[text] = re
	return re, nil
}

// classRanges estimates from above the ranges of the classes in an expression.
func classRanges(text string) int {
	total := strings.Count(text, "-") + strings.Count(text, "[")
	for i := 0; i+1 < len(text); i++ {
		if text[i] != '\\' {
			continue
		}
		i++
		switch text[i] {
		case 'w', 'W', 'p', 'P':
			total += 800
		case 'd', 'D':
			total += 60
		case 's', 'S':
			total += 10
		}
	}
	return total
}
