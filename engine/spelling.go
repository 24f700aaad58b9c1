package engine

import (
	"strings"

	"example.com/govnode/engine/document"
	"example.com/govnode/engine/pattern"
	"example.com/govnode/engine/value"
)

// The names of tools that a policy writes out. It compares them exactly, so a tool that is
// called by one of them in other letters would pass by the rules and limits that are for
// it, while frameworks that look tools up without regard to case run the same one.

// spellings are names of tools, and globs over them, as a policy writes them.
type spellings struct {
	names  map[string]bool
	folded map[string]string // in lower case -> as it is written
	globs  []spelledGlob
}

type spelledGlob struct {
	text          string
	exact, folded pattern.Name
}

func (s *spellings) allow(name string) {
	if s.names == nil {
		s.names, s.folded = map[string]bool{}, map[string]string{}
	}
	s.names[name] = true
}

func (s *spellings) add(text string) {
	if text == "" || s.folded[strings.ToLower(text)] == text {
		return
	}
	s.allow(text)
	folded := strings.ToLower(text)
	switch {
	case !strings.ContainsAny(text, "*?["):
		s.folded[folded] = text
	case strings.Trim(text, "*?") != "":
		s.globs = append(s.globs, spelledGlob{text, pattern.Names(text), pattern.Names(folded)})
	}
}

// linkSpellings gathers the names that the files of a tree write out.
func (c *compiler) linkSpellings() {
	p := c.policy
	s := &p.spellings
	for _, name := range p.governance.AllowedTools { // others are denied: it need not be told from them
		s.allow(name)
	}
	for name := range p.governance.ContentHashes {
		s.add(name)
	}
	for i := range p.governance.RateLimits {
		for _, glob := range p.governance.RateLimits[i].Tools {
			s.add(glob)
		}
	}
	for _, limit := range p.limits.MaxCallsPerTool {
		s.add(limit.Tool)
	}
	for _, d := range c.documents {
		for _, r := range d.Rules {
			s.addCondition(&r.Condition)
		}
	}
	if p.rulesetDoc != nil {
		for _, r := range p.rulesetDoc.Rules {
			for _, glob := range r.Tools {
				s.add(glob)
			}
		}
		for name := range p.rulesetDoc.Tools {
			s.add(name)
		}
	}
}

func (s *spellings) addCondition(c *document.Condition) {
	if tool, ok := strings.CutPrefix(c.Field, "tool_calls."); ok {
		s.add(tool)
	}
	if c.Field != "tool_name" {
		return
	}
	switch c.Operator {
	case document.OpEq, document.OpNe, document.OpIn, document.OpNotIn:
		if text, ok := c.Value.AsString(); ok {
			s.add(text)
		} else if c.Value.Kind() == value.List {
			for i := range c.Value.Len() {
				if text, ok := c.Value.Index(i).AsString(); ok {
					s.add(text)
				}
			}
		}
	}
}

// Spelling returns the name or the glob of the policy that a tool differs from in no more
// than the case of letters; "" if there is none, or if the policy writes the name itself.
func (p *Policy) Spelling(tool string) string {
	s := &p.spellings
	if len(s.names) == 0 {
		return ""
	}
	folded := strings.ToLower(tool)
	name := s.folded[folded]
	if name == "" && len(s.globs) == 0 || s.names[tool] {
		return ""
	}
	if name != "" && name != tool {
		return name
	}
	for i := range s.globs {
		if g := &s.globs[i]; g.folded.Match(folded) && !g.exact.Match(tool) {
			return g.text
		}
	}
	return ""
}
