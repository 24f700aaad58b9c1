package governance

import (
	"fmt"
	"math"
	"strings"

	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// How a GovernancePolicy is read.

// Fields are the fields that only a GovernancePolicy has: what they
// occur in is one. Name and version belong to both kinds of file.
var Fields = map[string]bool{
	"max_tokens": true, "max_tool_calls": true, "allowed_tools": true, "blocked_patterns": true,
	"require_human_approval": true, "timeout_seconds": true, "confidence_threshold": true,
	"drift_threshold": true, "log_all_calls": true, "checkpoint_frequency": true,
	"max_concurrent": true, "backpressure_threshold": true,
	"max_attempts": true, "max_calls_per_tool": true, "deny_all_tools": true,
	"content_hashes": true, "content_hash_mode": true, "guardrails": true, "rate_limits": true, "scan": true,
	"max_model_calls": true, "max_agent_calls": true, "max_handoffs": true, "max_sampling_requests": true,
	"max_consecutive_failures": true, "breaker_reset": true, "budgets": true, "approval": true, "deny_sensitive_reads": true,
}

// Read reads a policy, field by field in the fixed order of policy engine
// spec 8.3, so that the first problem is the reference's.
func Read(n *source.Node, ps *source.Problems) *Policy {
	g := Default()
	g.Path, g.lines = ps.Path, fieldLines(n)
	r := reader{ps, n}
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
		r.Add(g.Line("deny_all_tools"), "deny_all_tools", "deny_all_tools must not stand beside a non-empty allowed_tools; remove one of them")
	}
	r.kinds(g)
	r.breaker(g)
	r.budgets(g)
	r.approval(g)
	r.contentHashes(g)
	r.guardrails(g)
	r.rateLimits(g)
	r.scan(g)
	r.sensitiveReads(g)
	return g
}

// fieldLines maps the fields of a mapping, and what lists and mappings in them
// hold, to their lines.
func fieldLines(n *source.Node) map[string]int {
	lines := map[string]int{}
	for i, k := range n.Keys {
		lines[k.Text] = k.Line
		item := &n.Items[i]
		for j := range item.Items {
			if item.Kind == source.Map {
				lines[source.Join(k.Text, item.Keys[j].Text)] = item.Keys[j].Line
			} else {
				lines[fmt.Sprintf("%s[%d]", k.Text, j)] = item.Items[j].Line
			}
		}
	}
	return lines
}

// reader reads fields of one mapping; what is absent keeps its
// default.
type reader struct {
	*source.Problems
	n *source.Node
}

func (r reader) number(name string, least, most int64, into *int64) {
	if f, ok := r.n.Get(name); ok {
		*into = r.Count(f, name, least, most)
	}
}

func (r reader) fraction(name string, into *float64) {
	if f, ok := r.n.Get(name); ok {
		*into = r.Threshold(f, name)
	}
}

func (r reader) boolean(name string, into *bool) {
	if f, ok := r.n.Get(name); ok {
		if f.Kind != source.Bool {
			r.Add(f.Line, name, "%s must be a boolean, got %s: %s; write true or false", name, f.TypeName(), f.Repr())
		}
		*into = strings.EqualFold(f.Text, "true")
	}
}

// holding finds a list or mapping. An empty node stands for one that is absent or
// of another kind.
func (r reader) holding(name string, kind source.Kind, what string) *source.Node {
	f, ok := r.n.Get(name)
	if ok && f.Kind != kind {
		r.Add(f.Line, name, "%s must be a %s, got %s", name, what, f.TypeName())
	}
	if !ok || f.Kind != kind {
		return &source.Node{}
	}
	return f
}

