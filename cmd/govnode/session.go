package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

func sessionCommand() *cobra.Command {
	return group("session", "Look at sessions and close them", sessionListCommand(), sessionGetCommand(), sessionCloseCommand())
}

func sessionListCommand() *cobra.Command {
	var agent, digest string
	var limit int
	cmd := leaf(&cobra.Command{
		Use:   "list",
		Short: "List sessions in the order of their ids",
		Args:  arguments(0, 0),
	}, onClient, func(cmd *cobra.Command, c *Config, _ []string) error {
		all := &govnodev1.ListSessionsResponse{}
		more, err := eachPage(limit, func(size int32, token string) (int, string, error) {
			page, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.ListSessionsResponse, error) {
				return r.sessions.ListSessions(ctx, &govnodev1.ListSessionsRequest{AgentId: agent, PolicyDigest: digest, PageSize: size, PageToken: token})
			})
			if err != nil {
				return 0, "", err
			}
			all.Sessions = append(all.Sessions, page.Sessions...)
			all.AppliedIndex, all.NextPageToken = page.AppliedIndex, page.NextPageToken
			return len(page.Sessions), page.NextPageToken, nil
		})
		if err != nil {
			return err
		}
		noteMore(cmd, more)
		return show(cmd.OutOrStdout(), c, all, func(w io.Writer) error {
			t := newTable(w, "SESSION", "AGENT", "POLICY", "STATE", "AGE", "ATTEMPTS", "CALLS", "EXECUTIONS", "FAILURES", "OPEN", "TOKENS")
			for _, s := range all.Sessions {
				t.row(s.SessionId, s.AgentId, policyOf(s), word(s.State, "SESSION_STATE_"), since(s.Age), s.Attempts, s.Calls, s.Executions, s.Failures, len(s.OpenCalls), s.TokensUsed)
			}
			return t.flush()
		})
	})
	cmd.Flags().StringVar(&agent, "agent", "", "only those of this agent")
	cmd.Flags().StringVar(&digest, "policy-digest", "", "only those that pin this digest")
	limitFlag(cmd, &limit)
	return cmd
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
	return leaf(&cobra.Command{
		Use:   "get SESSION",
		Short: "Print one session with its open calls",
		Args:  arguments(1, 1),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.GetSessionResponse, error) {
			return r.sessions.GetSession(ctx, &govnodev1.GetSessionRequest{SessionId: args[0]})
		})
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error { return printSession(w, answer.Session) })
	})
}

func printSession(w io.Writer, s *govnodev1.Session) error {
	t := newTable(w, "SESSION", s.SessionId)
	t.row("AGENT", s.AgentId)
	t.row("POLICY", policyOf(s))
	t.row("DIGEST", s.PolicyDigest)
	t.row("STATE", word(s.State, "SESSION_STATE_"))
	t.row("AGE", since(s.Age))
	t.row("IDLE LEFT", since(s.IdleLeft))
	t.row("ATTEMPTS", s.Attempts)
	t.row("CALLS", s.Calls)
	t.row("EXECUTIONS", s.Executions)
	t.row("FAILURES", fmt.Sprintf("%d, %d in a row", s.Failures, s.ConsecutiveFailures))
	t.row("TOKENS", s.TokensUsed)
	t.row("PARENT", s.ParentSessionId)
	t.row("TOOLS", joined(s.CallsByTool))
	t.row("ATTRIBUTES", joined(s.Attributes))
	t.row("CHECKPOINTS", strings.Join(s.Checkpoints, " "))
	if err := t.flush(); err != nil || len(s.OpenCalls) == 0 {
		return err
	}
	_, _ = fmt.Fprintln(w)
	t = newTable(w, "CALL", "TOOL", "STATE", "AGE", "TTL", "SLOTS")
	for _, call := range s.OpenCalls {
		state := "running"
		if call.Waiting {
			state = "waiting"
		}
		var slots []string
		for _, g := range call.Grants {
			slots = append(slots, fmt.Sprintf("%s:%d", g.Pool, g.Token))
		}
		t.row(call.CallId, call.Tool, state, since(call.Age), since(call.Ttl), strings.Join(slots, " "))
	}
	return t.flush()
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
	return leaf(&cobra.Command{
		Use:   "close SESSION",
		Short: "Close a session and free its slots",
		Args:  arguments(1, 1),
	}, onClient, func(cmd *cobra.Command, c *Config, args []string) error {
		answer, err := ask(cmd.Context(), c, func(ctx context.Context, r remote) (*govnodev1.CloseSessionResponse, error) {
			return r.sessions.CloseSession(ctx, &govnodev1.CloseSessionRequest{SessionId: args[0]})
		})
		if err != nil {
			return err
		}
		return show(cmd.OutOrStdout(), c, answer, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "closed %s, %d slots freed\n", printable(answer.Session.GetSessionId()), answer.Released)
			return err
		})
	})
}
