package operate

import (
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Budget is `govnode budget`.
func Budget() *cobra.Command {
	return terminal.Group("budget", "Make, adjust and list budgets that calls are charged to",
		budgetPutCommand(), budgetGetCommand(), budgetListCommand(), budgetAdjustCommand(), budgetDeleteCommand())
}

func budgetPutCommand() *cobra.Command {
	var amount, parent string
	var per time.Duration
	cmd := config.Leaf(&cobra.Command{
		Use:   "put BUDGET --amount N",
		Short: "Make a budget, or change its amount",
		Long: `Makes a budget, or changes its amount. What is used of it is used of all above it. Less
than is used takes nothing away: nothing is admitted until there is room again. Parent
and period are those that it was made with.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.PutBudgetRequest{
			Budget: args[0], Parent: parent, Amount: amount, RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		if per != 0 {
			req.Per = durationpb.New(per)
		}
		return remote.Answer(cmd, c, remote.Node.PutBudget, req, func(w io.Writer, a *govnodev1.PutBudgetResponse) error { return printLeft(w, a.Budget, printBudgets) })
	})
	cmd.Flags().StringVar(&amount, "amount", "", "how much may be used, a decimal")
	cmd.Flags().StringVar(&parent, "parent", "", "the budget above it")
	cmd.Flags().DurationVar(&per, "per", 0, "after how long nothing is used of it, again and again")
	_ = cmd.MarkFlagRequired("amount")
	return cmd
}

func printBudgets(w io.Writer, budgets ...*govnodev1.Budget) error {
	t := terminal.NewTable(w, "BUDGET", "PARENT", "AMOUNT", "USED", "LEFT", "SHARE", "PER", "PERIOD ENDS")
	for _, b := range budgets {
		per, ends := "-", "-"
		if b.GetPer() != nil {
			per, ends = b.Per.AsDuration().String(), terminal.Since(b.PeriodEnds)
		}
		parent := b.GetParent()
		if parent == "" {
			parent = "-"
		}
		t.Row(b.GetBudget(), parent, b.GetAmount(), b.GetUsed(), b.GetLeft(), fmt.Sprintf("%.0f %%", 100*b.GetShare()), per, ends)
	}
	return t.Flush()
}

func budgetGetCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "get BUDGET",
		Short: "See what is used and left of a budget",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.GetBudget, &govnodev1.GetBudgetRequest{Budget: args[0]},
			func(w io.Writer, a *govnodev1.GetBudgetResponse) error { return printBudgets(w, a.Budget) })
	})
}

func budgetListCommand() *cobra.Command {
	return remote.Lister[*govnodev1.ListBudgetsRequest, *govnodev1.ListBudgetsResponse, *govnodev1.Budget]{
		Method: remote.Node.ListBudgets,
		Request: func(size int32, token string) *govnodev1.ListBudgetsRequest {
			return &govnodev1.ListBudgetsRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListBudgetsResponse) *[]*govnodev1.Budget { return &p.Budgets },
		Text:  func(w io.Writer, all *govnodev1.ListBudgetsResponse) error { return printBudgets(w, all.Budgets...) },
	}.Command(&cobra.Command{Use: "list", Short: "List budgets in the order of their names"})
}

func budgetAdjustCommand() *cobra.Command {
	var by string
	var id remote.ID
	cmd := config.Leaf(&cobra.Command{
		Use:   "adjust BUDGET --by N",
		Short: "Add to what is used of a budget and of all above it",
		Long: `Adds to what is used of a budget and of all above it, for instance by a bill that came
late. It may be more than is left. A number below 0 gives back.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.AdjustBudgetRequest{Budget: args[0], By: by, RequestId: id.Text(), Client: remote.ClientName}
		return id.Tell(remote.Answer(cmd, c, remote.Node.AdjustBudget, req, func(w io.Writer, a *govnodev1.AdjustBudgetResponse) error {
			return printLeft(w, a.Budget, printBudgets)
		}))
	})
	cmd.Flags().StringVar(&by, "by", "", "how much, a decimal")
	id.Flag(cmd)
	_ = cmd.MarkFlagRequired("by")
	return cmd
}

func budgetDeleteCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "delete BUDGET",
		Short: "Delete a budget that is the parent of none",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.DeleteBudgetRequest{Budget: args[0], RequestId: remote.NewRequestID(), Client: remote.ClientName}
		return remote.AdviseOnDeleted(remote.Answer(cmd, c, remote.Node.DeleteBudget, req, func(w io.Writer, _ *govnodev1.DeleteBudgetResponse) error {
			return terminal.Say(w, "deleted %s", args[0])
		}), "budget list", args[0])
	})
}
