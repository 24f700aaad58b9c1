package operate

import (
	"bufio"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base32"
	"encoding/base64"
	"errors"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// Token is `govnode token`.
func Token() *cobra.Command {
	return terminal.Group("token", "Make, list and revoke tokens", tokenCreateCommand(), tokenListCommand(), tokenRevokeCommand(), tokenDenyCommand(), tokenAllowCommand())
}

// roleNames are how people write roles.
func roleNames() (names []string) {
	for n := int32(1); n < int32(len(govnodev1.Role_name)); n++ {
		names = append(names, roleName(govnodev1.Role(n)))
	}
	return names
}

func roleName(r govnodev1.Role) string {
	return strings.ReplaceAll(strings.ToLower(strings.TrimPrefix(r.String(), "ROLE_")), "_", "-")
}

func rolesOf(names []string) (roles []govnodev1.Role, err error) {
	for _, name := range names {
		n, ok := govnodev1.Role_value["ROLE_"+strings.ReplaceAll(strings.ToUpper(name), "-", "_")]
		if !ok || n == 0 {
			return nil, terminal.Usagef("role: %q is none; use %s", name, strings.Join(roleNames(), ", "))
		}
		roles = append(roles, govnodev1.Role(n))
	}
	return roles, nil
}

func joinRoles(roles []govnodev1.Role) string {
	names := make([]string, len(roles))
	for i, r := range roles {
		names[i] = roleName(r)
	}
	return strings.Join(names, ",")
}

func tokenCreateCommand() *cobra.Command {
	var roles, agents, policies []string
	var label, id, environment, node string
	var join bool
	var expires time.Duration
	cmd := config.Leaf(&cobra.Command{
		Use:   "create",
		Short: "Make a token, and print it",
		Long: `Draws a token, makes it known by the hash of its secret, and prints it. It is not shown
again. The namespace is that of --namespace; $cluster is for those who run the cluster
itself: members, snapshots, quotas, and the tokens of all namespaces.

The first token is made over the local socket of a node, by the user whose node it is:
--socket DATA/govnode.sock.

With --join it is a join token: a node that is started with --join-token becomes a member
by it, once, within 10 minutes or what --expires says, 24 hours at most. It carries the
fingerprint of the authority of the cluster, so that it is shown to nobody else. It issues
no certificate.`,
		Example: `  govnode token create --socket data/govnode.sock --namespace team-a --role operator
  govnode token create --role agent,orchestrator --agents 'bot-*' --policies production
  govnode token create --join --node d > d.token`,
		Args: terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		set, err := rolesOf(roles)
		if err != nil {
			return err
		}
		switch {
		case join && len(set) > 0:
			return terminal.Usagef("role: a join token has the role joiner alone; leave --role or --join out")
		case !join && len(set) == 0:
			return terminal.Usagef("role: say what the token is for with --role, or give --join for a token by which a node joins")
		case cmd.Flags().Changed("expires") && expires <= 0: // never to be taken for one that holds for ever
			return terminal.Usagef("expires: %s is over at once; give how long it holds, such as 24h, or leave it out", expires)
		}
		secret, err := drawSecret()
		if err != nil {
			return err
		}
		if id == "" {
			if id, err = drawTokenID(); err != nil {
				return err
			}
		}
		sum := sha256.Sum256([]byte(secret))
		req := &govnodev1.CreateTokenRequest{
			RequestId: remote.NewRequestID(), Client: remote.ClientName, Namespace: c.Namespace, TokenId: id, SecretSha256: sum[:],
			Roles: set, Label: label, Agents: agents, Policies: policies, Environment: environment,
		}
		switch {
		case join && c.Given("namespace") && c.Namespace != session.ClusterNamespace:
			return terminal.Usagef("namespace: a join token is of %s; leave it out", session.ClusterNamespace)
		case !join && node != "":
			return terminal.Usagef("node: is said of join tokens; give --join as well")
		}
		if ns, err := ownNamespace(cmd.Context(), c); err != nil {
			return err
		} else if ns != "" && !c.Given("namespace") {
			req.Namespace = ns
		}
		if join {
			req.Namespace, req.Roles, req.Node = session.ClusterNamespace, []govnodev1.Role{govnodev1.Role_ROLE_JOINER}, node
		}
		if expires > 0 {
			req.ExpiresIn = durationpb.New(expires)
		}
		text := "gn_" + req.Namespace + "." + id + "." + secret
		made, err := remote.Call(cmd.Context(), c, func(n remote.Node, ctx context.Context, req *govnodev1.CreateTokenRequest) (*govnodev1.CreateTokenResponse, error) {
			return n.Access.CreateToken(ctx, req)
		}, req)
		if err != nil {
			// Its secret is drawn anew each time: asked for again it would be another token.
			return remote.Advise(err, "`govnode token revoke %s --namespace '%s'` ends it if it was made; then make another", id, req.Namespace)
		}
		if join {
			text = remote.JoinToken{ID: id, Secret: secret, Authority: made.AuthoritySha256}.String()
		}
		if c.Output == "json" {
			return terminal.Say(cmd.OutOrStdout(), `{"token":%q,"tokenId":%q,"namespace":%q}`, text, id, req.Namespace)
		}
		return terminal.Say(cmd.OutOrStdout(), "%s", text)
	})
	cmd.Flags().StringSliceVar(&roles, "role", nil, "`names`: "+strings.Join(roleNames(), ", "))
	cmd.Flags().StringSliceVar(&agents, "agents", nil, "`patterns` of the agents that it may work for, as * and ? of shells; all if empty")
	cmd.Flags().StringSliceVar(&policies, "policies", nil, "`patterns` of the policies under which it may open sessions, or which it may put; all if empty")
	cmd.Flags().StringVar(&label, "label", "", "what it is for, for people")
	cmd.Flags().StringVar(&environment, "environment", "", "`name` of the environment whose rulesets its holder gets and puts, for SDKs of Edictum; any if empty, and production where none is named")
	cmd.Flags().StringVar(&id, "id", "", "its id, 4 to 32 small letters and digits; drawn if empty")
	cmd.Flags().DurationVar(&expires, "expires", 0, "how long it holds, such as 24h; for ever if not given, and a join token 10 minutes")
	cmd.Flags().BoolVar(&join, "join", false, "make a join token, by which one node becomes a member")
	cmd.Flags().StringVar(&node, "node", "", "`name` of the only node that may use the join token; the first that does if empty")
	return cmd
}

// ownNamespace is that of the token of the caller; empty where there is none, and of the
// local socket.
func ownNamespace(ctx context.Context, c *config.Config) (string, error) {
	token, err := remote.Token(c)
	if token == "" || err != nil || c.Given("namespace") {
		return "", err
	}
	me, err := whoAmI(ctx, c)
	return me.GetNamespace(), err
}

func whoAmI(ctx context.Context, c *config.Config) (*govnodev1.WhoAmIResponse, error) {
	return remote.Call(ctx, c, func(n remote.Node, ctx context.Context, req *govnodev1.WhoAmIRequest) (*govnodev1.WhoAmIResponse, error) {
		return n.Access.WhoAmI(ctx, req)
	}, &govnodev1.WhoAmIRequest{})
}

// drawSecret draws 256 bits.
func drawSecret() (string, error) {
	var b [32]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return base64.RawURLEncoding.EncodeToString(b[:]), nil
}

// drawTokenID draws 50 bits, which is enough for a name.
func drawTokenID() (string, error) {
	var b [7]byte
	if _, err := rand.Read(b[:]); err != nil {
		return "", err
	}
	return strings.ToLower(base32.StdEncoding.WithPadding(base32.NoPadding).EncodeToString(b[:]))[:10], nil
}

func tokenListCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "list",
		Short: "List the tokens of a namespace, without their secrets",
		Args:  terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		ns, err := namespaceOf(cmd.Context(), c)
		if err != nil {
			return err
		}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.ListTokensRequest) (*govnodev1.ListTokensResponse, error) {
			return n.Access.ListTokens(ctx, req)
		}, &govnodev1.ListTokensRequest{Namespace: ns}, printTokens)
	})
}

