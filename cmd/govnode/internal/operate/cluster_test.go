package operate

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A status says of each backend what is true of it: over a Redis nobody leads,
// there are no terms, and nodes know of no others.
func TestStatusOfEachBackend(t *testing.T) {
	for _, tt := range []struct {
		backend   string
		has, lack []string
	}{
		{"raft", []string{"LEADER   n1", "TERM     7", "APPLIED  42", "MEMBER", "127.0.0.1:7080"}, []string{"none", "No leader"}},
		{"redis", []string{"LEADER   none: Redis puts commands in order"}, []string{"TERM", "APPLIED", "MEMBER", "leader"}},
		{"memory", []string{"LEADER   none: this node is alone", "APPLIED  42"}, []string{"TERM", "MEMBER", "leader"}},
	} {
		var out bytes.Buffer
		require.NoError(t, printStatus(&out, &govnodev1.StatusResponse{
			Node: "n1", Leader: "n1", Term: 7, AppliedIndex: 42, Backend: tt.backend, Version: "v", Health: "ok", SeenBy: "n1",
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

// A member that is down is told from one that is up, with since when and how far
// behind, and one that was never heard of from both.
func TestStatusOfDeadMembers(t *testing.T) {
	at := func(n uint64) *uint64 { return &n }
	status := &govnodev1.StatusResponse{
		Node: "n2", Leader: "n1", Backend: "raft", Health: "ok", SeenBy: "n1", AppliedIndex: 42,
		Peers: []*govnodev1.Peer{
			{Node: "n1", Role: "leader", Address: "a:1", ApiAddress: "b:1", Up: true, LastContact: durationpb.New(0), AppliedIndex: at(42)},
			{Node: "n2", Role: "voter", Address: "a:2", ApiAddress: "b:2", Up: true, LastContact: durationpb.New(300 * time.Millisecond), AppliedIndex: at(42)},
			{Node: "n3", Role: "voter", Address: "a:3", ApiAddress: "b:3", LastContact: durationpb.New(83 * time.Second), AppliedIndex: at(30), Lag: 12},
			{Node: "n4", Role: "nonvoter", Address: "a:4"},
		},
	}
	var out bytes.Buffer
	require.NoError(t, printStatus(&out, status))
	require.Contains(t, out.String(), "VOTERS   2 of 3 are up, 2 have to be\n")
	require.Contains(t, out.String(), `
MEMBER  ROLE      RAFT  API  STATE    LAST HEARD  LAG
n1      leader    a:1   b:1  up       0s ago      0
n2      voter     a:2   b:2  up       300ms ago   0
n3      voter     a:3   b:3  down     1m23s ago   12
n4      nonvoter  a:4   -    unknown  never       unknown
`)
	require.NotContains(t, out.String(), "No leader")
	out.Reset()
	status.Leader, status.SeenBy = "", "n2"
	require.NoError(t, printStatus(&out, status))
	require.Contains(t, out.String(), "No leader answers: this is how n2 sees the members")
}
