package operate

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Approval is `govnode approval`.
func Approval() *cobra.Command {
	return terminal.Group("approval", "Decide about calls that people are asked about",
		approvalListCommand(), approvalShowCommand(), approvalWatchCommand(),
		approvalVoteCommand("approve", govnodev1.Vote_VOTE_APPROVE, "Vote for a call", "Votes for a call. When so many have agreed as its policy wants, it goes on by itself, or when it is sent again."),
		approvalVoteCommand("deny", govnodev1.Vote_VOTE_DENY, "Vote against a call", "Votes against a call. When so many have refused as its policy wants, it has ended."),
		approvalCancelCommand(), approvalStandCommand(), approvalStandingCommand(), approvalUnstandCommand())
}

func approvalListCommand() *cobra.Command {
	var state, session, agent string
	return withFlags(remote.Lister[*govnodev1.ApprovalServiceListRequest, *govnodev1.ApprovalServiceListResponse, *govnodev1.Approval]{
		Method: func(n remote.Node, ctx context.Context, req *govnodev1.ApprovalServiceListRequest) (*govnodev1.ApprovalServiceListResponse, error) {
			req.State, req.SessionId, req.AgentId = govnodev1.ApprovalState(govnodev1.ApprovalState_value[stateName(state)]), session, agent
			return n.Approvals.List(ctx, req)
		},
		Request: func(size int32, token string) *govnodev1.ApprovalServiceListRequest {
			return &govnodev1.ApprovalServiceListRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ApprovalServiceListResponse) *[]*govnodev1.Approval { return &p.Approvals },
		Text: func(w io.Writer, all *govnodev1.ApprovalServiceListResponse) error {
			return printApprovals(w, all.Approvals)
		},
	}.Command(&cobra.Command{Use: "list", Short: "List approvals, those that are pending unless told otherwise"}), func(cmd *cobra.Command) {
		cmd.PreRunE = func(*cobra.Command, []string) error {
			if _, known := govnodev1.ApprovalState_value[stateName(state)]; state != "any" && (!known || strings.EqualFold(state, "unspecified")) {
				return terminal.Usagef("--state %s: say pending, approved, used, denied, expired, cancelled or any", state)
			}
			return nil
		}
		cmd.Flags().StringVar(&state, "state", "pending", "pending, approved, used, denied, expired, cancelled or any")
		cmd.Flags().StringVar(&session, "session", "", "of this session alone")
		cmd.Flags().StringVar(&agent, "agent", "", "of this agent alone")
	})
}

// stateName is a state as the API has it; that of any is not one.
func stateName(state string) string { return "APPROVAL_STATE_" + strings.ToUpper(state) }

func withFlags(cmd *cobra.Command, add func(*cobra.Command)) *cobra.Command {
	add(cmd)
	return cmd
}

func printApprovals(w io.Writer, all []*govnodev1.Approval) error {
	t := terminal.NewTable(w, "APPROVAL", "STATE", "AGENT", "TOOL", "ARGUMENTS", "VOTES", "LEFT")
	for _, a := range all {
		t.Row(a.Id, terminal.Word(a.State, "APPROVAL_STATE_"), a.AgentId, a.Tool, cut(a.Arguments), votesOf(a), terminal.Since(a.ExpiresIn))
	}
	return t.Flush()
}

// cut keeps a table readable; show prints all.
func cut(s string) string {
	if most := 60; utf8.RuneCountInString(s) > most {
		return string([]rune(s)[:most]) + "…"
	}
	return s
}

// votesOf says how many of those that are needed have agreed.
func votesOf(a *govnodev1.Approval) string {
	n := 0
	for _, b := range a.Ballots {
		if b.Vote == govnodev1.Vote_VOTE_APPROVE {
			n++
		}
	}
	return fmt.Sprintf("%d of %d", n, a.Required)
}

func approvalShowCommand() *cobra.Command {
	var wait time.Duration
	return withFlags(config.Leaf(&cobra.Command{
		Use: "show APPROVAL", Short: "Show an approval, or wait until it is decided", Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.ApprovalServiceGetRequest{Id: args[0]}
		if wait > 0 {
			req.Wait = durationpb.New(wait)
		}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.ApprovalServiceGetRequest) (*govnodev1.ApprovalServiceGetResponse, error) {
			return n.Approvals.Get(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.ApprovalServiceGetResponse) error {
			return printApproval(w, answer.Approval)
		})
	}), func(cmd *cobra.Command) {
		cmd.Flags().DurationVar(&wait, "wait", 0, "how long to wait for the decision, up to 10m")
	})
}

