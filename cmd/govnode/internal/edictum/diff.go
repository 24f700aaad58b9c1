package edictum

import (
	"math"
	"reflect"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
)

// A difference is between two rulesets.
type difference struct {
	Added      []ruleName `json:"added"`
	Removed    []ruleName `json:"removed"`
	Changed    []string   `json:"changed"`
	Unchanged  []string   `json:"unchanged"`
	HasChanges bool       `json:"has_changes"`
}

type ruleName struct {
	ID   string `json:"id"`
	Type string `json:"type"`
}

func diffCommand() *cobra.Command {
	return command(&cobra.Command{
		Use:   "diff FILE FILE...",
		Short: "Compare rulesets",
		Long: `Says which rules a ruleset has added, removed and changed against another. Of three or
more it says what each overrides. It ends with 1 where there is a difference.`,
		Example: "  govnode edictum diff before.yaml after.yaml",
		Args:    terminal.Arguments(2, math.MaxInt),
	}, func(o *output, files []string) error {
		var docs []*edictum.Document
		for _, f := range files {
			d, err := read(f)
			if err != nil {
				return err
			}
			docs = append(docs, d)
		}
		if len(docs) > 2 {
			return diffMany(o, docs)
		}
		d := differenceOf(docs[0], docs[1])
		if err := d.say(o); err != nil {
			return err
		}
		if d.HasChanges {
			return no()
		}
		return nil
	})
}

func diffMany(o *output, docs []*edictum.Document) error {
	_, report, err := edictum.Compose(docs...)
	if err != nil {
		return err
	}
	c := compositionOf(report)
	changes := len(c.Overrides)+len(c.Observes) > 0
	if o.json {
		err = o.print(map[string]any{"overrides": c.Overrides, "observes": c.Observes, "has_changes": changes})
	} else if err = c.say(o); err == nil {
		err = o.say("Summary: %d overridden, %d observing", len(c.Overrides), len(c.Observes))
	}
	if err == nil && changes {
		return no()
	}
	return err
}

func differenceOf(before, after *edictum.Document) difference {
	d := difference{Added: []ruleName{}, Removed: []ruleName{}, Changed: []string{}, Unchanged: []string{}}
	was := map[string]edictum.Rule{}
	for _, r := range before.Rules {
		was[r.ID] = r
	}
	is := map[string]bool{}
	for _, r := range after.Rules {
		is[r.ID] = true
		old, there := was[r.ID]
		old.Source = r.Source
		switch {
		case !there:
			d.Added = append(d.Added, ruleName{r.ID, r.Type.String()})
		case reflect.DeepEqual(old, r) && (r.OwnMode || before.Mode == after.Mode):
			d.Unchanged = append(d.Unchanged, r.ID)
		default:
			d.Changed = append(d.Changed, r.ID)
		}
	}
	for _, r := range before.Rules {
		if !is[r.ID] {
			d.Removed = append(d.Removed, ruleName{r.ID, r.Type.String()})
		}
	}
	d.HasChanges = len(d.Added)+len(d.Removed)+len(d.Changed) > 0
	return d
}

func (d *difference) say(o *output) error {
	if o.json {
		return o.print(d)
	}
	for _, r := range d.Added {
		if err := o.say("+ %s (type: %s)", r.ID, r.Type); err != nil {
			return err
		}
	}
	for _, r := range d.Removed {
		if err := o.say("- %s (type: %s)", r.ID, r.Type); err != nil {
			return err
		}
	}
	for _, id := range d.Changed {
		if err := o.say("~ %s", id); err != nil {
			return err
		}
	}
	if err := o.say("= %d rules unchanged", len(d.Unchanged)); err != nil {
		return err
	}
	return o.say("Summary: %d added, %d removed, %d changed, %d unchanged", len(d.Added), len(d.Removed), len(d.Changed), len(d.Unchanged))
}
