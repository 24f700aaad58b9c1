package server_test

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

func (n *node) putBudget(name, parent, amount string) *v1.Budget {
	n.t.Helper()
	res, err := n.limits.PutBudget(n.ctx(), &v1.PutBudgetRequest{Budget: name, Parent: parent, Amount: amount})
	require.NoError(n.t, err)
	return res.Budget
}

func (n *node) used(name string) string {
	n.t.Helper()
	res, err := n.limits.GetBudget(n.ctx(), &v1.GetBudgetRequest{Budget: name})
	require.NoError(n.t, err)
	return res.Budget.Used
}

func costs(amounts ...string) (list []*v1.BudgetAmount) {
	for i := 0; i < len(amounts); i += 2 {
		list = append(list, &v1.BudgetAmount{Budget: amounts[i], Amount: amounts[i+1]})
	}
	return list
}

// limitsEvents follows what is told of budgets.
func (n *node) limitsEvents() (*connect.ServerStreamForClient[v1.FollowResponse], error) {
	return n.h2().events.Follow(n.ctx(), &v1.FollowRequest{FromOldest: true, Types: []string{"budget_warning", "budget_exceeded"}})
}

func charged(amounts ...string) func(*v1.BeginCallRequest) {
	return func(r *v1.BeginCallRequest) { r.Budgets = costs(amounts...) }
}

func (n *node) endSpent(session, call string, amounts ...string) error {
	_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED, Spent: costs(amounts...)})
	return err
}

// A call is charged in the budgets that it and its policy name, and in all above
// them, at admission; its end puts right what it has cost.
func TestBudgetsAreChargedInTheWholeTree(t *testing.T) {
	n := start(t)
	n.putBudget("org", "", "10.5")
	n.putBudget("team", "org", "8")
	n.putBudget("bob", "team", "5")
	n.putBudget("policy", "org", "100")
	n.putPolicy(policy("budgets: [{budget: policy, amount: 0.5}]")...)
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", charged("bob", "")).Outcome)
	require.Equal(t, []string{"1", "1", "0.5", "1.5"}, []string{n.used("bob"), n.used("team"), n.used("policy"), n.used("org")})
	require.NoError(t, n.endSpent("s", "a", "bob", "0.000001", "policy", "2"))
	require.Equal(t, []string{"0.000001", "0.000001", "2", "2.000001"}, []string{n.used("bob"), n.used("team"), n.used("policy"), n.used("org")})

	refused := n.begin("s", "b", charged("bob", "5"))
	require.Equal(t, v1.Outcome_OUTCOME_BUDGET_EXCEEDED, refused.Outcome)
	require.Equal(t, "bob", refused.Budget.Budget)
	require.Equal(t, "4.999999", refused.Budget.Amount)
	require.Equal(t, "Budget bob exceeded: 4.999999 is left of it", refused.Reason)
	require.Equal(t, "budget", refused.Decision.Category)
	again := n.begin("s", "b", charged("bob", "5"))
	require.Equal(t, refused.Reason, again.Reason)
	require.Equal(t, "2.000001", n.used("org"), "all or none")

	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", charged("bob", "4.999999")).Outcome)
	require.ErrorContains(t, n.endSpent("s", "c", "other", "1"), "spent")
	require.NoError(t, n.endSpent("s", "c"), "what is not named is as assumed")
	require.Equal(t, "5", n.used("bob"))
	require.Equal(t, "7.5", n.used("org"))

	list, err := n.limits.ListBudgets(n.ctx(), &v1.ListBudgetsRequest{})
	require.NoError(t, err)
	var names []string
	for _, b := range list.Budgets {
		names = append(names, b.Budget)
	}
	require.Equal(t, []string{"bob", "org", "policy", "team"}, names)
	require.Equal(t, 1.0, list.Budgets[0].Share)
	require.Equal(t, "0", list.Budgets[0].Left)
	require.EqualValues(t, 3, list.Budgets[0].Depth)
	require.EqualValues(t, 2, list.Budgets[1].Children)
}

