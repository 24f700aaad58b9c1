package governance

import (
	"fmt"
	"strings"
	"time"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// A Policy is the set of constraints that adapters enforce on every
// call (policy engine spec 8, adapter contract 4). The fields from Name to
// Version are the fourteen of the specifications; MaxAttempts,
// MaxCallsPerTool and DenyAllTools stand beside them: round trips keep them,
// comparisons of two policies leave them out.
//
// A GovernancePolicy that [Policy.Governance] returned is shared and must not
// be written to.
type Policy struct {
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

	// MaxOfKind bounds calls of one kind per session, >= 0, by the name of the
	// field; see KindFields. A kind that is not there has no limit.
	MaxOfKind map[string]int64
	// MaxConsecutiveFailures is after how many failed calls in a row none is
	// admitted for BreakerReset; 0 is never.
	MaxConsecutiveFailures int64
	BreakerReset           time.Duration

	// Budgets are what every call is charged with when it is admitted.
	Budgets []BudgetAmount

	// Approval is how calls are asked about; nil where the policy does not say,
	// and then RequireHumanApproval denies.
	Approval *Approval

	// ContentHashes are the SHA-256 hashes of tools (adapter contract 5.5).
	// With neither hashes nor a mode they are not verified.
	ContentHashes   map[string]string
	ContentHashMode ContentHashMode // empty is strict where there are hashes
	Guardrails      []GuardrailEndpoint
	RateLimits      []RateLimit
	Scan            Scan
	SensitiveReads  *SensitiveReads // nil: reads of secrets are not looked for

	// Path is the file that holds the policy; empty for the defaults of a tree
	// that has none.
	Path  string
	lines map[string]int // of the fields in it

	Patterns *pattern.Set    // of BlockedPatterns
	allowed  map[string]bool // AllowedTools
}

// Governed reports whether a file holds the policy.
func (g *Policy) Governed() bool { return g.Path != "" }

// Line finds the line of a field such as blocked_patterns[3], or of what holds
// it.
func (g *Policy) Line(field string) int {
	for field != "" {
		if line, ok := g.lines[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 0
}

// Permits compares the name of a tool with AllowedTools, exactly: a name in
// other letters is another tool.
func (g *Policy) Permits(tool string) bool {
	return !g.DenyAllTools && (len(g.allowed) == 0 || g.allowed[tool])
}

// Default returns a policy with the defaults of policy engine spec
// 8.2.
func Default() *Policy {
	return &Policy{
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
		BreakerReset:          DefaultBreakerReset,

		Scan: Scan{Credentials: ScanDeny, PersonalData: ScanRedact},
	}
}

// DetectConflicts returns warnings about settings that contradict each other
// (policy engine spec 8.4), in the order of that table.
func (g *Policy) DetectConflicts() []string {
	var out []string
	if g.BackpressureThreshold >= g.MaxConcurrent {
		out = append(out, fmt.Sprintf("backpressure_threshold (%d) >= max_concurrent (%d): backpressure will never trigger", g.BackpressureThreshold, g.MaxConcurrent))
	}
	if g.MaxToolCalls == 0 && len(g.AllowedTools) > 0 {
		out = append(out, fmt.Sprintf("max_tool_calls is 0 but allowed_tools is non-empty (%s): tools are allowed but no calls permitted", value.ListOf(g.AllowedTools, value.OfString).Repr()))
	}
	if g.ConfidenceThreshold == 0 {
		out = append(out, "confidence_threshold is 0.0: effectively disables confidence checking")
	}
	if g.TimeoutSeconds < 5 {
		out = append(out, fmt.Sprintf("timeout_seconds (%d) is very low (under 5s), may not allow reasonable execution time", g.TimeoutSeconds))
	}
	return out
}
