package server_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What a changeStore says of the first change after it was armed; later ones are
// its store's own.
type verdict int

const (
	appliedNoReads verdict = iota // it is applied, and every read after it fails
	appliedUnknown                // it is applied, and nobody learns that
	refusedChange                 // it is not applied
)

// A changeStore loses its leader at the first change after it was armed.
type changeStore struct {
	storage.Store
	verdict verdict
	armed   atomic.Bool
	gone    atomic.Bool
}

var errLeaderGone = errors.New("the leader has just gone")

func (s *changeStore) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if !s.armed.Load() {
		return s.Store.Apply(ctx, cmds...)
	}
	s.gone.Store(true)
	var answers []storage.Answer
	if s.verdict != refusedChange {
		answers = s.Store.Apply(ctx, cmds...)
	}
	if s.verdict == appliedNoReads {
		return answers
	}
	answers = make([]storage.Answer, len(cmds))
	for i := range answers {
		if answers[i] = storage.Lost(errLeaderGone); s.verdict == refusedChange {
			answers[i] = storage.Refused(errLeaderGone)
		}
	}
	return answers
}

func (s *changeStore) Restore(ctx context.Context, r io.Reader) error {
	if !s.armed.Load() || s.verdict == appliedNoReads {
		err := s.Store.Restore(ctx, r)
		s.gone.Store(s.armed.Load())
		return err
	}
	s.gone.Store(true)
	if s.verdict == refusedChange {
		return storage.Fail(storage.NotApplied, errLeaderGone)
	}
	if err := s.Store.Restore(ctx, r); err != nil {
		return err
	}
	return storage.Fail(storage.Unknown, errLeaderGone)
}

func (s *changeStore) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if s.gone.Load() {
		return storage.Found{}, storage.Unread(errLeaderGone)
	}
	return s.Store.Get(ctx, k, r)
}

func (s *changeStore) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	if s.gone.Load() {
		return storage.View{}, storage.Unread(errLeaderGone)
	}
	return s.Store.View(ctx, ns, r)
}

// A changeCluster changes its members with the store's verdict, and knows
// nothing any more afterwards.
type changeCluster struct{ s *changeStore }

func (c changeCluster) change() error {
	c.s.gone.Store(true)
	switch c.s.verdict {
	case appliedUnknown:
		return storage.Fail(storage.Unknown, errLeaderGone)
	case refusedChange:
		return storage.Fail(storage.NotApplied, errLeaderGone)
	}
	return nil
}

func (c changeCluster) Status(context.Context) (server.Status, error) {
	if c.s.gone.Load() {
		return server.Status{}, errLeaderGone
	}
	return server.Status{Node: "n1", Leader: "n1", Health: "ok"}, nil
}
func (c changeCluster) AddNode(context.Context, string, string, bool) error { return c.change() }
func (c changeCluster) RemoveNode(context.Context, string, bool) error      { return c.change() }
func (c changeCluster) TransferLeadership(context.Context, string) error    { return c.change() }
func (c changeCluster) Ready(context.Context) error                         { return nil }
func (c changeCluster) LeaderAPI() string                                   { return "127.0.0.1:1" }
func (c changeCluster) AdmitForwarded(admit func(session.Command) bool)     {}

// A changing is one request that changes something, as it is sent by itself or,
// where it can be one, as an operation among others.
type changing struct {
	ask func(*node) error
	op  func() *v1.Operation
}

const hashOfATool = "ab34567890123456789012345678901234567890123456789012345678901234"

