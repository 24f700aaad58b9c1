package governance

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

// What is read is written as it was read, and says of which calls it is.
func TestRateLimits(t *testing.T) {
	read := func(doc string) *Policy {
		n, problem := source.Parse("policy.yaml", []byte(doc))
		require.Nil(t, problem)
		ps := &source.Problems{Path: "policy.yaml"}
		g := Read(n, ps)
		require.Empty(t, ps.List, doc)
		return g
	}
	g := read(`rate_limits:
- {name: calls, limit: 10, per: 1s}
- {name: tokens, limit: 1000000000, per: 24h, scope: agent, kinds: [model, agent], cost: tokens}
- {name: search, limit: 1, per: 100ms, scope: session, tools: ["web_*", find]}
`)
	require.Equal(t, []RateLimit{
		{Name: "calls", Limit: 10, Per: time.Second, Scope: ScopePolicy},
		{Name: "tokens", Limit: MaxRateLimit, Per: MaxRatePer, Scope: ScopeAgent, Kinds: []string{"model", "agent"}, Tokens: true},
		{Name: "search", Limit: 1, Per: MinRatePer, Scope: ScopeSession, Tools: []string{"web_*", "find"}},
	}, g.RateLimits)
	for _, tt := range []struct{ kind, tool, holds string }{
		{"tool", "web_get", "calls search"}, {"tool", "find", "calls search"}, {"tool", "finder", "calls"}, {"model", "", "calls tokens"}, {"handoff", "", "calls"},
	} {
		var names []string
		for i := range g.RateLimits {
			if g.RateLimits[i].Holds(tt.kind, tt.tool) {
				names = append(names, g.RateLimits[i].Name)
			}
		}
		require.Equal(t, tt.holds, strings.Join(names, " "), "%v", tt)
	}
	again := read(g.Dict().JSON())
	require.Equal(t, g.RateLimits, again.RateLimits)
	require.Empty(t, g.Diff(again))
	again.RateLimits[0].Limit++
	require.Len(t, g.Diff(again), 1)
}
