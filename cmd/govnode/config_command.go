package main

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func configCommand() *cobra.Command {
	return group("config", "Explain the settings", configExplainCommand())
}

func configExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Print every setting, its value and where it came from",
		Long: `Prints every setting, its value and where it came from. A flag wins over the
environment, the environment over the file named by --config, the file over the
default. All flags of serve, dev and the client commands may be given here, to
see what they would come to; what they would lead to is not checked.`,
		Args: arguments(0, 0),
	}
	c := bind(cmd, onAll)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.load(cmd.Flags(), os.LookupEnv); err != nil {
			return err
		}
		if c.Output == "json" {
			return c.explainJSON(cmd.OutOrStdout())
		}
		t := newTable(cmd.OutOrStdout(), "SETTING", "VALUE", "FROM", "ENVIRONMENT", "COMMANDS", "MEANING")
		for _, s := range settings {
			t.row(s.flag, c.shown(s), c.sources[s.flag], s.env(), s.on.String(), s.text())
		}
		return t.flush()
	}
	return cmd
}

func (c *Config) explainJSON(w io.Writer) error {
	type line struct {
		Setting     string `json:"setting"`
		Value       string `json:"value"`
		From        string `json:"from"`
		Environment string `json:"environment"`
		Commands    string `json:"commands"`
		Meaning     string `json:"meaning"`
	}
	lines := make([]line, 0, len(settings))
	for _, s := range settings {
		lines = append(lines, line{s.flag, c.shown(s), c.sources[s.flag], s.env(), s.on.String(), s.text()})
	}
	return writeJSON(w, lines)
}

// String names the commands of a scope.
func (s scope) String() string {
	var names []string
	for _, n := range []struct {
		on   scope
		name string
	}{{onServe, "serve"}, {onDev, "dev"}, {onClient, "client"}} {
		if s&n.on != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, " ")
}
