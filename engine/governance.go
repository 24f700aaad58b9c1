package engine

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A GovernancePolicy is the set of constraints that adapters enforce on every
// call (policy engine spec 8, adapter contract 4). The fields from Name to
// Version are the fourteen of the specifications; MaxAttempts,
// MaxCallsPerTool and DenyAllTools stand beside them: round trips keep them,
// comparisons of two policies leave them out.
//
// A GovernancePolicy that [Policy.Governance] returned is shared and must not
// be written to.
type GovernancePolicy struct {
	Name                  string
	MaxTokens             int64 // tokens per request, > 0
	MaxToolCalls          int64 // calls per session, >= 0; 0 permits none
	AllowedTools          []string
	BlockedPatterns       []pattern.Pattern
	RequireHumanApproval  bool
	TimeoutSeconds        int64   // wall-clock time of a session, > 0
	ConfidenceThreshold   float64 // in [0, 1]; a call below it is denied
	DriftThreshold        float64 // in [0, 1]; 0 turns drift detection off
	LogAllCalls           bool    // allows are audited too; denies always are
	CheckpointFrequency   int64   // a checkpoint every N calls, > 0
	MaxConcurrent         int64   // calls at one time, > 0
	BackpressureThreshold int64   // calls at one time from which callers slow down, > 0
	Version               string

	MaxAttempts     int64            // attempts per session, denied ones included, > 0
	MaxCallsPerTool map[string]int64 // calls per session of one tool, >= 0
	// DenyAllTools permits no tool at all. An empty AllowedTools permits every
	// one, so an empty intersection of two lists needs a way to say "none".
	DenyAllTools bool

	// ContentHashes are the SHA-256 hashes of tools (adapter contract 5.5).
	// With neither hashes nor a mode they are not verified.
	ContentHashes   map[string]string
	ContentHashMode ContentHashMode // empty is strict where there are hashes
	Guardrails      []GuardrailEndpoint

	patterns *pattern.Set // of BlockedPatterns, by Validate
}

// NewGovernancePolicy returns a policy with the defaults of policy engine spec
// 8.2. Change fields, then call Validate.
func NewGovernancePolicy() *GovernancePolicy {
	return &GovernancePolicy{
		Name:                  "default",
		MaxTokens:             4096,
		MaxToolCalls:          10,
		TimeoutSeconds:        300,
		ConfidenceThreshold:   0.8,
		DriftThreshold:        0.15,
		LogAllCalls:           true,
		CheckpointFrequency:   5,
		MaxConcurrent:         10,
		BackpressureThreshold: 8,
		Version:               "1.0.0",
		MaxAttempts:           500,
	}
}

// MaxPatterns bounds the blocked patterns of a tree.
const MaxPatterns = 1000

// A FieldError says which field of a GovernancePolicy is invalid, in the fixed
// words of the reference implementation.
type FieldError struct {
	Field   string
	Message string
}

// Error is the message, which names the field.
func (e *FieldError) Error() string { return e.Message }

func fieldErrorf(field, format string, args ...any) *FieldError {
	return &FieldError{Field: field, Message: fmt.Sprintf(format, args...)}
}

// Validate checks every field in the fixed order of policy engine spec 8.3 and
// compiles the patterns. The first fault is returned, as a [*FieldError].
func (g *GovernancePolicy) Validate() error {
	if err := g.validate(); err != nil {
		return err
	}
	return nil
}

func (g *GovernancePolicy) validate() *FieldError {
	for _, f := range []struct {
		name  string
		value int64
	}{
		{"max_tokens", g.MaxTokens},
		{"timeout_seconds", g.TimeoutSeconds},
		{"max_concurrent", g.MaxConcurrent},
		{"backpressure_threshold", g.BackpressureThreshold},
		{"checkpoint_frequency", g.CheckpointFrequency},
	} {
		if f.value <= 0 {
			return notPositive(f.name, strconv.FormatInt(f.value, 10))
		}
	}
	if g.MaxToolCalls < 0 {
		return fieldErrorf("max_tool_calls", "max_tool_calls must be a non-negative integer, got %d", g.MaxToolCalls)
	}
	if err := checkThreshold("confidence_threshold", g.ConfidenceThreshold); err != nil {
		return err
	}
	if err := checkThreshold("drift_threshold", g.DriftThreshold); err != nil {
		return err
	}
	for i, tool := range g.AllowedTools {
		if tool == "" {
			field := fmt.Sprintf("allowed_tools[%d]", i)
			return fieldErrorf(field, "%s must be a non-empty string, got ''", field)
		}
	}
	if g.Version == "" {
		return fieldErrorf("version", "version must be a non-empty string, got ''")
	}
	if g.Name == "" {
		return fieldErrorf("name", "name must be a non-empty string, got ''")
	}
	if err := g.validateText(); err != nil {
		return err
	}
	if err := g.validateExtensions(); err != nil {
		return err
	}
	if err := g.validateCaps(); err != nil {
		return err
	}
	if err := g.validateInterceptors(); err != nil {
		return err
	}
	return g.compilePatterns()
}

