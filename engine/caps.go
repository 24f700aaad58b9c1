package engine

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"
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
)

// mostOf is what a field may be; a field without a cap of its own may be all
// that 64 bits hold.
func mostOf(field string) int64 {
	switch field {
	case "max_tokens", "defaults.max_tokens":
		return MaxTokenLimit
	case "timeout_seconds":
		return MaxTimeoutSeconds
	case "max_concurrent":
		return MaxConcurrentCalls
	}
	return 1<<63 - 1
}

// textAbove is what is said of a number above the cap of its field.
func textAbove(field, got string) string {
	return fmt.Sprintf("%s must be at most %d, got %s", field, mostOf(field), got)
}

// validateCaps comes after the checks of policy engine spec 8.3, so that what
// these find is said first.
func (g *GovernancePolicy) validateCaps() *FieldError {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"max_tokens", g.MaxTokens},
		{"timeout_seconds", g.TimeoutSeconds},
		{"max_concurrent", g.MaxConcurrent},
	} {
		if f.value > mostOf(f.name) {
			return fieldErrorf(f.name, "%s", textAbove(f.name, fmt.Sprint(f.value)))
		}
	}
	if n := len(g.MaxCallsPerTool); n > MaxToolLimits {
		return fieldErrorf("max_calls_per_tool", "max_calls_per_tool must have at most %d entries, got %d", MaxToolLimits, n)
	}
	for _, tool := range sortedKeys(g.MaxCallsPerTool) {
		if problem := toolNameProblem(tool); problem != "" {
			return fieldErrorf("max_calls_per_tool", "%s", problem)
		}
	}
	return nil
}

// toolNameProblem says why no call can name a tool of max_calls_per_tool so.
func toolNameProblem(tool string) string {
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
		return ""
	}
	return "max_calls_per_tool: the name " + pyString(clip(tool, 80)) + " " + problem
}
