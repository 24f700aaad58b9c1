package pattern

import (
	"fmt"
	"strings"
	"time"

	"github.com/dlclark/regexp2/v2"
)

// backtracking is a regex that RE2 cannot run.
type backtracking struct{ re *regexp2.Regexp }

// Limits of the backtracking engine. Its time can be exponential in the text,
// and no cap on the pattern changes that. So the stack and the text are capped,
// and a clock stops what is left; whatever stops it is taken as a match.
const (
	maxBacktrackingStack = 100_000               // slots, of 8 bytes
	maxBacktrackingText  = 64 << 10              // bytes of one text
	maxBacktrackingTime  = 50 * time.Millisecond // for one search, and for all searches of one call together
)

func compileBacktracking(expr string) (*backtracking, error) {
	rewritten, _, err := rewrite(expr, dialectBacktracking, true)
	if err != nil {
		return nil, err
	}
	re, err := regexp2.Compile(rewritten, regexp2.OptionMaxBacktrackingStackSize(maxBacktrackingStack))
	if err != nil {
		text, _, _ := strings.Cut(strings.TrimPrefix(err.Error(), "error parsing regexp: "), " in `")
		return nil, fmt.Errorf("%s", text)
	}
	re.MatchTimeout = maxBacktrackingTime
	return &backtracking{re}, nil
}

// match searches text. limited says that a limit was reached.
func (b *backtracking) match(text string) (hit, limited bool) {
	if len(text) > maxBacktrackingText {
		return true, true
	}
	hit, err := b.re.MatchString(text)
	if err != nil {
		return true, true
	}
	return hit, false
}

// allowance is what the backtracking searches of one call may still take.
type allowance struct{ spent time.Duration }
