package engine

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// comparedFields are the fourteen fields of policy engine spec 8.2 in its
// order, which Dict begins with.
var comparedFields = []struct {
	name  string
	value func(*GovernancePolicy) value.Value
}{
	{"name", func(g *GovernancePolicy) value.Value { return value.OfString(g.Name) }},
	{"max_tokens", func(g *GovernancePolicy) value.Value { return value.OfInt(g.MaxTokens) }},
	{"max_tool_calls", func(g *GovernancePolicy) value.Value { return value.OfInt(g.MaxToolCalls) }},
	{"allowed_tools", func(g *GovernancePolicy) value.Value { return listOf(g.AllowedTools, value.OfString) }},
	{"blocked_patterns", func(g *GovernancePolicy) value.Value { return listOf(g.BlockedPatterns, patternValue) }},
	{"require_human_approval", func(g *GovernancePolicy) value.Value { return value.OfBool(g.RequireHumanApproval) }},
	{"timeout_seconds", func(g *GovernancePolicy) value.Value { return value.OfInt(g.TimeoutSeconds) }},
	{"confidence_threshold", func(g *GovernancePolicy) value.Value { return value.OfFloat(g.ConfidenceThreshold) }},
	{"drift_threshold", func(g *GovernancePolicy) value.Value { return value.OfFloat(g.DriftThreshold) }},
	{"log_all_calls", func(g *GovernancePolicy) value.Value { return value.OfBool(g.LogAllCalls) }},
	{"checkpoint_frequency", func(g *GovernancePolicy) value.Value { return value.OfInt(g.CheckpointFrequency) }},
	{"max_concurrent", func(g *GovernancePolicy) value.Value { return value.OfInt(g.MaxConcurrent) }},
	{"backpressure_threshold", func(g *GovernancePolicy) value.Value { return value.OfInt(g.BackpressureThreshold) }},
	{"version", func(g *GovernancePolicy) value.Value { return value.OfString(g.Version) }},
}

func listOf[T any](list []T, convert func(T) value.Value) value.Value {
	out := make([]value.Value, len(list))
	for i, item := range list {
		out[i] = convert(item)
	}
	return value.OfList(out...)
}

// patternValue writes a pattern as it is written in a policy: a plain string
// for a substring, a mapping for the rest (policy engine spec 9.2).
func patternValue(p pattern.Pattern) value.Value {
	if p.Type == pattern.Substring {
		return value.OfString(p.Text)
	}
	pairs := []value.Pair{
		{Key: "pattern", Value: value.OfString(p.Text)},
		{Key: "type", Value: value.OfString(string(p.Type))},
	}
	if p.Backtracking {
		pairs = append(pairs, value.Pair{Key: "engine", Value: value.OfString("backtracking")})
	}
	return value.OfMap(pairs...)
}

// A Change is a field in which two policies differ.
type Change struct {
	Field    string
	Old, New value.Value
}

// Diff lists the fields in which g and other differ: those of policy engine spec
// 8.2 in its order (adapter contract 4.5.1), then all others.
func (g *GovernancePolicy) Diff(other *GovernancePolicy) []Change {
	var out []Change
	was, now := g.Dict(), other.Dict()
	compare := func(field string) {
		a, _ := was.Get(field)
		b, _ := now.Get(field)
		if !value.Equal(a, b) {
			out = append(out, Change{Field: field, Old: a, New: b})
		}
	}
	for field := range was.All() {
		compare(field)
	}
	for field := range now.All() {
		if _, done := was.Get(field); !done {
			compare(field)
		}
	}
	return out
}

// A VersionComparison is the result of CompareVersions.
type VersionComparison struct {
	OldVersion, NewVersion string
	VersionsDiffer         bool
	Changes                []Change
}

// CompareVersions compares g, the old policy, with a newer one (adapter
// contract 4.5.3, policy engine spec 18.2).
func (g *GovernancePolicy) CompareVersions(newer *GovernancePolicy) VersionComparison {
	return VersionComparison{
		OldVersion:     g.Version,
		NewVersion:     newer.Version,
		VersionsDiffer: g.Version != newer.Version,
		Changes:        g.Diff(newer),
	}
}

// StricterThan reports whether g is at least as restrictive as other in every
// field that policy engine spec 8.5 or adapter contract 4.5.2 names, and more
// so in at least one. Allowed tools compare as sets, where an empty list is
// the set of all tools.
func (g *GovernancePolicy) StricterThan(other *GovernancePolicy) bool {
	// Negative where g is the stricter, positive where other is.
	signs := []int{
		cmp.Compare(g.MaxTokens, other.MaxTokens),
		cmp.Compare(g.MaxToolCalls, other.MaxToolCalls),
		cmp.Compare(g.TimeoutSeconds, other.TimeoutSeconds),
		cmp.Compare(g.MaxConcurrent, other.MaxConcurrent),
		cmp.Compare(g.BackpressureThreshold, other.BackpressureThreshold),
		cmp.Compare(other.ConfidenceThreshold, g.ConfidenceThreshold),
		cmp.Compare(g.CheckpointFrequency, other.CheckpointFrequency),
		cmp.Compare(len(other.BlockedPatterns), len(g.BlockedPatterns)),
		trueFirst(g.RequireHumanApproval, other.RequireHumanApproval),
	}
	if slices.Max(signs) > 0 {
		return false
	}
	subset, equal := compareTools(g, other)
	return subset && (slices.Min(signs) < 0 || !equal)
}

