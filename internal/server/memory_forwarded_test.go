package server

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http/httptest"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cluster"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/members"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
)

// raftMember shows a node of a real cluster to the API.
type raftMember struct{ *cluster.Node }

func (m raftMember) Status(ctx context.Context) (members.Status, error) {
	s, err := m.Node.Status(ctx)
	return members.Status{Node: s.Node, Leader: s.Leader, Health: s.Health}, err
}

// raftServers are servers on the nodes of one cluster, the leader first.
func raftServers(t *testing.T, size int, change ...func(*Config)) (servers []*Server, urls []string) {
	t.Helper()
	var join []string
	for i := range size {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(t, err)
		n, err := cluster.Open(cluster.Config{
			ID: fmt.Sprint("n", i), Dir: t.TempDir(), Listener: l, Bootstrap: i == 0, Join: join, APIAddress: fmt.Sprint("api-", i),
			Logger: slog.New(slog.DiscardHandler), Fatal: func(err error) { t.Error(err) },
		})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, n.Close()) })
		join = append(join, l.Addr().String())
		cfg := Config{Store: n, Cluster: raftMember{n}, Node: fmt.Sprint("n", i)}
		for _, c := range change {
			c(&cfg)
		}
		s, err := New(cfg)
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		h := httptest.NewServer(s.Handler())
		t.Cleanup(h.Close)
		servers, urls = append(servers, s), append(urls, h.URL)
		require.Eventually(t, func() bool { return n.Ready(t.Context()) == nil }, 10*time.Second, 5*time.Millisecond)
	}
	return servers, urls
}

// What a leader without room refuses of its own callers it refuses of those
// that other nodes pass on, who learn it in the same words; and nothing of what
// gives back, renews, or was begun before.
func TestALeaderThatShedsTakesNothingFromOthers(t *testing.T) {
	servers, urls := raftServers(t, 2)
	leader, url := servers[0], urls[1]
	client := httptest.NewServer(nil).Client()
	t.Cleanup(client.CloseIdleConnections)
	sessions := govnodev1connect.NewSessionServiceClient(client, url)
	calls := govnodev1connect.NewCallServiceClient(client, url)
	slots := govnodev1connect.NewSlotServiceClient(client, url)
	policies := govnodev1connect.NewPolicyServiceClient(client, url)
	counters := govnodev1connect.NewCounterServiceClient(client, url)
	ctx := t.Context()

	policy := &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}
	_, err := policies.PutPolicy(ctx, &v1.PutPolicyRequest{Yaml: "name: p\nmax_concurrent: 5\n"})
	require.NoError(t, err)
	_, err = sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: policy})
	require.NoError(t, err)
	_, err = slots.PutPool(ctx, &v1.PutPoolRequest{Pool: "q", Slots: 1})
	require.NoError(t, err)
	_, err = counters.Set(ctx, &v1.SetRequest{Key: "n", Value: "1"})
	require.NoError(t, err)
	pools := []*v1.Want{{Pool: "q"}}
	begun, err := calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: "s", CallId: "holds", Tool: "t", Pools: pools})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begun.Outcome)
	waited := make(chan *v1.BeginCallResponse)
	go func() {
		res, err := calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: "s", CallId: "waits", Tool: "t", Pools: pools, Wait: durationpb.New(time.Minute)})
		if err != nil {
			t.Error(err)
		}
		waited <- res
	}()
	require.Eventually(t, func() bool {
		res, err := slots.ListSlots(ctx, &v1.ListSlotsRequest{Pool: "q"})
		return err == nil && len(res.Waiters) == 1
	}, 10*time.Second, 5*time.Millisecond)

	leader.memory.Shed(true)
	for name, ask := range map[string]func() error{
		"CreateSession": func() error {
			_, err := sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: "s2", AgentId: "a", Policy: policy})
			return err
		},
		"BeginCall": func() error {
			_, err := calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: "s", CallId: "new", Tool: "t"})
			return err
		},
		"AcquireSlot": func() error {
			_, err := slots.AcquireSlot(ctx, &v1.AcquireSlotRequest{Pool: "q", SlotId: "x", Client: "k"})
			return err
		},
		"PutPolicy": func() error {
			_, err := policies.PutPolicy(ctx, &v1.PutPolicyRequest{Yaml: "name: p2\nmax_concurrent: 5\n"})
			return err
		},
		"PutHash": func() error {
			_, err := policies.PutHash(ctx, &v1.PutHashRequest{Tool: "t", Hash: fmt.Sprintf("%064d", 0)})
			return err
		},
		"Set": func() error {
			_, err := counters.Set(ctx, &v1.SetRequest{Key: "n", Value: "2"})
			return err
		},
		"Increment": func() error {
			_, err := counters.Increment(ctx, &v1.IncrementRequest{Key: "n", Amount: "2"})
			return err
		},
	} {
		err := ask()
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "%s: %v", name, err)
		require.Equal(t, fault.ReasonOverloaded, fault.InfoOf(err).GetReason(), name)
		require.Equal(t, "1s", fault.InfoOf(err).GetMetadata()["retryAfter"], name)
		require.ErrorContains(t, err, "the node that leads is near its memory limit", name)
	}

	ended := &v1.Operation{Tag: 1, Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: "holds", Status: v1.Status_STATUS_SUCCEEDED}}}
	more := &v1.Operation{Tag: 2, Op: &v1.Operation_Begin{Begin: &v1.BeginCallRequest{SessionId: "s", CallId: "more", Tool: "t"}}}
	batch, err := calls.BatchCalls(ctx, &v1.BatchCallsRequest{Operations: []*v1.Operation{more, ended}})
	require.NoError(t, err)
	results := byTag(batch.Results)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, results[1].GetEnd().GetOutcome(), "one refusal does not take the rest of a batch along: %v", results[1])
	require.Equal(t, fault.ReasonOverloaded, results[2].GetError().GetReason(), "%v", results[2])
	res := <-waited
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.GetOutcome(), "who waited before gets the slot that came free: %v", res)
	renewed, err := slots.RenewSlots(ctx, &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "q", SlotId: "waits", SessionId: "s", Token: res.GetGrants()[1].GetToken()}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[0].Outcome)
	read, err := sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	require.EqualValues(t, 2, read.Session.Attempts, "nothing that was refused had an effect")
	_, err = sessions.CloseSession(ctx, &v1.CloseSessionRequest{SessionId: "s"})
	require.NoError(t, err)
	_, err = counters.Delete(ctx, &v1.DeleteRequest{Key: "n"})
	require.NoError(t, err)

	require.NoError(t, leader.Close(), "a server that is gone decides nothing any more")
	_, err = sessions.CreateSession(ctx, &v1.CreateSessionRequest{SessionId: "s2", AgentId: "a", Policy: policy})
	require.NoError(t, err)
}

