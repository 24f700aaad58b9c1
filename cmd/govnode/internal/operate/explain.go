package operate

import (
	"context"
	"fmt"
	"io"
	"strings"

	"connectrpc.com/connect"
	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Explain is `govnode explain`.
func Explain() *cobra.Command {
	req := &govnodev1.ExplainRequest{}
	cmd := config.Leaf(&cobra.Command{
		Use:   "explain DECISION_ID",
		Short: "Print why a decision was made",
		Long: `Prints the record of a decision: what was asked, which policy and which rule decided,
what came of it, and the context as it was judged, redacted. Each node keeps its latest
decisions in memory, and the one that is asked asks the others; audit logs keep more.
Over a Redis nodes do not know each other: then those in --addr are asked one after
another until one has the record.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req.DecisionId = args[0]
		elsewhere := false // whether nodes that this one does not know of may have it
		answer, err := remote.AskUntil(cmd.Context(), c, func(err error) bool {
			return remote.IsAnswer(err) && !elsewhere
		}, func(ctx context.Context, r remote.Node) (*govnodev1.ExplainResponse, error) {
			answer, err := r.Explain(ctx, req)
			elsewhere = elsewhere || connect.CodeOf(err) == connect.CodeNotFound && onRedis(ctx, r)
			return answer, err
		})
		if err != nil && elsewhere {
			return fmt.Errorf("%w; over a Redis nodes do not know each other, and another may have it: name all of them with --addr, or look into their audit logs", err)
		}
		if err != nil {
			return err
		}
		return remote.Show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return printRecord(w, answer.Record) })
	})
	cmd.Flags().StringVar(&req.SessionId, "session", "", "refuse a decision that was not made for this session")
	cmd.Flags().BoolVar(&req.Local, "local", false, "have the node ask no other")
	return cmd
}

// onRedis reports whether a node is one of those that do not know each other.
func onRedis(ctx context.Context, r remote.Node) bool {
	status, err := r.Status(ctx, &govnodev1.StatusRequest{})
	return err == nil && status.Backend == "redis"
}

func printRecord(w io.Writer, r *govnodev1.DecisionRecord) error {
	d := r.GetDecision()
	verdict := "denied"
	if d.GetAllowed() {
		verdict = "allowed"
	}
	t := terminal.NewTable(w, "DECISION", verdict+remarks(r))
	for _, row := range []struct{ name, text string }{
		{"ACTION", d.GetAction()},
		{"REASON", d.GetReason()},
		{"CATEGORY", d.GetCategory()},
		{"OUTCOME", outcomeInWords(r)},
		{"POLICY", d.GetPolicy()},
		{"RULE", d.GetMatchedRule()},
		{"CHAIN", strings.Join(d.GetPolicyChain(), " > ")},
		{"DIGEST", d.GetPolicyDigest()},
		{"BACKEND", d.GetBackend()},
		{"ERROR", d.GetError()},
		{"TOOL", r.GetTool()},
		{"AGENT", r.GetAgentId()},
		{"SESSION", r.GetSessionId()},
		{"CALL", r.GetCallId()},
		{"NODE", r.GetNode()},
		{"TIME", r.GetTimestamp()},
		{"AGE", terminal.Since(r.GetAge())},
		{"COUNTERS", countersInWords(r.GetCounters())},
		{"CONTEXT", r.GetContextSnapshotJson()},
		{"CONTEXT HASH", r.GetContextSha256()},
	} {
		if row.text == "" && (row.name == "BACKEND" || row.name == "ERROR") {
			continue // few decisions have them
		}
		t.Row(row.name, row.text)
	}
	return t.Flush()
}

// remarks are what sets a record apart from that of a call as it is usual.
func remarks(r *govnodev1.DecisionRecord) string {
	var all []string
	if r.GetDryRun() {
		all = append(all, "asked for by Evaluate, nothing was spent")
	}
	if r.GetRepeat() {
		all = append(all, "the answer to an id that was known")
	}
	if len(all) == 0 {
		return ""
	}
	return " (" + strings.Join(all, ", ") + ")"
}

// outcomeInWords is what came of the decision. Evaluate has none.
func outcomeInWords(r *govnodev1.DecisionRecord) string {
	switch {
	case r.GetFailure() != "":
		return fmt.Sprintf("not applied: %s, %s", r.GetFailure(), r.GetFailureReason())
	case r.GetOutcome() == govnodev1.Outcome_OUTCOME_UNSPECIFIED:
		return ""
	}
	return terminal.Word(r.GetOutcome(), "OUTCOME_")
}

func countersInWords(c *govnodev1.Counters) string {
	if c == nil {
		return ""
	}
	return fmt.Sprintf("attempts=%d calls=%d executions=%d failures=%d in-a-row=%d tokens=%d",
		c.Attempts, c.Calls, c.Executions, c.Failures, c.ConsecutiveFailures, c.TokensUsed)
}
