package operate

import (
	"fmt"
	"io"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Pool is `govnode pool`.
func Pool() *cobra.Command {
	return terminal.Group("pool", "Make, change and list pools of slots", poolPutCommand(), poolListCommand(), poolDeleteCommand())
}

func poolPutCommand() *cobra.Command {
	var slots, threshold, queue int32
	cmd := config.Leaf(&cobra.Command{
		Use:   "put POOL --slots N",
		Short: "Make a pool, or change its numbers",
		Long: `Makes a pool, or changes its numbers. Fewer slots than are in use take nothing away:
none is given out until there is room again.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.PutPoolRequest{
			Pool: args[0], Slots: slots, BackpressureThreshold: threshold,
			RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		if cmd.Flags().Changed("queue") {
			req.QueueLimit = &queue
		}
		return remote.Answer(cmd, c, remote.Node.PutPool, req, func(w io.Writer, answer *govnodev1.PutPoolResponse) error {
			return printLeft(w, answer.Pool, printPools)
		})
	})
	cmd.Flags().Int32Var(&slots, "slots", 0, "how many slots it has")
	cmd.Flags().Int32Var(&threshold, "backpressure", 0, "slots in use from which on callers are asked to slow down; all if 0")
	cmd.Flags().Int32Var(&queue, "queue", 0, "how many may wait; 1024 if not given, 0 for nobody")
	_ = cmd.MarkFlagRequired("slots")
	return cmd
}

// printLeft prints what a change has left there. It may be gone again, as where a node
// was asked that did not answer, and then another one.
func printLeft[T any](w io.Writer, left *T, print func(io.Writer, ...*T) error) error {
	if left == nil {
		return terminal.Say(w, "done; it was deleted since")
	}
	return print(w, left)
}

func printPools(w io.Writer, pools ...*govnodev1.Pool) error {
	t := terminal.NewTable(w, "POOL", "SLOTS", "IN USE", "WAITING", "BACKPRESSURE", "QUEUE", "LAST TOKEN")
	for _, p := range pools {
		t.Row(p.Pool, slotsOf(p), p.InUse, p.Waiting, numberOrDash(p.BackpressureThreshold), p.QueueLimit, p.LastToken)
	}
	return t.Flush()
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
	return remote.Lister[*govnodev1.ListPoolsRequest, *govnodev1.ListPoolsResponse, *govnodev1.Pool]{
		Method: remote.Node.ListPools,
		Request: func(size int32, token string) *govnodev1.ListPoolsRequest {
			return &govnodev1.ListPoolsRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListPoolsResponse) *[]*govnodev1.Pool { return &p.Pools },
		Text:  func(w io.Writer, all *govnodev1.ListPoolsResponse) error { return printPools(w, all.Pools...) },
	}.Command(&cobra.Command{Use: "list", Short: "List pools in the order of their names"})
}

func poolDeleteCommand() *cobra.Command {
	var force bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "delete POOL",
		Short: "Delete a pool that nobody uses",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.DeletePoolRequest{Pool: args[0], Force: force, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		return remote.AdviseOnDeleted(remote.Answer(cmd, c, remote.Node.DeletePool, req, func(w io.Writer, answer *govnodev1.DeletePoolResponse) error {
			return terminal.Say(w, "deleted %s", args[0])
		}), "pool list", args[0])
	})
	cmd.Flags().BoolVar(&force, "force", false, "also while slots are held: their tokens are worth nothing from then on")
	return cmd
}

// Slot is `govnode slot`.
func Slot() *cobra.Command {
	return terminal.Group("slot", "See who holds slots and who waits, and free them", slotListCommand(), slotReleaseCommand())
}

func slotListCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "list POOL",
		Short: "List who holds slots of a pool, and who waits for one, in order",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.ListSlots, &govnodev1.ListSlotsRequest{Pool: args[0]}, printSlots)
	})
}

func printSlots(w io.Writer, a *govnodev1.ListSlotsResponse) error {
	room := fmt.Sprintf("of %d slots in use", a.Pool.GetSlots())
	if a.Pool.GetSlots() == 0 {
		room = "slots in use, up to what each session is pinned to"
	}
	_, _ = fmt.Fprintf(w, "%s: %d %s, %d waiting\n\n", terminal.Printable(a.Pool.GetPool()), a.Pool.GetInUse(), room, a.Pool.GetWaiting())
	t := terminal.NewTable(w, "HOLDER", "SESSION", "SLOT", "TOOL", "LABEL", "WEIGHT", "AGE", "TTL", "TOKEN")
	for _, s := range a.Slots {
		t.Row(s.Holder, s.SessionId, s.SlotId, s.Tool, s.Label, s.Weight, terminal.Since(s.Age), terminal.Since(s.Ttl), s.Token)
	}
	if err := t.Flush(); err != nil || len(a.Waiters) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = terminal.NewTable(w, "PLACE", "HOLDER", "SESSION", "SLOT", "LABEL", "WEIGHT", "PRIORITY", "WAITS AT MOST")
	for _, x := range a.Waiters {
		t.Row(x.Position, x.Holder, x.SessionId, x.SlotId, x.Label, x.Weight, x.Priority, terminal.Since(x.WaitLeft))
	}
	return t.Flush()
}

func slotReleaseCommand() *cobra.Command {
	var session, holder string
	cmd := config.Leaf(&cobra.Command{
		Use:   "release POOL SLOT",
		Short: "Free a slot that its holder does not give back",
		Long: `Frees a slot that its holder does not give back. The holder's token is worth nothing
from then on. The slot of a call is named by the id of the call, with --session.`,
		Args: terminal.Arguments(2, 2),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.ForceReleaseRequest{
			Pool: args[0], SlotId: args[1], SessionId: session, HolderClient: holder,
			RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		answer, err := remote.Call(cmd.Context(), c, remote.Node.ForceRelease, req)
		if err != nil {
			return remote.Advise(err, "`govnode slot list %s` shows who holds what; ask again only if the same TOKEN holds %s", args[0], args[1])
		}
		if err := remote.Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			return terminal.Say(w, "%s", terminal.Word(answer.Outcome, "OUTCOME_"))
		}); err != nil {
			return err
		}
		if answer.Outcome != govnodev1.Outcome_OUTCOME_RELEASED {
			return fmt.Errorf("nobody holds slot %s of pool %s: `govnode slot list %s` shows who holds what; a slot of a call needs --session, one of another client than default --holder", args[1], args[0], args[0])
		}
		return nil
	})
	cmd.Flags().StringVar(&session, "session", "", "session of the call that holds the slot")
	cmd.Flags().StringVar(&holder, "holder", "", "client that holds the slot; default if empty")
	return cmd
}
