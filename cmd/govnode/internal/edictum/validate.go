package edictum

import (
	"fmt"
	"math"
	"path/filepath"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
)

// A fileReport says what is in one file, or what is wrong with it.
type fileReport struct {
	File   string         `json:"file"`
	Valid  bool           `json:"valid"`
	Error  string         `json:"error,omitempty"`
	Total  int            `json:"total"`
	Counts map[string]int `json:"counts"`
	Stages int            `json:"stages,omitempty"` // of a workflow, which has no rules
}

// A composition says how files were put together.
type composition struct {
	Overrides []map[string]string `json:"overrides"`
	Observes  []map[string]string `json:"observes"`
}

func compositionOf(r edictum.Report) *composition {
	c := &composition{Overrides: []map[string]string{}, Observes: []map[string]string{}}
	for _, o := range r.Overrides {
		c.Overrides = append(c.Overrides, map[string]string{"rule_id": o.Rule, "overridden_by": o.By, "original_source": o.From})
	}
	for _, o := range r.Candidates {
		c.Observes = append(c.Observes, map[string]string{"rule_id": o.Rule, "enforced_source": o.From, "observed_source": o.By})
	}
	return c
}

// say prints a composition for people.
func (c *composition) say(o *output) error {
	for _, x := range c.Overrides {
		if err := o.say("  %s of %s is overridden by %s", x["rule_id"], x["original_source"], x["overridden_by"]); err != nil {
			return err
		}
	}
	for _, x := range c.Observes {
		if err := o.say("  %s of %s only observes", x["rule_id"], x["observed_source"]); err != nil {
			return err
		}
	}
	return nil
}

func validateCommand() *cobra.Command {
	return command(&cobra.Command{
		Use:   "validate FILE...",
		Short: "Check rulesets and workflows",
		Long: `Checks rulesets and workflows, and says of each what is in it or what is wrong and where.
Of two rulesets or more it says how they are put together.`,
		Example: "  govnode edictum validate base.yaml team.yaml",
		Args:    terminal.Arguments(1, math.MaxInt),
	}, func(o *output, args []string) error {
		reports, docs := []fileReport{}, []*edictum.Document{}
		valid := true
		for _, file := range args {
			r := fileReport{File: file, Counts: map[string]int{"pre": 0, "post": 0, "session": 0, "sandbox": 0}}
			d, stages, err := readEither(file)
			switch r.Stages = stages; {
			case err != nil:
				r.Error, valid = err.Error(), false
			case d == nil:
				r.Valid = true
			default:
				r.Valid, r.Total = true, len(d.Rules)
				for _, rule := range d.Rules {
					r.Counts[rule.Type.String()]++
				}
				docs = append(docs, d)
			}
			reports = append(reports, r)
		}
		var composed *composition
		if valid && len(docs) > 1 {
			_, report, err := edictum.Compose(docs...)
			if err != nil {
				return err
			}
			composed = compositionOf(report)
		}
		if err := sayValidity(o, reports, valid, composed); err != nil {
			return err
		}
		if !valid {
			return no()
		}
		return nil
	})
}

func sayValidity(o *output, reports []fileReport, valid bool, composed *composition) error {
	if o.json {
		answer := map[string]any{"files": reports, "valid": valid}
		if composed != nil {
			answer["composed"] = composed
		}
		return o.print(answer)
	}
	for _, r := range reports {
		line := fmt.Sprintf("✗ %s — %s", filepath.Base(r.File), r.Error)
		if r.Valid {
			c := r.Counts
			if line = fmt.Sprintf("✓ %s — %d stages", filepath.Base(r.File), r.Stages); r.Stages == 0 {
				line = fmt.Sprintf("✓ %s — %d rules (%d pre, %d post, %d session, %d sandbox)", filepath.Base(r.File), r.Total, c["pre"], c["post"], c["session"], c["sandbox"])
			}
		}
		if err := o.say("%s", line); err != nil {
			return err
		}
	}
	if composed == nil {
		return nil
	}
	return composed.say(o)
}
