package main

import (
	"errors"
	"os"

	"github.com/spf13/cobra"
)

// leaf makes a command that does something. Its settings are complete and
// checked when run is called; what run returns ends the program with 1 unless
// it says otherwise.
func leaf(cmd *cobra.Command, on scope, run func(cmd *cobra.Command, c *Config, args []string) error) *cobra.Command {
	c := bind(cmd, on)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := c.load(cmd.Flags(), os.LookupEnv); err != nil {
			return err
		}
		if err := c.check(on); err != nil {
			return err
		}
		err := run(cmd, c, args)
		var coded *exitError
		if err != nil && !errors.As(err, &coded) {
			err = &exitError{exitNo, err}
		}
		return err
	}
	return cmd
}
