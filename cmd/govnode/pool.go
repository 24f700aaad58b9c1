package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

func poolCommand() *cobra.Command {
	return group("pool", "Make, change and list pools of slots", poolPutCommand(), poolListCommand(), poolDeleteCommand())
}

func poolPutCommand() *cobra.Command {
	var slots, threshold, queue int32
	cmd := leaf(&cobra.Command{
		Use:   "put POOL --slots N",
		Short: "Make a pool, or change its numbers",
		Long: `Makes a pool, or changes its numbers. Fewer slots than are in use take nothing away:
none is given out until there is room again.`,
		Args: arguments(1, 1),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		req := &govnodev1.PutPoolRequest{
			Pool: args[0], Slots: slots, BackpressureThreshold: threshold,
			RequestId: newRequestID(), Client: cliName,
		}
		if cmd.Flags().Changed("queue") {
			req.QueueLimit = &queue
		}
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.PutPoolResponse, error) {
			return r.slots.PutPool(ctx, req)
		})
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return printPools(w, answer.Pool) })
	})
	cmd.Flags().Int32Var(&slots, "slots", 0, "how many slots it has")
	cmd.Flags().Int32Var(&threshold, "backpressure", 0, "slots in use from which on callers are asked to slow down; all if 0")
	cmd.Flags().Int32Var(&queue, "queue", 0, "how many may wait; 1024 if not given, 0 for nobody")
	_ = cmd.MarkFlagRequired("slots")
	return cmd
}

func printPools(w io.Writer, pools ...*govnodev1.Pool) error {
	t := newTable(w, "POOL", "SLOTS", "IN USE", "WAITING", "BACKPRESSURE", "QUEUE", "LAST TOKEN")
	for _, p := range pools {
		t.row(p.Pool, slotsOf(p), p.InUse, p.Waiting, numberOrDash(p.BackpressureThreshold), p.QueueLimit, p.LastToken)
	}
	return t.flush()
}

// slotsOf is how many slots a pool has. That of a policy has no number of its
// own: each call brings the limit that its session is pinned to.
func slotsOf(p *govnodev1.Pool) any { return numberOrDash(p.GetSlots()) }

func numberOrDash(n int32) any {
	if n == 0 {
		return "-"
	}
	return n
}

func poolListCommand() *cobra.Command {
	var limit int
	cmd := leaf(&cobra.Command{
		Use:   "list",
		Short: "List pools in the order of their names",
		Args:  arguments(0, 0),
	}, onClient, func(cmd *cobra.Command, c *Config, _ []string) error {
		all := &govnodev1.ListPoolsResponse{}
		more, err := eachPage(limit, func(size int32, token string) (int, string, error) {
			page, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.ListPoolsResponse, error) {
				return r.slots.ListPools(ctx, &govnodev1.ListPoolsRequest{PageSize: size, PageToken: token})
			})
			if err != nil {
				return 0, "", err
			}
			all.Pools = append(all.Pools, page.Pools...)
			all.AppliedIndex, all.NextPageToken = page.AppliedIndex, page.NextPageToken
			return len(page.Pools), page.NextPageToken, nil
		})
		if err != nil {
			return err
		}
		noteMore(cmd, more)
		return show(cmd.OutOrStdout(), c, all, func(w io.Writer) error { return printPools(w, all.Pools...) })
	})
	limitFlag(cmd, &limit)
	return cmd
}

func poolDeleteCommand() *cobra.Command {
	var force bool
	cmd := leaf(&cobra.Command{
		Use:   "delete POOL",
		Short: "Delete a pool that nobody uses",
		Args:  arguments(1, 1),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		req := &govnodev1.DeletePoolRequest{Pool: args[0], Force: force, RequestId: newRequestID(), Client: cliName}
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.DeletePoolResponse, error) {
			return r.slots.DeletePool(ctx, req)
		})
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "deleted %s\n", printable(args[0]))
			return err
		})
	})
	cmd.Flags().BoolVar(&force, "force", false, "also while slots are held: their tokens are worth nothing from then on")
	return cmd
}