func printApproval(w io.Writer, a *govnodev1.Approval) error {
	if a == nil {
		return terminal.Say(w, "it was dropped since")
	}
	t := terminal.NewTable(w, "APPROVAL", a.Id)
	for _, row := range [][2]string{
		{"STATE", terminal.Word(a.State, "APPROVAL_STATE_")}, {"AGENT", a.AgentId}, {"SESSION", a.SessionId}, {"CALL", a.CallId}, {"TOOL", a.Tool},
		{"SERVER", a.ServerLabel}, {"ARGUMENTS", a.Arguments}, {"REASON", a.Reason}, {"RULE", a.Rule}, {"DIGEST", a.RequestDigest}, {"VOTES", votesOf(a)},
	} {
		if row[1] != "" {
			t.Row(row[0], row[1])
		}
	}
	if a.ExpiresIn != nil {
		t.Row("LEFT", terminal.Since(a.ExpiresIn))
	}
	for _, b := range a.Ballots {
		t.Row(terminal.Word(b.Vote, "VOTE_")+" BY", b.Approver, b.Reason)
	}
	if a.ByTimeout {
		t.Row("APPROVED BY", "timeout")
	}
	return t.Flush()
}

// anonymous is the name of those whom a node does not know.
const anonymous = "anonymous"

func approvalVoteCommand(use string, vote govnodev1.Vote, short, long string) *cobra.Command {
	var approver, reason, digest string
	return withFlags(config.Leaf(&cobra.Command{
		Use: use + " APPROVAL", Short: short, Long: long, Args: terminal.Arguments(1, 1),
		Example: "  govnode approval " + use + " d6f1b8540ea128f1ca8815093e741ee2 --approver amy --reason \"I looked\"",
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		known := false
		if !cmd.Flags().Changed("approver") {
			me, err := whoAmI(cmd.Context(), c)
			if err != nil {
				return err
			}
			if known = me.Principal != "" && me.Principal != anonymous; known {
				approver = "" // the vote is theirs as whom the node knows them
			}
		}
		if approver == "" && !known {
			return terminal.Usagef("say who decides with --approver; $USER is not set")
		}
		req := &govnodev1.ApprovalServiceDecideRequest{
			Id: args[0], Decision: vote, Approver: approver, Reason: reason, RequestDigest: digest, RequestId: remote.NewRequestID(), Client: remote.ClientName,
		}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.ApprovalServiceDecideRequest) (*govnodev1.ApprovalServiceDecideResponse, error) {
			return n.Approvals.Decide(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.ApprovalServiceDecideResponse) error {
			return printApproval(w, answer.Approval)
		})
	}), func(cmd *cobra.Command) {
		cmd.Flags().StringVar(&approver, "approver", os.Getenv("USER"), "who decides; where the node knows who asks, by a token, a certificate or its socket, it is they")
		cmd.Flags().Lookup("approver").DefValue = "$USER"
		cmd.Flags().StringVar(&reason, "reason", "", "why; at most 1 KiB")
		cmd.Flags().StringVar(&digest, "digest", "", "only if it is what was shown with this `sha256:...`")
	})
}

func approvalCancelCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use: "cancel APPROVAL", Short: "End an approval, and the call that waits for it", Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.ApprovalServiceCancelRequest{Id: args[0], RequestId: remote.NewRequestID(), Client: remote.ClientName}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.ApprovalServiceCancelRequest) (*govnodev1.ApprovalServiceCancelResponse, error) {
			return n.Approvals.Cancel(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.ApprovalServiceCancelResponse) error {
			return terminal.Say(w, "cancelled %s", args[0])
		})
	})
}

// watchEvery is how often watch looks: people decide in seconds.
const watchEvery = time.Second

func approvalWatchCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "watch",
		Short: "Print what is asked, and what comes of it, until interrupted",
		Long:  "Prints a line for each approval that is pending, then one for each that is asked for or changes,\nwhatever node it is asked at, until interrupted. It looks once a second.",
		Args:  terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		ctx, w := cmd.Context(), cmd.OutOrStdout()
		known := map[string]string{}
		for first := true; ; first = false {
			all, err := approvals(ctx, c)
			if ctx.Err() != nil {
				return nil
			}
			if err != nil {
				return err
			}
			for _, a := range all {
				state := terminal.Word(a.State, "APPROVAL_STATE_")
				line := state + " " + votesOf(a)
				if known[a.Id] == line || first && a.State != govnodev1.ApprovalState_APPROVAL_STATE_PENDING {
					known[a.Id] = line
					continue
				}
				known[a.Id] = line
				if c.Output == "json" {
					err = printJSONLine(w, a)
				} else {
					err = terminal.Say(w, "%s %s %s %s %s (%s)", state, a.Id, a.AgentId, a.Tool, a.Arguments, votesOf(a))
				}
				if err != nil {
					return err
				}
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(watchEvery):
			}
		}
	})
}

