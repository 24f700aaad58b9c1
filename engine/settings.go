package engine

import (
	"slices"
	"strings"

	"example.com/govnode/engine/source"
)

// A Strategy decides between candidates that disagree (policy engine spec
// 13.2).
type Strategy string

// The four strategies. PriorityFirstMatch is the default.
const (
	DenyOverrides      Strategy = "DENY_OVERRIDES"
	AllowOverrides     Strategy = "ALLOW_OVERRIDES"
	PriorityFirstMatch Strategy = "PRIORITY_FIRST_MATCH"
	MostSpecificWins   Strategy = "MOST_SPECIFIC_WINS"
)

// A Level is the scope of a candidate (policy engine spec 13.3).
type Level string

// The four levels, from least to most specific.
const (
	LevelGlobal       Level = "global"
	LevelTenant       Level = "tenant"
	LevelOrganization Level = "organization"
	LevelAgent        Level = "agent"
)

// Specificity is 0 for global up to 3 for agent.
func (l Level) Specificity() int {
	return slices.Index([]Level{LevelGlobal, LevelTenant, LevelOrganization, LevelAgent}, l)
}

func (l Level) valid() bool { return l.Specificity() >= 0 }

// settings are the options of a tree. Any of its YAML and JSON files may state
// one; two that differ are refused.
type settings struct {
	strict         *bool // mode: strict | standard
	combining      Strategy
	tieBreakDeny   *bool  // tie_break: deny | first
	onBackendError string // deny | default
	lines          map[string]int
}

// strategyWords are the strategies in lower case, as everything else in a
// document, and in the upper case of policy engine spec 13.2.
var strategyWords = []string{
	"deny_overrides", "allow_overrides", "priority_first_match", "most_specific_wins",
	string(DenyOverrides), string(AllowOverrides), string(PriorityFirstMatch), string(MostSpecificWins),
}

// readSettings reads the options of a tree from any of its files.
func readSettings(n *source.Node, ps *source.Problems) settings {
	s := settings{lines: map[string]int{}}
	word := func(name string, allowed ...string) string {
		f, ok := source.Present(n, name)
		if !ok {
			return ""
		}
		s.lines[name] = f.Line
		if f.Kind != source.String || !slices.Contains(allowed, f.Text) {
			ps.Add(f.Line, name, "%s must be %s, got %s", name, strings.Join(allowed, " or "), f.Repr())
			return ""
		}
		return f.Text
	}
	if w := word("mode", "strict", "standard"); w != "" {
		s.strict = new(w == "strict")
	}
	s.combining = Strategy(strings.ToUpper(word("combining", strategyWords...)))
	if w := word("tie_break", "deny", "first"); w != "" {
		s.tieBreakDeny = new(w == "deny")
	}
	s.onBackendError = word("on_backend_error", "deny", "default")
	return s
}