// changings are all RPCs that change something, by name.
var changings = map[string]changing{
	"CallService/BeginCall": {
		ask: func(n *node) error { _, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "new")); return err },
		op:  func() *v1.Operation { return beginFrame(1, "s", "new") },
	},
	"CallService/EndCall": {
		ask: func(n *node) error {
			_, err := n.calls.EndCall(n.ctx(), endFrame(1, "s", "open").GetEnd())
			return err
		},
		op: func() *v1.Operation {
			f := endFrame(1, "s", "open")
			f.GetEnd().Output = structpb.NewStringValue("an output")
			return f
		},
	},
	"CallService/CancelCall": {
		ask: func(n *node) error {
			_, err := n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "waits"})
			return err
		},
		op: func() *v1.Operation {
			return &v1.Operation{Tag: 1, Op: &v1.Operation_Cancel{Cancel: &v1.CancelCallRequest{SessionId: "s", CallId: "waits"}}}
		},
	},
	"SlotService/AcquireSlot": {
		ask: func(n *node) error {
			_, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "new"})
			return err
		},
		op: func() *v1.Operation {
			return &v1.Operation{Tag: 1, Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "gpu", SlotId: "new"}}}
		},
	},
	"SlotService/RenewSlots": {
		ask: func(n *node) error {
			_, err := n.slots.RenewSlots(n.ctx(), renewOf("gpu", "held"))
			return err
		},
		op: func() *v1.Operation {
			return &v1.Operation{Tag: 1, Op: &v1.Operation_Renew{Renew: renewOf("gpu", "held")}}
		},
	},
	"SlotService/ReleaseSlot": {
		ask: func(n *node) error {
			_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "held", Token: 1})
			return err
		},
		op: func() *v1.Operation {
			return &v1.Operation{Tag: 1, Op: &v1.Operation_Release{Release: &v1.ReleaseSlotRequest{Pool: "gpu", SlotId: "held", Token: 1}}}
		},
	},
	"SlotService/PutPool": {ask: func(n *node) error {
		res, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "tpu", Slots: 3, RequestId: "r"})
		if err == nil {
			require.EqualValues(n.t, 3, res.GetPool().GetSlots())
		}
		return err
	}},
	"SlotService/DeletePool": {ask: func(n *node) error {
		_, err := n.slots.DeletePool(n.ctx(), &v1.DeletePoolRequest{Pool: "gpu", Force: true, RequestId: "r"})
		return err
	}},
	"LimitService/PutRate": {ask: func(n *node) error {
		res, err := n.limits.PutRate(n.ctx(), &v1.PutRateRequest{Rate: "new", Limit: 3, Per: durationpb.New(time.Second), RequestId: "r"})
		if err == nil {
			require.EqualValues(n.t, 3, res.GetRate().GetLimit())
		}
		return err
	}},
	"LimitService/DeleteRate": {ask: func(n *node) error {
		_, err := n.limits.DeleteRate(n.ctx(), &v1.DeleteRateRequest{Rate: "rate", RequestId: "r"})
		return err
	}},
	"LimitService/TakeRate": {ask: func(n *node) error {
		_, err := n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "rate", RequestId: "r"})
		return err
	}},
	"LimitService/PutBudget": {ask: func(n *node) error {
		res, err := n.limits.PutBudget(n.ctx(), &v1.PutBudgetRequest{Budget: "new", Parent: "org", Amount: "3", RequestId: "r"})
		if err == nil {
			require.Equal(n.t, "3", res.GetBudget().GetAmount())
		}
		return err
	}},
	"LimitService/AdjustBudget": {ask: func(n *node) error {
		_, err := n.limits.AdjustBudget(n.ctx(), &v1.AdjustBudgetRequest{Budget: "team", By: "1", RequestId: "r"})
		return err
	}},
	"LimitService/DeleteBudget": {ask: func(n *node) error {
		_, err := n.limits.DeleteBudget(n.ctx(), &v1.DeleteBudgetRequest{Budget: "team", RequestId: "r"})
		return err
	}},
	"ApprovalService/Request": {ask: func(n *node) error {
		res, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", RequestId: "r"})
		if err == nil {
			require.Equal(n.t, v1.ApprovalState_APPROVAL_STATE_PENDING, res.GetApproval().GetState())
		}
		return err
	}},
	"ApprovalService/Decide": {ask: func(n *node) error {
		res, err := n.approvals.Decide(n.ctx(), &v1.ApprovalServiceDecideRequest{Id: askedID, Decision: v1.Vote_VOTE_APPROVE, Approver: "amy", RequestId: "r"})
		if err == nil {
			require.Equal(n.t, v1.ApprovalState_APPROVAL_STATE_APPROVED, res.GetApproval().GetState())
		}
		return err
	}},
	"ApprovalService/Cancel": {ask: func(n *node) error {
		res, err := n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Id: askedID, RequestId: "r"})
		if err == nil {
			require.Equal(n.t, v1.ApprovalState_APPROVAL_STATE_CANCELLED, res.GetApproval().GetState())
		}
		return err
	}},
	"ApprovalService/PutStanding": {ask: func(n *node) error {
		_, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{
			Scope: v1.StandingScope_STANDING_SCOPE_AGENT, Name: "a", Tool: "t", Expiry: durationpb.New(time.Minute), RequestId: "r"})
		return err
	}},
	"ApprovalService/DeleteStanding": {ask: func(n *node) error {
		_, err := n.approvals.DeleteStanding(n.ctx(), &v1.DeleteStandingRequest{Id: standingID, RequestId: "r"})
		return err
	}},
	"SlotService/ForceRelease": {ask: func(n *node) error {
		_, err := n.slots.ForceRelease(n.ctx(), &v1.ForceReleaseRequest{SessionId: "s", SlotId: "open", RequestId: "r"})
		return err
	}},
	"SessionService/CreateSession": {ask: func(n *node) error {
		_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "new", AgentId: "a", Policy: byName("p")})
		return err
	}},
	"SessionService/CreateSession of a repeat": {ask: func(n *node) error {
		res, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "s", AgentId: "a", Policy: byName("p")})
		if err == nil {
			require.EqualValues(n.t, 2, res.GetSession().GetAttempts(), "it is shown as it stands now")
		}
		return err
	}},
	"SessionService/Signal": {ask: func(n *node) error {
		res, err := n.sessions.Signal(n.ctx(), signalRequest("STOP", agent("a")))
		if err == nil {
			require.Equal(n.t, "STOP", res.GetSignal().GetSignal())
		}
		return err
	}},
	"SessionService/Signal of a KILL": {ask: func(n *node) error {
		res, err := n.sessions.Signal(n.ctx(), signalRequest("KILL", agent("a")))
		if err == nil {
			require.False(n.t, res.GetSignal().GetSwept(), "which needs a look at the sessions")
		}
		return err
	}},
	"SessionService/CloseSession": {ask: func(n *node) error {
		res, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "s"})
		if err == nil {
			require.Equal(n.t, v1.SessionState_SESSION_STATE_CLOSED, res.GetSession().GetState())
			require.EqualValues(n.t, 2, res.GetReleased())
		}
		return err
	}},
	"PolicyService/PutPolicy": {ask: func(n *node) error {
		_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Yaml: "name: q\nmax_concurrent: 2\n", RequestId: "r"})
		return err
	}},
	"PolicyService/DeletePolicy": {ask: func(n *node) error {
		_, err := n.policies.DeletePolicy(n.ctx(), &v1.DeletePolicyRequest{Ref: &v1.DeletePolicyRequest_Name{Name: "unused"}, RequestId: "r"})
		return err
	}},
	"PolicyService/PutHash": {ask: func(n *node) error {
		_, err := n.policies.PutHash(n.ctx(), &v1.PutHashRequest{Tool: "t", Hash: hashOfATool, RequestId: "r"})
		return err
	}},
	"PolicyService/DeleteHash": {ask: func(n *node) error {
		_, err := n.policies.DeleteHash(n.ctx(), &v1.DeleteHashRequest{Tool: "t", RequestId: "r"})
		return err
	}},
	"CounterService/Set": {ask: func(n *node) error {
		_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "v", RequestId: "r"})
		return err
	}},
	"CounterService/Delete": {ask: func(n *node) error {
		_, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "k", RequestId: "r"})
		return err
	}},
	"CounterService/Increment": {ask: func(n *node) error {
		_, err := n.counters.Increment(n.ctx(), &v1.IncrementRequest{Key: "n", RequestId: "r"})
		return err
	}},
	"CounterService/Append": {ask: func(n *node) error {
		_, err := n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "l", Items: []string{"i"}, Ttl: durationpb.New(time.Hour), RequestId: "r"})
		return err
	}},
	"CounterService/DeleteList": {ask: func(n *node) error {
		_, err := n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Key: "l", RequestId: "r"})
		return err
	}},
	"ClusterService/AddNode": {ask: func(n *node) error {
		_, err := n.cluster.AddNode(n.ctx(), &v1.AddNodeRequest{Node: "n2", Address: "127.0.0.1:1"})
		return err
	}},
	"ClusterService/RemoveNode": {ask: func(n *node) error {
		_, err := n.cluster.RemoveNode(n.ctx(), &v1.RemoveNodeRequest{Node: "n2"})
		return err
	}},
	"ClusterService/TransferLeadership": {ask: func(n *node) error {
		_, err := n.cluster.TransferLeadership(n.ctx(), &v1.TransferLeadershipRequest{})
		return err
	}},
	"AccessService/CreateToken": {ask: func(n *node) error {
		_, err := n.access.CreateToken(n.ctx(), &v1.CreateTokenRequest{TokenId: "abcd", SecretSha256: append(make([]byte, 31), 1), Roles: []v1.Role{v1.Role_ROLE_AGENT}, RequestId: "r"})
		return err
	}},
	"AccessService/RevokeToken": {ask: func(n *node) error {
		_, err := n.access.RevokeToken(n.ctx(), &v1.RevokeTokenRequest{TokenId: "abcd", RequestId: "r"})
		return err
	}},
	"AccessService/DenySubject": {ask: func(n *node) error {
		_, err := n.access.DenySubject(n.ctx(), &v1.DenySubjectRequest{Subject: "cert:a", RequestId: "r"})
		return err
	}},
	"AccessService/AllowSubject": {ask: func(n *node) error {
		_, err := n.access.AllowSubject(n.ctx(), &v1.AllowSubjectRequest{Subject: "cert:a", RequestId: "r"})
		return err
	}},
	"AccessService/PutQuotas": {ask: func(n *node) error {
		_, err := n.access.PutQuotas(n.ctx(), &v1.PutQuotasRequest{Namespace: "default", Quotas: &v1.Quotas{Sessions: 5}, RequestId: "r"})
		return err
	}},
	"ClusterService/RepairIDs": {ask: func(n *node) error {
		_, err := n.cluster.RepairIDs(n.ctx(), &v1.RepairIDsRequest{RequestId: "r"})
		return err
	}},
	"ClusterService/Restore": {ask: func(n *node) error {
		other := start(n.t)
		other.putPolicy(policy()...)
		var snapshot bytes.Buffer
		require.NoError(n.t, other.store.Save(n.ctx(), &snapshot))
		stream, err := n.h2().cluster.Restore(n.ctx())
		require.NoError(n.t, err)
		if err := stream.Send(&v1.RestoreRequest{Chunk: snapshot.Bytes()}); !errors.Is(err, io.EOF) { // refused before it was read
			require.NoError(n.t, err)
		}
		_, err = stream.CloseAndReceive()
		return err
	}},
}

