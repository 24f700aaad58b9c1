package pattern

import (
	"fmt"
	"regexp"
	"strings"
)

// Searcher is the expression of a matches condition (policy engine spec 5.1):
// Python's re.search, with regard to case. It is safe for concurrent use.
type Searcher struct {
	re     *regexp.Regexp
	prefix string
	direct *anchored // instead of re, where the expression is of that form

	instructions int // of the program of re, see MaxOfConditions
}

// Search prepares the expression of a matches condition. The empty expression
// is allowed and matches everything, as in Python. It refuses what is wrong,
// what RE2 cannot run, and what exceeds the caps on patterns.
func Search(expr string) (*Searcher, error) {
	if len(expr) > MaxText {
		return nil, fmt.Errorf("the expression is %d bytes long, %d are allowed", len(expr), MaxText)
	}
	rewritten, _, err := rewrite(expr, dialectRE2, false)
	if err != nil {
		return nil, searchError(err)
	}
	parsed, re, instructions, err := compileRE2(rewritten)
	if err != nil {
		return nil, searchError(err)
	}
	s := &Searcher{re: re, instructions: instructions}
	s.prefix, s.direct = anchoredOf(parsed)
	return s, nil
}

// searchError: a condition has no way to ask for the other engine.
func searchError(err error) error {
	if needs, ok := err.(needsBacktracking); ok {
		return fmt.Errorf("%s cannot be evaluated in bounded time; rewrite the expression without it", needs.feature)
	}
	return err
}

// Match reports whether the expression is found anywhere in text.
func (s *Searcher) Match(text string) bool {
	if s.direct != nil {
		return s.direct.match(text)
	}
	return s.re.MatchString(text)
}

// MatchAfter is Match for a text that is known to begin with Prefix. Of bytes that
// are no UTF-8 each run counts as one U+FFFD.
func (s *Searcher) MatchAfter(text string) bool {
	if s.direct != nil {
		return s.direct.matchRest(text[len(s.prefix):]) // its class is of ASCII alone
	}
	return s.re.MatchString(strings.ToValidUTF8(text, "\uFFFD"))
}

// Prefix returns a literal that every text begins with in which the expression
// is found; empty if there is none.
func (s *Searcher) Prefix() string { return s.prefix }

// Replace returns text with each match replaced. An empty match is none.
func (s *Searcher) Replace(text, with string) string {
	return s.re.ReplaceAllStringFunc(text, func(match string) string {
		if match == "" {
			return ""
		}
		return with
	})
}
