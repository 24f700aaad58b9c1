package server_test

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

func (n *node) putQuotas(ns string, q session.Quotas) {
	n.t.Helper()
	a := n.store.Apply(n.ctx(), &session.PutQuotas{NS: ns, By: session.Maker{Client: "test"}, Quotas: q})[0]
	require.NoError(n.t, a.Failure())
	time.Sleep(300 * time.Millisecond) // nodes look at them four times a second
}

func requireOverQuota(t *testing.T, err error, quota string) {
	t.Helper()
	requireRefused(t, err, connect.CodeResourceExhausted, fault.ReasonQuotaExceeded, quota)
	require.Equal(t, quota, info(t, err).Metadata["quota"])
}

// What is new is refused where a namespace has as much as it may; what is there, what
// ends and what gives back is answered as ever, and another namespace has its own.
func TestQuotas(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s1")
	n.putPool("q", 1)
	set := func(key, text string) error {
		_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Client: "c1", Key: key, Value: text})
		return err
	}
	require.NoError(t, set("k1", "x"))
	n.putQuotas("default", session.Quotas{Sessions: 2, Clients: 2, Pools: 2, Policies: 1, Keys: 2})

	n.session("s2")
	create := func(id string) error {
		_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: id, AgentId: "a", Policy: byName("p")})
		return err
	}
	requireOverQuota(t, create("s3"), "sessions")
	require.ErrorContains(t, create("s3"), "Close some, each of which counts for an hour more, or ask an operator")
	require.NoError(t, create("s2"), "it is there")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s2", "c").Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s2", "c").Outcome)

	_, err := n.policies.PutPolicy(n.ctx(), &v1.PutPolicyRequest{Name: "other", Yaml: strings.Join(policy(), "\n") + "\n"})
	requireOverQuota(t, err, "policies")
	n.putPolicy(policy("max_attempts: 9")...)

	n.putRate("r", 5, time.Second)
	_, err = n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "third", Slots: 1})
	requireOverQuota(t, err, "pools")
	_, err = n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Client: "default", Pool: "q", Slots: 3})
	require.NoError(t, err)

	require.NoError(t, set("k2", "x"))
	requireOverQuota(t, set("k3", "x"), "keys")
	require.NoError(t, set("k2", "y"))
	_, err = n.counters.Increment(n.ctx(), &v1.IncrementRequest{Client: "c1", Key: "k3"})
	requireOverQuota(t, err, "keys")
	_, err = n.counters.Append(n.ctx(), &v1.AppendRequest{Client: "c1", Key: "l", Items: []string{"i"}, Ttl: durationpb.New(time.Hour)})
	requireOverQuota(t, err, "keys")
	_, err = n.policies.DeleteHash(n.ctx(), &v1.DeleteHashRequest{Client: "c1", Tool: "none"})
	require.NoError(t, err, "it adds nothing")
	_, err = n.counters.Delete(n.ctx(), &v1.DeleteRequest{Client: "c1", Key: "k2"})
	require.NoError(t, err)
	require.NoError(t, set("k3", "x"))

	acquire := func(client string) error {
		_, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "s", Client: client})
		return err
	}
	require.NoError(t, acquire("c1"))
	requireOverQuota(t, acquire("c9"), "clients")
	batch, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "q", SlotId: "x", Client: "c9"}}},
		{Op: &v1.Operation_Begin{Begin: beginRequest("s2", "d")}},
	}})
	require.NoError(t, err)
	require.Equal(t, fault.ReasonQuotaExceeded, batch.Results[0].GetError().GetReason())
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, batch.Results[1].GetBegin().GetOutcome())

	used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 2, used.Used.Sessions)
	require.EqualValues(t, 2, used.Used.Pools)
	require.EqualValues(t, 1, used.Used.Policies)
	require.EqualValues(t, 2, used.Used.Keys)

	n.putQuotas("default", session.Quotas{})
	require.NoError(t, create("s3"))
	require.NoError(t, acquire("c9"))
}

