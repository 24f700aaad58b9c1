package config

import (
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// Command is `govnode config`.
func Command() *cobra.Command {
	return terminal.Group("config", "Explain the settings", configExplainCommand())
}

func configExplainCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "explain",
		Short: "Print every setting, its value and where it came from",
		Long: `Prints every setting, its value and where it came from. A flag wins over the
environment, the environment over the file named by --config, the file over the
default. All flags of serve, dev and the client commands may be given here, to
see what they would come to; what they would lead to is not checked.`,
		Args: terminal.Arguments(0, 0),
	}
	c := Bind(cmd, onAll)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := c.Load(cmd.Flags(), os.LookupEnv); err != nil {
			return err
		}
		if c.Output == "json" {
			return c.explainJSON(cmd.OutOrStdout())
		}
		t := terminal.NewTable(cmd.OutOrStdout(), "SETTING", "VALUE", "FROM", "ENVIRONMENT", "COMMANDS", "MEANING")
		for _, s := range settings {
			t.Row(s.flag, c.shown(s), c.sources[s.flag], s.env(), s.on.String(), s.text())
		}
		return t.Flush()
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
	return terminal.WriteJSON(w, lines)
}

// String names the commands of a scope.
func (s Scope) String() string {
	var names []string
	for _, n := range []struct {
		on   Scope
		name string
	}{{OnServe, "serve"}, {OnDev, "dev"}, {OnClient, "client"}} {
		if s&n.on != 0 {
			names = append(names, n.name)
		}
	}
	return strings.Join(names, " ")
}
