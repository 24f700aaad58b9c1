package main

import (
	"errors"
	"fmt"
	"io"
	"os"

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