// Each item of a list is a key, also in a list that is there, and one of many that are
// appended together.
func TestQuotaOfItems(t *testing.T) {
	n := start(t)
	add := func(list, request string, items ...string) (int64, error) {
		res, err := n.counters.Append(n.ctx(), &v1.AppendRequest{Client: "c", RequestId: request, Key: list, Items: items, Ttl: durationpb.New(time.Hour)})
		return res.GetLength(), err
	}
	n.putQuotas("default", session.Quotas{Keys: 4})
	for _, try := range []struct {
		list, request string
		items         []string
		length        int64 // 0: it is refused
	}{
		{"l", "all-at-once", []string{"a", "b", "c", "d"}, 0}, // with the list that is five
		{"l", "two", []string{"a", "b"}, 2},
		{"l", "two-more", []string{"c", "d"}, 0},
		{"l", "one-more", []string{"c"}, 3},
		{"l", "another", []string{"d"}, 0},
		{"m", "another-list", []string{"a"}, 0},
		{"l", "two", []string{"a", "b"}, 2}, // it was done
	} {
		length, err := add(try.list, try.request, try.items...)
		if try.length == 0 {
			requireOverQuota(t, err, "keys")
			continue
		}
		require.NoError(t, err, try.request)
		require.Equal(t, try.length, length, try.request)
	}
	used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 4, used.Used.Keys)
	n.putQuotas("default", session.Quotas{Keys: 3})
	_, err = add("l", "beyond", "d")
	requireOverQuota(t, err, "keys")
	_, err = n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Client: "c", Key: "l"})
	require.NoError(t, err, "it ends something")
}

// Bytes are those of values, lists and policies.
func TestQuotaOfBytes(t *testing.T) {
	n := start(t)
	n.putQuotas("default", session.Quotas{Bytes: 1000})
	_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: strings.Repeat("x", 900)})
	require.NoError(t, err)
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "l", Value: strings.Repeat("x", 1001)})
	requireOverQuota(t, err, "bytes")
	for _, items := range [][]string{{strings.Repeat("x", 1001)}, {strings.Repeat("x", 1000), "x"}, {"x", strings.Repeat("x", 1000)}} {
		_, err = n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "m", Items: items, Ttl: durationpb.New(time.Hour)})
		requireOverQuota(t, err, "bytes") // however they are divided
	}
	// What was carried out is answered as it was, though there is no room for it once more.
	req := &v1.SetRequest{Key: "n", Value: strings.Repeat("x", 90), Client: "c", RequestId: "r"}
	first, err := n.counters.Set(n.ctx(), req)
	require.NoError(t, err)
	n.putQuotas("default", session.Quotas{Bytes: 80})
	again, err := n.counters.Set(n.ctx(), req)
	require.NoError(t, err)
	require.Equal(t, first.Version, again.Version)
	req.RequestId = "another"
	_, err = n.counters.Set(n.ctx(), req)
	requireOverQuota(t, err, "bytes")
}

// What a list that was deleted leaves until it lapses counts as long: it is stored.
func TestQuotaOfBytesOfADeletedList(t *testing.T) {
	n := start(t)
	_, err := n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "l", Items: []string{strings.Repeat("x", 900)}, Ttl: durationpb.New(time.Hour)})
	require.NoError(t, err)
	_, err = n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Key: "l"})
	require.NoError(t, err)
	n.putQuotas("default", session.Quotas{Bytes: 1000})
	_, err = n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "m", Items: []string{strings.Repeat("x", 101)}, Ttl: durationpb.New(time.Hour)})
	requireOverQuota(t, err, "bytes")
	_, err = n.counters.Append(n.ctx(), &v1.AppendRequest{Key: "m", Items: []string{strings.Repeat("x", 100)}, Ttl: durationpb.New(time.Hour)})
	require.NoError(t, err)
}

