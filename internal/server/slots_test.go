package server_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/fault"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

func TestASlotFromAcquireToRelease(t *testing.T) {
	n := start(t)
	n.putPool("gpu", 2)
	a := n.acquire("gpu", "a", func(r *v1.AcquireSlotRequest) { r.Label = "training run" })
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, a.Outcome)
	require.Positive(t, a.Token)
	require.InDelta(t, 30, a.Ttl.AsDuration().Seconds(), 1)
	require.Equal(t, a.Token, n.acquire("gpu", "a", func(r *v1.AcquireSlotRequest) { r.Label = "training run" }).Token, "the same again")
	b := n.acquire("gpu", "b")
	require.Equal(t, v1.Level_LEVEL_PRESSED, b.Pressure.Level)
	require.Equal(t, 50*time.Millisecond, b.Pressure.AdvisedDelay.AsDuration())
	full := n.acquire("gpu", "c")
	require.Equal(t, v1.Outcome_OUTCOME_CONCURRENCY_LIMIT, full.Outcome)
	require.NotEmpty(t, full.Reason)
	require.NotNil(t, full.RetryAfter)

	list, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "gpu"})
	require.NoError(t, err)
	require.EqualValues(t, 2, list.Pool.InUse)
	require.Equal(t, "w", list.Slots[0].Holder)
	require.Equal(t, "a", list.Slots[0].SlotId)
	require.Equal(t, "training run", list.Slots[0].Label)
	require.Equal(t, a.Token, list.Slots[0].Token)

	require.Equal(t, v1.Outcome_OUTCOME_FENCED, n.release("gpu", "a", a.Token+1).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, n.release("gpu", "a", a.Token).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_RELEASED, n.release("gpu", "a", a.Token).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ALREADY_ENDED, n.acquire("gpu", "a", func(r *v1.AcquireSlotRequest) { r.Label = "training run" }).Outcome)
}

func TestRenewSlots(t *testing.T) {
	n := furnished(t)
	held := n.begin("s", "c")
	slot := n.acquire("gpu", "slot")
	res, err := n.slots.RenewSlots(n.ctx(), &v1.RenewSlotsRequest{Client: "w", Ttl: durationpb.New(time.Minute), Slots: []*v1.SlotRef{
		{Pool: "gpu", SlotId: "slot", Token: slot.Token},
		{SessionId: "s", SlotId: "c", Token: held.Grants[0].Token},
		{Pool: "gpu", SlotId: "slot", Token: slot.Token + 1},
		{Pool: "gpu", SlotId: "never", Token: 1},
		{SessionId: "s", SlotId: "e", Token: 1},
		{SessionId: "nope", SlotId: "c", Token: 1},
	}})
	require.NoError(t, err)
	want := []v1.Outcome{
		v1.Outcome_OUTCOME_RENEWED, v1.Outcome_OUTCOME_RENEWED, v1.Outcome_OUTCOME_FENCED,
		v1.Outcome_OUTCOME_LEASE_EXPIRED, v1.Outcome_OUTCOME_LEASE_EXPIRED, v1.Outcome_OUTCOME_LEASE_EXPIRED,
	}
	require.Len(t, res.Results, len(want))
	for i, r := range res.Results {
		require.Equal(t, want[i], r.Outcome, "slot %d", i)
	}
	require.InDelta(t, 60, res.Results[0].Ttl.AsDuration().Seconds(), 1)
	require.InDelta(t, 60, n.getSession("s").OpenCalls[0].Ttl.AsDuration().Seconds(), 1, "the call's deadline goes with its slots")
}

// A marred store is one in which what touches some records fails: they are damaged.
type marred struct {
	storage.Store
	of map[session.Key]bool

	far time.Duration // how long it takes to say what stands as of now
}

var errDamaged = errors.New("a record is damaged")

func (m *marred) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if m.of[k] {
		return storage.Found{}, storage.Unread(errDamaged)
	}
	if r == storage.Latest && m.far > 0 {
		time.Sleep(m.far)
		return storage.Found{}, storage.Unread(errDamaged)
	}
	return m.Store.Get(ctx, k, r)
}

func (m *marred) Apply(ctx context.Context, cmds ...session.Command) (answers []storage.Answer) {
	for _, c := range cmds {
		if slices.ContainsFunc(c.Touches(), func(k session.Key) bool { return m.of[k] }) {
			answers = append(answers, storage.Refused(errDamaged))
			continue
		}
		answers = append(answers, m.Store.Apply(ctx, c)...)
	}
	return answers
}

