package sim

import (
	"bytes"
	"context"
	"crypto/sha256"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cluster"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A reader asks one node.
type reader struct {
	t         *testing.T
	since     string // what was done to its cluster
	ctx       context.Context
	counters  govnodev1connect.CounterServiceClient
	sessions  govnodev1connect.SessionServiceClient
	calls     govnodev1connect.CallServiceClient
	slots     govnodev1connect.SlotServiceClient
	limits    govnodev1connect.LimitServiceClient
	policies  govnodev1connect.PolicyServiceClient
	approvals govnodev1connect.ApprovalServiceClient
	access    govnodev1connect.AccessServiceClient
	cluster   govnodev1connect.ClusterServiceClient
}

func newReader(t *testing.T, own *http.Client, h *host) *reader {
	u := "http://" + h.apiAddress()
	return &reader{
		t: t, ctx: t.Context(), counters: govnodev1connect.NewCounterServiceClient(own, u), sessions: govnodev1connect.NewSessionServiceClient(own, u),
		calls: govnodev1connect.NewCallServiceClient(own, u), slots: govnodev1connect.NewSlotServiceClient(own, u),
		limits: govnodev1connect.NewLimitServiceClient(own, u), policies: govnodev1connect.NewPolicyServiceClient(own, u),
		approvals: govnodev1connect.NewApprovalServiceClient(own, u), access: govnodev1connect.NewAccessServiceClient(own, u),
		cluster: govnodev1connect.NewClusterServiceClient(own, u),
	}
}

func want[Q, R any](r *reader, do func(context.Context, Q) (R, error), req Q) R {
	r.t.Helper()
	res, err := do(r.ctx, req)
	require.NoError(r.t, err, r.since)
	return res
}

// A seen is all that one node says of everything, but for how old things are and how long
// they last.
type seen struct {
	sessions  *v1.ListSessionsResponse
	pools     *v1.ListPoolsResponse
	slots     *v1.ListSlotsResponse
	rates     *v1.ListRatesResponse
	budgets   *v1.ListBudgetsResponse
	policies  *v1.ListPoliciesResponse
	policy    *v1.GetPolicyResponse
	hashes    *v1.ListHashesResponse
	approvals *v1.ApprovalServiceListResponse
	standings *v1.ListStandingResponse
	signals   *v1.ListSignalsResponse
	values    *v1.BatchGetResponse
	list      *v1.RangeResponse
	brief     *v1.RangeResponse
	tokens    *v1.ListTokensResponse
	quotas    *v1.GetQuotasResponse
	chains    *v1.ListChainsResponse
}

func (s *seen) all() []proto.Message {
	return []proto.Message{
		s.sessions, s.pools, s.slots, s.rates, s.budgets, s.policies, s.policy, s.hashes, s.approvals, s.standings, s.signals, s.values, s.list, s.brief, s.tokens, s.quotas,
	}
}

func (r *reader) see() *seen {
	r.t.Helper()
	s := &seen{
		sessions: want(r, r.sessions.ListSessions, &v1.ListSessionsRequest{}), pools: want(r, r.slots.ListPools, &v1.ListPoolsRequest{}),
		slots: want(r, r.slots.ListSlots, &v1.ListSlotsRequest{Pool: "pool"}), rates: want(r, r.limits.ListRates, &v1.ListRatesRequest{}),
		budgets: want(r, r.limits.ListBudgets, &v1.ListBudgetsRequest{}), policies: want(r, r.policies.ListPolicies, &v1.ListPoliciesRequest{}),
		policy: want(r, r.policies.GetPolicy, &v1.GetPolicyRequest{Ref: &v1.GetPolicyRequest_Name{Name: "p"}}),
		hashes: want(r, r.policies.ListHashes, &v1.ListHashesRequest{}), approvals: want(r, r.approvals.List, &v1.ApprovalServiceListRequest{}),
		standings: want(r, r.approvals.ListStanding, &v1.ListStandingRequest{}), signals: want(r, r.sessions.ListSignals, &v1.ListSignalsRequest{}),
		values: want(r, r.counters.BatchGet, &v1.BatchGetRequest{Keys: []string{"v", "brief", "late"}}),
		list:   want(r, r.counters.Range, &v1.RangeRequest{Key: "l"}), brief: want(r, r.counters.Range, &v1.RangeRequest{Key: "brief"}),
		tokens: want(r, r.access.ListTokens, &v1.ListTokensRequest{}), quotas: want(r, r.access.GetQuotas, &v1.GetQuotasRequest{}),
		chains: want(r, r.access.ListChains, &v1.ListChainsRequest{}),
	}
	s.quotas.Used = nil // as far as a node knows
	for _, m := range s.all() {
		timeless(m.ProtoReflect())
	}
	return s
}

// timeless takes out of a message what goes on by itself.
func timeless(m protoreflect.Message) {
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		switch {
		case slices.Contains([]string{"applied_index", "age", "ttl", "idle_left", "expires_in", "free_in", "period_ends"}, string(f.Name())):
			m.Clear(f)
		case f.IsList() && f.Message() != nil:
			for i := range v.List().Len() {
				timeless(v.List().Get(i).Message())
			}
		case f.Message() != nil && !f.IsMap():
			timeless(v.Message())
		}
		return true
	})
}

