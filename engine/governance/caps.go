package governance

import (
	"fmt"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/toolname"
)

// Caps of the numbers of a policy, ends included: what the state that counts
// against them can hold. A larger number is refused with its file and line and
// not cut, because a limit that was written and another one that holds would be
// two.
const (
	// MaxTokenLimit caps max_tokens, of a GovernancePolicy and of defaults.
	MaxTokenLimit = int64(1) << 62
	// MaxTimeoutSeconds caps timeout_seconds: a hundred years of 365 days.
	MaxTimeoutSeconds = int64(100 * 365 * 24 * 60 * 60)
	// MaxConcurrentCalls caps max_concurrent.
	MaxConcurrentCalls = int64(4096)
	// MaxToolLimits caps the entries of max_calls_per_tool.
	MaxToolLimits = 1024
	// MaxToolName caps the name of a tool in max_calls_per_tool, in bytes.
	MaxToolName = 128
	// MaxBreakerReset caps breaker_reset.
	MaxBreakerReset = 24 * time.Hour
)

// ToolNameProblem says why no call can name a tool of max_calls_per_tool so; "" if one can.
func ToolNameProblem(tool string) string {
	problem := ""
	switch {
	case tool == "":
		return "max_calls_per_tool must name each tool, got ''"
	case len(tool) > MaxToolName:
		problem = fmt.Sprintf("must have at most %d bytes, got %d", MaxToolName, len(tool))
	case !utf8.ValidString(tool):
		problem = "must be valid UTF-8"
	case strings.ContainsFunc(tool, unicode.IsControl):
		problem = "must not have a control character in it"
	default:
		if problem = toolname.Problem(tool); problem == "" {
			return ""
		}
	}
	return "max_calls_per_tool: the name " + value.Quote(source.Clip(tool, 80)) + " " + problem
}