// unchanging are the RPCs that change nothing; BatchCalls and Exchange carry the
// operations of others, and are tried with each of those.
var unchanging = []string{
	"CallService/BatchCalls", "CallService/Exchange",
	"AccessService/WhoAmI", "AccessService/ListTokens", "AccessService/ListChains", "AccessService/GetQuotas",
	"ClusterService/Status", "ClusterService/Snapshot",
	"CounterService/Get", "CounterService/BatchGet", "CounterService/Range",
	"ApprovalService/Get", "ApprovalService/List", "ApprovalService/ListStanding",
	"DecisionService/Explain", "EventService/Follow",
	"PolicyService/GetPolicy", "PolicyService/ListPolicies", "PolicyService/Evaluate", "PolicyService/Scan", "PolicyService/ListHashes",
	"SessionService/GetSession", "SessionService/ListSessions",
	"LimitService/GetRate", "LimitService/ListRates",
	"PolicyService/GetPolicy", "PolicyService/ListPolicies", "PolicyService/Evaluate", "PolicyService/ListHashes",
	"SessionService/GetSession", "SessionService/ListSessions", "SessionService/ListSignals",
	"LimitService/GetBudget", "LimitService/ListBudgets", "SlotService/GetPool", "SlotService/ListPools", "SlotService/ListSlots",
}

