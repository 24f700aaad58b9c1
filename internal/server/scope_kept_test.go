package server_test

import (
	"strings"
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// What is kept about an agent beside its sessions: values and rates that belong to no agent
// by themselves, but say how far a session has come, which ruleset an agent has, and how
// much it has spent.

// boundTeam has a token that is bound to some agents, with all roles that there are, and one that
// is not, which has opened a session of one of them and of another agent.
func boundTeam(t *testing.T, policy string) (all, bound clients) {
	t.Helper()
	n := startTeam(t)
	all = n.as(n.token("team", "all1", append(allRoles, worker...)))
	bound = n.as(n.token("team", "some", append(allRoles, worker...), agents("bot-*")))
	_, err := all.policies.PutPolicy(t.Context(), &v1.PutPolicyRequest{Name: "of-all", Yaml: policy})
	require.NoError(t, err)
	require.NoError(t, open(all, "s-bot", "bot-1", "of-all"))
	require.NoError(t, open(all, "s-other", "other", "of-all"))
	return all, bound
}

// Where a session of others stands in its workflow is not there for a token that is bound,
// and is not its to say, whatever its roles are.
func TestScopeOfWorkflows(t *testing.T) {
	all, bound := boundTeam(t, strings.Join(policy(), "\n")+"\n")
	const mine, foreign, free = "s:s-bot:workflow:p:state", "s:s-other:workflow:p:state", "s:nobody:workflow:p:state"
	for _, key := range []string{mine, foreign, free} {
		_, err := all.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "state"})
		require.NoError(t, err)
	}
	for key, there := range map[string]bool{mine: true, foreign: false, free: true} {
		got, err := bound.counters.Get(t.Context(), &v1.GetRequest{Key: key})
		require.NoError(t, err)
		require.Equal(t, there, got.Found, key)
		if !there {
			absent, err := bound.counters.Get(t.Context(), &v1.GetRequest{Key: "s:absent:workflow:p:state"})
			require.NoError(t, err)
			require.Equal(t, []string{absent.Value, absent.Version}, []string{got.Value, got.Version})
		}
	}
	many, err := bound.counters.BatchGet(t.Context(), &v1.BatchGetRequest{Keys: []string{mine, foreign, free}})
	require.NoError(t, err)
	require.Equal(t, map[string]string{mine: "state", free: "state"}, many.Values)
	require.Len(t, many.Versions, 2)
	for what, try := range map[string]func(key string) error{
		"set": func(key string) error {
			_, err := bound.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "1"})
			return err
		},
		"increment": func(key string) error {
			_, err := bound.counters.Increment(t.Context(), &v1.IncrementRequest{Key: key})
			return err
		},
		"delete": func(key string) error {
			_, err := bound.counters.Delete(t.Context(), &v1.DeleteRequest{Key: key})
			return err
		},
	} {
		requireRefused(t, try(foreign), connect.CodePermissionDenied, fault.ReasonForbidden, "workflow")
		if what == "set" {
			require.NoError(t, try(mine))
			require.NoError(t, try(free))
		}
	}
	got, err := all.counters.Get(t.Context(), &v1.GetRequest{Key: foreign})
	require.NoError(t, err)
	require.Equal(t, "state", got.Value)
}

// Which ruleset an agent of Edictum has is not for a token to say that is bound to others:
// by the API itself as little as by the paths of Edictum.
func TestScopeOfAssignments(t *testing.T) {
	all, bound := boundTeam(t, strings.Join(policy(), "\n")+"\n")
	for key, may := range map[string]bool{"edictum/assignment/bot-1": true, "edictum/assignment/other": false} {
		_, err := all.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "1"})
		require.NoError(t, err)
		for what, try := range map[string]func() error{
			"set": func() error {
				_, err := bound.counters.Set(t.Context(), &v1.SetRequest{Key: key, Value: "2"})
				return err
			},
			"increment": func() error {
				_, err := bound.counters.Increment(t.Context(), &v1.IncrementRequest{Key: key})
				return err
			},
			"delete": func() error { _, err := bound.counters.Delete(t.Context(), &v1.DeleteRequest{Key: key}); return err },
		} {
			if err := try(); may {
				require.NoError(t, err, what)
			} else {
				requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, `"other" is not in the scope`)
			}
		}
	}
}

