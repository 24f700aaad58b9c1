package bench

import (
	"math"
	"path/filepath"

	"github.com/spf13/cobra"

	"example.com/govnode/bench"
	"example.com/govnode/cmd/govnode/internal/terminal"
)

// govnode bench compare: two results side by side.

func benchCompareCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "compare BEFORE.json AFTER.json",
		Short: "Compare two results of govnode bench",
		Args:  terminal.Arguments(2, 2),
		RunE: func(cmd *cobra.Command, args []string) error {
			before, err := bench.ReadResult(args[0])
			if err != nil {
				return terminal.Unusable(err)
			}
			after, err := bench.ReadResult(args[1])
			if err != nil {
				return terminal.Unusable(err)
			}
			ratios, err := bench.Compare(before, after)
			if err != nil {
				return terminal.ExitWith(err)
			}
			return terminal.ExitWith(bench.WriteRatios(cmd.OutOrStdout(), ratios))
		},
	}
}

func benchTableCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "table RESULT.json...",
		Short: "Print results of govnode bench as tables in Markdown",
		Long: `Prints the measures that govnode is judged by, as far as the results have them, and
then every figure of each result. What has several rounds is shown by its median.`,
		Args: terminal.Arguments(1, math.MaxInt),
		RunE: func(cmd *cobra.Command, args []string) error {
			var all []bench.Named
			for _, path := range args {
				r, err := bench.ReadResult(path)
				if err != nil {
					return terminal.Unusable(err)
				}
				all = append(all, bench.Named{Name: filepath.Base(path), Result: r})
			}
			return terminal.ExitWith(bench.WriteMarkdown(cmd.OutOrStdout(), all))
		},
	}
}
