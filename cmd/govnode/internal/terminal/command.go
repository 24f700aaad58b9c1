package terminal

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"example.com/govnode/internal/nearest"
)

// What commands have in common: their arguments, their groups, and errors about
// their flags.

// Arguments refuses a wrong number of arguments behind a command.
func Arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		if !cmd.HasParent() {
			return Usagef("there is no command %q%s: see `govnode --help`", args[0], nearest.Hint(args[0], "", subcommands(cmd)))
		}
		if cmd.HasAvailableSubCommands() {
			return Usagef("%s has no command %q%s: see `%s --help`", cmd.CommandPath(), args[0], nearest.Hint(args[0], "", subcommands(cmd)), cmd.CommandPath())
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
func Group(use, short string, children ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use:   use,
		Short: short,
		Args:  cobra.ArbitraryArgs,
		RunE:  noSubcommand,
	}
	cmd.AddCommand(children...)
	return cmd
}

// noSubcommand says of a command that only holds others which it has.
func noSubcommand(cmd *cobra.Command, args []string) error {
	names := subcommands(cmd)
	if len(args) > 0 {
		return Usagef("%s has no command %q%s: it has %s", cmd.CommandPath(), args[0], nearest.Hint(args[0], "", names), strings.Join(names, ", "))
	}
	return Usagef("%s: say which command: %s", cmd.CommandPath(), strings.Join(names, ", "))
}

// subcommands are the names below a command that its help tells of.
func subcommands(cmd *cobra.Command) (names []string) {
	for _, c := range cmd.Commands() {
		if c.IsAvailableCommand() {
			names = append(names, c.Name())
		}
	}
	return names
}

// FlagError is an error about a flag with what to do about it.
func FlagError(cmd *cobra.Command, err error) error {
	if args := cmd.Flags().Args(); cmd.HasParent() && cmd.HasAvailableSubCommands() && len(args) > 0 {
		return noSubcommand(cmd, args) // the flag is that of a command that there is not
	}
	hint := ""
	if unknown := (*pflag.NotExistError)(nil); errors.As(err, &unknown) && unknown.GetSpecifiedShortnames() == "" {
		var names []string
		cmd.Flags().VisitAll(func(f *pflag.Flag) {
			if !f.Hidden {
				names = append(names, f.Name)
			}
		})
		hint = nearest.Hint(unknown.GetSpecifiedName(), "--", names)
	}
	return Usagef("%w%s: see `%s --help`", err, hint, cmd.CommandPath())
}