// How much other agents and their sessions have spent at the rates of a policy is not there
// for a token that is bound. What all share is.
func TestScopeOfRates(t *testing.T) {
	all, bound := boundTeam(t, strings.Join(policy("rate_limits:",
		"  - {name: mine, limit: 9, per: 1h, scope: agent}", "  - {name: now, limit: 9, per: 1h, scope: session}",
		"  - {name: ours, limit: 9, per: 1h, scope: policy}", "  - {name: everybodys, limit: 9, per: 1h, scope: namespace}"), "\n")+"\n")
	for _, sess := range []string{"s-bot", "s-other"} {
		res, err := all.calls.BeginCall(t.Context(), beginRequest(sess, "c"))
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	}
	names := func(c clients) (names []string) {
		list, err := c.limits.ListRates(t.Context(), &v1.ListRatesRequest{})
		require.NoError(t, err)
		for _, r := range list.Rates {
			names = append(names, r.Rate)
		}
		return names
	}
	shown := []string{"policy//everybodys", "policy/of-all/mine#bot-1", "policy/of-all/now#s-bot", "policy/of-all/ours"}
	hidden := []string{"policy/of-all/mine#other", "policy/of-all/now#s-other"}
	require.ElementsMatch(t, append(hidden, shown...), names(all))
	require.ElementsMatch(t, shown, names(bound))
	get := func(rate string) error {
		_, err := bound.limits.GetRate(t.Context(), &v1.GetRateRequest{Rate: rate})
		return err
	}
	for _, rate := range shown {
		require.NoError(t, get(rate), rate)
	}
	for _, rate := range hidden {
		err, absent := get(rate), get("policy/of-all/absent#x")
		requireRefused(t, err, connect.CodeNotFound, fault.ReasonNotFound, rate)
		require.Equal(t, strings.ReplaceAll(absent.Error(), "policy/of-all/absent#x", rate), err.Error())
	}
}

// Nobody has a decision taken down about an agent that he does not see: it would stand among
// its events, and he could not look it up himself.
func TestScopeOfWhatIsEvaluated(t *testing.T) {
	_, bound := boundTeam(t, strings.Join(policy(), "\n")+"\n")
	for agent, may := range map[string]bool{"bot-7": true, "": true, "other": false} {
		_, err := bound.policies.Evaluate(t.Context(), &v1.EvaluateRequest{Policy: byName("of-all"), AgentId: agent, Tool: "t"})
		if may {
			require.NoError(t, err, agent)
		} else {
			requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, `agentId: "other" is not in the scope of this token`)
		}
	}
}

// The registered hash of a tool is what the calls of all policies of the namespace are held
// to: an author who is bound to some policies, or to the rulesets of an environment, neither
// registers one nor takes one back.
func TestScopeOfHashes(t *testing.T) {
	n := startTeam(t)
	roles := []v1.Role{v1.Role_ROLE_POLICY_AUTHOR}
	hash := strings.Repeat("a", 64)
	put := func(c clients, hash string) error {
		_, err := c.policies.PutHash(t.Context(), &v1.PutHashRequest{Tool: "t", Hash: hash})
		return err
	}
	all := n.as(n.token("team", "all1", roles))
	require.NoError(t, put(all, hash))
	for id, change := range map[string]func(*session.Token){
		"policies": policies("p*"), "staging": func(t *session.Token) { t.Environment = "staging" },
	} {
		c := n.as(n.token("team", id, roles, change))
		requireRefused(t, put(c, strings.Repeat("b", 64)), connect.CodePermissionDenied, fault.ReasonForbidden, "tool: ")
		_, err := c.policies.DeleteHash(t.Context(), &v1.DeleteHashRequest{Tool: "t"})
		requireRefused(t, err, connect.CodePermissionDenied, fault.ReasonForbidden, "bound")
	}
	require.NoError(t, put(n.as(n.token("team", "agents", roles, agents("bot-*"))), hash)) // a tool is no agent's
	list, err := all.policies.ListHashes(t.Context(), &v1.ListHashesRequest{})
	require.NoError(t, err)
	require.Len(t, list.Hashes, 1)
	require.Equal(t, hash, list.Hashes[0].Hash)
}
