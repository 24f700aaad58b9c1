package operate

import (
	"fmt"
	"io"
	"slices"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Cluster is `govnode cluster`.
func Cluster() *cobra.Command {
	return terminal.Group("cluster", "Look at the cluster and change its members",
		clusterStatusCommand(), clusterAddCommand(), clusterRemoveCommand(), clusterTransferCommand())
}

func clusterStatusCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "status",
		Short: "Print who leads, who is a member, who is down and how far behind",
		Long: `Prints who leads, who is a member, who is down since when, and how far behind. Whichever
node is asked, the members are shown as the leader sees them. One that has not been heard
of for 3 s is down; one that never was, as just after it joined, is unknown. The exit code
is 1 if the node that was asked is not well. Over a Redis nobody leads, and nodes do not
know each other: ask each.`,
		Args: terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		answer, err := remote.Call(cmd.Context(), c, remote.Node.Status, &govnodev1.StatusRequest{})
		if err != nil {
			return err
		}
		if err := remote.Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return printStatus(w, answer) }); err != nil {
			return err
		}
		if answer.Health != "ok" {
			return fmt.Errorf("%s is not well: %s", answer.Node, answer.Health)
		}
		return nil
	})
}

func printStatus(w io.Writer, s *govnodev1.StatusResponse) error {
	t := terminal.NewTable(w, "NODE", s.Node)
	switch s.Backend {
	case "raft":
		t.Row("LEADER", s.Leader)
		t.Row("TERM", s.Term)
		t.Row("APPLIED", s.AppliedIndex)
		t.Row("VOTERS", votersUp(s.Peers))
	case "redis":
		t.Row("LEADER", "none: Redis puts commands in order, and its nodes are equal")
	default:
		t.Row("LEADER", "none: this node is alone")
		t.Row("APPLIED", s.AppliedIndex)
	}
	t.Row("BACKEND", s.Backend)
	t.Row("VERSION", s.Version)
	t.Row("HEALTH", s.Health)
	if err := t.Flush(); err != nil || s.Backend != "raft" {
		return err // nodes without Raft know of no others
	}
	_, _ = fmt.Fprintln(w)
	t = terminal.NewTable(w, "MEMBER", "ROLE", "RAFT", "API", "STATE", "LAST HEARD", "LAG")
	for _, p := range s.Peers {
		state, heard, lag := "unknown", "never", any("unknown")
		if p.LastContact != nil {
			state, heard = "down", terminal.Since(p.LastContact)+" ago"
		}
		if p.LastContactAtLeast {
			heard = "over " + heard
		}
		if p.Up {
			state = "up"
		}
		if p.AppliedIndex != nil {
			lag = p.Lag
		}
		t.Row(p.Node, p.Role, p.Address, p.ApiAddress, state, heard, lag)
	}
	if err := t.Flush(); err != nil || s.SeenBy == s.Leader {
		return err
	}
	_, err := fmt.Fprintf(w, "\nNo leader answers: this is how %s sees the members, and the lag is that behind it.\n", terminal.Printable(s.SeenBy))
	return err
}

// votersUp says how many voters are up, and how many have to be.
func votersUp(peers []*govnodev1.Peer) string {
	voters, up := 0, 0
	for _, p := range peers {
		if p.Role == "nonvoter" {
			continue
		}
		voters++
		if p.Up {
			up++
		}
	}
	return fmt.Sprintf("%d of %d are up, %d have to be", up, voters, voters/2+1)
}

func clusterAddCommand() *cobra.Command {
	var nonvoter bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "add NODE ADDRESS",
		Short: "Admit a node under its name and Raft address",
		Long: `Admits a node under its name and Raft address. A node that is started with --join asks
for that by itself.`,
		Args: terminal.Arguments(2, 2),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.AddNode, &govnodev1.AddNodeRequest{Node: args[0], Address: args[1], Nonvoter: nonvoter}, func(w io.Writer, answer *govnodev1.AddNodeResponse) error {
			return terminal.Say(w, "added %s", args[0])
		})
	})
	cmd.Flags().BoolVar(&nonvoter, "nonvoter", false, "give it the state and no vote")
	return cmd
}

func clusterRemoveCommand() *cobra.Command {
	var force bool
	cmd := config.Leaf(&cobra.Command{
		Use:   "remove NODE",
		Short: "Remove a node from the cluster",
		Long: `Removes a node from the cluster. It is refused if too few of the voters that are left
answer: nothing could be changed any more. Removing one that is no member succeeds, so
that it may be said again where the outcome is unknown.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		// A misspelt name is told from one that is removed. Where nobody can say it, the
		// removal has the error.
		was := true
		if s, err := remote.Call(cmd.Context(), c, remote.Node.Status, &govnodev1.StatusRequest{}); err == nil {
			was = slices.ContainsFunc(s.Peers, func(p *govnodev1.Peer) bool { return p.Node == args[0] })
		}
		return remote.Answer(cmd, c, remote.Node.RemoveNode, &govnodev1.RemoveNodeRequest{Node: args[0], Force: force}, func(w io.Writer, answer *govnodev1.RemoveNodeResponse) error {
			if !was {
				return terminal.Say(w, "%s was no member", args[0])
			}
			return terminal.Say(w, "removed %s", args[0])
		})
	})
	cmd.Flags().BoolVar(&force, "force", false, "even if no majority of the voters that are left answers: the cluster stops")
	return cmd
}

func clusterTransferCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "transfer [NODE]",
		Short: "Hand the leadership to a node, or to any that is caught up",
		Args:  terminal.Arguments(0, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.TransferLeadershipRequest{}
		if len(args) == 1 {
			req.Node = args[0]
		}
		return remote.Advise(remote.Answer(cmd, c, remote.Node.TransferLeadership, req, func(w io.Writer, answer *govnodev1.TransferLeadershipResponse) error {
			if answer.Leader == "" {
				answer.Leader = "another node" // the one that was asked has not heard its name yet
			}
			return terminal.Say(w, "%s leads", answer.Leader)
		}), "`govnode cluster status` shows who leads; asked again the leadership may move once more")
	})
}