func (r reader) tools(g *Policy) {
	g.allowed = map[string]bool{}
	for i, item := range r.holding("allowed_tools", source.List, "list").Items {
		field := fmt.Sprintf("allowed_tools[%d]", i)
		switch {
		case item.Kind != source.String:
			r.Add(item.Line, field, "%s must be a string, got %s: %s", field, item.TypeName(), item.Repr())
			return
		case item.Text == "":
			r.Add(item.Line, field, "%s must be a non-empty string, got ''", field)
			return
		}
		g.AllowedTools = append(g.AllowedTools, item.Text)
		g.allowed[item.Text] = true
	}
}

func (r reader) patterns(g *Policy) {
	for i, item := range r.holding("blocked_patterns", source.List, "list").Items {
		p, msg := readPattern(&item)
		if msg != "" {
			r.Add(item.Line, fmt.Sprintf("blocked_patterns[%d]", i), "%s", msg)
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
		r.Add(g.Line(field), field, "%v", err)
	}
	g.Patterns = set
}

// readPattern reads "text" or {pattern, type, engine}.
func readPattern(n *source.Node) (pattern.Pattern, string) {
	if n.Kind == source.String {
		return pattern.Pattern{Text: n.Text, Type: pattern.Substring}, ""
	}
	text, hasText := n.Get("pattern")
	typ, hasType := n.Get("type")
	if n.Kind != source.Map || !hasText || !hasType || text.Kind != source.String {
		return pattern.Pattern{}, "Invalid blocked_pattern entry: " + n.Repr()
	}
	p := pattern.Pattern{Text: text.Text}
	switch t := pattern.Type(typ.Text); {
	case typ.Kind == source.String && (t == pattern.Substring || t == pattern.Regex || t == pattern.Glob):
		p.Type = t
	default:
		return pattern.Pattern{}, "Unknown pattern type: " + typ.Repr()
	}
	if engine, ok := n.Get("engine"); ok {
		switch {
		case engine.Kind != source.String || engine.Text != "backtracking":
			return pattern.Pattern{}, fmt.Sprintf("engine must be backtracking or absent, got %s", engine.Repr())
		case p.Type != pattern.Regex:
			return pattern.Pattern{}, "engine: backtracking is for patterns of type regex alone"
		}
		p.Backtracking = true
	}
	for _, k := range n.Keys {
		if k.Text != "pattern" && k.Text != "type" && k.Text != "engine" {
			return pattern.Pattern{}, fmt.Sprintf("Invalid blocked_pattern entry: it has the unknown field %s; known are pattern, type and engine", value.Quote(k.Text))
		}
	}
	return p, ""
}

func (r reader) version(into *string) {
	f, ok := r.n.Get("version")
	switch {
	case !ok:
	case f.Kind == source.Int, f.Kind == source.Float:
		r.Add(f.Line, "version", "version must be a non-empty string, got %s; put it in quotes", source.Clip(f.Text, 100))
	case f.Kind != source.String || f.Text == "":
		r.Add(f.Line, "version", "version must be a non-empty string, got %s", f.Repr())
	default:
		*into = f.Text
	}
}

func (r reader) name(into *string) {
	if f, ok := r.n.Get("name"); ok {
		if f.Kind != source.String || f.Text == "" {
			r.Add(f.Line, "name", "name must be a non-empty string, got %s", f.Repr())
		}
		*into = f.Text
	}
}

func (r reader) callsPerTool(g *Policy) {
	f := r.holding("max_calls_per_tool", source.Map, "mapping of tool names to numbers")
	if n := len(f.Keys); n > MaxToolLimits {
		r.Add(f.Line, "max_calls_per_tool", "max_calls_per_tool must have at most %d entries, got %d", MaxToolLimits, n)
		return
	}
	g.MaxCallsPerTool = map[string]int64{}
	for i, k := range f.Keys {
		if problem := ToolNameProblem(k.Text); problem != "" {
			r.Add(k.Line, "max_calls_per_tool", "%s", problem)
			continue
		}
		g.MaxCallsPerTool[k.Text] = r.Count(&f.Items[i], source.Join("max_calls_per_tool", k.Text), 0, math.MaxInt64)
	}
}