// Approvals, pending and decided ones, and those that stand are keys with bytes of their
// namespace, however they are asked for. What nobody has to be asked about anew is no
// addition.
func TestQuotaOfApprovals(t *testing.T) {
	n := start(t)
	n.putPolicy(policy("require_human_approval: true", "approval: {timeout: 300s}")...)
	n.session("s")
	ask := func(id, message string) (*v1.ApprovalServiceRequestResponse, error) {
		return n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{Client: "c", RequestId: id, AgentId: "a", Tool: "t", Message: message})
	}
	stand := func(tool string) error {
		_, err := n.approvals.PutStanding(n.ctx(), &v1.PutStandingRequest{Scope: v1.StandingScope_STANDING_SCOPE_SESSION, Name: "s", Tool: tool, Expiry: durationpb.New(time.Hour)})
		return err
	}
	begin := func(call, tool string) error {
		_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", call, tooled(tool, `{}`), waiting(time.Nanosecond)))
		return err
	}
	n.putQuotas("default", session.Quotas{Keys: 3})
	first, err := ask("r1", "")
	require.NoError(t, err)
	require.NoError(t, begin("c1", "search"))
	require.NoError(t, stand("lookup"))
	_, err = ask("r2", "")
	requireOverQuota(t, err, "keys")
	requireOverQuota(t, begin("c2", "search"), "keys")
	requireOverQuota(t, stand("other"), "keys")
	_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "v"})
	requireOverQuota(t, err, "keys")

	_, err = ask("r1", "")
	require.NoError(t, err, "it is there")
	require.NoError(t, begin("c1", "search"), "it is there")
	require.NoError(t, begin("c3", "lookup"), "one stands for it")
	require.NoError(t, stand("lookup"), "it is there")
	_, err = n.vote(first.Approval.Id, "amy", v1.Vote_VOTE_APPROVE)
	require.NoError(t, err)
	_, err = ask("r2", "")
	requireOverQuota(t, err, "keys")
	used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 3, used.Used.Keys, "what is decided is kept for a while")

	n.putQuotas("default", session.Quotas{Bytes: 1000})
	_, err = ask("r3", strings.Repeat("x", 1001))
	requireOverQuota(t, err, "bytes")
	_, err = ask("r3", "x")
	require.NoError(t, err)
}

// Who waits, follows or has a stream open is counted at the node, and makes room when
// it goes.
func TestQuotasOfANode(t *testing.T) {
	n := start(t)
	n.putPool("q", 1)
	n.putQuotas("default", session.Quotas{Waiters: 1, Followers: 1, Streams: 1})
	held, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "s"})
	require.NoError(t, err)
	wait := func(id string) (*v1.AcquireSlotResponse, error) {
		return n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: id, Wait: durationpb.New(time.Minute)})
	}
	got := make(chan *v1.AcquireSlotResponse, 1)
	go func() {
		res, err := wait("w1")
		if err != nil {
			t.Error(err)
		}
		got <- res
	}()
	eventually(t, "it waits", func() bool {
		used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
		return err == nil && used.Used.Waiters == 1
	})
	for range 2 {
		refused, err := wait("w2")
		require.NoError(t, err)
		require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, refused.Outcome, "as one that does not wait")
	}
	slots, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "q"})
	require.NoError(t, err)
	require.Len(t, slots.Waiters, 1)
	_, err = n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "s", Token: held.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, (<-got).Outcome)

	h2 := n.h2()
	first, err := h2.events.Follow(t.Context(), &v1.FollowRequest{})
	require.NoError(t, err)
	require.True(t, first.Receive())
	second, err := h2.events.Follow(t.Context(), &v1.FollowRequest{})
	require.NoError(t, err)
	require.False(t, second.Receive())
	requireOverQuota(t, second.Err(), "followers")

	stream, err := h2.calls.Exchange(t.Context())
	require.NoError(t, err)
	_, err = stream.Receive()
	require.NoError(t, err)
	other, err := h2.calls.Exchange(t.Context())
	require.NoError(t, err)
	_, err = other.Receive()
	requireOverQuota(t, err, "streams")
	require.NoError(t, stream.CloseRequest())
	for err == nil {
		_, err = stream.Receive()
	}
	eventually(t, "there is room again", func() bool {
		s, err := h2.calls.Exchange(t.Context())
		if err != nil {
			return false
		}
		_, err = s.Receive()
		_ = s.CloseRequest()
		return err == nil
	})
}