func alike(t *testing.T, what string, wanted, got *seen) {
	t.Helper()
	for i, m := range wanted.all() {
		require.True(t, proto.Equal(m, got.all()[i]), "%s: it is\n%v, and has to be\n%v", what, got.all()[i], m)
	}
}

// token makes a token, which is bound in all ways there are.
func (r *reader) token(id string) {
	r.t.Helper()
	secret := sha256.Sum256([]byte(id))
	want(r, r.access.CreateToken, &v1.CreateTokenRequest{
		RequestId: newID(), TokenId: id, SecretSha256: secret[:], Roles: []v1.Role{v1.Role_ROLE_AGENT, v1.Role_ROLE_AUDITOR}, Label: id,
		Agents: []string{"of-*", id}, Policies: []string{"p", id + "?"}, Environment: "staging", ExpiresIn: durationpb.New(24 * time.Hour),
	})
}

// quotas bounds each thing by another number, none of which is reached.
func (r *reader) quotas(least int64) {
	r.t.Helper()
	want(r, r.access.PutQuotas, &v1.PutQuotasRequest{RequestId: newID(), Namespace: "default", Quotas: &v1.Quotas{
		Sessions: least, Clients: least + 1, Pools: least + 2, Policies: least + 3, Keys: least + 4, Bytes: least << 10, Waiters: least + 5, Followers: least + 6,
		Streams: least + 7, OperationsPerSecond: least + 8,
	}})
}

func (r *reader) slot(id string) uint64 {
	r.t.Helper()
	res := want(r, r.slots.AcquireSlot, &v1.AcquireSlotRequest{Pool: "pool", SlotId: id, Ttl: durationpb.New(10 * time.Minute)})
	require.Equal(r.t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "%v", res)
	return res.Token
}

func (r *reader) begin(id string) uint64 {
	r.t.Helper()
	res := want(r, r.calls.BeginCall, &v1.BeginCallRequest{SessionId: "s1", CallId: id, Tool: "search", Ttl: durationpb.New(10 * time.Minute)})
	require.Equal(r.t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "%v", res)
	return res.Grants[0].Token
}

func (r *reader) session(id string) {
	r.t.Helper()
	want(r, r.sessions.CreateSession, &v1.CreateSessionRequest{
		SessionId: id, AgentId: "of-" + id, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}, Attributes: map[string]string{"a": "b"},
	})
}

func (r *reader) signal(agent, signal string) {
	r.t.Helper()
	want(r, r.sessions.Signal, &v1.SignalRequest{Target: &v1.SignalRequest_AgentId{AgentId: agent}, Signal: signal, Reason: "why", RequestId: newID()})
}

// save takes a snapshot by the API.
func (r *reader) save() []byte {
	r.t.Helper()
	stream := want(r, r.cluster.Snapshot, &v1.SnapshotRequest{})
	var snapshot bytes.Buffer
	for stream.Receive() {
		snapshot.Write(stream.Msg().Chunk)
	}
	require.NoError(r.t, stream.Err())
	return snapshot.Bytes()
}

// restore puts a snapshot in place by the API.
func (r *reader) restore(snapshot []byte) {
	r.t.Helper()
	stream, err := r.cluster.Restore(r.ctx)
	require.NoError(r.t, err)
	for chunk := range slices.Chunk(snapshot, 1<<10) {
		require.NoError(r.t, stream.Send(&v1.RestoreRequest{Chunk: chunk}))
	}
	_, err = stream.CloseAndReceive()
	require.NoError(r.t, err)
}

