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
			return err
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