// trueFirst orders true before false, as Compare functions do.
func trueFirst(a, b bool) int {
	switch {
	case a == b:
		return 0
	case a:
		return -1
	}
	return 1
}

// compareTools reports whether the tools that g permits are a subset of those
// that other permits, and whether both permit the same.
func compareTools(g, other *GovernancePolicy) (subset, equal bool) {
	switch {
	case g.DenyAllTools || other.DenyAllTools:
		return g.DenyAllTools, g.DenyAllTools == other.DenyAllTools
	case len(other.AllowedTools) == 0:
		return true, len(g.AllowedTools) == 0
	case len(g.AllowedTools) == 0:
		return false, false
	}
	subset = containsAll(other.AllowedTools, g.AllowedTools)
	return subset, subset && containsAll(g.AllowedTools, other.AllowedTools)
}

func containsAll(set, items []string) bool {
	for _, item := range items {
		if !slices.Contains(set, item) {
			return false
		}
	}
	return true
}

// Compose returns the policy that is as restrictive as both in every field
// (policy engine spec 18.1): the smaller limits, the larger confidence, all
// patterns, the tools that both permit. Tools without a common one become
// DenyAllTools, never the empty list that would permit everything.
func (g *GovernancePolicy) Compose(other *GovernancePolicy) (*GovernancePolicy, error) {
	out := &GovernancePolicy{
		Name:                  g.Name + " + " + other.Name,
		MaxTokens:             min(g.MaxTokens, other.MaxTokens),
		MaxToolCalls:          min(g.MaxToolCalls, other.MaxToolCalls),
		RequireHumanApproval:  g.RequireHumanApproval || other.RequireHumanApproval,
		TimeoutSeconds:        min(g.TimeoutSeconds, other.TimeoutSeconds),
		ConfidenceThreshold:   max(g.ConfidenceThreshold, other.ConfidenceThreshold),
		DriftThreshold:        min(g.DriftThreshold, other.DriftThreshold),
		LogAllCalls:           g.LogAllCalls || other.LogAllCalls,
		CheckpointFrequency:   min(g.CheckpointFrequency, other.CheckpointFrequency),
		MaxConcurrent:         min(g.MaxConcurrent, other.MaxConcurrent),
		BackpressureThreshold: min(g.BackpressureThreshold, other.BackpressureThreshold),
		Version:               max(g.Version, other.Version),
		MaxAttempts:           min(g.MaxAttempts, other.MaxAttempts),
		MaxCallsPerTool:       maps.Clone(g.MaxCallsPerTool),
		BlockedPatterns:       slices.Clone(g.BlockedPatterns),
	}
	// A threshold of 0 turns drift detection off, which is the laxest.
	if g.DriftThreshold == 0 || other.DriftThreshold == 0 {
		out.DriftThreshold = max(g.DriftThreshold, other.DriftThreshold)
	}
	for _, p := range other.BlockedPatterns {
		if !slices.Contains(out.BlockedPatterns, p) {
			out.BlockedPatterns = append(out.BlockedPatterns, p)
		}
	}
	for tool, n := range other.MaxCallsPerTool {
		if out.MaxCallsPerTool == nil {
			out.MaxCallsPerTool = map[string]int64{}
		}
		if have, ok := out.MaxCallsPerTool[tool]; !ok || n < have {
			out.MaxCallsPerTool[tool] = n
		}
	}
	composeTools(out, g, other)
	if err := composeInterceptors(out, g, other); err != nil {
		return nil, err
	}
	if err := out.Validate(); err != nil {
		return nil, err
	}
	return out, nil
}

func composeTools(out, a, b *GovernancePolicy) {
	switch {
	case a.DenyAllTools || b.DenyAllTools:
		out.DenyAllTools = true
	case len(a.AllowedTools) == 0:
		out.AllowedTools = slices.Clone(b.AllowedTools)
	case len(b.AllowedTools) == 0:
		out.AllowedTools = slices.Clone(a.AllowedTools)
	default:
		for _, tool := range a.AllowedTools {
			if slices.Contains(b.AllowedTools, tool) {
				out.AllowedTools = append(out.AllowedTools, tool)
			}
		}
		out.DenyAllTools = len(out.AllowedTools) == 0
	}
}

// composeInterceptors keeps the hashes and guardrails of both. Two hashes of
// one tool that differ leave no call of it that both would pass, which nobody
// means, so they are an error.
func composeInterceptors(out, a, b *GovernancePolicy) error {
	for _, g := range []*GovernancePolicy{a, b} {
		if !g.verifiesHashes() {
			continue
		}
		if out.ContentHashMode == "" || g.ContentHashMode != ContentHashWarn {
			out.ContentHashMode = cmp.Or(g.ContentHashMode, ContentHashStrict)
		}
		for _, tool := range sortedKeys(g.ContentHashes) {
			if have, ok := out.ContentHashes[tool]; ok && have != g.ContentHashes[tool] {
				return fmt.Errorf("both policies have a content hash for %s, and they differ", pyString(tool))
			}
			if out.ContentHashes == nil {
				out.ContentHashes = map[string]string{}
			}
			out.ContentHashes[tool] = g.ContentHashes[tool]
		}
	}
	out.Guardrails = slices.Clone(a.Guardrails)
	for _, ep := range b.Guardrails {
		if !slices.Contains(out.Guardrails, ep) {
			out.Guardrails = append(out.Guardrails, ep)
		}
	}
	return nil
}

func (g *GovernancePolicy) verifiesHashes() bool {
	return g.ContentHashes != nil || g.ContentHashMode != ""
}
