package main

import (
	"bytes"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
)

func policyDiffCommand() *cobra.Command {
	var output string
	cmd := &cobra.Command{
		Use:   "diff FILE|DIR FILE|DIR",
		Short: "Print in what two policies differ; needs no node",
		Long: `Prints in which numbers and lists the GovernancePolicies of two policies differ, which of
their rules were added, removed or changed, and whether one of the two is stricter
(policy engine spec 8.5). The exit code is 0 if they are the same, 1 if they differ and
3 if one of them is not valid.`,
		Args: arguments(2, 2),
	}
	checkOutput := outputFlag(cmd, &output, "text", "json")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := checkOutput(); err != nil {
			return err
		}
		var pair [2]*engine.Policy
		var sources [2]*policySource
		for i, path := range args {
			var err error
			if sources[i], err = readPolicy(path); err != nil {
				return badPolicy(err)
			}
			if pair[i], err = sources[i].compile(); err != nil {
				return badPolicy(err)
			}
		}
		d := diffPolicies(pair[0], pair[1])
		d.renamed = sources[0].renamed(sources[1])
		d.Same = d.Same || d.renamed && sources[0].byFolder() == sources[1].byFolder()
		if err := d.print(cmd.OutOrStdout(), output, pair[0], pair[1]); err != nil {
			return err
		}
		if !d.Same {
			return &exitError{code: exitNo}
		}
		return nil
	}
	return cmd
}

// renamed reports whether both are single files of the same content. Their
// digests differ with their names.
func (s *policySource) renamed(other *policySource) bool {
	return !s.folder && !other.folder && bytes.Equal(s.files[0].Content, other.files[0].Content)
}

// byFolder reports whether the policy is a single file that holds for a folder.
func (s *policySource) byFolder() bool {
	name := s.files[0].Path
	return !s.folder && (name == "governance.yaml" || name == "governance.yml")
}

type (
	policyDiff struct {
		Same     bool          `json:"same"`
		Stricter string        `json:"stricter"` // first, second or neither
		Fields   []fieldChange `json:"fields"`
		Rules    []ruleChange  `json:"rules"`

		renamed bool // nothing but the name of a single file differs
	}
	fieldChange struct {
		Field string `json:"field"`
		Old   string `json:"old"`
		New   string `json:"new"`
	}
	ruleChange struct {
		Path   string `json:"path"`
		Rule   string `json:"rule"`
		Change string `json:"change"` // added, removed or changed
		Old    string `json:"old,omitempty"`
		New    string `json:"new,omitempty"`
	}
)

func diffPolicies(a, b *engine.Policy) policyDiff {
	d := policyDiff{Same: a.Digest() == b.Digest(), Stricter: "neither", Fields: []fieldChange{}, Rules: diffRules(a, b)}
	for _, c := range a.Governance().Diff(b.Governance()) {
		d.Fields = append(d.Fields, fieldChange{c.Field, c.Old.Repr(), c.New.Repr()})
	}
	switch {
	case a.Governance().StricterThan(b.Governance()):
		d.Stricter = "first"
	case b.Governance().StricterThan(a.Governance()):
		d.Stricter = "second"
	}
	return d
}

type ruleName struct{ path, rule string }

// diffRules compares the rules of files of the same path by their names. Two
// files that stand alone are compared whatever they are called.
func diffRules(a, b *engine.Policy) []ruleChange {
	alone := len(a.Documents()) == 1 && len(b.Documents()) == 1
	old, _ := rulesOf(a, alone)
	now, order := rulesOf(b, alone)
	changes := []ruleChange{}
	for _, name := range order {
		was, had := old[name]
		switch {
		case !had:
			changes = append(changes, ruleChange{name.path, name.rule, "added", "", now[name]})
		case was != now[name]:
			changes = append(changes, ruleChange{name.path, name.rule, "changed", was, now[name]})
		}
	}
	_, order = rulesOf(a, alone)
	for _, name := range order {
		if _, has := now[name]; !has {
			changes = append(changes, ruleChange{name.path, name.rule, "removed", old[name], ""})
		}
	}
	return changes
}

func rulesOf(p *engine.Policy, alone bool) (texts map[ruleName]string, order []ruleName) {
	texts = map[ruleName]string{}
	for _, d := range p.Documents() {
		for _, r := range d.Rules {
			name := ruleName{d.Path, r.Name}
			if alone {
				name.path = ""
			}
			if _, twice := texts[name]; !twice {
				order = append(order, name)
			}
			texts[name] += ruleText(r)
		}
	}
	return texts, order
}

// ruleText is all that a rule says.
func ruleText(r *engine.Rule) string {
	return fmt.Sprintf("if %s %s %s then %s, priority %d, override %t, message %s;",
		r.Condition.Field, r.Condition.Operator, r.Condition.Value.Repr(), r.Action, r.Priority, r.Override, value.OfString(r.Message).Repr())
}

func (d policyDiff) print(w io.Writer, output string, a, b *engine.Policy) error {
	if output == "json" {
		return writeJSON(w, d)
	}
	if d.Same {
		_, err := fmt.Fprintln(w, "Policies are identical.")
		return err
	}
	if len(d.Fields) > 0 {
		_, _ = fmt.Fprintln(w, printableLines(a.Governance().FormatDiff(b.Governance())))
	}
	for _, c := range d.Rules {
		_, _ = fmt.Fprintf(w, "rule %s: %s\n", c.Change, printable((engine.Problem{Path: c.Path, Message: c.Rule}).String()))
		if c.Old != "" {
			_, _ = fmt.Fprintf(w, "  - %s\n", printable(c.Old))
		}
		if c.New != "" {
			_, _ = fmt.Fprintf(w, "  + %s\n", printable(c.New))
		}
	}
	switch {
	case d.renamed:
		_, _ = fmt.Fprintln(w, "The contents are the same; a file named governance.yaml or governance.yml holds for its folder, any other for every call.")
	case len(d.Fields) == 0 && len(d.Rules) == 0:
		_, _ = fmt.Fprintln(w, "The files differ; numbers and rules are the same.")
	}
	switch d.Stricter {
	case "first", "second":
		_, _ = fmt.Fprintf(w, "The %s is the stricter one in its numbers and lists.\n", d.Stricter)
	}
	return nil
}