// namespaceOf is the namespace that a command is about: as given, or that of the token.
func namespaceOf(ctx context.Context, c *config.Config) (string, error) {
	ns, err := ownNamespace(ctx, c)
	if ns == "" {
		ns = c.Namespace
	}
	return ns, err
}

func printTokens(w io.Writer, answer *govnodev1.ListTokensResponse) error {
	t := terminal.NewTable(w, "TOKEN", "ROLES", "AGENTS", "POLICIES", "EXPIRES", "MADE BY", "LABEL", "NODE")
	for _, x := range answer.Tokens {
		expires := "never"
		if x.ExpiresAt > 0 {
			expires = time.UnixMilli(x.ExpiresAt).UTC().Format(time.RFC3339)
		}
		t.Row(x.TokenId, joinRoles(x.Roles), orAll(x.Agents), orAll(x.Policies), expires, x.CreatedBy, orDash(x.Label), nodeOf(x))
	}
	if err := t.Flush(); err != nil || len(answer.Denied) == 0 {
		return err
	}
	t = terminal.NewTable(w, "DENIED", "SINCE", "REASON")
	for _, d := range answer.Denied {
		t.Row(d.Subject, time.UnixMilli(d.DeniedAt).UTC().Format(time.RFC3339), orDash(d.Reason))
	}
	return t.Flush()
}

