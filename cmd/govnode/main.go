package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/spf13/cobra"
)

func main() {
	os.Exit(execute(os.Args[1:], os.Stdout, os.Stderr))
}

// execute runs one command line and returns its exit code.
func execute(args []string, stdout, stderr io.Writer) int {
	root := rootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	cmd, err := root.ExecuteC()
	if err == nil {
		return exitYes
	}
	var failed *exitError
	if !errors.As(err, &failed) {
		// Only cobra returns errors of another kind, and only about the
		// command line itself.
		failed = &exitError{exitUsage, fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())}
	}
	if failed.err != nil {
		_, _ = fmt.Fprintln(stderr, "govnode:", oneLine(failed.err.Error()))
	}
	return failed.code
}

// The exit codes of every command; docs/operations.md has the table.
const (
	exitYes   = 0 // yes: done, allowed, valid, the same
	exitNo    = 1 // no: refused, denied, failed, or not reached
	exitUsage = 2 // the question cannot be put: the command line or what it names is wrong
)

// exitError ends the program with a code. Its error may be nil where the
// command has already said everything.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return fmt.Sprintf("exit code %d", e.code)
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is an error in how the program was called or set up.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// unusable is an error in what a command was given to work on: a file that is
// not there, or that cannot be read as what it has to be.
func unusable(err error) error { return &exitError{exitUsage, err} }

// oneLine keeps an error on one line, so that logs and scripts can rely on it.
func oneLine(text string) string {
	lines := strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\r' })
	for i := range lines {
		lines[i] = printable(strings.TrimSpace(lines[i]))
	}
	return strings.Join(lines, "; ")
}

func rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "govnode",
		Short: "Govern the calls of a fleet of agents",
		Long: `govnode governs the calls of a fleet of agents: sessions with pinned policies and
limits, and slots of shared pools, the same on every node of a cluster.

Start with:  govnode dev`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          arguments(0, 0),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usagef("%w: see `%s --help`", err, cmd.CommandPath())
	})
	root.AddCommand(
		devCommand(),
		serveCommand(),
		demoCommand(),
		benchCommand(),
		policyCommand(),
		explainCommand(),
		eventsCommand(),
		sessionCommand(),
		slotCommand(),
		repairCommand(),
		poolCommand(),
		clusterCommand(),
		snapshotCommand(),
		configCommand(),
		versionCommand(),
	)
	return root
}

// arguments refuses a wrong number of arguments behind a command.
func arguments(least, most int) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && len(args) <= most {
			return nil
		}
		if !cmd.HasParent() {
			return usagef("there is no command %q: see `govnode --help`", args[0])
		}
		given := fmt.Sprintf("%d arguments are given", len(args))
		if len(args) == 1 {
			given = "1 argument is given"
		}
		return usagef("%s: use `%s`", given, cmd.UseLine())
	}
}

// group is a command that only holds others. Called by itself, or with a name
// it does not have, it is a wrong use of the command line.
func group(use, short string, subcommands ...*cobra.Command) *cobra.Command {
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
				return usagef("%s has no command %q: it has %s", cmd.CommandPath(), args[0], strings.Join(names, ", "))
			}
			return usagef("%s: say which command: %s", cmd.CommandPath(), strings.Join(names, ", "))
		},
	}
	cmd.AddCommand(subcommands...)
	return cmd
}

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
