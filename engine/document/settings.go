package document

import (
	"slices"
	"strings"

	"example.com/govnode/engine/source"
)

// Settings are the options of a tree. Any of its YAML and JSON files may state
// one; two that differ are refused.
type Settings struct {
	Strict         *bool // mode: strict | standard
	Combining      Strategy
	TieBreakDeny   *bool  // tie_break: deny | first
	OnBackendError string // deny | default
	Lines          map[string]int
}

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

// Valid reports whether the level is one of the four.
func (l Level) Valid() bool { return l.Specificity() >= 0 }

// strategyWords are the strategies in lower case, as everything else in a
// document, and in the upper case of policy engine spec 13.2.
var strategyWords = []string{
	"deny_overrides", "allow_overrides", "priority_first_match", "most_specific_wins",
	string(DenyOverrides), string(AllowOverrides), string(PriorityFirstMatch), string(MostSpecificWins),
}

// ReadSettings reads the options of a tree from any of its files.
func ReadSettings(n *source.Node, ps *source.Problems) Settings {
	s := Settings{Lines: map[string]int{}}
	word := func(name string, allowed ...string) string {
		f, ok := source.Present(n, name)
		if !ok {
			return ""
		}
		s.Lines[name] = f.Line
		if f.Kind != source.String || !slices.Contains(allowed, f.Text) {
			ps.Add(f.Line, name, "%s must be %s, got %s", name, strings.Join(allowed, " or "), f.Repr())
			return ""
		}
		return f.Text
	}
	if w := word("mode", "strict", "standard"); w != "" {
		s.Strict = new(w == "strict")
	}
	s.Combining = Strategy(strings.ToUpper(word("combining", strategyWords...)))
	if w := word("tie_break", "deny", "first"); w != "" {
		s.TieBreakDeny = new(w == "deny")
	}
	s.OnBackendError = word("on_backend_error", "deny", "default")
	return s
}
