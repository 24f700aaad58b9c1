package server_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A stranded store is that of a node without a leader: what needs one has no
// answer for as long as its caller waits.
type stranded struct{ storage.Store }

func (s stranded) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	<-ctx.Done()
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Refused(ctx.Err())
	}
	return answers
}

func (s stranded) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Latest {
		<-ctx.Done()
		return storage.Found{}, storage.Unread(ctx.Err())
	}
	return s.Store.Get(ctx, k, r)
}

func (s stranded) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	if r == storage.Latest {
		<-ctx.Done()
		return storage.View{}, storage.Unread(ctx.Err())
	}
	return s.Store.View(ctx, ns, r)
}

func (s stranded) Save(ctx context.Context, _ io.Writer) error {
	<-ctx.Done()
	return storage.Unread(ctx.Err())
}

func (s stranded) Restore(ctx context.Context, _ io.Reader) error {
	<-ctx.Done()
	return storage.Fail(storage.NotApplied, ctx.Err())
}

// castaway is the cluster of such a node.
type castaway struct{ server.Cluster }

func (castaway) Status(context.Context) (server.Status, error) {
	return server.Status{Node: "n1", Health: "no leader is known"}, nil
}
func (castaway) LeaderAPI() string                         { return "" }
func (castaway) AdmitForwarded(func(session.Command) bool) {}
func (castaway) AddNode(ctx context.Context, _, _ string, _ bool) error {
	<-ctx.Done()
	return ctx.Err()
}
func (castaway) RemoveNode(ctx context.Context, _ string, _ bool) error {
	<-ctx.Done()
	return ctx.Err()
}
func (castaway) TransferLeadership(ctx context.Context, _ string) error {
	<-ctx.Done()
	return ctx.Err()
}

