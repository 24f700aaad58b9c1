package engine

import (
	"fmt"
	"math"
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

// loadGovernance reads a policy, field by field in the fixed order of policy engine
// spec 8.3, so that the first problem is the reference's.
func loadGovernance(n *node, ps *problems) *GovernancePolicy {
	g := NewGovernancePolicy()
	g.Path, g.lines = ps.path, fieldLines(n)
	r := governanceReader{ps, n}
	r.number("max_tokens", 1, MaxTokenLimit, &g.MaxTokens)
	r.number("timeout_seconds", 1, MaxTimeoutSeconds, &g.TimeoutSeconds)
	r.number("max_concurrent", 1, MaxConcurrentCalls, &g.MaxConcurrent)
	r.number("backpressure_threshold", 1, math.MaxInt64, &g.BackpressureThreshold)
	r.number("checkpoint_frequency", 1, math.MaxInt64, &g.CheckpointFrequency)
	r.number("max_tool_calls", 0, math.MaxInt64, &g.MaxToolCalls)
	r.fraction("confidence_threshold", &g.ConfidenceThreshold)
	r.fraction("drift_threshold", &g.DriftThreshold)
	r.tools(g)
	r.patterns(g)
	r.version(&g.Version)
	r.name(&g.Name)
	r.boolean("require_human_approval", &g.RequireHumanApproval)
	r.boolean("log_all_calls", &g.LogAllCalls)
	r.number("max_attempts", 1, math.MaxInt64, &g.MaxAttempts)
	r.callsPerTool(g)
	r.boolean("deny_all_tools", &g.DenyAllTools)
	if g.DenyAllTools && len(g.AllowedTools) > 0 {
		r.add(g.Line("deny_all_tools"), "deny_all_tools", "deny_all_tools must not stand beside a non-empty allowed_tools; remove one of them")
	}
	r.contentHashes(g)
	r.guardrails(g)
	return g
}

// fieldLines maps the fields of a mapping, and what lists and mappings in them
// hold, to their lines.
func fieldLines(n *node) map[string]int {
	lines := map[string]int{}
	for i, k := range n.keys {
		lines[k.text] = k.line
		item := &n.items[i]
		for j := range item.items {
			if item.kind == nodeMap {
				lines[join(k.text, item.keys[j].text)] = item.keys[j].line
			} else {
				lines[fmt.Sprintf("%s[%d]", k.text, j)] = item.items[j].line
			}
		}
	}
	return lines
}

// governanceReader reads fields of one mapping; what is absent keeps its
// default.
type governanceReader struct {
	*problems
	n *node
}

func (r governanceReader) number(name string, least, most int64, into *int64) {
	if f, ok := r.n.get(name); ok {
		*into = r.count(f, name, least, most)
	}
}

func (r governanceReader) fraction(name string, into *float64) {
	if f, ok := r.n.get(name); ok {
		*into = r.threshold(f, name)
	}
}

func (r governanceReader) boolean(name string, into *bool) {
	if f, ok := r.n.get(name); ok {
		if f.kind != nodeBool {
			r.add(f.line, name, "%s must be a boolean, got %s: %s; write true or false", name, f.typeName(), f.repr())
		}
		*into = strings.EqualFold(f.text, "true")
	}
}

// holding finds a list or mapping. An empty node stands for one that is absent or
// of another kind.
func (r governanceReader) holding(name string, kind nodeKind, what string) *node {
	f, ok := r.n.get(name)
	if ok && f.kind != kind {
		r.add(f.line, name, "%s must be a %s, got %s", name, what, f.typeName())
	}
	if !ok || f.kind != kind {
		return &node{}
	}
	return f
}

func (r governanceReader) tools(g *GovernancePolicy) {
	g.allowed = map[string]bool{}
	for i, item := range r.holding("allowed_tools", nodeList, "list").items {
		field := fmt.Sprintf("allowed_tools[%d]", i)
		switch {
		case item.kind != nodeString:
			r.add(item.line, field, "%s must be a string, got %s: %s", field, item.typeName(), item.repr())
			return
		case item.text == "":
			r.add(item.line, field, "%s must be a non-empty string, got ''", field)
			return
		}
		g.AllowedTools = append(g.AllowedTools, item.text)
		g.allowed[item.text] = true
	}
}

func (r governanceReader) patterns(g *GovernancePolicy) {
	for i, item := range r.holding("blocked_patterns", nodeList, "list").items {
		p, msg := readPattern(&item)
		if msg != "" {
			r.add(item.line, fmt.Sprintf("blocked_patterns[%d]", i), "%s", msg)
			return
		}
		g.BlockedPatterns = append(g.BlockedPatterns, p)
	}
	set, err := pattern.NewSet(g.BlockedPatterns)
	if err != nil {
		field := "blocked_patterns"
		// The set's error begins with the entry it concerns.
		if i := strings.IndexByte(err.Error(), ']'); i > 0 && strings.HasPrefix(err.Error(), field+"[") {
			field = err.Error()[:i+1]
		}
		r.add(g.Line(field), field, "%v", err)
	}
	g.patterns = set
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
			return pattern.Pattern{}, fmt.Sprintf("Invalid blocked_pattern entry: it has the unknown field %s; known are pattern, type and engine", value.Quote(k.text))
		}
	}
	return p, ""
}

func (r governanceReader) version(into *string) {
	f, ok := r.n.get("version")
	switch {
	case !ok:
	case f.kind == nodeInt, f.kind == nodeFloat:
		r.add(f.line, "version", "version must be a non-empty string, got %s; put it in quotes", clip(f.text, 100))
	case f.kind != nodeString || f.text == "":
		r.add(f.line, "version", "version must be a non-empty string, got %s", f.repr())
	default:
		*into = f.text
	}
}

func (r governanceReader) name(into *string) {
	if f, ok := r.n.get("name"); ok {
		if f.kind != nodeString || f.text == "" {
			r.add(f.line, "name", "name must be a non-empty string, got %s", f.repr())
		}
		*into = f.text
	}
}

func (r governanceReader) callsPerTool(g *GovernancePolicy) {
	f := r.holding("max_calls_per_tool", nodeMap, "mapping of tool names to numbers")
	if n := len(f.keys); n > MaxToolLimits {
		r.add(f.line, "max_calls_per_tool", "max_calls_per_tool must have at most %d entries, got %d", MaxToolLimits, n)
		return
	}
	g.MaxCallsPerTool = map[string]int64{}
	for i, k := range f.keys {
		if problem := toolNameProblem(k.text); problem != "" {
			r.add(k.line, "max_calls_per_tool", "%s", problem)
			continue
		}
		g.MaxCallsPerTool[k.text] = r.count(&f.items[i], join("max_calls_per_tool", k.text), 0, math.MaxInt64)
	}
}
