package engine

import (
	"maps"
	"math"
	"slices"
	"time"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/document"
	"example.com/govnode/engine/governance"
	"example.com/govnode/engine/source"
)

// What a compiled policy says of itself: its digest, its limits, its documents.
// How one is compiled stands in compile.go.

// Limits are the numbers of a policy, for the one who counts. They are the
// GovernancePolicy's; where documents state limits in their defaults (policy
// engine spec 3.2), the most restrictive of all that are stated holds, and
// without a GovernancePolicy it takes the place of the general default.
type Limits struct {
	MaxTokens             int64
	MaxToolCalls          int64
	MaxAttempts           int64
	MaxCallsPerTool       []ToolLimit // sorted by Tool
	Timeout               time.Duration
	MaxConcurrent         int
	BackpressureThreshold int
	CheckpointFrequency   int
	DriftThreshold        int64 // millionths
	LogAllCalls           bool

	MaxOfKind    []KindLimit // by kind
	MaxFailures  int64       // in a row, until the breaker opens; 0: there is none
	BreakerReset time.Duration
}

// A KindLimit bounds the calls of one kind in a session.
type KindLimit struct {
	Kind call.Kind
	Max  int64
}

// A ToolLimit bounds the calls of one tool in a session.
type ToolLimit struct {
	Tool string
	Max  int64
}

// Digest addresses the tree that the policy was compiled from.
func (p *Policy) Digest() source.Digest { return p.digest }

// DigestText is Digest().String(), which every decision carries.
func (p *Policy) DigestText() string { return p.digestText }

// Warnings are what Compile found odd and accepted.
func (p *Policy) Warnings() []source.Problem { return slices.Clone(p.warnings) }

// Governance returns the GovernancePolicy of the tree, or the defaults where
// it has none. It must not be written to.
func (p *Policy) Governance() *governance.Policy { return p.governance }

// Limits returns the numbers to count against.
func (p *Policy) Limits() Limits {
	l := p.limits
	l.MaxCallsPerTool, l.MaxOfKind = slices.Clone(l.MaxCallsPerTool), slices.Clone(l.MaxOfKind)
	return l
}

// Local reports whether the policy is judged by its own rules alone, which is
// a matter of microseconds. One with external backends or guardrails asks
// others and may take as long as they do.
func (p *Policy) Local() bool {
	return len(p.backends) == 0 && p.guardrails == nil && p.workflow == nil
}

// Strict reports whether the policy is evaluated in strict mode.
func (p *Policy) Strict() bool { return p.docs.Strict }

// Documents returns the PolicyDocuments of the tree in order of their paths.
// They must not be written to.
func (p *Policy) Documents() []*document.Document { return p.docs.All() }

// Name is the name in the GovernancePolicy, else in the first document of the
// flat list, else in the governance file nearest to the root.
func (p *Policy) Name() string {
	if p.rulesetDoc != nil && !p.governance.Governed() && len(p.docs.All()) == 0 {
		return p.rulesetDoc.Name
	}
	if p.workflow != nil && !p.governance.Governed() && len(p.docs.All()) == 0 {
		return p.workflow.Name
	}
	return p.docs.Name()
}

// linkLimits joins the GovernancePolicy's numbers with those that documents
// state.
func (c *compiler) linkLimits() {
	p, g := c.policy, c.policy.governance
	tokens, calls := g.MaxTokens, g.MaxToolCalls
	if !p.governance.Governed() {
		// What is stated holds, and not the default that nobody wrote.
		for _, d := range c.documents {
			if d.Defaults.Stated.MaxTokens {
				tokens = math.MaxInt64
			}
			if d.Defaults.Stated.MaxToolCalls {
				calls = math.MaxInt64
			}
		}
	}
	for _, d := range c.documents {
		if d.Defaults.Stated.MaxTokens {
			tokens = min(tokens, d.Defaults.MaxTokens)
		}
		if d.Defaults.Stated.MaxToolCalls {
			calls = min(calls, d.Defaults.MaxToolCalls)
		}
	}
	p.limits = Limits{
		MaxTokens:             tokens,
		MaxToolCalls:          calls,
		MaxAttempts:           g.MaxAttempts,
		Timeout:               time.Duration(g.TimeoutSeconds) * time.Second,
		MaxConcurrent:         clampInt(g.MaxConcurrent),
		BackpressureThreshold: clampInt(g.BackpressureThreshold),
		CheckpointFrequency:   clampInt(g.CheckpointFrequency),
		DriftThreshold:        millionths(g.DriftThreshold),
		LogAllCalls:           g.LogAllCalls,
		MaxFailures:           g.MaxConsecutiveFailures,
		BreakerReset:          g.BreakerReset,
	}
	for i, kind := range []call.Kind{call.KindModel, call.KindAgent, call.KindHandoff, call.KindSampling} {
		if most, ok := g.MaxOfKind[governance.KindFields[i]]; ok {
			p.limits.MaxOfKind = append(p.limits.MaxOfKind, KindLimit{kind, most})
		}
	}
	p.unchecked = !g.RequireHumanApproval && !g.DenyAllTools && len(g.AllowedTools) == 0 &&
		len(g.BlockedPatterns) == 0 && calls > 0
	tools := c.joinRulesetLimits(g.MaxCallsPerTool)
	for _, tool := range slices.Sorted(maps.Keys(tools)) {
		p.limits.MaxCallsPerTool = append(p.limits.MaxCallsPerTool, ToolLimit{Tool: tool, Max: tools[tool]})
	}
}

// millionths rounds a threshold. One above 0 stays above it, since 0 means that
// nothing is measured.
func millionths(threshold float64) int64 {
	n := int64(math.Round(threshold * 1e6))
	if n == 0 && threshold > 0 {
		return 1
	}
	return n
}

func clampInt(n int64) int { return int(min(n, math.MaxInt32)) }
