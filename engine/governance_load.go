package engine

import (
	"fmt"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// governanceFields are the fields that only a GovernancePolicy has: what they
// occur in is one. Name and version belong to both kinds of file.
var governanceFields = map[string]bool{
	"max_tokens": true, "max_tool_calls": true, "allowed_tools": true, "blocked_patterns": true,
	"require_human_approval": true, "timeout_seconds": true, "confidence_threshold": true,
	"drift_threshold": true, "log_all_calls": true, "checkpoint_frequency": true,
	"max_concurrent": true, "backpressure_threshold": true,
	"max_attempts": true, "max_calls_per_tool": true, "deny_all_tools": true,
	"content_hashes": true, "content_hash_mode": true, "guardrails": true,
}

// loadGovernance builds and validates a policy. Types are checked in the same
// fixed order as values, so that the first problem is the reference's.
func loadGovernance(n *node, ps *problems) *GovernancePolicy {
	if n.kind != nodeMap {
		ps.add(n.line, "", "Expected a YAML mapping, got %s", n.typeName())
		return nil
	}
	g := NewGovernancePolicy()
	r := governanceReader{n: n, ps: ps}
	r.positive("max_tokens", &g.MaxTokens)
	r.positive("timeout_seconds", &g.TimeoutSeconds)
	r.positive("max_concurrent", &g.MaxConcurrent)
	r.positive("backpressure_threshold", &g.BackpressureThreshold)
	r.positive("checkpoint_frequency", &g.CheckpointFrequency)
	r.nonNegative("max_tool_calls", &g.MaxToolCalls)
	r.threshold("confidence_threshold", &g.ConfidenceThreshold)
	r.threshold("drift_threshold", &g.DriftThreshold)
	r.tools(g)
	r.patternList(g)
	r.version(&g.Version)
	r.name(&g.Name)
	r.boolean("require_human_approval", &g.RequireHumanApproval)
	r.boolean("log_all_calls", &g.LogAllCalls)
	r.positive("max_attempts", &g.MaxAttempts)
	r.callsPerTool(g)
	r.boolean("deny_all_tools", &g.DenyAllTools)
	r.contentHashes(g)
	r.guardrails(g)
	if len(ps.list) > 0 {
		return nil
	}
	if err := g.validate(); err != nil {
		ps.add(r.lineOf(err.Field), err.Field, "%s", err.Message)
		return nil
	}
	return g
}

// governanceReader reads fields of one mapping; what is absent keeps its
// default.
type governanceReader struct {
	n  *node
	ps *problems
}

func (r governanceReader) field(name string) (*node, bool) { return r.n.get(name) }

func (r governanceReader) positive(name string, into *int64) {
	if f, ok := r.field(name); ok {
		if v, isInt := f.integer(); isInt && v > 0 {
			*into = v
			return
		}
		if f.beyondInt64() {
			r.ps.add(f.line, name, "%s", textAbove(name, f.repr()))
			return
		}
		r.ps.add(f.line, name, "%s must be a positive integer, got %s", name, f.repr())
	}
}

func (r governanceReader) nonNegative(name string, into *int64) {
	if f, ok := r.field(name); ok {
		if v, isInt := f.integer(); isInt && v >= 0 {
			*into = v
			return
		}
		if f.beyondInt64() {
			r.ps.add(f.line, name, "%s", textAbove(name, f.repr()))
			return
		}
		r.ps.add(f.line, name, "%s must be a non-negative integer, got %s", name, f.repr())
	}
}

func (r governanceReader) threshold(name string, into *float64) {
	if f, ok := r.field(name); ok {
		if v, isNumber := f.number(); isNumber && v >= 0 && v <= 1 {
			*into = v
			return
		}
		r.ps.add(f.line, name, "%s must be a float between 0.0 and 1.0, got %s", name, f.repr())
	}
}

func (r governanceReader) boolean(name string, into *bool) {
	if f, ok := r.field(name); ok {
		if f.kind == nodeBool {
			*into = strings.EqualFold(f.text, "true")
			return
		}
		r.ps.add(f.line, name, "%s must be a boolean, got %s: %s; write true or false", name, f.typeName(), f.repr())
	}
}

func (r governanceReader) tools(g *GovernancePolicy) {
	f, ok := r.field("allowed_tools")
	if !ok {
		return
	}
	if f.kind != nodeList {
		r.ps.add(f.line, "allowed_tools", "allowed_tools must be a list, got %s", f.typeName())
		return
	}
	for i := range f.items {
		item := &f.items[i]
		if item.kind != nodeString {
			field := fmt.Sprintf("allowed_tools[%d]", i)
			r.ps.add(item.line, field, "%s must be a string, got %s: %s", field, item.typeName(), item.repr())
			return
		}
		g.AllowedTools = append(g.AllowedTools, item.text)
	}
}

func (r governanceReader) patternList(g *GovernancePolicy) {
	f, ok := r.field("blocked_patterns")
	if !ok {
		return
	}
	if f.kind != nodeList {
		r.ps.add(f.line, "blocked_patterns", "blocked_patterns must be a list, got %s", f.typeName())
		return
	}
	for i := range f.items {
		p, msg := readPattern(&f.items[i])
		if msg != "" {
			r.ps.add(f.items[i].line, fmt.Sprintf("blocked_patterns[%d]", i), "%s", msg)
			return
		}
		g.BlockedPatterns = append(g.BlockedPatterns, p)
	}
}

// readPattern reads "text" or {pattern, type, engine}.
func readPattern(n *node) (pattern.Pattern, string) {
	if n.kind == nodeString {
		return pattern.Pattern{Text: n.text, Type: pattern.Substring}, ""
	}
	text, hasText := n.get("pattern")
	typ, hasType := n.get("type")
	if n.kind != nodeMap || !hasText || !hasType || text.kind != nodeString {
		return pattern.Pattern{}, "Invalid blocked_pattern entry: " + n.repr()
	}
	p := pattern.Pattern{Text: text.text}
	switch t := pattern.Type(typ.text); {
	case typ.kind == nodeString && (t == pattern.Substring || t == pattern.Regex || t == pattern.Glob):
		p.Type = t
	default:
		return pattern.Pattern{}, "Unknown pattern type: " + typ.repr()
	}
	if engine, ok := n.get("engine"); ok {
		switch {
		case engine.kind != nodeString || engine.text != "backtracking":
			return pattern.Pattern{}, fmt.Sprintf("engine must be backtracking or absent, got %s", engine.repr())
		case p.Type != pattern.Regex:
			return pattern.Pattern{}, "engine: backtracking is for patterns of type regex alone"
		}
		p.Backtracking = true
	}
	for _, k := range n.keys {
		if k.text != "pattern" && k.text != "type" && k.text != "engine" {
			return pattern.Pattern{}, fmt.Sprintf("Invalid blocked_pattern entry: it has the unknown field %s; known are pattern, type and engine", pyString(k.text))
		}
	}
	return p, ""
}

func (r governanceReader) version(into *string) {
	f, ok := r.field("version")
	switch {
	case !ok:
	case f.kind == nodeInt, f.kind == nodeFloat:
		r.ps.add(f.line, "version", "version must be a non-empty string, got %s; put it in quotes", clip(f.text, 100))
	case f.kind != nodeString || f.text == "":
		r.ps.add(f.line, "version", "version must be a non-empty string, got %s", f.repr())
	default:
		*into = f.text
	}
}

func (r governanceReader) name(into *string) {
	if f, ok := r.field("name"); ok {
		if f.kind == nodeString && f.text != "" {
			*into = f.text
			return
		}
		r.ps.add(f.line, "name", "name must be a non-empty string, got %s", f.repr())
	}
}

func (r governanceReader) callsPerTool(g *GovernancePolicy) {
	f, ok := r.field("max_calls_per_tool")
	if !ok {
		return
	}
	if f.kind != nodeMap {
		r.ps.add(f.line, "max_calls_per_tool", "max_calls_per_tool must be a mapping of tool names to numbers, got %s", f.typeName())
		return
	}
	for i, k := range f.keys {
		field := join("max_calls_per_tool", k.text)
		n, isInt := f.items[i].integer()
		switch problem := toolNameProblem(k.text); {
		case problem != "":
			r.ps.add(k.line, "max_calls_per_tool", "%s", problem)
			return
		case f.items[i].beyondInt64():
			r.ps.add(k.line, field, "%s", textAbove(field, f.items[i].repr()))
			return
		case !isInt || n < 0:
			r.ps.add(k.line, field, "%s must be a non-negative integer, got %s", field, f.items[i].repr())
			return
		}
		if g.MaxCallsPerTool == nil {
			g.MaxCallsPerTool = map[string]int64{}
		}
		g.MaxCallsPerTool[k.text] = n
	}
}

// lineOf finds the line of a field such as blocked_patterns[3], or of what
// holds it.
func (r governanceReader) lineOf(field string) int {
	lines := fieldLines(r.n)
	for field != "" {
		if line, ok := lines[field]; ok {
			return line
		}
		field = field[:max(strings.LastIndexAny(field, ".["), 0)]
	}
	return 0
}

// Dict returns every field as a mapping with the names of policy engine spec
// 8.2 (19.2). Reading it back gives an equal policy.
func (g *GovernancePolicy) Dict() value.Value {
	perTool := make([]value.Pair, 0, len(g.MaxCallsPerTool))
	for _, tool := range sortedKeys(g.MaxCallsPerTool) {
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