// Where as many wait as may, what would have to wait is answered as if it did not: it is
// counted, and its answer says so, whatever keeps it out.
func TestWithoutRoomToWait(t *testing.T) {
	n := start(t)
	n.putPool("q", 1)
	n.putPool("free", 1)
	n.putRate("r", 1, time.Hour)
	n.putPolicy(policy()...)
	n.session("s")
	n.session("stopped")
	n.signal("STOP", "stopped")
	n.putPolicy("name: asks", "require_human_approval: true", "approval: {required: 1}")
	_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: "asks", AgentId: "a", Policy: byName("asks")})
	require.NoError(t, err)
	n.putQuotas("default", session.Quotas{Waiters: 1})
	held, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "holder"})
	require.NoError(t, err)
	minute, h2 := durationpb.New(time.Minute), n.h2()
	in := func(pool string) func(*v1.BeginCallRequest) {
		return func(r *v1.BeginCallRequest) { r.Pools = []*v1.Want{{Pool: pool}} }
	}
	// A place from a batch, which waits nowhere.
	placed := &v1.AcquireSlotRequest{Pool: "q", SlotId: "placed", Wait: minute}
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{{Op: &v1.Operation_Acquire{Acquire: placed}}}})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, res.Results[0].GetAcquire().GetOutcome())
	go func() { // it ends with the node
		_, _ = h2.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "waits", Wait: minute})
	}()
	places := func() int {
		slots, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "q"})
		require.NoError(t, err)
		return len(slots.Waiters)
	}
	eventually(t, "one waits", func() bool { return places() == 2 })

	for range 2 {
		asked := n.begin("asks", "asked", waiting(time.Minute))
		require.Equal(t, v1.Outcome_OUTCOME_APPROVAL_REQUIRED, asked.Outcome)
		require.EqualValues(t, 1, asked.Counters.Attempts)
		full := n.begin("s", "full", in("q"), waiting(time.Minute))
		require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, full.Outcome)
	}
	require.Equal(t, v1.Outcome_OUTCOME_STOPPED, n.begin("stopped", "a", waiting(time.Minute)).Outcome)
	for i, outcome := range []v1.Outcome{v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_RATE_LIMITED} {
		took, err := n.limits.TakeRate(n.ctx(), &v1.TakeRateRequest{Rate: "r", RequestId: fmt.Sprint(i), Wait: minute})
		require.NoError(t, err)
		require.Equal(t, outcome, took.Outcome)
	}
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "fits", in("free"), waiting(time.Minute)).Outcome, "it has not to wait")

	batch := &v1.BatchCallsRequest{Operations: []*v1.Operation{{Op: &v1.Operation_Acquire{Acquire: &v1.AcquireSlotRequest{Pool: "q", SlotId: "late", Wait: minute}}}}}
	res, err = n.calls.BatchCalls(n.ctx(), batch)
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, res.Results[0].GetAcquire().GetOutcome(), "nor is there a place for one that would wait later")

	// Who has a place waits for it, also where there is no room for others.
	got := make(chan v1.Outcome)
	for _, wait := range []*durationpb.Duration{nil, minute} {
		again := &v1.AcquireSlotRequest{Pool: "q", SlotId: "placed", Wait: wait}
		go func() {
			res, err := h2.slots.AcquireSlot(n.ctx(), again)
			require.NoError(t, err)
			got <- res.Outcome
		}()
	}
	eventually(t, "all of them wait", func() bool {
		used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
		return err == nil && used.Used.Waiters == 3
	})
	require.Equal(t, 2, places())
	_, err = n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "holder", Token: held.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, <-got)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, <-got)
}

// Who waits until a STOP is over is one of those who wait, and goes on waiting for a slot
// where there is no room for others.
func TestWhoWaitsGoesOnWaiting(t *testing.T) {
	n := start(t)
	n.putPool("q", 1)
	n.putPolicy(policy()...)
	n.session("s")
	n.signal("STOP", "s")
	n.putQuotas("default", session.Quotas{Waiters: 1})
	held, err := n.slots.AcquireSlot(n.ctx(), &v1.AcquireSlotRequest{Pool: "q", SlotId: "holder"})
	require.NoError(t, err)
	got, h2 := make(chan v1.Outcome, 1), n.h2()
	go func() {
		res, _ := h2.calls.BeginCall(n.ctx(), &v1.BeginCallRequest{SessionId: "s", CallId: "c", Tool: "t", Pools: []*v1.Want{{Pool: "q"}}, Wait: durationpb.New(time.Minute)})
		got <- res.GetOutcome()
	}()
	eventually(t, "it is held", func() bool {
		used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
		return err == nil && used.Used.Waiters == 1
	})
	n.signal("CONTINUE", "s")
	eventually(t, "it waits for the slot", func() bool {
		slots, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "q"})
		return err == nil && len(slots.Waiters) == 1
	})
	_, err = n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: "q", SlotId: "holder", Token: held.Token})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, <-got)
}