// nodeOf is for whom a join token is, and whether it was used.
func nodeOf(x *govnodev1.Token) string {
	if x.UsedAt > 0 {
		return x.Node + " (used)"
	}
	return orDash(x.Node)
}

func orDash(text string) string {
	if text == "" {
		return "-"
	}
	return text
}

func orAll(patterns []string) string {
	if len(patterns) == 0 {
		return "all"
	}
	return strings.Join(patterns, ",")
}

// tokenIn tells where a token is and its id, from its text: another namespace may have
// another token of the same id.
func tokenIn(text string) (ns, id string, ok bool) {
	parts := strings.Split(text, ".")
	ns, ok = strings.CutPrefix(parts[0], "gn_")
	if n := len(parts); ok && n > 2 {
		return strings.Join(append([]string{ns}, parts[1:n-2]...), "."), parts[n-2], true
	}
	return "", "", false
}

func tokenRevokeCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "revoke ID",
		Short: "End a token",
		Long: `Ends a token, by its id or its text, which says the namespace as well. Behind the
answer nothing that it asks for is done; its streams end, and who waits with it is told so.`,
		Args: terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		ns, err := namespaceOf(cmd.Context(), c)
		if err != nil {
			return err
		}
		id := args[0]
		if t, err := remote.ParseJoinToken(id); err == nil {
			id, ns = t.ID, session.ClusterNamespace
		} else if of, name, ok := tokenIn(id); ok {
			id, ns = name, of
		}
		req := &govnodev1.RevokeTokenRequest{RequestId: remote.NewRequestID(), Client: remote.ClientName, Namespace: ns, TokenId: id}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.RevokeTokenRequest) (*govnodev1.RevokeTokenResponse, error) {
			return n.Access.RevokeToken(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.RevokeTokenResponse) error {
			if !answer.Revoked {
				return terminal.Say(w, "there was no token %s in %s", id, ns)
			}
			return terminal.Say(w, "revoked %s of %s", id, ns)
		})
	})
}

func tokenDenyCommand() *cobra.Command {
	var reason string
	cmd := config.Leaf(&cobra.Command{
		Use:     "deny SUBJECT",
		Short:   "Keep the subject of certificates or of JWTs out",
		Example: `  govnode token deny cert:worker-7 --reason lost`,
		Args:    terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		ns, err := namespaceOf(cmd.Context(), c)
		if err != nil {
			return err
		}
		req := &govnodev1.DenySubjectRequest{RequestId: remote.NewRequestID(), Client: remote.ClientName, Namespace: ns, Subject: args[0], Reason: reason}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.DenySubjectRequest) (*govnodev1.DenySubjectResponse, error) {
			return n.Access.DenySubject(ctx, req)
		}, req, func(w io.Writer, _ *govnodev1.DenySubjectResponse) error {
			return terminal.Say(w, "%s is kept out of %s", args[0], ns)
		})
	})
	cmd.Flags().StringVar(&reason, "reason", "", "why, for people")
	return cmd
}

func tokenAllowCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "allow SUBJECT",
		Short: "Let a subject in again that was denied",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		ns, err := namespaceOf(cmd.Context(), c)
		if err != nil {
			return err
		}
		req := &govnodev1.AllowSubjectRequest{RequestId: remote.NewRequestID(), Client: remote.ClientName, Namespace: ns, Subject: args[0]}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.AllowSubjectRequest) (*govnodev1.AllowSubjectResponse, error) {
			return n.Access.AllowSubject(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.AllowSubjectResponse) error {
			if !answer.Allowed {
				return terminal.Say(w, "%s was not denied in %s", args[0], ns)
			}
			return terminal.Say(w, "%s is let into %s again", args[0], ns)
		})
	})
}

// Login is `govnode login`.
func Login() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "login",
		Short: "Keep a token for the commands that follow",
		Long: `Reads a token from standard input, unless --token or --token-file gives one, asks the
node whether it holds, and keeps it for all commands with the same --addr, in a file that
only you can read.`,
		Example: `  govnode token create --socket data/govnode.sock --role operator | govnode login`,
		Args:    terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		if c.Socket != "" {
			return terminal.Usagef("socket: nobody logs in over the local socket: who may open it is known; leave it out")
		}
		if c.Token == "" && c.TokenFile == "" {
			line, err := bufio.NewReader(io.LimitReader(cmd.InOrStdin(), 4096)).ReadString('\n')
			if c.Token = strings.TrimSpace(line); c.Token == "" {
				if err == nil || errors.Is(err, io.EOF) {
					err = terminal.Usagef("token: none was given; write it to standard input, or give --token-file")
				}
				return err
			}
		}
		me, err := whoAmI(cmd.Context(), c)
		if err != nil {
			return err
		}
		token, err := remote.Token(c)
		if err != nil {
			return err
		}
		file, err := remote.Remember(c.Addr, token)
		if err != nil {
			return err
		}
		return remote.Show(cmd.OutOrStdout(), c, me, func(w io.Writer) error {
			return terminal.Say(w, "%s of %s, with the roles %s; kept for %s in %s", me.Principal, me.Namespace, joinRoles(me.Roles), c.Addr, file)
		})
	})
}

// Logout is `govnode logout`.
func Logout() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "logout",
		Short: "Forget the token of a login",
		Args:  terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		kept, err := remote.Login(c.Addr)
		if err != nil {
			return err
		}
		if kept != "" {
			if _, err := remote.Remember(c.Addr, ""); err != nil {
				return err
			}
		}
		switch {
		case c.Output == "json":
			return terminal.WriteJSON(cmd.OutOrStdout(), map[string]any{"addr": c.Addr, "forgotten": kept != ""})
		case kept == "":
			return terminal.Say(cmd.OutOrStdout(), "no token was kept for %s", c.Addr)
		}
		return terminal.Say(cmd.OutOrStdout(), "the token for %s is kept no more; it holds until it is revoked", c.Addr)
	})
}

// WhoAmI is `govnode whoami`.
func WhoAmI() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "whoami",
		Short: "Show as whom a node knows you",
		Args:  terminal.Arguments(0, 0),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, _ []string) error {
		me, err := whoAmI(cmd.Context(), c)
		if err != nil {
			return err
		}
		return remote.Show(cmd.OutOrStdout(), c, me, func(w io.Writer) error {
			t := terminal.NewTable(w, "PRINCIPAL", "NAMESPACE", "ROLES", "AGENTS", "POLICIES")
			t.Row(me.Principal, me.Namespace, joinRoles(me.Roles), orAll(me.Agents), orAll(me.Policies))
			return t.Flush()
		})
	})
}