func renewOf(pool string, ids ...string) *v1.RenewSlotsRequest {
	req := &v1.RenewSlotsRequest{}
	for i, id := range ids {
		req.Slots = append(req.Slots, &v1.SlotRef{Pool: pool, SlotId: id, Token: uint64(i + 1)})
	}
	return req
}

// rpcs are all methods of the API, as its descriptors have them.
func rpcs() (names []string) {
	protoregistry.GlobalFiles.RangeFilesByPackage("govnode.v1", func(f protoreflect.FileDescriptor) bool {
		for i := range f.Services().Len() {
			s := f.Services().Get(i)
			for j := range s.Methods().Len() {
				names = append(names, string(s.Name())+"/"+string(s.Methods().Get(j).Name()))
			}
		}
		return true
	})
	slices.Sort(names)
	return names
}

// startChanging starts a node with something of everything, whose store keeps to
// the verdict from now on.
// An approval and a standing approval that are there.
var (
	askedID    = session.RequestedApprovalID("default", "default", "asked")
	standingID = (&session.StandingOf{Scope: session.OfSession, Name: "s", Tool: "t"}).ID()
)

func startChanging(t *testing.T, v verdict) *node {
	t.Helper()
	memory := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	s := &changeStore{Store: memory, verdict: v}
	n := startOn(t, s, func(c *server.Config) { c.Cluster = changeCluster{s} })
	n.putPolicy("name: unused", "max_concurrent: 1")
	n.putPolicy(policy("drift_threshold: 0.5")...)
	n.session("s")
	n.putBudget("org", "", "10")
	n.putBudget("team", "org", "10")
	n.putPool("gpu", 2)
	n.putPool("full", 1)
	_, err := n.limits.PutRate(n.ctx(), &v1.PutRateRequest{Rate: "rate", Limit: 3, Per: durationpb.New(time.Second)})
	require.NoError(t, err)
	for _, slot := range []*v1.AcquireSlotRequest{{Pool: "gpu", SlotId: "held"}, {Pool: "full", SlotId: "all"}} {
		res, err := n.slots.AcquireSlot(n.ctx(), slot)
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "open").Outcome)
	wait := beginFrame(1, "s", "waits", func(r *v1.BeginCallRequest) {
		r.Pools, r.Wait = []*v1.Want{{Pool: "full"}}, durationpb.New(time.Minute)
	})
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{wait}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, res.Results[0].GetBegin().GetOutcome())
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "n", Value: "1"})
	require.NoError(t, err)
	_, err = n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", RequestId: "asked"})
	require.NoError(t, err)
	_, err = n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{
		Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: "s", Tool: "t", Expiry: durationpb.New(time.Minute)})
	require.NoError(t, err)
	s.armed.Store(true)
	return n
}

