package complete

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"example.com/govnode/cmd/govnode/internal/config"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Names that only a node knows, such as those of sessions and pools, as
// completions.

// patience is how long a person who pressed Tab waits for names.
const patience = time.Second

// most is how many names are asked for; who has more types on.
const most = 1000

// A lister asks a node for names, as the command line stands.
type lister func(ctx context.Context, r remote.Node, line line) ([]string, error)

// A line is what of a command line says which names are asked for.
type line struct {
	args []string // those before
	// namespace is the one that is given. Empty leaves it to who asks. Most lists are of
	// the namespace of the request; those of who may do what say which one they mean.
	namespace string
}

// byWord is what the words in the usage of a command stand for.
var byWord = map[string]lister{
	"SESSION":     sessions,
	"POOL":        pools,
	"BUDGET":      budgets,
	"SLOT":        slots,
	"RATE":        rates,
	"NODE":        nodes,
	"NAME|DIGEST": policies,
	"APPROVAL":    pending,
	"STANDING":    standing,
	"ID":          tokens,
	"SUBJECT":     denied,
}

// byFlag is what flags name, whatever command has them.
var byFlag = map[string]lister{
	"session":       sessions,
	"policy-digest": digests,
}

func sessions(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListSessions(ctx, &govnodev1.ListSessionsRequest{PageSize: most})
	return names(res.GetSessions(), (*govnodev1.Session).GetSessionId), err
}

// pending are the approvals that somebody may decide: whoever wants another one
// knows its id.
func pending(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.Approvals.List(ctx, &govnodev1.ApprovalServiceListRequest{State: govnodev1.ApprovalState_APPROVAL_STATE_PENDING, PageSize: most})
	return names(res.GetApprovals(), (*govnodev1.Approval).GetId), err
}

func tokens(ctx context.Context, r remote.Node, l line) ([]string, error) {
	res, err := r.Access.ListTokens(ctx, &govnodev1.ListTokensRequest{Namespace: l.namespace})
	return names(res.GetTokens(), (*govnodev1.Token).GetTokenId), err
}

func denied(ctx context.Context, r remote.Node, l line) ([]string, error) {
	res, err := r.Access.ListTokens(ctx, &govnodev1.ListTokensRequest{Namespace: l.namespace})
	return names(res.GetDenied(), (*govnodev1.DeniedSubject).GetSubject), err
}

func standing(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.Approvals.ListStanding(ctx, &govnodev1.ListStandingRequest{PageSize: most})
	return names(res.GetStandings(), (*govnodev1.Standing).GetId), err
}

func budgets(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListBudgets(ctx, &govnodev1.ListBudgetsRequest{PageSize: most})
	return names(res.GetBudgets(), (*govnodev1.Budget).GetBudget), err
}

func pools(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListPools(ctx, &govnodev1.ListPoolsRequest{PageSize: most})
	return names(res.GetPools(), (*govnodev1.Pool).GetPool), err
}

func rates(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListRates(ctx, &govnodev1.ListRatesRequest{PageSize: most})
	return names(res.GetRates(), (*govnodev1.Rate).GetRate), err
}

func slots(ctx context.Context, r remote.Node, l line) ([]string, error) {
	res, err := r.ListSlots(ctx, &govnodev1.ListSlotsRequest{Pool: l.args[0]})
	return names(res.GetSlots(), (*govnodev1.Slot).GetSlotId), err
}

func nodes(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.Status(ctx, &govnodev1.StatusRequest{})
	return names(res.GetPeers(), (*govnodev1.Peer).GetNode), err
}

func policies(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListPolicies(ctx, &govnodev1.ListPoliciesRequest{PageSize: most})
	return names(res.GetPolicies(), (*govnodev1.Policy).GetName), err
}

func digests(ctx context.Context, r remote.Node, _ line) ([]string, error) {
	res, err := r.ListPolicies(ctx, &govnodev1.ListPoliciesRequest{PageSize: most})
	return names(res.GetPolicies(), (*govnodev1.Policy).GetDigest), err
}

// names are those of all items, each once, that a shell can take for one word.
func names[T any](items []T, name func(T) string) (all []string) {
	for _, item := range items {
		if n := name(item); n != "" && n == terminal.Printable(n) && !strings.ContainsAny(n, " \t") {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// live completes names that a node knows: the one that the command line, the
// environment or the file of settings names. Without an answer there are none,
// and nothing is said.
func live(list lister) cobra.CompletionFunc {
	return func(cmd *cobra.Command, args []string, typed string) ([]string, cobra.ShellCompDirective) {
		c, err := config.Of(cmd, config.OnClient)
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		c.Timeout = min(c.Timeout, patience)
		l := line{args: args}
		if c.Given("namespace") {
			l.namespace = c.Namespace
		}
		all, err := remote.Ask(cmd.Context(), c, func(ctx context.Context, r remote.Node) ([]string, error) {
			return list(ctx, r, l)
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return beginning("", all, typed), cobra.ShellCompDirectiveNoFileComp
	}
}