// Whatever is asked of a node that has known no leader for longer than elections
// take is answered at once: refused with the reason, or done where nobody else is
// needed for it. The list of methods is that of the schema.
func TestEveryMethodWithoutALeader(t *testing.T) {
	n := start(t)
	digest := n.putPolicy(policy()...).Digest
	n.session("s")
	n.begin("s", "c")
	_, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "q", Slots: 2})
	require.NoError(t, err)
	_, err = n.limits.PutRate(n.ctx(), &v1.PutRateRequest{Rate: "r", Limit: 2, Per: durationpb.New(time.Second)})
	require.NoError(t, err)
	n.putBudget("b", "", "10")
	alone := startOn(t, stranded{n.store}, func(c *server.Config) {
		c.Cluster, c.RequestTimeout, c.LeaderPatience = castaway{}, time.Hour, time.Nanosecond
	})
	eventually(t, "the leader is missed", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		_, err := alone.counters.Get(ctx, &v1.GetRequest{Key: "k"})
		return err != nil && strings.Contains(err.Error(), "has known no leader")
	})

	type asked struct {
		body     string
		answered bool // without a leader
	}
	unary := map[string][]asked{
		"SessionService/CreateSession":      {{`{"sessionId":"s2","agentId":"a","policy":{"name":"p"}}`, false}},
		"SessionService/GetSession":         {{`{"sessionId":"s"}`, false}, {`{"sessionId":"s","consistency":"CONSISTENCY_STALE"}`, true}},
		"SessionService/ListSessions":       {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"SessionService/CloseSession":       {{`{"sessionId":"s"}`, false}, {`{"sessionId":"nobody knows"}`, true}},
		"SessionService/Signal":             {{`{"everything":true,"signal":"STOP"}`, false}, {`{"everything":true,"signal":"drain"}`, true}},
		"SessionService/ListSignals":        {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"CallService/BeginCall":             {{`{"sessionId":"s","callId":"d","tool":"t"}`, false}, {`{"sessionId":"s","callId":"d","tool":"t","wait":"60s"}`, false}},
		"CallService/EndCall":               {{`{"sessionId":"s","callId":"c","status":"STATUS_SUCCEEDED"}`, false}},
		"CallService/CancelCall":            {{`{"sessionId":"s","callId":"c"}`, false}},
		"CallService/BatchCalls":            {{`{"operations":[{"tag":1,"end":{"sessionId":"s","callId":"c","status":"STATUS_SUCCEEDED"}}]}`, true}},
		"SlotService/PutPool":               {{`{"pool":"q","slots":3}`, false}},
		"SlotService/GetPool":               {{`{"pool":"q"}`, false}, {`{"pool":"q","consistency":"CONSISTENCY_STALE"}`, true}},
		"SlotService/ListPools":             {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"SlotService/DeletePool":            {{`{"pool":"q"}`, false}},
		"SlotService/AcquireSlot":           {{`{"pool":"q","slotId":"x"}`, false}},
		"SlotService/RenewSlots":            {{`{"slots":[{"pool":"q","slotId":"x","token":"1"}]}`, false}},
		"SlotService/ReleaseSlot":           {{`{"pool":"q","slotId":"x","token":"1"}`, false}},
		"SlotService/ListSlots":             {{`{"pool":"q"}`, false}, {`{"pool":"q","consistency":"CONSISTENCY_STALE"}`, true}},
		"SlotService/ForceRelease":          {{`{"pool":"q","slotId":"x"}`, false}},
		"LimitService/PutRate":              {{`{"rate":"r","limit":3,"per":"1s"}`, false}},
		"LimitService/GetRate":              {{`{"rate":"r"}`, false}, {`{"rate":"r","consistency":"CONSISTENCY_STALE"}`, true}},
		"LimitService/ListRates":            {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"LimitService/DeleteRate":           {{`{"rate":"r"}`, false}},
		"LimitService/TakeRate":             {{`{"rate":"r","requestId":"x"}`, false}},
		"LimitService/PutBudget":            {{`{"budget":"b","amount":"3"}`, false}},
		"LimitService/GetBudget":            {{`{"budget":"b"}`, false}, {`{"budget":"b","consistency":"CONSISTENCY_STALE"}`, true}},
		"LimitService/ListBudgets":          {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"LimitService/AdjustBudget":         {{`{"budget":"b","by":"1"}`, false}},
		"LimitService/DeleteBudget":         {{`{"budget":"b"}`, false}},
		"PolicyService/PutPolicy":           {{`{"yaml":"name: p2\nmax_concurrent: 5\n"}`, false}},
		"PolicyService/GetPolicy":           {{`{"name":"p"}`, false}, {`{"name":"p","consistency":"CONSISTENCY_STALE"}`, true}},
		"PolicyService/ListPolicies":        {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"PolicyService/DeletePolicy":        {{`{"name":"p"}`, false}},
		"PolicyService/Evaluate":            {{`{"policy":{"name":"p"},"tool":"t"}`, false}, {`{"sessionId":"s","tool":"t"}`, false}, {`{"policy":{"digest":"` + digest + `"},"tool":"t"}`, true}},
		"PolicyService/Scan":                {{`{"policy":{"name":"p"},"kind":"SCAN_KIND_INPUT"}`, false}, {`{"policy":{"digest":"` + digest + `"},"kind":"SCAN_KIND_INPUT"}`, true}},
		"PolicyService/PutHash":             {{`{"tool":"t","hash":"` + digest + `"}`, false}},
		"PolicyService/ListHashes":          {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"PolicyService/DeleteHash":          {{`{"tool":"t"}`, false}},
		"DecisionService/Explain":           {{`{"decisionId":"d"}`, true}},
		"ApprovalService/Request":           {{`{"agentId":"a","tool":"t"}`, false}},
		"ApprovalService/Get":               {{`{"id":"x"}`, false}, {`{"id":"x","consistency":"CONSISTENCY_STALE"}`, true}},
		"ApprovalService/List":              {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"ApprovalService/Decide":            {{`{"id":"x","decision":"VOTE_APPROVE","approver":"amy"}`, false}},
		"ApprovalService/Cancel":            {{`{"id":"x"}`, false}},
		"ApprovalService/PutStanding":       {{`{"scope":"STANDING_SCOPE_AGENT","name":"a","tool":"t","expiry":"60s"}`, false}},
		"ApprovalService/ListStanding":      {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"ApprovalService/DeleteStanding":    {{`{"id":"x"}`, false}},
		"CounterService/Get":                {{`{"key":"k"}`, false}, {`{"key":"k","consistency":"CONSISTENCY_STALE"}`, true}},
		"CounterService/Set":                {{`{"key":"k","value":"1"}`, false}},
		"CounterService/Delete":             {{`{"key":"k"}`, false}},
		"CounterService/Increment":          {{`{"key":"k","amount":"1"}`, false}},
		"CounterService/BatchGet":           {{`{"keys":["k"]}`, false}, {`{"keys":["k"],"consistency":"CONSISTENCY_STALE"}`, true}},
		"CounterService/Append":             {{`{"key":"k","items":["i"],"ttl":"60s"}`, false}},
		"CounterService/Range":              {{`{"key":"k"}`, false}, {`{"key":"k","consistency":"CONSISTENCY_STALE"}`, true}},
		"CounterService/DeleteList":         {{`{"key":"k"}`, false}},
		"ClusterService/Status":             {{`{}`, true}},
		"ClusterService/AddNode":            {{`{"node":"n2","address":"a:1"}`, false}},
		"ClusterService/RemoveNode":         {{`{"node":"n2"}`, false}, {`{"node":"n2","force":true}`, false}},
		"ClusterService/TransferLeadership": {{`{}`, false}},
		"ClusterService/RepairIDs":          {{`{}`, false}},
		"AccessService/WhoAmI":              {{`{}`, true}},
		"AccessService/CreateToken":         {{`{"tokenId":"abcd","secretSha256":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAE=","roles":["ROLE_AGENT"]}`, false}},
		"AccessService/ListChains":          {{`{}`, false}},
		"AccessService/ListTokens":          {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
		"AccessService/RevokeToken":         {{`{"tokenId":"abcd"}`, false}},
		"AccessService/DenySubject":         {{`{"subject":"cert:a"}`, false}},
		"AccessService/AllowSubject":        {{`{"subject":"cert:a"}`, false}},
		"AccessService/PutQuotas":           {{`{"namespace":"team","quotas":{"sessions":"1"}}`, false}},
		"AccessService/GetQuotas":           {{`{}`, false}, {`{"consistency":"CONSISTENCY_STALE"}`, true}},
	}
	refused := func(err error) {
		t.Helper()
		requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "has known no leader for more than")
		require.Equal(t, "2s", info(t, err).Metadata["retryAfter"])
	}
	h2 := alone.h2()
	streams := map[string]func(){
		"CallService/Exchange": func() {
			l := alone.exchange()
			l.send(beginFrame(1, "s", "d"), endFrame(2, "s", "c"))
			for tag, results := range l.receive(2) {
				e := results[0].GetError()
				require.Equal(t, "NOT_APPLIED", e.GetReason(), "%d: %v", tag, results)
				require.Contains(t, e.GetMessage(), "has known no leader for more than")
			}
		},
		"EventService/Follow": func() {
			s, err := h2.events.Follow(t.Context(), &v1.FollowRequest{})
			require.NoError(t, err)
			require.True(t, s.Receive(), "it begins with a cursor: %v", s.Err())
			require.NoError(t, s.Close())
		},
		"ClusterService/Snapshot": func() {
			s, err := h2.cluster.Snapshot(t.Context(), &v1.SnapshotRequest{})
			require.NoError(t, err)
			require.False(t, s.Receive())
			refused(s.Err())
		},
		"ClusterService/Restore": func() {
			s, err := h2.cluster.Restore(t.Context())
			require.NoError(t, err)
			_ = s.Send(&v1.RestoreRequest{Chunk: []byte("x")}) // it may have been refused by now
			_, err = s.CloseAndReceive()
			refused(err)
		},
	}
	protoregistry.GlobalFiles.RangeFilesByPackage("govnode.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			methods := f.Services().Get(i).Methods()
			for j := range methods.Len() {
				name := fmt.Sprintf("%s/%s", f.Services().Get(i).Name(), methods.Get(j).Name())
				if stream := streams[name]; stream != nil {
					stream()
					continue
				}
				require.NotEmpty(t, unary[name], "%s: say in this test what it answers without a leader", name)
				for _, a := range unary[name] {
					status, answer := alone.post(name, a.body)
					if a.answered {
						require.NotEqual(t, http.StatusServiceUnavailable, status, "%s %s: %v", name, a.body, answer)
						continue
					}
					require.Equal(t, http.StatusServiceUnavailable, status, "%s %s: %v", name, a.body, answer)
					require.Contains(t, answer["message"], "has known no leader for more than", "%s %s", name, a.body)
				}
			}
		}
		return true
	})
}
