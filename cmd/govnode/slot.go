package main

import (
	"context"
	"fmt"
	"io"

	"github.com/spf13/cobra"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

func slotCommand() *cobra.Command {
	return group("slot", "See who holds slots and who waits, and free them", slotListCommand(), slotReleaseCommand())
}

func slotListCommand() *cobra.Command {
	return leaf(&cobra.Command{
		Use:   "list POOL",
		Short: "List who holds slots of a pool, and who waits for one, in order",
		Args:  arguments(1, 1),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.ListSlotsResponse, error) {
			return r.slots.ListSlots(ctx, &govnodev1.ListSlotsRequest{Pool: args[0]})
		})
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return printSlots(w, answer) })
	})
}

func printSlots(w io.Writer, a *govnodev1.ListSlotsResponse) error {
	room := fmt.Sprintf("of %d slots in use", a.Pool.GetSlots())
	if a.Pool.GetSlots() == 0 {
		room = "slots in use, up to what each session is pinned to"
	}
	_, _ = fmt.Fprintf(w, "%s: %d %s, %d waiting\n\n", printable(a.Pool.GetPool()), a.Pool.GetInUse(), room, a.Pool.GetWaiting())
	t := newTable(w, "HOLDER", "SESSION", "SLOT", "TOOL", "LABEL", "WEIGHT", "AGE", "TTL", "TOKEN")
	for _, s := range a.Slots {
		t.row(s.Holder, s.SessionId, s.SlotId, s.Tool, s.Label, s.Weight, since(s.Age), since(s.Ttl), s.Token)
	}
	if err := t.flush(); err != nil || len(a.Waiters) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = newTable(w, "PLACE", "HOLDER", "SESSION", "SLOT", "LABEL", "WEIGHT", "PRIORITY", "WAITS AT MOST")
	for _, x := range a.Waiters {
		t.row(x.Position, x.Holder, x.SessionId, x.SlotId, x.Label, x.Weight, x.Priority, since(x.WaitLeft))
	}
	return t.flush()
}

func slotReleaseCommand() *cobra.Command {
	var session, holder string
	cmd := leaf(&cobra.Command{
		Use:   "release POOL SLOT",
		Short: "Free a slot that its holder does not give back",
		Long: `Frees a slot that its holder does not give back. The holder's token is worth nothing
from then on. The slot of a call is named by the id of the call, with --session.`,
		Args: arguments(2, 2),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		req := &govnodev1.ForceReleaseRequest{
			Pool: args[0], SlotId: args[1], SessionId: session, HolderClient: holder,
			RequestId: newRequestID(), Client: cliName,
		}
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.ForceReleaseResponse, error) {
			return r.slots.ForceRelease(ctx, req)
		})
		if err != nil {
			return err
		}
		if err := show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			_, err := fmt.Fprintln(w, word(answer.Outcome, "OUTCOME_"))
			return err
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