// validateText keeps out what no YAML document can carry.
func (g *GovernancePolicy) validateText() *FieldError {
	texts := append([]string{g.Name, g.Version}, g.AllowedTools...)
	for _, p := range g.BlockedPatterns {
		texts = append(texts, p.Text)
	}
	for _, s := range texts {
		if !utf8.ValidString(s) {
			return fieldErrorf("name", "names, tools and patterns must be valid UTF-8, got %q", clip(s, 80))
		}
	}
	return nil
}

func (g *GovernancePolicy) validateExtensions() *FieldError {
	if g.MaxAttempts <= 0 {
		return notPositive("max_attempts", strconv.FormatInt(g.MaxAttempts, 10))
	}
	for _, tool := range sortedKeys(g.MaxCallsPerTool) {
		field := join("max_calls_per_tool", tool)
		if n := g.MaxCallsPerTool[tool]; n < 0 {
			return fieldErrorf(field, "%s must be a non-negative integer, got %d", field, n)
		}
	}
	if g.DenyAllTools && len(g.AllowedTools) > 0 {
		return fieldErrorf("deny_all_tools", "deny_all_tools must not stand beside a non-empty allowed_tools; remove one of them")
	}
	return nil
}

func (g *GovernancePolicy) compilePatterns() *FieldError {
	if len(g.BlockedPatterns) > MaxPatterns {
		return fieldErrorf("blocked_patterns", "blocked_patterns must have at most %d entries, got %d", MaxPatterns, len(g.BlockedPatterns))
	}
	set, err := pattern.NewSet(g.BlockedPatterns)
	if err != nil {
		field := "blocked_patterns"
		// The set's error begins with the entry it concerns.
		if i := strings.IndexByte(err.Error(), ']'); i > 0 && strings.HasPrefix(err.Error(), field+"[") {
			field = err.Error()[:i+1]
		}
		return fieldErrorf(field, "%v", err)
	}
	g.patterns = set
	return nil
}

func notPositive(field, got string) *FieldError {
	return fieldErrorf(field, "%s must be a positive integer, got %s", field, got)
}

func checkThreshold(field string, f float64) *FieldError {
	// Written so that NaN fails too.
	if !(f >= 0 && f <= 1) {
		return fieldErrorf(field, "%s must be a float between 0.0 and 1.0, got %s", field, pyFloat(f))
	}
	return nil
}

// DetectConflicts returns warnings about settings that contradict each other
// (policy engine spec 8.4), in the order of that table.
func (g *GovernancePolicy) DetectConflicts() []string {
	var out []string
	if g.BackpressureThreshold >= g.MaxConcurrent {
		out = append(out, fmt.Sprintf("backpressure_threshold (%d) >= max_concurrent (%d): backpressure will never trigger", g.BackpressureThreshold, g.MaxConcurrent))
	}
	if g.MaxToolCalls == 0 && len(g.AllowedTools) > 0 {
		out = append(out, fmt.Sprintf("max_tool_calls is 0 but allowed_tools is non-empty (%s): tools are allowed but no calls permitted", pyList(g.AllowedTools)))
	}
	if g.ConfidenceThreshold == 0 {
		out = append(out, "confidence_threshold is 0.0: effectively disables confidence checking")
	}
	if g.TimeoutSeconds < 5 {
		out = append(out, fmt.Sprintf("timeout_seconds (%d) is very low (under 5s), may not allow reasonable execution time", g.TimeoutSeconds))
	}
	return out
}

// pyList prints strings as the reference implementation prints a list.
func pyList(list []string) string {
	items := make([]value.Value, len(list))
	for i, s := range list {
		items[i] = value.OfString(s)
	}
	return value.OfList(items...).Repr()
}

func pyString(s string) string { return value.OfString(s).Repr() }

// pyFloat prints a float as Python does: 0.8, 1.0, 1e-05, nan, inf.
func pyFloat(f float64) string {
	switch {
	case math.IsNaN(f):
		return "nan"
	case math.IsInf(f, 1):
		return "inf"
	case math.IsInf(f, -1):
		return "-inf"
	case f == math.Trunc(f) && math.Abs(f) < 1e16:
		return strconv.FormatFloat(f, 'f', 1, 64)
	}
	return value.OfFloat(f).Repr()
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	return keys
}
