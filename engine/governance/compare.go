package governance

import (
	"cmp"
	"maps"
	"slices"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// How two GovernancePolicies are compared: field by field, and by which is
// stricter.

// comparedFields are the fourteen fields of policy engine spec 8.2 in its
// order, which Dict begins with.
var comparedFields = []struct {
	name  string
	value func(*Policy) value.Value
}{
	{"name", func(g *Policy) value.Value { return value.OfString(g.Name) }},
	{"max_tokens", func(g *Policy) value.Value { return value.OfInt(g.MaxTokens) }},
	{"max_tool_calls", func(g *Policy) value.Value { return value.OfInt(g.MaxToolCalls) }},
	{"allowed_tools", func(g *Policy) value.Value { return value.ListOf(g.AllowedTools, value.OfString) }},
	{"blocked_patterns", func(g *Policy) value.Value { return value.ListOf(g.BlockedPatterns, patternValue) }},
	{"require_human_approval", func(g *Policy) value.Value { return value.OfBool(g.RequireHumanApproval) }},
	{"timeout_seconds", func(g *Policy) value.Value { return value.OfInt(g.TimeoutSeconds) }},
	{"confidence_threshold", func(g *Policy) value.Value { return value.OfFloat(g.ConfidenceThreshold) }},
	{"drift_threshold", func(g *Policy) value.Value { return value.OfFloat(g.DriftThreshold) }},
	{"log_all_calls", func(g *Policy) value.Value { return value.OfBool(g.LogAllCalls) }},
	{"checkpoint_frequency", func(g *Policy) value.Value { return value.OfInt(g.CheckpointFrequency) }},
	{"max_concurrent", func(g *Policy) value.Value { return value.OfInt(g.MaxConcurrent) }},
	{"backpressure_threshold", func(g *Policy) value.Value { return value.OfInt(g.BackpressureThreshold) }},
	{"version", func(g *Policy) value.Value { return value.OfString(g.Version) }},
}

// Dict returns every field as a mapping with the names of policy engine spec
// 8.2 (19.2). Reading it back gives an equal policy.
func (g *Policy) Dict() value.Value {
	perTool := make([]value.Pair, 0, len(g.MaxCallsPerTool))
	for _, tool := range slices.Sorted(maps.Keys(g.MaxCallsPerTool)) {
		perTool = append(perTool, value.Pair{Key: tool, Value: value.OfInt(g.MaxCallsPerTool[tool])})
	}
	pairs := make([]value.Pair, 0, len(comparedFields)+3)
	for _, f := range comparedFields {
		pairs = append(pairs, value.Pair{Key: f.name, Value: f.value(g)})
	}
	pairs = append(pairs,
		value.Pair{Key: "max_attempts", Value: value.OfInt(g.MaxAttempts)},
		value.Pair{Key: "max_calls_per_tool", Value: value.OfMap(perTool...)},
	)
	return value.OfMap(append(pairs, g.extensionPairs()...)...)
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
func (g *Policy) Diff(other *Policy) []Change {
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

// StricterThan reports whether g is at least as restrictive as other in every
// field that policy engine spec 8.5 or adapter contract 4.5.2 names, and more
// so in at least one. Allowed tools compare as sets, where an empty list is
// the set of all tools; how a policy asks belongs to require_human_approval.
func (g *Policy) StricterThan(other *Policy) bool {
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
	}
	signs = append(signs, compareApproval(g, other)...)
	if slices.Max(signs) > 0 {
		return false
	}
	subset, equal := compareTools(g, other)
	return subset && (slices.Min(signs) < 0 || !equal)
}

// compareTools reports whether the tools that g permits are a subset of those
// that other permits, and whether both permit the same.
func compareTools(g, other *Policy) (subset, equal bool) {
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
