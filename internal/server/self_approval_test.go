package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What a token has made to stand lets no call of its own pass: else who may not decide
// about his own call would say beforehand that it needs no decision. For the calls of
// others it stands, and what others have made to stand is there for his.
func TestNobodyStandsForTheirOwnCall(t *testing.T) {
	n := startAsking(t)
	both := n.as(n.token("default", "both", allRoles))
	worker := n.as(n.token("default", "worker", worker))
	other := n.as(n.token("default", "other", []v1.Role{v1.Role_ROLE_APPROVER}))
	_, err := both.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: strings.Join(policy("require_human_approval: true", "approval: {required: 1, denials: 1, timeout: 300s}"), "\n") + "\n"})
	require.NoError(t, err)
	require.NoError(t, open(both, "s", "a", "p"))
	begin := func(c clients, call string) v1.Outcome {
		res, err := c.calls.BeginCall(n.ctx(), &v1.BeginCallRequest{SessionId: "s", CallId: call, Tool: "t"})
		require.NoError(t, err)
		return res.Outcome
	}
	stand := func(c clients, scope v1.StandingScope, name string) {
		_, err := c.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{Scope: scope, Name: name, Tool: "t", Expiry: durationpb.New(time.Hour)})
		require.NoError(t, err)
	}
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, begin(both, "asked-before"))
	stand(both, v1.StandingScope_STANDING_SCOPE_SESSION, "s")
	stand(both, v1.StandingScope_STANDING_SCOPE_AGENT, "a")
	stand(both, v1.StandingScope_STANDING_SCOPE_POLICY, "p")
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, begin(both, "asked-before"))
	require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, begin(both, "own"))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begin(worker, "foreign"))

	stand(other, v1.StandingScope_STANDING_SCOPE_POLICY, "p")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begin(both, "own"))
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begin(both, "asked-before"))
}
