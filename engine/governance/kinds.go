package governance

import (
	"math"
	"slices"
	"time"

	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// Limits of calls by their kind, and the breaker, as a GovernancePolicy states
// them.

// KindFields are the fields that limit calls by their kind, in the order of the
// kinds.
var KindFields = []string{"max_model_calls", "max_agent_calls", "max_handoffs", "max_sampling_requests"}

// DefaultBreakerReset is how long a breaker stays open.
const DefaultBreakerReset = time.Minute

func (r reader) kinds(g *Policy) {
	for _, name := range KindFields {
		if f, ok := r.n.Get(name); ok {
			if g.MaxOfKind == nil {
				g.MaxOfKind = map[string]int64{}
			}
			g.MaxOfKind[name] = r.Count(f, name, 0, math.MaxInt64)
		}
	}
}

func (r reader) breaker(g *Policy) {
	r.number("max_consecutive_failures", 1, math.MaxInt64, &g.MaxConsecutiveFailures)
	r.duration("breaker_reset", time.Second, MaxBreakerReset, &g.BreakerReset)
	if _, ok := r.n.Get("breaker_reset"); ok && g.MaxConsecutiveFailures == 0 {
		r.Add(g.Line("breaker_reset"), "breaker_reset", "breaker_reset needs max_consecutive_failures beside it; say after how many failures the breaker opens")
	}
}

// duration reads a number with its unit, such as 60s or 1h30m.
func (r reader) duration(name string, least, most time.Duration, into *time.Duration) {
	if f, ok := r.n.Get(name); ok {
		r.durationOf(f, name, least, most, into)
	}
}

func (r reader) durationOf(f *source.Node, field string, least, most time.Duration, into *time.Duration) {
	d, err := time.ParseDuration(f.Text)
	if f.Kind != source.String || err != nil || d < least || d > most {
		r.Add(f.Line, field, "%s must be a duration from %s to %s, such as %s, got %s", field, least, most, *into, f.Repr())
		return
	}
	*into = d
}

// kindPairs writes what is set of both, for Dict.
func (g *Policy) kindPairs() (pairs []value.Pair) {
	for _, name := range KindFields {
		if most, ok := g.MaxOfKind[name]; ok {
			pairs = append(pairs, value.Pair{Key: name, Value: value.OfInt(most)})
		}
	}
	if g.MaxConsecutiveFailures > 0 {
		pairs = append(pairs,
			value.Pair{Key: "max_consecutive_failures", Value: value.OfInt(g.MaxConsecutiveFailures)},
			value.Pair{Key: "breaker_reset", Value: value.OfString(g.BreakerReset.String())})
	}
	return slices.Clip(pairs)
}
