package edictum

import (
	"fmt"
	"strings"
)

// Limits are what a ruleset counts: the least of each over its session rules, with the
// rule that set it. They are enforced by who counts.
type Limits struct {
	Attempts  Limit
	ToolCalls Limit
	PerTool   map[string]Limit
	// Observed are limits of rules that only say what they would refuse, candidates
	// among them.
	Observed []Limits
}

// A Limit is one. N calls are let through.
type Limit struct {
	N       int64
	Rule    string // that set it; empty of a default
	Message string // its words; empty of a default
}

// Texts of limits, which stand in for a rule that has none of its own.

// AttemptText is that of attempts.
func AttemptText(n int64) string {
	return fmt.Sprintf("Attempt limit reached (%d). Agent may be stuck in a retry loop. Stop and reassess.", n)
}

// CallText is that of all calls, of the default alone.
func CallText(n int64) string {
	return fmt.Sprintf("Execution limit reached (%d calls). Summarize progress and stop.", n)
}

// ToolText is that of the calls of one tool.
func ToolText(tool string, n, limit int64) string {
	return fmt.Sprintf("Per-tool limit: %s called %d times (limit: %d).", tool, n, limit)
}

// Would are the records of limits that only say what they would refuse, for a call
// behind so many attempts and calls.
func (rs *Ruleset) Would(tool string, attempts, calls, ofTool int64) (records []Record) {
	for i := range rs.limits.Observed {
		l := &rs.limits.Observed[i]
		says := func(rule string, n, limit int64, text string) {
			if limit > 0 && n >= limit {
				records = append(records, Record{
					Rule: rule, Type: Session.record(), Message: text, Observed: true, Candidate: strings.HasSuffix(rule, candidateSuffix),
				})
			}
		}
		says(l.Attempts.Rule, attempts, l.Attempts.N, AttemptText(l.Attempts.N))
		says(l.ToolCalls.Rule, calls, l.ToolCalls.N, l.ToolCalls.Message)
		t := l.PerTool[tool]
		says(t.Rule, ofTool, t.N, ToolText(tool, ofTool, t.N))
	}
	return records
}

// What holds where no rule says otherwise.
const (
	DefaultAttempts  = 500
	DefaultToolCalls = 200
)

// DefaultLimits are what holds where there is no rule at all.
func DefaultLimits() Limits { return limitsOf(nil) }

// Limits returns what is to be counted.
func (rs *Ruleset) Limits() Limits { return rs.limits }

func limitsOf(rules []rule) Limits {
	all := Limits{PerTool: map[string]Limit{}}
	for i := range rules {
		r := &rules[i]
		if r.Type != Session {
			continue
		}
		if r.observes {
			one := Limits{PerTool: map[string]Limit{}}
			one.add(r)
			all.Observed = append(all.Observed, one)
			continue
		}
		all.add(r)
	}
	if all.Attempts.N == 0 {
		all.Attempts.N = DefaultAttempts
	}
	if all.ToolCalls.N == 0 {
		all.ToolCalls.N = DefaultToolCalls
	}
	return all
}

func (l *Limits) add(r *rule) {
	l.Attempts = least(l.Attempts, r, r.Rule.Limits.Attempts)
	l.ToolCalls = least(l.ToolCalls, r, r.Rule.Limits.ToolCalls)
	for tool, n := range r.Rule.Limits.PerTool {
		l.PerTool[tool] = least(l.PerTool[tool], r, n)
	}
}

func least(has Limit, r *rule, n int64) Limit {
	if n == 0 || has.N != 0 && has.N <= n {
		return has
	}
	return Limit{N: n, Rule: r.ID, Message: r.Rule.Message}
}
