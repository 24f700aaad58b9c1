package operate

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Session is `govnode session`.
func Session() *cobra.Command {
	return terminal.Group("session", "Look at sessions and close them", sessionListCommand(), sessionGetCommand(), sessionCloseCommand())
}

func sessionListCommand() *cobra.Command {
	var agent, digest string
	cmd := remote.Lister[*govnodev1.ListSessionsRequest, *govnodev1.ListSessionsResponse, *govnodev1.Session]{
		Method: remote.Node.ListSessions,
		Request: func(size int32, token string) *govnodev1.ListSessionsRequest {
			return &govnodev1.ListSessionsRequest{AgentId: agent, PolicyDigest: digest, PageSize: size, PageToken: token}
		},
		Items: func(p *govnodev1.ListSessionsResponse) *[]*govnodev1.Session { return &p.Sessions },
		Text:  printSessions,
	}.Command(&cobra.Command{Use: "list", Short: "List sessions in the order of their ids"})
	cmd.Flags().StringVar(&agent, "agent", "", "only those of this agent")
	cmd.Flags().StringVar(&digest, "policy-digest", "", "only those that pin this digest")
	return cmd
}

func printSessions(w io.Writer, all *govnodev1.ListSessionsResponse) error {
	t := terminal.NewTable(w, "SESSION", "AGENT", "POLICY", "STATE", "AGE", "ATTEMPTS", "CALLS", "EXECUTIONS", "FAILURES", "OPEN", "TOKENS")
	for _, s := range all.Sessions {
		t.Row(s.SessionId, s.AgentId, policyOf(s), terminal.Word(s.State, "SESSION_STATE_"), terminal.Since(s.Age), s.Attempts, s.Calls, s.Executions, s.Failures, len(s.OpenCalls), s.TokensUsed)
	}
	return t.Flush()
}

// policyOf is the policy of a session as one word: name and version, or what
// of the digest tells it from others.
func policyOf(s *govnodev1.Session) string {
	if s.PolicyName == "" {
		return shortDigest(s.PolicyDigest)
	}
	return fmt.Sprintf("%s/%d", s.PolicyName, s.PolicyVersion)
}

func shortDigest(digest string) string { return digest[:min(len(digest), len("sha256:")+12)] }

func sessionGetCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "get SESSION",
		Short: "Print one session with its open calls",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.GetSession, &govnodev1.GetSessionRequest{SessionId: args[0]}, printSession)
	})
}

func printSession(w io.Writer, answer *govnodev1.GetSessionResponse) error {
	s := answer.Session
	t := terminal.NewTable(w, "SESSION", s.SessionId)
	t.Row("AGENT", s.AgentId)
	t.Row("POLICY", policyOf(s))
	t.Row("DIGEST", s.PolicyDigest)
	t.Row("STATE", terminal.Word(s.State, "SESSION_STATE_"))
	if s.Signal != nil {
		t.Row("SIGNAL", s.Signal.Signal, s.Signal.Reason)
	}
	t.Row("AGE", terminal.Since(s.Age))
	t.Row("IDLE LEFT", terminal.Since(s.IdleLeft))
	t.Row("ATTEMPTS", s.Attempts)
	t.Row("CALLS", s.Calls)
	t.Row("EXECUTIONS", s.Executions)
	t.Row("FAILURES", fmt.Sprintf("%d, %d in a row", s.Failures, s.ConsecutiveFailures))
	t.Row("TOKENS", s.TokensUsed)
	t.Row("PARENT", s.ParentSessionId)
	t.Row("TOOLS", joined(s.CallsByTool))
	t.Row("ATTRIBUTES", joined(s.Attributes))
	t.Row("CHECKPOINTS", strings.Join(s.Checkpoints, " "))
	if err := t.Flush(); err != nil || len(s.OpenCalls) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = terminal.NewTable(w, "CALL", "TOOL", "STATE", "AGE", "TTL", "SLOTS")
	for _, call := range s.OpenCalls {
		state := "running"
		if call.Waiting {
			state = "waiting"
		}
		var slots []string
		for _, g := range call.Grants {
			slots = append(slots, fmt.Sprintf("%s:%d", g.Pool, g.Token))
		}
		t.Row(call.CallId, call.Tool, state, terminal.Since(call.Age), terminal.Since(call.Ttl), strings.Join(slots, " "))
	}
	return t.Flush()
}

// joined prints a map as name=value in the order of names.
func joined[V any](m map[string]V) string {
	var parts []string
	for name, value := range m {
		parts = append(parts, fmt.Sprintf("%s=%v", name, value))
	}
	slices.Sort(parts)
	return strings.Join(parts, " ")
}

func sessionCloseCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "close SESSION",
		Short: "Close a session and free its slots",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		return remote.Answer(cmd, c, remote.Node.CloseSession, &govnodev1.CloseSessionRequest{SessionId: args[0]}, func(w io.Writer, answer *govnodev1.CloseSessionResponse) error {
			return terminal.Say(w, "closed %s, %d leases ended", answer.Session.GetSessionId(), answer.Released)
		})
	})
}
