package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/bench"
	"example.com/govnode/cmd/govnode/internal/certify"
	"example.com/govnode/cmd/govnode/internal/complete"
	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/demo"
	"example.com/govnode/cmd/govnode/internal/dev"
	"example.com/govnode/cmd/govnode/internal/edictum"
	"example.com/govnode/cmd/govnode/internal/operate"
	"example.com/govnode/cmd/govnode/internal/policy"
	"example.com/govnode/cmd/govnode/internal/serve"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/cmd/govnode/internal/version"
)

// The program: its commands, and how one command line is run.

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
		return terminal.ExitYes
	}
	var failed *terminal.ExitError
	if !errors.As(err, &failed) {
		// Only cobra returns errors of another kind, and only about the
		// command line itself.
		failed = &terminal.ExitError{Code: terminal.ExitUsage, Err: fmt.Errorf("%w: see `%s --help`", err, cmd.CommandPath())}
	}
	if failed.Err != nil {
		_, _ = fmt.Fprintln(stderr, "govnode:", terminal.OneLine(failed.Err.Error()))
	}
	return failed.Code
}

// rootCommand is the tree of all commands. What stands below each begins in the
// function that is called for it.
func rootCommand() *cobra.Command {
	var asked bool // for the version
	root := &cobra.Command{
		Use:   "govnode",
		Short: "Govern the calls of a fleet of agents",
		Long: `govnode governs the calls of a fleet of agents: sessions with pinned policies and
limits, and slots of shared pools, the same on every node of a cluster.

Start with:  govnode dev`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          terminal.Arguments(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if asked {
				return version.Of().Print(cmd.OutOrStdout())
			}
			return cmd.Help()
		},
	}
	root.Flags().BoolVar(&asked, "version", false, "print the version, as the command version does")
	root.SetFlagErrorFunc(terminal.FlagError)
	root.AddCommand(
		dev.Command(),
		serve.Command(),
		demo.Command(),
		bench.Command(),
		policy.Command(),
		operate.Explain(),
		operate.Events(),
		operate.Session(),
		operate.Signal(),
		operate.Approval(),
		operate.Slot(),
		operate.Repair(),
		operate.Pool(),
		operate.Rate(),
		operate.Budget(),
		operate.State(),
		operate.Token(),
		operate.Audit(),
		operate.Quota(),
		operate.Login(),
		operate.Logout(),
		operate.WhoAmI(),
		operate.Cluster(),
		operate.Snapshot(),
		edictum.Command(),
		certify.Command(),
		config.Command(),
		version.Command(),
	)
	complete.Register(root)
	return root
}