// What cannot be read or changed of one slot is no word about the others of its process: they
// are renewed, and of that one nothing is said. Where nothing is known of any, the request
// has no answer.
func TestRenewalsStandApart(t *testing.T) {
	m := &marred{Store: storage.NewMemory(nil), of: map[session.Key]bool{}}
	t.Cleanup(func() { require.NoError(t, m.Close()) })
	n := startOn(t, m)
	n.putPolicy(policy()...)
	n.putPool("gpu", 1)
	n.putPool("cpu", 1)
	refs := map[string]*v1.SlotRef{}
	for _, s := range []string{"s", "t"} {
		n.session(s)
		refs[s] = &v1.SlotRef{SessionId: s, SlotId: "c", Token: n.begin(s, "c").Grants[0].Token}
	}
	for _, p := range []string{"gpu", "cpu"} {
		refs[p] = &v1.SlotRef{Pool: p, SlotId: "in-" + p, Token: n.acquire(p, "in-"+p).Token}
	}
	renew := func(names ...string) ([]v1.Outcome, error) {
		req := &v1.RenewSlotsRequest{Client: "w"}
		for _, name := range names {
			req.Slots = append(req.Slots, refs[name])
		}
		res, err := n.slots.RenewSlots(n.ctx(), req)
		var got []v1.Outcome
		for _, r := range res.GetResults() {
			got = append(got, r.Outcome)
		}
		return got, err
	}
	const renewed, unknown = v1.Outcome_OUTCOME_RENEWED, v1.Outcome_OUTCOME_UNSPECIFIED
	m.of[session.SessionKey("default", "s")], m.of[session.PoolKey("default", "gpu")] = true, true
	got, err := renew("s", "gpu", "t", "cpu")
	require.NoError(t, err)
	require.Equal(t, []v1.Outcome{unknown, unknown, renewed, renewed}, got)
	for _, names := range [][]string{{"s"}, {"gpu"}, {"s", "gpu"}} {
		_, err = renew(names...)
		requireRefused(t, err, connect.CodeUnavailable, fault.ReasonNotApplied, errDamaged.Error())
	}
	clear(m.of)
	got, err = renew("s", "gpu", "t", "cpu")
	require.NoError(t, err)
	require.Equal(t, []v1.Outcome{renewed, renewed, renewed, renewed}, got)
	// What this node does not know is asked for once, however many there are of it.
	var names []string
	for i := range 50 {
		names = append(names, fmt.Sprint("unseen", i))
		refs[names[i]] = &v1.SlotRef{SessionId: names[i], SlotId: "c"}
	}
	m.far = 100 * time.Millisecond
	begun := time.Now()
	got, err = renew(append(names, "t")...)
	require.NoError(t, err)
	require.Equal(t, append(slices.Repeat([]v1.Outcome{unknown}, 50), renewed), got)
	require.Less(t, time.Since(begun), 25*m.far)
}

func TestForceRelease(t *testing.T) {
	n := furnished(t)
	force := func(req *v1.ForceReleaseRequest) v1.Outcome {
		t.Helper()
		res, err := n.slots.ForceRelease(n.ctx(), req)
		require.NoError(t, err)
		return res.Outcome
	}
	slot := &v1.ForceReleaseRequest{Pool: "gpu", SlotId: "slot", HolderClient: "w", RequestId: "f1"}
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, force(slot))
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, force(slot), "a repeat answers alike")
	require.Equal(t, v1.Outcome_OUTCOME_NOT_FOUND, force(&v1.ForceReleaseRequest{Pool: "gpu", SlotId: "slot", HolderClient: "w", RequestId: "f2"}))
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, force(&v1.ForceReleaseRequest{SessionId: "s", SlotId: "c", RequestId: "f3"}))
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, n.end("s", "c").Outcome, "its late end moves nothing")
	require.Contains(t, fmt.Sprint(n.audit.all(t)), "slot_force_released")
	require.Contains(t, fmt.Sprint(n.audit.all(t)), "call_lapsed")
}

func TestPools(t *testing.T) {
	n := start(t)
	for i := range 5 {
		n.putPool(fmt.Sprintf("pool%d", i), 3)
	}
	res, err := n.slots.ListPools(n.ctx(), &v1.ListPoolsRequest{PageSize: 3})
	require.NoError(t, err)
	require.Len(t, res.Pools, 3)
	res, err = n.slots.ListPools(n.ctx(), &v1.ListPoolsRequest{PageSize: 3, PageToken: res.NextPageToken})
	require.NoError(t, err)
	require.Len(t, res.Pools, 2)
	require.Empty(t, res.NextPageToken)

	a := n.acquire("pool0", "a")
	none := int32(0)
	put, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "pool0", Slots: 1, QueueLimit: &none, RequestId: "smaller"})
	require.NoError(t, err)
	require.EqualValues(t, 1, put.Pool.Slots)
	require.EqualValues(t, 1, put.Pool.InUse, "lowering revokes nothing")
	require.Equal(t, v1.Outcome_OUTCOME_QUEUE_FULL, n.acquire("pool0", "b", func(r *v1.AcquireSlotRequest) { r.Wait = durationpb.New(time.Minute) }).Outcome, "nobody waits here")

	_, err = n.slots.DeletePool(n.ctx(), &v1.DeletePoolRequest{Pool: "pool0", Force: true, RequestId: "del"})
	require.NoError(t, err)
	_, err = n.slots.DeletePool(n.ctx(), &v1.DeletePoolRequest{Pool: "pool0", Force: true, RequestId: "del"})
	require.NoError(t, err, "a repeat")
	n.putPool("fresh", 1)
	_, err = n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: "pool0", Slots: 1, RequestId: "anew"})
	require.NoError(t, err)
	require.Greater(t, n.acquire("pool0", "c").Token, a.Token, "tokens rise for ever")
	require.Equal(t, v1.Outcome_OUTCOME_FENCED, n.release("pool0", "c", a.Token).Outcome)
}

// The pool of a policy shows who holds what.
func TestListSlotsOfAPolicy(t *testing.T) {
	n := furnished(t)
	list, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: "policy/p"})
	require.NoError(t, err)
	require.Len(t, list.Slots, 1)
	require.Equal(t, "a", list.Slots[0].Holder)
	require.Equal(t, "s", list.Slots[0].SessionId)
	require.Equal(t, "c", list.Slots[0].SlotId)
	require.Equal(t, "t", list.Slots[0].Tool)
}
