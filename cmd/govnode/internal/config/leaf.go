package config

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/govnode/cmd/govnode/internal/terminal"
)

// How a command that does something gets its settings.

// Of are the settings that a command of a scope would run with, as its flags stand
// now.
func Of(cmd *cobra.Command, on Scope) (*Config, error) {
	own := &cobra.Command{}
	c := Bind(own, on)
	cmd.Flags().Visit(func(f *pflag.Flag) {
		if own.Flags().Lookup(f.Name) != nil {
			_ = own.Flags().Set(f.Name, f.Value.String()) // it was read once
		}
	})
	if err := c.Load(own.Flags(), os.LookupEnv); err != nil {
		return nil, err
	}
	return c, c.Check(on)
}

// Leaf makes a command that does something. Its settings are complete and
// checked when run is called; what run returns ends the program with 1 unless
// it says otherwise.
func Leaf(cmd *cobra.Command, on Scope, run func(cmd *cobra.Command, c *Config, args []string) error) *cobra.Command {
	c := Bind(cmd, on)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.Load(cmd.Flags(), os.LookupEnv); err != nil {
			return err
		}
		if err := c.Check(on); err != nil {
			return err
		}
		err := run(cmd, c, args)
		var coded *terminal.ExitError
		if err != nil && !errors.As(err, &coded) {
			err = &terminal.ExitError{Code: terminal.ExitNo, Err: err}
		}
		return err
	}
	return cmd
}