// Quota is `govnode quota`.
func Quota() *cobra.Command {
	return terminal.Group("quota", "Set and show how much a namespace may have", quotaPutCommand(), quotaGetCommand())
}

// quotaFields are the quotas by the names of their flags.
func quotaFields(q *govnodev1.Quotas) []struct {
	flag, meaning string
	n             *int64
} {
	return []struct {
		flag, meaning string
		n             *int64
	}{
		{"sessions", "open ones, and closed ones that are remembered", &q.Sessions},
		{"clients", "processes whose requests are remembered", &q.Clients},
		{"pools", "pools and rates", &q.Pools},
		{"policies", "names of policies", &q.Policies},
		{"keys", "values, lists and their items, budgets, hashes, approvals and standing approvals", &q.Keys},
		{"bytes", "of policies, values, lists and approvals", &q.Bytes},
		{"waiters", "requests that wait at one node", &q.Waiters},
		{"followers", "of events at one node", &q.Followers},
		{"streams", "of calls at one node", &q.Streams},
		{"operations", "a second at one node", &q.OperationsPerSecond},
	}
}

func quotaPutCommand() *cobra.Command {
	quotas := &govnodev1.Quotas{}
	cmd := config.Leaf(&cobra.Command{
		Use:   "put NAMESPACE",
		Short: "Set the quotas of a namespace; those not given are lifted",
		Args:  terminal.Arguments(1, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		req := &govnodev1.PutQuotasRequest{RequestId: remote.NewRequestID(), Client: remote.ClientName, Namespace: args[0], Quotas: quotas}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.PutQuotasRequest) (*govnodev1.PutQuotasResponse, error) {
			return n.Access.PutQuotas(ctx, req)
		}, req, func(w io.Writer, answer *govnodev1.PutQuotasResponse) error {
			return printQuotas(w, answer.Quotas, nil)
		})
	})
	for _, f := range quotaFields(quotas) {
		cmd.Flags().Int64Var(f.n, f.flag, 0, f.meaning+"; no quota if 0")
	}
	return cmd
}

func quotaGetCommand() *cobra.Command {
	return config.Leaf(&cobra.Command{
		Use:   "get [NAMESPACE]",
		Short: "Show the quotas of a namespace, and what of them is used",
		Args:  terminal.Arguments(0, 1),
	}, config.OnClient, func(cmd *cobra.Command, c *config.Config, args []string) error {
		var ns string
		var err error
		switch {
		case len(args) == 0:
			ns, err = namespaceOf(cmd.Context(), c)
		case c.Given("namespace") && c.Namespace != args[0]:
			err = terminal.Usagef("namespace: is %q, and %q is asked for; name one of them", c.Namespace, args[0])
		default:
			ns = args[0]
		}
		if err != nil {
			return err
		}
		return remote.Answer(cmd, c, func(n remote.Node, ctx context.Context, req *govnodev1.GetQuotasRequest) (*govnodev1.GetQuotasResponse, error) {
			return n.Access.GetQuotas(ctx, req)
		}, &govnodev1.GetQuotasRequest{Namespace: ns}, func(w io.Writer, answer *govnodev1.GetQuotasResponse) error {
			return printQuotas(w, answer.Quotas, answer.Used)
		})
	})
}

func printQuotas(w io.Writer, quotas, used *govnodev1.Quotas) error {
	headings := []any{"QUOTA", "AT MOST"}
	if used != nil {
		headings = append(headings, "USED")
	}
	t := terminal.NewTable(w, headings...)
	known := used
	if known == nil {
		known = &govnodev1.Quotas{}
	}
	counts := quotaFields(known)
	for i, f := range quotaFields(quotas) {
		row := []any{f.flag, "-"}
		if *f.n > 0 {
			row[1] = *f.n
		}
		if used != nil {
			row = append(row, *counts[i].n)
		}
		t.Row(slices.Clip(row)...)
	}
	return t.Flush()
}
