package terminal

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"
)

// Arguments refuses a wrong number of arguments behind a command.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		if !cmd.HasParent() {
			return Usagef("there is no command %q: see `govnode --help`", args[0])
		}
		given := fmt.Sprintf("%d arguments are given", len(args))
		if len(args) == 1 {
			given = "1 argument is given"
		}
		return Usagef("%s: use `%s`", given, cmd.UseLine())
	}
}

// Group is a command that only holds others. Called by itself, or with a name
// it does not have, it is a wrong use of the command line.
func Group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
	names := make([]string, len(subcommands))
	for i, c := range subcommands {
		names[i] = c.Name()
	}
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) > 0 {
				return Usagef("%s has no command %q: it has %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
			}
			return Usagef("%s: say which command: %s", cmd.CommandPath(), strings.Join(names, ", "))
		},
	}
	cmd.AddCommand(subcommands...)
	return cmd
}
