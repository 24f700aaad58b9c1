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

// Rate is `govnode rate`.
func Rate() *cobra.Command {
	return terminal.Group("rate", "Make, change and list rates, and take from them",
		ratePutCommand(), rateGetCommand(), rateListCommand(), rateDeleteCommand(), rateTakeCommand())
}

func ratePutCommand() *cobra.Command {
	var limit, queue int32
	var per time.Duration
	cmd := config.Leaf(&cobra.Command{
		Use:   "put RATE",
		Short: "Make a rate, or change its numbers",
		Long: `Makes a rate, or changes its numbers: no window of the duration admits more than the
limit. What was spent counts by the new numbers at once, as far as it is still there.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.PutRateRequest{
			Rate: args[0], Limit: limit, Per: durationpb.New(per), RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		if cmd.Flags().Changed("queue") {
			req.QueueLimit = &queue
		}
		return remote.Answer(cmd, c, remote.Node.PutRate, req, func(w io.Writer, answer *govnodev1.PutRateResponse) error {
			return printLeft(w, answer.Rate, printRates)
		})
	})
	cmd.Flags().Int32Var(&limit, "limit", 0, "how much a window admits")
	cmd.Flags().DurationVar(&per, "per", 0, "how long a window is, 100ms..24h")
	cmd.Flags().Int32Var(&queue, "queue", 0, "how many may wait; 1024 if not given, 0 for nobody")
	_ = cmd.MarkFlagRequired("limit")
	_ = cmd.MarkFlagRequired("per")
	return cmd
}

func printRates(w io.Writer, rates ...*govnodev1.Rate) error {
	t := terminal.NewTable(w, "RATE", "LIMIT", "PER", "USED", "WAITING", "QUEUE", "FREE IN")
	for _, r := range rates {
		// The limit of a policy's is in its calls.
		t.Row(r.Rate, numberOrDash(r.Limit), r.Per.AsDuration(), r.Used, r.Waiting, numberOrDash(r.QueueLimit), r.FreeIn.AsDuration().Round(time.Millisecond))
	}
	return t.Flush()
}

func rateGetCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "get RATE",
		Short: "Show a rate, and what of it is spent",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.GetRate, &govnodev1.GetRateRequest{Rate: args[0]},
			func(w io.Writer, answer *govnodev1.GetRateResponse) error { return printRates(w, answer.Rate) })
	})
}

func rateListCommand() *cobra.Command {
	return remote.Lister[*govnodev1.ListRatesRequest, *govnodev1.ListRatesResponse, *govnodev1.Rate]{
		Method: remote.Node.ListRates,
		Request: func(size int32, token string) *govnodev1.ListRatesRequest {
			return &govnodev1.ListRatesRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListRatesResponse) *[]*govnodev1.Rate { return &p.Rates },
		Text:  func(w io.Writer, all *govnodev1.ListRatesResponse) error { return printRates(w, all.Rates...) },
	}.Command(&cobra.Command{Use: "list", Short: "List rates in the order of their names"})
}

func rateDeleteCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "delete RATE",
		Short: "Delete a rate for which nobody waits",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.DeleteRateRequest{Rate: args[0], RequestId: remote.NewRequestID(), Client: remote.ClientName}
		return remote.AdviseOnDeleted(remote.Answer(cmd, c, remote.Node.DeleteRate, req, func(w io.Writer, answer *govnodev1.DeleteRateResponse) error {
			return terminal.Say(w, "deleted %s", args[0])
		}), "rate list", args[0])
	})
}

func rateTakeCommand() *cobra.Command {
	var cost, priority int32
	var wait time.Duration
	var client string
	var id remote.ID
	cmd := config.Leaf(&cobra.Command{
		Use:   "take RATE",
		Short: "Take from a rate, or wait until it may be",
		Long: `Takes from a rate, or waits until it may be taken. Nothing has to be given back. What is
refused ends with an error that says when there is room.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.TakeRateRequest{Rate: args[0], RequestId: id.Text(), Client: client, Cost: cost, Priority: priority}
		if wait > 0 {
			req.Wait = durationpb.New(wait)
		}
		answer, err := remote.Call(cmd.Context(), c, remote.Node.TakeRate, req)
		if err != nil {
			return id.Tell(err)
		}
		admitted := answer.Outcome == govnodev1.Outcome_OUTCOME_ADMITTED
		if err := remote.Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			if !admitted {
				return nil // the error says it
			}
			return terminal.Say(w, "admitted")
		}); err != nil || admitted {
			return err
		}
		refused := fmt.Errorf("%s: %s", args[0], answer.Reason)
		if d := answer.RetryAfter.AsDuration(); d > 0 {
			refused = fmt.Errorf("%w; there is room in %v", refused, d)
		}
		return refused
	})
	cmd.Flags().Int32Var(&cost, "cost", 1, "how much to take")
	cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait, up to 10m; not at all if 0")
	cmd.Flags().Int32Var(&priority, "priority", 0, "in the queue: the highest first")
	id.Flag(cmd)
	cmd.Flags().StringVar(&client, "client", remote.ClientName, "whose request it is")
	return cmd
}