// fill makes one of each.
func (r *reader) fill() (slot, asked, decided string) {
	want(r, r.policies.PutPolicy, &v1.PutPolicyRequest{Yaml: "name: p\nmax_tool_calls: 100\nmax_concurrent: 4\n", RequestId: newID()})
	r.session("s1")
	r.session("s2")
	r.begin("c1")
	want(r, r.calls.EndCall, &v1.EndCallRequest{SessionId: "s1", CallId: "c1", Status: v1.Status_STATUS_SUCCEEDED, Tokens: proto.Int64(7)})
	r.begin("c2")
	want(r, r.sessions.CloseSession, &v1.CloseSessionRequest{SessionId: "s2"})
	want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: "pool", Slots: 3, RequestId: newID()})
	slot = newID()
	r.slot(slot)
	want(r, r.limits.PutRate, &v1.PutRateRequest{Rate: "r", Limit: 9, Per: durationpb.New(time.Hour), RequestId: newID()})
	want(r, r.limits.TakeRate, &v1.TakeRateRequest{Rate: "r", Cost: 2, RequestId: newID()})
	want(r, r.limits.PutBudget, &v1.PutBudgetRequest{Budget: "b", Amount: "100", Per: durationpb.New(24 * time.Hour), RequestId: newID()})
	want(r, r.limits.AdjustBudget, &v1.AdjustBudgetRequest{Budget: "b", By: "3", RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "v", Value: "1", RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "brief", Value: "1", Ttl: durationpb.New(time.Minute), RequestId: newID()})
	want(r, r.counters.Append, &v1.AppendRequest{Key: "l", Items: []string{"one"}, Ttl: durationpb.New(time.Hour), RequestId: newID()})
	want(r, r.counters.Append, &v1.AppendRequest{Key: "brief", Items: []string{"one"}, Ttl: durationpb.New(time.Minute), RequestId: newID()})
	want(r, r.policies.PutHash, &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat("a", 64), RequestId: newID()})
	want(r, r.approvals.PutStanding, &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "of-s1", Tool: "t", Expiry: durationpb.New(time.Hour), RequestId: newID()})
	ask := func() string {
		return want(r, r.approvals.Request, &v1.ApprovalServiceRequestRequest{AgentId: "of-s1", Tool: "t", Timeout: durationpb.New(time.Hour), RequestId: newID()}).Approval.Id
	}
	asked, decided = ask(), ask()
	r.vote(decided)
	r.signal("of-stopped", "STOP")
	r.token("gone")
	r.token("left")
	for _, subject := range []string{"cert:was", "cert:left"} {
		want(r, r.access.DenySubject, &v1.DenySubjectRequest{RequestId: newID(), Subject: subject, Reason: "why"})
	}
	r.quotas(1 << 20)
	return slot, asked, decided
}

func (r *reader) vote(id string) {
	want(r, r.approvals.Decide, &v1.ApprovalServiceDecideRequest{Id: id, Decision: v1.Vote_VOTE_APPROVE, Approver: "amy", RequestId: newID()})
}

// change changes each of them, and makes another of each.
func (r *reader) change(slot, asked string, standings *v1.ListStandingResponse) {
	want(r, r.policies.PutPolicy, &v1.PutPolicyRequest{Yaml: "name: p\nmax_tool_calls: 7\n", RequestId: newID()})
	want(r, r.policies.PutPolicy, &v1.PutPolicyRequest{Yaml: "name: late\nmax_tool_calls: 7\n", RequestId: newID()})
	want(r, r.calls.EndCall, &v1.EndCallRequest{SessionId: "s1", CallId: "c2", Status: v1.Status_STATUS_FAILED, Tokens: proto.Int64(70)})
	r.begin("c3")
	r.session("s3")
	want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: "pool", Slots: 5, RequestId: newID()})
	want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: "late", Slots: 5, RequestId: newID()})
	for range 3 {
		r.slot(newID())
	}
	want(r, r.limits.TakeRate, &v1.TakeRateRequest{Rate: "r", Cost: 3, RequestId: newID()})
	want(r, r.limits.PutRate, &v1.PutRateRequest{Rate: "late", Limit: 9, Per: durationpb.New(time.Hour), RequestId: newID()})
	want(r, r.limits.AdjustBudget, &v1.AdjustBudgetRequest{Budget: "b", By: "10", RequestId: newID()})
	want(r, r.limits.PutBudget, &v1.PutBudgetRequest{Budget: "late", Parent: "b", Amount: "1", RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "v", Value: "2", RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "late", Value: "2", RequestId: newID()})
	want(r, r.counters.Append, &v1.AppendRequest{Key: "l", Items: []string{"two"}, Ttl: durationpb.New(time.Hour), RequestId: newID()})
	want(r, r.policies.PutHash, &v1.PutHashRequest{Tool: "t", Hash: strings.Repeat("b", 64), RequestId: newID()})
	want(r, r.policies.PutHash, &v1.PutHashRequest{Tool: "late", Hash: strings.Repeat("b", 64), RequestId: newID()})
	want(r, r.approvals.DeleteStanding, &v1.DeleteStandingRequest{Id: standings.Standings[0].Id, RequestId: newID()})
	want(r, r.approvals.PutStanding, &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "of-s1", Tool: "late", Expiry: durationpb.New(time.Hour), RequestId: newID()})
	r.vote(asked)
	r.signal("of-stopped", "CONTINUE")
	r.signal("of-late", "STOP")
	want(r, r.access.RevokeToken, &v1.RevokeTokenRequest{RequestId: newID(), TokenId: "gone"})
	r.token("since")
	want(r, r.access.DenySubject, &v1.DenySubjectRequest{RequestId: newID(), Subject: "cert:since", Reason: "why"})
	want(r, r.access.AllowSubject, &v1.AllowSubjectRequest{RequestId: newID(), Subject: "cert:was"})
	r.quotas(1 << 21)
}