// saidOf is the code and the reason of an answer; empty where it is none.
func saidOf(t testing.TB, err error) string {
	if err == nil {
		return ""
	}
	return connect.CodeOf(err).String() + " " + info(t, err).GetReason()
}

func saidOfResult(t testing.TB, r *v1.OperationResult) string {
	if e := r.GetError(); e != nil {
		return e.GetCode() + " " + e.GetReason()
	}
	require.NotNil(t, r.GetResult())
	return ""
}

// The outcome of a change is that of the change: whatever fails after it was
// proposed has no say in it. Where it was applied its answer needs no read; where
// nobody knows it is said to be unknown; and NOT_APPLIED is said where it was not
// applied and nowhere else. It holds for every RPC by itself and as an operation
// of BatchCalls and Exchange.
func TestTheOutcomeOfAChangeIsItsOwn(t *testing.T) {
	var known []string
	for name := range changings {
		name, _, _ = strings.Cut(name, " ")
		known = append(known, name)
	}
	known = append(known, unchanging...)
	slices.Sort(known)
	require.Equal(t, rpcs(), slices.Compact(known), "list every RPC among changings, with a request, or among unchanging")

	for v, want := range map[verdict]string{
		appliedNoReads: "", appliedUnknown: "unavailable OUTCOME_UNKNOWN", refusedChange: "unavailable NOT_APPLIED",
	} {
		for _, name := range slices.Sorted(maps.Keys(changings)) {
			c := changings[name]
			t.Run(fmt.Sprintf("%s/%d", name, v), func(t *testing.T) {
				require.Equal(t, want, saidOf(t, c.ask(startChanging(t, v))), "unary")
				if c.op == nil {
					return
				}
				n := startChanging(t, v)
				res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{c.op()}})
				require.NoError(t, err)
				require.Equal(t, want, saidOfResult(t, res.Results[0]), "batch")
				n = startChanging(t, v)
				l := n.exchange()
				l.send(c.op())
				require.Equal(t, want, saidOfResult(t, l.one()), "exchange")
			})
		}
	}
}

