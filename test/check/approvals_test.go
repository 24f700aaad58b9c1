package check

import (
	"testing"

	"github.com/stretchr/testify/require"
)

// agreed is a sound history of a call that two people had to agree to.
func agreed() []Effect {
	return []Effect{
		{Kind: Vote, Object: "x", ID: "1", Agent: "amy", Amount: 1, Index: 1},
		{Kind: Vote, Object: "y", ID: "2", Agent: "amy", Amount: -1, Index: 2},
		{Kind: Vote, Object: "x", ID: "3", Agent: "bob", Amount: 1, Index: 3},
		{Kind: Begin, Object: "s", ID: "c", Granted: true, Asks: "x", Needs: 2, Ends: 1, Index: 4},
		{Kind: Begin, Object: "s", ID: "d", Granted: true, Index: 5},
	}
}

func TestApprovals(t *testing.T) {
	require.Empty(t, Approvals(History{Effects: agreed()}))
	for name, change := range map[string]func([]Effect) []Effect{
		"before the last had agreed": func(e []Effect) []Effect { e[2], e[3] = e[3], e[2]; return e },
		"by one who agreed twice":    func(e []Effect) []Effect { e[2].Agent = "amy"; return e },
		"though one refused":         func(e []Effect) []Effect { e[1].Object, e[1].Agent = "x", "carl"; return e },
		"twice by the same": func(e []Effect) []Effect {
			return append(e, Effect{Kind: Begin, Object: "s", ID: "c", Granted: true, Asks: "x", Needs: 2, Ends: 1, Index: 6})
		},
		"by what was before a restore": func(e []Effect) []Effect { e[1] = Effect{Kind: Restored, Index: 2}; return e },
		"by nobody":                    func(e []Effect) []Effect { return e[3:] },
	} {
		require.NotEmpty(t, Approvals(History{Effects: change(agreed())}), name)
	}
}