// restored is what a state has to be that comes back behind another, which is nil where
// nothing was known.
func restored(saved, last *seen) *seen {
	w := *saved
	w.sessions = proto.CloneOf(w.sessions)
	for _, x := range w.sessions.Sessions {
		x.Executions += int32(len(x.OpenCalls)) // nobody can say that they were not executed
		x.OpenCalls = nil
	}
	w.pools, w.slots = proto.CloneOf(w.pools), proto.CloneOf(w.slots)
	for _, p := range append([]*v1.Pool{w.slots.Pool}, w.pools.Pools...) {
		p.InUse = 0
	}
	w.slots.Slots = nil
	w.approvals = proto.CloneOf(w.approvals)
	for _, a := range w.approvals.Approvals {
		if a.State == v1.ApprovalState_APPROVAL_STATE_PENDING {
			a.State = v1.ApprovalState_APPROVAL_STATE_CANCELLED
		}
	}
	w.standings = &v1.ListStandingResponse{}
	if last != nil {
		w.tokens, w.quotas = last.tokens, last.quotas
	}
	return &w
}

// raised holds numbers to be above those of before, and takes them out.
func raised(t *testing.T, last, got *seen) {
	t.Helper()
	newest := func(s *seen) (n uint64) {
		for _, p := range append([]*v1.Pool{s.slots.Pool}, s.pools.Pools...) {
			n = max(n, p.LastToken)
		}
		return n
	}
	for _, p := range append([]*v1.Pool{got.slots.Pool}, got.pools.Pools...) {
		require.Greater(t, p.LastToken, newest(last), "tokens of a pool only rise, also through a restore: %v", p)
	}
	require.Greater(t, got.tokens.Epoch, last.tokens.Epoch, "no epoch comes back with a restore")
}

func numberless(s *seen) *seen {
	n := *s
	n.pools, n.slots, n.tokens = proto.CloneOf(n.pools), proto.CloneOf(n.slots), proto.CloneOf(n.tokens)
	for _, p := range append([]*v1.Pool{n.slots.Pool}, n.pools.Pools...) {
		p.LastToken = 0
	}
	n.tokens.Epoch = 0
	return &n
}

// founded is a cluster of its own with one who asks each node of it.
func founded(t *testing.T, n int) (*fleet, []*reader) {
	f, err := newFleet(n, rand.New(rand.NewPCG(rand.Uint64(), 1)), slog.New(slog.DiscardHandler), func(c *cluster.Config) { c.SnapshotBytes, c.TrailingLogs = 4<<10, 1 })
	require.NoError(t, err)
	require.NoError(t, f.found())
	own := f.httpClient("c1")
	var all []*reader
	for _, h := range f.hosts {
		all = append(all, newReader(t, own, h))
	}
	return f, all
}

