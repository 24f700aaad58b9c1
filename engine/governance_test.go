package engine

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/pattern"
)

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
