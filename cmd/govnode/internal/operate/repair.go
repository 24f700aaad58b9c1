package operate

import (
	"io"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Repair is `govnode repair`.
func Repair() *cobra.Command {
	var holder, newerThan string
	cmd := config.Leaf(&cobra.Command{
		Use:   "repair",
		Short: "Take ids of a namespace again that are refused as STALE_ID",
		Long: `Takes ids of a namespace again that are refused as STALE_ID. An id that carries a
time (a ULID or UUIDv7) is refused if it is not newer than what has been forgotten,
so that it is never executed twice. An id dated in the future, once it is forgotten,
refuses all others until that time comes. Nodes take no id that is more than an hour
ahead of their clock; one whose clock was wrong has.

Set the clocks right before: what is refused now is executed afterwards, also what
was executed once under an id newer than --newer-than. With --client that client
forgets the ids it finished, for one that used such an id itself.`,
		Example: `  govnode repair
  govnode repair --namespace tenant --client worker-7 --newer-than 2026-01-02T15:04:05Z`,
		Args: terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		req := &govnodev1.RepairIDsRequest{HolderClient: holder, RequestId: remote.NewRequestID(), Client: remote.ClientName}
		if newerThan != "" {
			at, err := time.Parse(time.RFC3339, newerThan)
			if err != nil {
				return terminal.Usagef("newer-than: %q is no time; write one such as 2026-01-02T15:04:05Z", newerThan)
			}
			req.NewerThan = at.UnixMilli()
		}
		return remote.Answer(cmd, c, remote.Node.RepairIDs, req, func(w io.Writer, answer *govnodev1.RepairIDsResponse) error {
			what := "nothing was closed"
			if answer.Lowered {
				what = "repaired"
			}
			return terminal.Say(w, "%s: ids newer than %s are taken", what, time.UnixMilli(answer.NewerThan).UTC().Format(time.RFC3339))
		})
	})
	cmd.Flags().StringVar(&holder, "client", "", "client whose own record is repaired too")
	cmd.Flags().StringVar(&newerThan, "newer-than", "", "time from which on ids are taken again; now if empty")
	return cmd
}