// Who waits for the decision of an approval is one of the waiters of its namespace.
func TestQuotaOfWaitersForApprovals(t *testing.T) {
	n := start(t)
	n.putQuotas("default", session.Quotas{Waiters: 1})
	asked, err := n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{AgentId: "a", Tool: "t", Client: "c", RequestId: "r"})
	require.NoError(t, err)
	const all = 50
	ctx, hangUp := context.WithTimeout(n.ctx(), 10*time.Second)
	defer hangUp()
	ended, h2 := make(chan error, all), n.h2()
	for range all {
		go func() {
			_, err := h2.approvals.Get(ctx, &v1.ApprovalServiceGetRequest{Id: asked.Approval.Id, Wait: durationpb.New(time.Minute)})
			ended <- err
		}()
	}
	for range all - 1 {
		requireOverQuota(t, <-ended, "waiters")
	}
	used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
	require.NoError(t, err)
	require.EqualValues(t, 1, used.Used.Waiters)
	hangUp()
	require.Equal(t, connect.CodeCanceled, connect.CodeOf(<-ended))
	eventually(t, "there is room again", func() bool {
		used, err := n.access.GetQuotas(n.ctx(), &v1.GetQuotasRequest{})
		return err == nil && used.Used.Waiters == 0
	})
}

// So many operations a second, and no more; what ends something is free.
func TestQuotaOfOperations(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	n.putQuotas("default", session.Quotas{Operations: 5})
	refused, begun := 0, 0
	for i := range 20 {
		res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", fmt.Sprint("c", i)))
		if err != nil {
			requireOverQuota(t, err, "operations a second")
			require.NotEmpty(t, info(t, err).Metadata["retryAfter"])
			require.Contains(t, err.Error(), "Send it again with the same id in ")
			refused++
			continue
		}
		begun++
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s", fmt.Sprint("c", i)).Outcome)
	}
	require.GreaterOrEqual(t, begun, 5)
	require.Positive(t, refused)
}

// Whoever is refused is told when there is more, however the operation was sent.
func TestWhenThereAreMoreOperations(t *testing.T) {
	inEveryWay(t, func(t *testing.T, send func(*node, ...*v1.Operation) []*v1.OperationResult) {
		n := start(t)
		n.putPolicy(roomy...)
		n.session("s")
		n.putQuotas("default", session.Quotas{Operations: 5})
		ops := make([]*v1.Operation, 20)
		for i := range ops {
			ops[i] = beginFrame(uint64(i+1), "s", fmt.Sprint("c", i))
		}
		refused := 0
		for _, r := range send(n, ops...) {
			if e := r.GetError(); e != nil {
				require.Equal(t, "QUOTA_EXCEEDED", e.Reason)
				require.Positive(t, e.RetryAfter.AsDuration(), "%v", e)
				require.LessOrEqual(t, e.RetryAfter.AsDuration(), time.Second/5+time.Millisecond)
				refused++
			}
		}
		require.Positive(t, refused)
	})
}

// A client waits until there are more, on a stream as well.
func TestAClientWaitsForMoreOperations(t *testing.T) {
	for _, alone := range []bool{false, true} {
		n := start(t)
		n.putPolicy(roomy...)
		n.putQuotas("default", session.Quotas{Operations: 5})
		c, err := client.New(client.Config{Addresses: []string{n.url}, DisableExchange: alone})
		require.NoError(t, err)
		s, err := c.CreateSession(n.ctx(), client.Session{Agent: "a", Policy: "p"})
		require.NoError(t, err)
		for range 8 {
			_, err := s.Begin(n.ctx(), client.Call{Tool: "t"})
			require.NoError(t, err, "by requests of their own: %v", alone)
		}
		require.NoError(t, c.Close())
		require.Positive(t, n.metric("gov_quota_refused_total{quota=\"operations a second\"}"))
	}
}

