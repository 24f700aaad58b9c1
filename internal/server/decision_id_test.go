package server_test

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// The id of a decision is that of the call in its cluster: the same on each of
// its nodes and for each repeat, in a batch as well, and another one elsewhere.
func TestDecisionIDsAreOfACluster(t *testing.T) {
	one, other := start(t), start(t)
	second := startOn(t, one.store)
	for _, n := range []*node{one, other} {
		n.putPolicy(policy()...)
		n.session("s")
	}
	id := one.begin("s", "c").DecisionId
	require.NotEmpty(t, id)
	require.Equal(t, id, second.begin("s", "c").DecisionId)
	l := second.exchange()
	l.send(beginFrame(1, "s", "c"))
	require.Equal(t, id, l.one().GetBegin().DecisionId)
	require.NotEqual(t, id, one.begin("s", "d").DecisionId)
	require.NotEqual(t, id, other.begin("s", "c").DecisionId)
}