// approvals are all that are kept.
func approvals(ctx context.Context, c *config.Config) (all []*govnodev1.Approval, err error) {
	for token := ""; ; {
		page, err := remote.Call(ctx, c, func(n remote.Node, ctx context.Context, req *govnodev1.ApprovalServiceListRequest) (*govnodev1.ApprovalServiceListResponse, error) {
			return n.Approvals.List(ctx, req)
		}, &govnodev1.ApprovalServiceListRequest{PageSize: 1000, PageToken: token})
		if err != nil {
			return nil, err
		}
		all = append(all, page.Approvals...)
		if token = page.NextPageToken; token == "" {
			return all, nil
		}
	}
}

func approvalStandCommand() *cobra.Command {
	var session, agent, policy, server, arguments string
	var uses int32
	var expiry time.Duration
	var id remote.ID
	return withFlags(config.Leaf(&cobra.Command{
		Use: "stand TOOL", Short: "Let calls of a tool pass without asking about each",
		Long: `Lets calls of a tool pass that people would be asked about: all of them, or those with
exactly these arguments. What is denied stays denied.`,
		Args:    terminal.Arguments(1, 1),
		Example: "  govnode approval stand deploy --agent releaser --for 8h --uses 3",
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.PutStandingRequest{
			Tool: args[0], ServerLabel: server, ArgumentsJson: arguments, Uses: uses, Expiry: durationpb.New(expiry),
			RequestId: id.Text(), Client: remote.ClientName,
		}
		set := 0
		for scope, name := range map[govnodev1.StandingScope]string{
			govnodev1.StandingScope_STANDING_SCOPE_SESSION: session, govnodev1.StandingScope_STANDING_SCOPE_AGENT: agent, govnodev1.StandingScope_STANDING_SCOPE_POLICY: policy,
		} { // order-free: there is one
			if name != "" {
				req.Scope, req.Name, set = scope, name, set+1
			}
		}
		if set != 1 {
			return terminal.Usagef("say whose calls it is for with one of --session, --agent and --policy")
		}
		return id.Tell(remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.PutStandingRequest) (*govnodev1.PutStandingResponse, error) {
			return n.Approvals.PutStanding(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.PutStandingResponse) error {
			if answer.Standing == nil {
				return terminal.Say(w, "done; it was used up or taken back since")
			}
			return printStanding(w, answer.Standing)
		}))
	}), func(cmd *cobra.Command) {
		cmd.Flags().StringVar(&session, "session", "", "calls of this session")
		cmd.Flags().StringVar(&agent, "agent", "", "calls of this agent")
		cmd.Flags().StringVar(&policy, "policy", "", "calls under the policy of this name")
		cmd.Flags().StringVar(&server, "server", "", "label of the server that has the tool")
		cmd.Flags().StringVar(&arguments, "arguments", "", "JSON: with exactly these arguments; with any if not given")
		cmd.Flags().Int32Var(&uses, "uses", 0, "how often; as often as wanted if 0")
		cmd.Flags().DurationVar(&expiry, "for", 0, "how long, up to 720h")
		id.Flag(cmd)
		_ = cmd.MarkFlagRequired("for")
	})
}

func printStanding(w io.Writer, all ...*govnodev1.Standing) error {
	t := terminal.NewTable(w, "STANDING", "FOR", "TOOL", "ARGUMENTS", "USES", "LEFT")
	for _, s := range all {
		arguments := "any"
		if s.Arguments != nil {
			arguments = s.GetArguments()
		}
		t.Row(s.Id, strings.ToLower(terminal.Word(s.Scope, "STANDING_SCOPE_"))+" "+s.Name, s.Tool, arguments, numberOrDash(s.Uses), terminal.Since(s.ExpiresIn))
	}
	return t.Flush()
}

func approvalStandingCommand() *cobra.Command {
	return remote.Lister[*govnodev1.ListStandingRequest, *govnodev1.ListStandingResponse, *govnodev1.Standing]{
		Method: func(n remote.Node, ctx context.Context, req *govnodev1.ListStandingRequest) (*govnodev1.ListStandingResponse, error) {
			return n.Approvals.ListStanding(ctx, req)
		},
		Request: func(size int32, token string) *govnodev1.ListStandingRequest {
			return &govnodev1.ListStandingRequest{PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListStandingResponse) *[]*govnodev1.Standing { return &p.Standings },
		Text: func(w io.Writer, all *govnodev1.ListStandingResponse) error {
			return printStanding(w, all.Standings...)
		},
	}.Command(&cobra.Command{Use: "standing", Short: "List standing approvals"})
}

func approvalUnstandCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use: "unstand STANDING", Short: "Take a standing approval back", Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.DeleteStandingRequest{Id: args[0], RequestId: remote.NewRequestID(), Client: remote.ClientName}
		return remote.Advise(remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.DeleteStandingRequest) (*govnodev1.DeleteStandingResponse, error) {
			return n.Approvals.DeleteStanding(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.DeleteStandingResponse) error {
			return terminal.Say(w, "taken back %s", args[0])
		}), "`govnode approval standing` shows whether %s is gone; ask again only if it is there", args[0])
	})
}