// What a call and its policy assume of one budget is added.
func TestACallAndItsPolicyNameOneBudget(t *testing.T) {
	n := start(t)
	n.putBudget("both", "", "10")
	n.putPolicy(policy("budgets: [{budget: both, amount: 0.5}]")...)
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", charged("both", "2")).Outcome)
	require.Equal(t, "2.5", n.used("both"))
	require.Equal(t, v1.Outcome_OUTCOME_BUDGET_EXCEEDED, n.begin("s", "b", charged("both", "7.5")).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c", charged("both", "7")).Outcome)
	require.Equal(t, "10", n.used("both"))
}

// What a budget cannot be is said by its field, and changes nothing.
func TestBudgetsThatCannotBe(t *testing.T) {
	n := start(t)
	n.putBudget("root", "", "1000000000000")
	n.putBudget("child", "root", "0")
	put := func(change func(*v1.PutBudgetRequest)) error {
		req := &v1.PutBudgetRequest{Budget: "child", Parent: "root", Amount: "1"}
		change(req)
		_, err := n.limits.PutBudget(n.ctx(), req)
		return err
	}
	for field, change := range map[string]func(*v1.PutBudgetRequest){
		"amount: must be a decimal from 0 to 1000000000000 ": func(r *v1.PutBudgetRequest) { r.Amount = "1000000000000.000001" },
		"amount: must be a decimal from 0 ":                  func(r *v1.PutBudgetRequest) { r.Amount = "-1" },
		"amount: must be a decimal from ":                    func(r *v1.PutBudgetRequest) { r.Amount = "" },
		"amount: must be a decimal":                          func(r *v1.PutBudgetRequest) { r.Amount = "0.1234567" },
		"parent: is fixed":                                   func(r *v1.PutBudgetRequest) { r.Parent = "" },
		"parent: is the budget itself":                       func(r *v1.PutBudgetRequest) { r.Budget, r.Parent = "x", "x" },
		"parent: there is no budget \"none\"":                func(r *v1.PutBudgetRequest) { r.Budget, r.Parent = "x", "none" },
		"per: is fixed":                                      func(r *v1.PutBudgetRequest) { r.Per = durationpb.New(time.Hour) },
		"per: ":                                              func(r *v1.PutBudgetRequest) { r.Budget, r.Per = "x", durationpb.New(time.Second-1) },
	} {
		require.ErrorContains(t, put(change), field)
	}
	for range 2 { // the same again changes nothing
		require.NoError(t, put(func(r *v1.PutBudgetRequest) { r.Amount = "0" }))
	}
	_, err := n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "root"})
	require.Equal(t, connect.CodeFailedPrecondition, connect.CodeOf(err))
	_, err = n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "child"})
	require.NoError(t, err)
	_, err = n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "child"})
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	_, err = n.limits.GetBudget(n.ctx(), &v1.GetBudgetRequest{Budget: "child"})
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))

	parent := ""
	for _, name := range []string{"1", "2", "3", "4", "5", "6", "7", "8"} {
		n.putBudget(name, parent, "1")
		parent = name
	}
	require.ErrorContains(t, put(func(r *v1.PutBudgetRequest) { r.Budget, r.Parent = "9", "8" }), "parent")

	n.putPolicy(policy()...)
	n.session("s")
	_, err = n.calls.BeginCall(n.ctx(), beginRequest("s", "a", charged("none", "1")))
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
	require.ErrorContains(t, err, "budgets")
	var many []string
	for _, name := range []string{"a", "b", "c", "d", "e", "f", "g", "h"} {
		n.putBudget(name, "", "1")
		many = append(many, name, "0.1")
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "most", charged(append(many, "8", "0.1")...)).Outcome, "sixteen")
	n.putBudget("i", "", "1")
	_, err = n.calls.BeginCall(n.ctx(), beginRequest("s", "more", charged(append(many, "8", "0.1", "i", "0.1")...)))
	require.ErrorContains(t, err, "budgets")
	require.EqualValues(t, 1, n.getSession("s").Attempts)
}

// A bill that comes late counts in the whole tree, and a share that is crossed
// upwards is told once.
func TestBudgetsAreAdjustedAndTold(t *testing.T) {
	n := start(t)
	n.putBudget("org", "", "10")
	n.putBudget("team", "org", "10")
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "a", charged("team", "7.999999"))
	adjust := func(by string) *v1.Budget {
		res, err := n.limits.AdjustBudget(n.ctx(), &v1.AdjustBudgetRequest{Budget: "team", By: by})
		require.NoError(t, err)
		return res.Budget
	}
	require.Equal(t, "8", adjust("0.000001").Used)
	require.Equal(t, "12", adjust("4").Used, "it may exceed")
	require.Equal(t, "12", n.used("org"))
	_, err := n.limits.AdjustBudget(n.ctx(), &v1.AdjustBudgetRequest{Budget: "team", By: "-20"})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "by: is -20, and 12 is used")
	require.Equal(t, "12", n.used("org"), "others may have used that")
	require.Equal(t, "0", adjust("-12").Used)
	n.begin("s", "b", charged("org", "10"))
	var told []string
	stream, err := n.limitsEvents()
	require.NoError(t, err)
	for len(told) < 5 && stream.Receive() {
		if e := stream.Msg().Event; e != nil {
			told = append(told, e.Type+" "+e.Reason+" "+e.CallId)
		}
	}
	require.NoError(t, stream.Close())
	require.Equal(t, []string{
		"budget_warning Budget team has reached 80 % of its amount: 8 of 10 are used ",
		"budget_warning Budget org has reached 80 % of its amount: 8 of 10 are used ",
		"budget_exceeded Budget team is used up: 12 of 10 are used ",
		"budget_exceeded Budget org is used up: 12 of 10 are used ",
		"budget_exceeded Budget org is used up: 10 of 10 are used b",
	}, told)
}

// A known call gets its first answer, also when its budget is there no more.
func TestARepeatWhoseBudgetIsGone(t *testing.T) {
	n := start(t)
	n.putBudget("b", "", "10")
	n.putPolicy(policy()...)
	n.session("s")
	n.begin("s", "a", charged("b", "1"))
	_, err := n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "b"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "a", charged("b", "1")).Outcome)
	n.putBudget("b", "", "5")
	require.NoError(t, n.endSpent("s", "a", "b", "3"))
	require.Equal(t, "0", n.used("b"), "it is another budget")
}