// TestRestoresInVirtualTime makes one of each, changes all of them, restores the state of
// before, and looks at every field at every node. Then it does so after all nodes had to
// begin again from their disks, at one whose disk was lost, and in another cluster.
func TestRestoresInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	inVirtualTime(t, func(t *testing.T) {
		f, nodes := founded(t, 3)
		defer func() { require.NoError(t, f.end()) }()
		one := nodes[rand.IntN(len(nodes))]
		slot, asked, decided := one.fill()
		counted := &v1.IncrementRequest{Key: "count", RequestId: newID()}
		want(one, one.counters.Increment, counted)
		saved := one.see()
		snapshot := one.save()
		time.Sleep(2 * time.Minute) // what was brief is over: a restore does not bring time back
		one.change(slot, asked, saved.standings)
		uncounted := &v1.IncrementRequest{Key: "count", RequestId: newID()}
		want(one, one.counters.Increment, uncounted)
		last := one.see()
		for i, m := range last.all() {
			require.False(t, proto.Equal(m, saved.all()[i]), "it was not changed: %v", m)
		}
		nodes[rand.IntN(len(nodes))].restore(snapshot)
		expected := restored(saved, last)
		expected.values, expected.brief = proto.CloneOf(saved.values), last.brief
		delete(expected.values.Values, "brief")
		delete(expected.values.Versions, "brief")
		for i, n := range nodes {
			got := n.see()
			raised(t, last, got)
			require.Equal(t, last.chains.Generation+1, got.chains.Generation, "each restore raises the generation")
			alike(t, "after a restore, "+f.hosts[i].name, numberless(expected), numberless(got))
		}
		require.Equal(t, v1.ApprovalState_APPROVAL_STATE_APPROVED, want(one, one.approvals.Get, &v1.ApprovalServiceGetRequest{Id: decided}).Approval.State)
		i := slices.IndexFunc(saved.sessions.Sessions, func(x *v1.Session) bool { return x.SessionId == "s1" })
		calls := saved.sessions.Sessions[i].OpenCalls[0].Grants[0].Token
		renewed := want(one, one.slots.RenewSlots, &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "pool", SlotId: slot, Token: saved.slots.Slots[0].Token}, {SessionId: "s1", SlotId: "c2", Token: calls}}})
		for _, x := range renewed.Results {
			require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, x.Outcome, "leases end with a restore: %v", x)
		}
		require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, want(one, one.calls.EndCall, &v1.EndCallRequest{SessionId: "s1", CallId: "c2", Status: v1.Status_STATUS_SUCCEEDED}).Outcome)
		require.Equal(t, "1", want(one, one.counters.Increment, counted).Value, "an id of before is remembered")
		require.Equal(t, "2", want(one, one.counters.Increment, uncounted).Value, "what came after is not")

		held := newID()
		fence := one.slot(held)
		require.Greater(t, fence, last.slots.Pool.LastToken)
		began := one.begin("c4")
		stands := one.see()
		for _, h := range f.hosts {
			h.crash(false)
		}
		time.Sleep(time.Minute)
		for _, h := range f.hosts {
			require.NoError(t, h.start(entrance{}))
		}
		require.NoError(t, f.ready(healWithin))
		for i, n := range nodes {
			alike(t, "after a restart of all nodes, "+f.hosts[i].name, stands, n.see())
		}
		lost := rand.IntN(len(nodes))
		h := f.hosts[lost]
		h.lose(false)
		e := entrance{replace: true}
		for _, other := range f.hosts {
			if other != h {
				e.join = append(e.join, other.raftAddress())
			}
		}
		require.NoError(t, eventually(time.Minute, func() error { return h.start(e) }))
		require.NoError(t, f.ready(healWithin))
		alike(t, "with a new disk, "+h.name, stands, nodes[lost].see())
		kept := want(nodes[lost], nodes[lost].slots.RenewSlots, &v1.RenewSlotsRequest{Slots: []*v1.SlotRef{{Pool: "pool", SlotId: held, Token: fence}, {SessionId: "s1", SlotId: "c4", Token: began}}})
		for _, x := range kept.Results {
			require.Equal(t, v1.Outcome_OUTCOME_RENEWED, x.Outcome, "a lease that nobody ended goes on: %v", x)
		}
		require.Greater(t, nodes[lost].slot(newID()), fence)

		g, others := founded(t, 1)
		defer func() { require.NoError(t, g.end()) }()
		others[0].restore(snapshot)
		elsewhere := others[0].see()
		alone := restored(saved, nil)
		alone.values, alone.brief = elsewhere.values, elsewhere.brief // by the clock of that cluster
		require.Subset(t, elsewhere.values.Values, expected.values.Values)
		alike(t, "in a cluster that knew nothing", numberless(alone), numberless(elsewhere))
		require.Greater(t, elsewhere.slots.Pool.LastToken, saved.slots.Pool.LastToken)
	})
}
