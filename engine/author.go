package engine

import (
	"slices"

	"example.com/govnode/engine/authoring"
	"example.com/govnode/engine/source"
)

// What helps those who write policies: Lint and DiffPolicies, as package
// authoring has them.

// Lint reports what is valid and probably not meant: rules that can never
// decide, denies that an agent evades by leaving a field out, patterns that
// need care, limits that contradict each other, and what has no effect where it
// stands. The warnings of Compile are among them. Problems come ordered by path
// and line, each once.
func Lint(p *Policy) []source.Problem { return authoring.Lint(p.docs, slices.Clone(p.warnings)) }

// DiffPolicies lists in what two policies differ: settings of the tree, fields
// of the GovernancePolicy, documents with their fields and rules, files of other
// languages. Two trees of one document each are compared whatever their files
// are called.
func DiffPolicies(a, b *Policy) []authoring.Difference {
	return authoring.Diff(a.subject(), b.subject())
}

func (p *Policy) subject() authoring.Subject {
	return authoring.Subject{Docs: p.docs, DenyOnError: p.denyOnError, External: p.external}
}
