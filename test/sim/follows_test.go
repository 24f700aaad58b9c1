package sim

import (
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// TestFollowsInVirtualTime follows what is decided at a node that is killed and comes back: of
// what it has decided since nothing is missing, neither for who returns to it with a cursor of
// before nor for who follows all nodes at another one, and both are told that something may be.
func TestFollowsInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	for range 3 {
		inVirtualTime(t, followsARestart)
	}
}

func followsARestart(t *testing.T) {
	f, nodes := founded(t, 3)
	defer func() { require.NoError(t, f.end()) }()
	which := rand.IntN(3)
	hurt, at, other := f.hosts[which], nodes[which], f.hosts[(which+1)%3]
	want(at, at.policies.PutPolicy, &v1.PutPolicyRequest{Yaml: "name: p\nmax_tool_calls: 100\n", RequestId: newID()})
	at.session("followed")
	decide := func() (ids []string) {
		for range 1 + rand.IntN(5) {
			res := want(at, at.calls.BeginCall, &v1.BeginCallRequest{SessionId: "followed", CallId: newID(), Tool: "tool"})
			ids = append(ids, res.DecisionId)
		}
		return ids
	}
	own := f.httpClient("c1")
	defer own.CloseIdleConnections()
	// follow returns what is told until there are events of all that is wanted, or time is up.
	follow := func(h *host, req *v1.FollowRequest, all []string) (cursor string, gaps []*v1.Gap) {
		stream, err := govnodev1connect.NewEventServiceClient(own, "http://"+h.apiAddress()).Follow(t.Context(), req)
		require.NoError(t, err)
		limit := time.AfterFunc(time.Minute, func() { _ = stream.Close() })
		defer func() {
			limit.Stop()
			_ = stream.Close()
		}()
		left := slices.Clone(all)
		for first := true; first || len(left) > 0; first = false {
			require.True(t, stream.Receive(), "at %s: of %v these are not told, and %v are: %v", h.name, all, gaps, left)
			m := stream.Msg()
			if cursor = m.Cursor; m.Gap != nil {
				gaps = append(gaps, m.Gap)
			}
			if m.Event != nil {
				left = slices.DeleteFunc(left, func(id string) bool { return id == m.Event.DecisionId })
			}
		}
		return cursor, gaps
	}
	one, _ := follow(hurt, &v1.FollowRequest{SessionId: "followed"}, nil)
	everywhere := ""
	for !strings.Contains(everywhere, hurt.name) { // which has told the others where it is answered, by then
		time.Sleep(time.Second)
		everywhere, _ = follow(other, &v1.FollowRequest{SessionId: "followed", Cluster: true}, nil)
	}
	before := decide()
	if rand.IntN(2) == 0 {
		one, _ = follow(hurt, &v1.FollowRequest{SessionId: "followed", After: one}, before)
	}
	hurt.crash(rand.IntN(2) == 0)
	time.Sleep(time.Duration(rand.IntN(20)) * time.Second)
	var join []string
	for _, h := range f.hosts {
		if h != hurt {
			join = append(join, h.raftAddress())
		}
	}
	require.NoError(t, hurt.start(entrance{join: join}))
	require.NoError(t, f.ready(healWithin))
	since := decide()
	restarted := func(gaps []*v1.Gap) {
		require.Len(t, gaps, 1)
		require.Equal(t, "RESTARTED", gaps[0].Reason)
		require.Equal(t, hurt.name, gaps[0].Node)
	}
	_, gaps := follow(hurt, &v1.FollowRequest{SessionId: "followed", After: one}, since)
	restarted(gaps)
	_, gaps = follow(other, &v1.FollowRequest{SessionId: "followed", Cluster: true, After: everywhere}, since)
	restarted(gaps)
}
