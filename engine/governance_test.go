package engine

import (
	"context"
	"math"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/pattern"
)

func TestMatchesPatternReturnsAll(t *testing.T) {
	g := NewGovernancePolicy()
	g.BlockedPatterns = []pattern.Pattern{
		{Text: "zebra", Type: pattern.Substring}, {Text: "ze.ra", Type: pattern.Regex},
		{Text: "apple", Type: pattern.Substring}, {Text: "*zebra", Type: pattern.Glob}, {Text: "zebra", Type: pattern.Substring},
	}
	require.Empty(t, g.MatchesPattern("zebra"), "before it is validated")
	require.NoError(t, g.Validate())
	require.Equal(t, []string{"zebra", "ze.ra", "*zebra", "zebra"}, g.MatchesPattern("a Zebra"))
	require.Empty(t, g.MatchesPattern("lion"))
}

func TestValidateRefusesWhatYAMLCannotSay(t *testing.T) {
	for name, change := range map[string]func(*GovernancePolicy){
		"confidence_threshold must be a float between 0.0 and 1.0, got nan": func(g *GovernancePolicy) { g.ConfidenceThreshold = math.NaN() },
		"drift_threshold must be a float between 0.0 and 1.0, got inf":      func(g *GovernancePolicy) { g.DriftThreshold = math.Inf(1) },
		"timeout_seconds must be at most 3153600000":                        func(g *GovernancePolicy) { g.TimeoutSeconds = math.MaxInt64 },
		"deny_all_tools must not stand beside":                              func(g *GovernancePolicy) { g.DenyAllTools, g.AllowedTools = true, []string{"a"} },
		"valid UTF-8":                                                       func(g *GovernancePolicy) { g.AllowedTools = []string{"\xff"} },
		"max_attempts must be a positive integer, got 0":                    func(g *GovernancePolicy) { g.MaxAttempts = 0 },
		"blocked_patterns must have at most 1000 entries, got 1001": func(g *GovernancePolicy) {
			g.BlockedPatterns = make([]pattern.Pattern, MaxPatterns+1)
		},
	} {
		g := NewGovernancePolicy()
		change(g)
		require.ErrorContains(t, g.Validate(), name)
	}
	require.NoError(t, NewGovernancePolicy().Validate())
}

func TestCompose(t *testing.T) {
	parse := func(text string) *GovernancePolicy {
		g, err := GovernancePolicyFromYAML(text)
		require.NoError(t, err)
		return g
	}
	a := parse("name: a\nmax_tokens: 100\nallowed_tools: [x, y]\nblocked_patterns: [p]\nconfidence_threshold: 0.5\nmax_calls_per_tool: {x: 3}\n")
	b := parse("name: b\nmax_tokens: 50\nallowed_tools: [y, z]\nblocked_patterns: [p, q]\nrequire_human_approval: true\nmax_calls_per_tool: {x: 2, y: 1}\ndrift_threshold: 0\n")
	c, err := a.Compose(b)
	require.NoError(t, err)
	require.Equal(t, "a + b", c.Name)
	require.Equal(t, int64(50), c.MaxTokens)
	require.Equal(t, []string{"y"}, c.AllowedTools)
	require.Equal(t, []string{"p", "q"}, c.MatchesPattern("pq"))
	require.True(t, c.RequireHumanApproval)
	require.Equal(t, map[string]int64{"x": 2, "y": 1}, c.MaxCallsPerTool)
	require.Equal(t, 0.15, c.DriftThreshold, "a threshold of 0 is off, not strict")
	require.False(t, a.StricterThan(c) || b.StricterThan(c))
	require.True(t, c.StricterThan(a) && c.StricterThan(b))

	// Nothing in common is no tool at all, never every tool.
	none, err := a.Compose(parse("allowed_tools: [other]"))
	require.NoError(t, err)
	require.True(t, none.DenyAllTools)
	p := mustCompile(t, none.YAML())
	require.False(t, p.Evaluate(context.Background(), Input{Tool: "x"}).Allowed)
	require.True(t, none.StricterThan(a))
	// Hashes and guardrails of both are kept, and the stricter mode.
	h := strings.Repeat("0a", 32)
	hashed := parse("content_hashes: {x: '" + h + "'}\nguardrails: [{name: g, url: 'https://h/'}]\n")
	lax := parse("content_hash_mode: warn\nguardrails: [{name: l, url: 'https://l/', timeout_ms: 5}]\n")
	for _, both := range [][2]*GovernancePolicy{{hashed, lax}, {lax, hashed}} {
		c, err := both[0].Compose(both[1])
		require.NoError(t, err)
		require.Equal(t, ContentHashStrict, c.ContentHashMode)
		require.Equal(t, map[string]string{"x": h}, c.ContentHashes)
		require.Len(t, c.Guardrails, 2)
		back, err := GovernancePolicyFromYAML(c.YAML())
		require.NoError(t, err)
		require.Equal(t, c.Guardrails, back.Guardrails)
		require.Equal(t, c.ContentHashes, back.ContentHashes)
		require.Equal(t, c.ContentHashMode, back.ContentHashMode)
	}
	_, err = hashed.Compose(parse("content_hashes: {x: '" + strings.Repeat("0b", 32) + "'}"))
	require.ErrorContains(t, err, "both policies have a content hash for 'x'")
	all, err := none.Compose(a)
	require.NoError(t, err)
	require.True(t, all.DenyAllTools)
}
