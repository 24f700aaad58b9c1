package edictum

import (
	"fmt"
	"maps"
	"slices"
)

// Several files as one ruleset.

// A Report tells how files were put together.
type Report struct {
	Overrides  []Override
	Candidates []Override // rules of files that stand beside the others
}

// An Override is a rule that a later file has, too.
type Override struct {
	Rule     string
	By, From string // files
}

// Compose puts files together, from left to right: a rule with a known id takes the
// place of that, others follow, and a file with observe_alongside brings candidates.
func Compose(docs ...*Document) (*Document, Report, error) {
	if len(docs) == 0 {
		return nil, Report{}, &Problem{Message: "there is no ruleset; give one or more files"}
	}
	out := *docs[0]
	out.Rules, out.Tools, out.given = slices.Clone(docs[0].Rules), maps.Clone(docs[0].Tools), maps.Clone(docs[0].given)
	out.hash = joined(docs)
	var report Report
	places := map[string]int{} // of the rules that are no candidates, by their ids
	for i := range slices.Backward(out.Rules) {
		if r := &out.Rules[i]; !r.Candidate {
			places[r.ID] = i
		}
	}
	for _, d := range docs[1:] {
		for _, r := range d.Rules {
			i, known := places[r.ID]
			if d.Alongside {
				o := Override{Rule: r.ID, By: d.source}
				if known {
					o.From = out.Rules[i].Source
				}
				report.Candidates = append(report.Candidates, o)
				r.ID, r.Candidate = r.ID+candidateSuffix, true
				out.Rules = append(out.Rules, r)
				continue
			}
			if !known {
				places[r.ID] = len(out.Rules)
				out.Rules = append(out.Rules, r)
				continue
			}
			report.Overrides = append(report.Overrides, Override{Rule: r.ID, By: d.source, From: out.Rules[i].Source})
			out.Rules[i] = r
		}
		maps.Copy(out.Tools, d.Tools)
		out.Warnings = append(slices.Clone(out.Warnings), d.Warnings...)
		if !d.Alongside {
			out.Mode = d.Mode
		}
		if d.Name != "" {
			out.Name = d.Name
		}
		if d.Description != "" {
			out.Description = d.Description
		}
	}
	return &out, report, nil
}

// candidateSuffix ends the id of a rule that stands beside others.
const candidateSuffix = ":candidate"

// mostParents bounds a chain of extends.
const mostParents = 50

// Extend puts the rules of a document's parents before its own. Lookup finds a parent
// by its name; nil is none.
func Extend(d *Document, lookup func(name string) *Document) (*Document, error) {
	chain := []*Document{d}
	seen := map[string]bool{}
	for at := d; at.Extends != ""; {
		name := at.Extends
		switch {
		case seen[name]:
			return nil, &Problem{Field: "extends", Message: fmt.Sprintf("extends: '%s' extends itself, by way of others or directly", name)}
		case len(chain) > mostParents:
			return nil, &Problem{Field: "extends", Message: fmt.Sprintf("extends: there are more than %d parents", mostParents)}
		}
		seen[name] = true
		if at = lookup(name); at == nil {
			return nil, &Problem{Field: "extends", Message: fmt.Sprintf("extends: there is no ruleset '%s'", name)}
		}
		chain = append(chain, at)
	}
	if len(chain) == 1 {
		return d, nil
	}
	slices.Reverse(chain)
	out := *d
	out.Rules, out.Extends, out.hash = nil, "", joined(chain)
	ids := map[string]bool{}
	for _, part := range chain {
		for _, r := range part.Rules {
			if ids[r.ID] {
				return nil, &Problem{Rule: r.ID, Field: "id", Message: fmt.Sprintf("Duplicate rule id: '%s'", r.ID)}
			}
			ids[r.ID] = true
			out.Rules = append(out.Rules, r)
		}
		if part != d {
			inherit(&out, part)
		}
	}
	return &out, nil
}

// inherit takes from a parent what a child does not say. What the child says wins
// whole. What is doubtful about the parent is so about the child.
func inherit(child *Document, parent *Document) {
	if parent.given["tools"] && !child.given["tools"] {
		child.Tools = parent.Tools
	}
	if parent.given["observe_alongside"] && !child.given["observe_alongside"] {
		child.Alongside = parent.Alongside
	}
	child.Warnings = append(slices.Clone(parent.Warnings), child.Warnings...)
}
