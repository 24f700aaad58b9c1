package edictum

import (
	"encoding/json"
	"errors"
	"io"
	"os"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// What the commands on files share. They end with 0 where all is well, with 1 where
// something is invalid, blocked, asked about, changed or failed, and with 2 where the
// question cannot be put. --json changes what is printed and never how it ends.

// read reads one ruleset.
func read(file string) (*edictum.Document, error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, err
	}
	return edictum.Parse(file, raw)
}

// readEither reads a ruleset, or a workflow, of which it tells the stages.
func readEither(file string) (d *edictum.Document, stages int, err error) {
	raw, err := os.ReadFile(file)
	if err != nil {
		return nil, 0, err
	}
	if n, problems := source.Parse(file, raw); len(problems) == 0 && n != nil && n.Kind == source.Map && workflow.IsWorkflow(n) {
		flow, err := workflow.Parse(raw)
		if err != nil {
			return nil, 0, err
		}
		return nil, len(flow.Stages), nil
	}
	d, err = edictum.Parse(file, raw)
	return d, 0, err
}

// load reads rulesets and puts them together.
func load(files []string) (*edictum.Ruleset, *edictum.Document, error) {
	var docs []*edictum.Document
	for _, f := range files {
		d, err := read(f)
		if err != nil {
			return nil, nil, errors.New(f + ": " + err.Error())
		}
		docs = append(docs, d)
	}
	whole, _, err := edictum.Compose(docs...)
	if err != nil {
		return nil, nil, err
	}
	rs, err := edictum.Compile(whole)
	return rs, whole, err
}

// command makes a command whose answers are for people or, with --json, for programs.
func command(cmd *cobra.Command, run func(o *output, args []string) error) *cobra.Command {
	o := &output{}
	cmd.Flags().BoolVar(&o.json, "json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		o.out = cmd.OutOrStdout()
		err := run(o, args)
		var coded *terminal.ExitError
		if err == nil || errors.As(err, &coded) {
			return err
		}
		if o.json {
			if e := o.print(map[string]any{"error": err.Error(), "success": false}); e != nil {
				return e
			}
		}
		return terminal.Unusable(err)
	}
	return cmd
}

// An output is where answers go.
type output struct {
	json bool
	out  io.Writer
}

func (o *output) print(v any) error {
	e := json.NewEncoder(o.out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

func (o *output) say(format string, args ...any) error {
	return terminal.Say(o.out, format, args...)
}

// no ends a command that has said what is wrong.
func no() error { return &terminal.ExitError{Code: terminal.ExitNo} }

// plain is a value as encoding/json has it.
func plain(v value.Value) json.RawMessage { return json.RawMessage(v.JSON()) }

// decisions are the words of verdicts.
var decisions = map[edictum.Action]string{edictum.Allow: "allow", edictum.Block: "block", edictum.Ask: "ask"}
