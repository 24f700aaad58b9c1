package edictum

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	"example.com/govnode/engine/edictum/workflow"
	"example.com/govnode/engine/source"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Where sessions stand in their workflows: one value of each, which is read, changed
// here, and written only if nobody else has changed it.

func workflowCommand() *cobra.Command {
	return terminal.Group("workflow", "Look at where sessions stand in their workflows, and take them elsewhere",
		moveCommand("show SESSION", "Print where a session stands in the workflow of its policy", `Prints where a session stands in the workflow of its policy, and what it has done so far.`, nil),
		moveCommand("reset SESSION STAGE", "Take a session back to a stage", `Takes a session back to a stage. What was done in that stage and behind it counts no more,
nor do the approvals there.`, (*workflow.Definition).Reset),
		moveCommand("set SESSION STAGE", "Put a session into a stage", `Puts a session into a stage, with all that it has done so far.`, (*workflow.Definition).SetStage),
	)
}

// moveCommand is a command that moves a session, or looks where it is.
func moveCommand(use, short, long string, move func(*workflow.Definition, *workflow.State, string) error) *cobra.Command {
	words := len(strings.Fields(use)) - 1
	return config.Leaf(&cobra.Command{Use: use, Short: short, Long: long, Args: terminal.Arguments(words, words)}, config.OnClient,
		func(cmd *cobra.Command, c *config.Config, args []string) error {
			d, err := workflowOf(cmd.Context(), c, args[0])
			if err != nil {
				return err
			}
			key := workflow.Key(args[0], d.Name)
			found, err := remote.Call(cmd.Context(), c, remote.Node.Get, &govnodev1.GetRequest{Key: key})
			if err != nil {
				return err
			}
			s := d.New(args[0])
			if found.Found {
				if s, err = d.Decode(args[0], found.Value); err != nil {
					return err
				}
			}
			if move != nil {
				if err := move(d, s, args[1]); err != nil {
					return err
				}
				_, err := remote.Call(cmd.Context(), c, remote.Node.Set, &govnodev1.SetRequest{
					Key: key, Value: s.Encode(), IfVersion: found.Version, Ttl: durationpb.New(workflow.Kept),
					Client: remote.ClientName, RequestId: remote.NewRequestID(),
				})
				if err != nil {
					return err
				}
			}
			if c.Output == "json" {
				return terminal.WriteJSON(cmd.OutOrStdout(), stateJSON{d.Name, json.RawMessage(s.Encode())})
			}
			return printState(cmd.OutOrStdout(), d, s)
		})
}

// workflowOf is the workflow of the policy that a session pins.
func workflowOf(ctx context.Context, c *config.Config, session string) (*workflow.Definition, error) {
	x, err := remote.Call(ctx, c, remote.Node.GetSession, &govnodev1.GetSessionRequest{SessionId: session})
	if err != nil {
		return nil, err
	}
	p, err := remote.Call(ctx, c, remote.Node.GetPolicy, &govnodev1.GetPolicyRequest{
		Ref: &govnodev1.GetPolicyRequest_Digest{Digest: x.Session.PolicyDigest},
	})
	if err != nil {
		return nil, err
	}
	for _, f := range p.Policy.Files {
		if n, problems := source.Parse(f.Path, []byte(f.Content)); len(problems) == 0 && n != nil && workflow.IsWorkflow(n) {
			return workflow.Parse([]byte(f.Content))
		}
	}
	return nil, fmt.Errorf("session %q: its policy %s has no workflow", session, x.Session.PolicyDigest)
}

// stateJSON is where a session stands, as it is kept.
type stateJSON struct {
	Workflow string          `json:"workflow"`
	State    json.RawMessage `json:"state"`
}

func printState(w io.Writer, d *workflow.Definition, s *workflow.State) error {
	t := terminal.NewTable(w, "SESSION", s.Session)
	t.Row("WORKFLOW", d.Name)
	stage := s.Active
	if stage == "" {
		stage = "(over)"
	}
	t.Row("STAGE", stage)
	t.Row("COMPLETED", strings.Join(s.Completed, " "))
	for _, stage := range d.Stages {
		if word := s.Approvals[stage.ID]; word != "" {
			t.Row("APPROVAL", stage.ID, word)
		} else if id := s.Asked[stage.ID]; id != "" {
			t.Row("APPROVAL", stage.ID, "pending", id)
		}
	}
	if s.Blocked != nil {
		t.Row("BLOCKED", *s.Blocked)
	}
	t.Row("READ", strings.Join(s.Reads, " "))
	for _, stage := range d.Stages {
		for _, command := range s.Calls[stage.ID] {
			t.Row("RAN", stage.ID, command)
		}
	}
	if n := s.LastBad; n != nil {
		t.Row("LAST BLOCKED", n.Tool, n.Summary, at(n.Time))
	}
	return t.Flush()
}

// at is a time without its fraction.
func at(stamp string) string {
	when, err := time.Parse(time.RFC3339Nano, stamp)
	if err != nil {
		return stamp
	}
	return when.Format(time.RFC3339)
}