// What ends, keeps or gives back costs nothing, unless it changes nothing: whoever asks for
// that over and over is refused by and by, and not so who has what he ends.
func TestQuotaOfWhatIsNotThere(t *testing.T) {
	for what, try := range map[string]func(n *node, i int) error{
		"renew": func(n *node, i int) error {
			_, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Client: "c", Slots: []*v1.SlotRef{
				{Pool: "q", SlotId: fmt.Sprint("a", i), Token: 1}, {Pool: "q", SlotId: fmt.Sprint("b", i), Token: 1}, {SessionId: "s", SlotId: "none", Token: 1},
			}})
			return err
		},
		"release": func(n *node, i int) error {
			_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Client: "c", Pool: "q", SlotId: fmt.Sprint("a", i), Token: 1})
			return err
		},
		"end": func(n *node, i int) error {
			_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: fmt.Sprint("none", i), Status: v1.Status_STATUS_SUCCEEDED})
			return err
		},
		"cancel": func(n *node, i int) error {
			_, err := n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: fmt.Sprint("none", i)})
			return err
		},
		"cancel an approval": func(n *node, i int) error {
			_, err := n.approvals.Cancel(n.ctx(), &v1.ApprovalServiceCancelRequest{Client: "c", Id: fmt.Sprint("none", i)})
			return err
		},
		"release with another token": func(n *node, i int) error {
			_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Client: "w", Pool: "q", SlotId: "slot", Token: uint64(1000 + i)})
			return err
		},
		"renew with another token": func(n *node, i int) error {
			_, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Client: "w", Slots: []*v1.SlotRef{{Pool: "q", SlotId: "slot", Token: uint64(1000 + i)}}})
			return err
		},
		"end again": func(n *node, _ int) error {
			_, err := n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: "ended", Status: v1.Status_STATUS_SUCCEEDED})
			return err
		},
		"release again": func(n *node, _ int) error {
			_, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Client: "w", Pool: "q2", SlotId: "gone", Token: 1})
			return err
		},
		"close again": func(n *node, _ int) error {
			_, err := n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "closed"})
			return err
		},
		"cancel what runs": func(n *node, _ int) error {
			_, err := n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "runs"})
			if err != nil && info(t, err).Reason == "NOT_WAITING" {
				return nil
			}
			return err
		},
		"delete another version": func(n *node, _ int) error {
			_, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Client: "c", Key: "k", IfVersion: "0"})
			if err != nil && info(t, err).Reason == "VERSION_CONFLICT" {
				return nil
			}
			return err
		},
		"delete": func(n *node, i int) error {
			_, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Client: "c", Key: fmt.Sprint("none", i)})
			return err
		},
		"delete a list": func(n *node, i int) error {
			_, err := n.counters.DeleteList(n.ctx(), &v1.DeleteListRequest{Client: "c", Key: fmt.Sprint("none", i)})
			return err
		},
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			n := start(t)
			n.putPolicy(policy()...)
			n.session("s")
			n.putPool("q", 1)
			held := n.acquire("q", "slot")
			n.begin("s", "runs")
			n.begin("s", "ended")
			n.end("s", "ended")
			n.putPool("q2", 1)
			freed, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Client: "w", Pool: "q2", SlotId: "gone", Token: n.acquire("q2", "gone").Token})
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_RELEASED, freed.Outcome)
			n.session("closed")
			_, err = n.sessions.CloseSession(n.ctx(), &v1.CloseSessionRequest{SessionId: "closed"})
			require.NoError(t, err)
			_, err = n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "v"})
			require.NoError(t, err)
			n.putQuotas("default", session.Quotas{Operations: 1})
			for i := 0; ; i++ {
				if err := try(n, i); err != nil && connect.CodeOf(err) != connect.CodeNotFound {
					require.Positive(t, i, "the first is answered: nothing is owed")
					requireOverQuota(t, err, "operations a second")
					require.NotEmpty(t, info(t, err).Metadata["retryAfter"])
					break
				}
				require.Less(t, i, 50)
			}
			renewed, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Client: "w", Slots: []*v1.SlotRef{
				{Pool: "q", SlotId: "none", Token: 1}, {Pool: "q", SlotId: "slot", Token: held.Token},
			}})
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_LEASE_EXPIRED, renewed.Results[0].Outcome)
			require.Equal(t, v1.Outcome_OUTCOME_RENEWED, renewed.Results[1].Outcome)
			freed, err = n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Client: "w", Pool: "q", SlotId: "slot", Token: held.Token})
			require.NoError(t, err)
			require.Equal(t, v1.Outcome_OUTCOME_RELEASED, freed.Outcome)
			require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s", "runs").Outcome)
			gone, err := n.counters.Delete(n.ctx(), &v1.DeleteRequest{Key: "k"})
			require.NoError(t, err)
			require.True(t, gone.Found)
		})
	}
}

