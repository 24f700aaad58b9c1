package operate

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A status says of each backend what is true of it: over a Redis nobody leads,
// there are no terms, and nodes know of no others.
func TestStatusOfEachBackend(t *testing.T) {
	for _, tt := range []struct {
		backend   string
		has, lack []string
	}{
		{"raft", []string{"LEADER   n1", "TERM     7", "APPLIED  42", "MEMBER", "127.0.0.1:7080"}, []string{"none"}},
		{"redis", []string{"LEADER   none: Redis puts commands in order"}, []string{"TERM", "APPLIED", "MEMBER", "leader"}},
		{"memory", []string{"LEADER   none: this node is alone", "APPLIED  42"}, []string{"TERM", "MEMBER", "leader"}},
	} {
		var out bytes.Buffer
		require.NoError(t, printStatus(&out, &govnodev1.StatusResponse{
			Node: "n1", Leader: "n1", Term: 7, AppliedIndex: 42, Backend: tt.backend, Version: "v", Health: "ok",
			Peers: []*govnodev1.Peer{{Node: "n1", Role: "leader", Address: "127.0.0.1:7080"}},
		}))
		for _, text := range tt.has {
			require.Contains(t, out.String(), text)
		}
		for _, text := range tt.lack {
			require.NotContains(t, out.String(), text)
		}
		require.Contains(t, out.String(), "BACKEND  "+tt.backend)
	}
}