// partly refuses every command after the first of a request.
type partly struct{ storage.Store }

func (p partly) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	answers := p.Store.Apply(ctx, cmds[:1]...)
	for range cmds[1:] {
		answers = append(answers, storage.Refused(errLeaderGone))
	}
	return answers
}

// A request of many commands of which one was applied and one was not says so of each.
func TestHalfOfARequestIsNotNothing(t *testing.T) {
	first := start(t)
	first.putPool("gpu", 2)
	n := startOn(t, partly{first.store})
	for _, id := range []string{"a", "b"} {
		_, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "gpu", SlotId: id})
		require.NoError(t, err)
	}
	half := func(res *v1.RenewSlotsResponse) {
		t.Helper()
		require.Len(t, res.GetResults(), 2)
		require.Equal(t, v1.Outcome_OUTCOME_RENEWED, res.Results[0].Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_UNSPECIFIED, res.Results[1].Outcome)
	}
	renewed, err := n.slots.RenewSlots(n.ctx(), renewOf("gpu", "a", "b"))
	require.NoError(t, err)
	half(renewed)
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Renew{Renew: renewOf("gpu", "a", "b")}}, beginFrame(2, "none", "c"),
	}})
	require.NoError(t, err)
	half(res.Results[0].GetRenew())
	require.Equal(t, "not_found NOT_FOUND", saidOfResult(t, res.Results[1]), "what others did is not its own")
}

// A staleThenGone tells every call that what it took for granted holds no longer, and then
// loses its leader: nothing of it was applied.
type staleThenGone struct {
	*changeStore
}

func (s staleThenGone) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if _, begin := cmds[0].(*session.Begin); !begin {
		return s.changeStore.Apply(ctx, cmds...)
	}
	s.gone.Store(true)
	return []storage.Answer{storage.Done(session.Result{Code: session.StalePremise}, 1)}
}

// Where nobody knows whether a restore came into force, its line has the generation that only
// it brings about. In a Redis other things do as well, and no line of one has it.
func TestARestoreOfUnknownOutcomeSaysItsGeneration(t *testing.T) {
	n := startChanging(t, appliedUnknown)
	require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, changings["ClusterService/Restore"].ask(n)))
	eventually(t, "it has a line", func() bool {
		return strings.Contains(n.audit.text(), `"event_type":"snapshot_restored","allowed":true,"reason":"","tool_name":"","namespace":"$cluster","outcome":"unknown","generation":1`)
	})

	memory := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	s := &changeStore{Store: memory, verdict: appliedUnknown}
	s.armed.Store(true)
	n = startOn(t, s)
	require.Equal(t, "unavailable OUTCOME_UNKNOWN", saidOf(t, changings["ClusterService/Restore"].ask(n)))
	eventually(t, "it has a line", func() bool { return strings.Contains(n.audit.text(), `"event_type":"snapshot_restored"`) })
	require.NotContains(t, n.audit.text(), `"generation"`)
}

// What a premise kept from being applied was not applied, whatever fails then.
func TestAStalePremiseIsNoChange(t *testing.T) {
	memory := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	n := startOn(t, staleThenGone{&changeStore{Store: memory}})
	n.putPolicy(policy()...)
	n.session("s")
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c"))
	require.Equal(t, "unavailable NOT_APPLIED", saidOf(t, err))
}