// Where a call stands in a workflow is a value, which is written before the call ends:
// that is taken for one that ends, and for one that begins it is not.
func TestALeaderThatShedsLetsCallsOfAWorkflowEnd(t *testing.T) {
	servers, urls := raftServers(t, 2)
	client := httptest.NewServer(nil).Client()
	t.Cleanup(client.CloseIdleConnections)
	calls := govnodev1connect.NewCallServiceClient(client, urls[1])
	ctx := t.Context()
	_, err := govnodev1connect.NewPolicyServiceClient(client, urls[1]).PutPolicy(ctx, &v1.PutPolicyRequest{Yaml: `apiVersion: edictum/v1
kind: Workflow
metadata: {name: p}
stages:
  - {id: read, tools: [Read]}
`})
	require.NoError(t, err)
	_, err = govnodev1connect.NewSessionServiceClient(client, urls[1]).CreateSession(ctx, &v1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}},
	})
	require.NoError(t, err)
	begin := func(call string) (*v1.BeginCallResponse, error) {
		return calls.BeginCall(ctx, &v1.BeginCallRequest{SessionId: "s", CallId: call, Tool: "Read", ArgumentsJson: `{"path": "x"}`})
	}
	begun, err := begin("c")
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, begun.Outcome)

	servers[0].memory.Shed(true)
	_, err = begin("new")
	require.Equal(t, fault.ReasonOverloaded, fault.InfoOf(err).GetReason(), "%v", err)
	ended, err := calls.EndCall(ctx, &v1.EndCallRequest{SessionId: "s", CallId: "c", Status: v1.Status_STATUS_SUCCEEDED})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, ended.Outcome)
}

// Every command that a refused request becomes is refused, and no other.
func TestWhatGrowsTheState(t *testing.T) {
	for _, c := range []session.Command{
		&session.Open{}, &session.Begin{}, &session.Acquire{}, &session.PutPolicy{}, &session.PutHash{}, &session.Set{}, &session.Increment{}, &session.Append{},
	} {
		require.True(t, grows(c), "%T", c)
	}
	for _, c := range []session.Command{
		&session.End{}, &session.Cancel{}, &session.Close{}, &session.Renew{}, &session.Release{}, &session.ForceRelease{}, &session.PutPool{},
		&session.DeletePool{}, &session.DeletePolicy{}, &session.Delete{}, &session.DeleteList{}, &session.Tick{},
	} {
		require.False(t, grows(c), "%T", c)
	}
}