// Where a call of a workflow has ended is a value, which is written whatever there is of
// those: the call ends.
func TestACallOfAWorkflowEndsBeyondTheQuota(t *testing.T) {
	n := flowNode(t)
	n.begin("s", "c", tooled("Read", `{"path": "PLAN"}`))
	n.putQuotas("default", session.Quotas{Bytes: 1})
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "next", tooled("Read", `{"path": "PLAN"}`)))
	requireOverQuota(t, err, "bytes")
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, n.end("s", "c").Outcome)
	require.Contains(t, n.state(), `"reads":["PLAN"]`)
}

// What goes through no steps of operations costs one as well.
func TestQuotaOfOtherOperations(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.putQuotas("default", session.Quotas{Operations: 1, Clients: 1})
	for what, try := range map[string]func() error{
		"increment": func() error {
			_, err := n.counters.Increment(n.ctx(), &v1.IncrementRequest{Client: "c1", Key: "k"})
			return err
		},
		"evaluate": func() error {
			_, err := n.policies.Evaluate(n.ctx(), &v1.EvaluateRequest{Policy: byName("p"), Tool: "t", AgentId: "a"})
			return err
		},
	} {
		var err error
		for range 1000 { // more than a second lets through
			if err = try(); err != nil {
				break
			}
		}
		require.Error(t, err, what)
		requireOverQuota(t, err, "operations a second")
	}
	n.putQuotas("default", session.Quotas{Clients: 1})
	_, err := n.counters.Increment(n.ctx(), &v1.IncrementRequest{Client: "c1", RequestId: "r", Key: "k"})
	require.NoError(t, err)
	_, err = n.approvals.Request(n.ctx(), &v1.ApprovalServiceRequestRequest{Client: "another", RequestId: "r", AgentId: "a", Tool: "t"})
	requireOverQuota(t, err, "clients")
}

// So many sessions a second where nobody asks how many operations. What is refused was not
// applied, and calls go on.
func TestPaceOfSessions(t *testing.T) {
	const all = 40
	n := start(t, func(c *server.Config) { c.SessionPace = 2 })
	n.putPolicy(policy()...)
	n.session("s")
	create := func(i int) error {
		_, err := n.sessions.CreateSession(n.ctx(), &v1.CreateSessionRequest{SessionId: fmt.Sprint("s", i), AgentId: "a", Policy: byName("p")})
		return err
	}
	var answers [all]error
	var wg sync.WaitGroup
	for i := range all {
		wg.Go(func() { answers[i] = create(i) })
	}
	wg.Wait()
	var refused []int
	for i, err := range answers {
		if err == nil {
			continue
		}
		requireOverQuota(t, err, "sessions a second")
		require.NotEmpty(t, info(t, err).Metadata["retryAfter"])
		_, err = n.sessions.GetSession(n.ctx(), &v1.GetSessionRequest{SessionId: fmt.Sprint("s", i)})
		require.Equal(t, connect.CodeNotFound, connect.CodeOf(err))
		refused = append(refused, i)
	}
	require.NotEmpty(t, refused)
	require.Less(t, len(refused), all)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "c").Outcome)
	n.putQuotas("default", session.Quotas{Operations: 10 * all})
	for _, i := range refused {
		require.NoError(t, create(i))
	}
}
