package server_test

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// With a wait, and holders that end, all forty are admitted, in the order of
// their index: tokens, which are given out first come first served, rise with
// it.
func TestWaitersAreAdmittedInOrder(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	var mu sync.Mutex
	var admitted []*v1.BeginCallResponse
	var wg sync.WaitGroup
	all := make(chan struct{}) // closed when everybody holds or waits
	for i := range 40 {
		wg.Go(func() {
			call := fmt.Sprintf("c%d", i)
			res, err := n.calls.BeginCall(n.ctx(), beginRequest("s", call, waiting(10*time.Second)))
			if err != nil {
				t.Error(err)
				return
			}
			mu.Lock()
			admitted = append(admitted, res)
			mu.Unlock()
			<-all
			_, err = n.calls.EndCall(n.ctx(), &v1.EndCallRequest{SessionId: "s", CallId: call, Status: v1.Status_STATUS_SUCCEEDED})
			if err != nil {
				t.Error(err)
			}
		})
	}
	eventually(t, "the others wait", func() bool { return len(n.getSession("s").OpenCalls) == 40 })
	close(all)
	wg.Wait()
	require.Len(t, admitted, 40)
	slices.SortFunc(admitted, func(a, b *v1.BeginCallResponse) int { return cmp.Compare(a.Index, b.Index) })
	for i, res := range admitted {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
		require.Len(t, res.Grants, 1)
		if i > 0 {
			require.Greater(t, res.Grants[0].Token, admitted[i-1].Grants[0].Token, "admitted out of order")
		}
	}
	got := n.getSession("s")
	require.EqualValues(t, 40, got.Attempts)
	require.EqualValues(t, 40, got.Executions)
	require.Empty(t, got.OpenCalls)
}

// Waiters that came one after another are admitted in that order, however
// many ends hand slots on at once.
func TestFirstComeFirstServed(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	for i := range 5 {
		require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", fmt.Sprintf("held%d", i)).Outcome)
	}
	const waiters = 20
	answers := make([]*v1.BeginCallResponse, waiters)
	var wg sync.WaitGroup
	for i := range waiters {
		wg.Go(func() { answers[i] = n.begin("s", fmt.Sprintf("w%02d", i), waiting(time.Minute)) })
		eventually(t, "it waits", func() bool { return len(n.waitingIn("policy/p")) == i+1 })
	}
	for round := range waiters/5 + 1 {
		open := n.getSession("s").OpenCalls
		ops := []*v1.Operation{}
		for _, c := range open {
			if !c.Waiting {
				ops = append(ops, &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: c.CallId, Status: v1.Status_STATUS_SUCCEEDED}}})
			}
		}
		_, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: ops})
		require.NoError(t, err)
		if round < waiters/5 {
			eventually(t, "five more run", func() bool {
				running := 0
				for _, c := range n.getSession("s").OpenCalls {
					if !c.Waiting {
						running++
					}
				}
				return running == 5
			})
		}
	}
	wg.Wait()
	for i := 1; i < waiters; i++ {
		require.Greater(t, answers[i].Index, answers[i-1].Index)
		require.Greater(t, answers[i].Grants[0].Token, answers[i-1].Grants[0].Token)
	}
}

func TestAWaitThatIsInVainEnds(t *testing.T) {
	n := one(t)
	begun := time.Now()
	res := n.begin("s", "late", waiting(300*time.Millisecond))
	require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, res.Outcome)
	require.Contains(t, res.Reason, "no slot became free")
	require.GreaterOrEqual(t, time.Since(begun), 300*time.Millisecond)
	require.Less(t, time.Since(begun), 2*time.Second)
	require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, n.begin("s", "late", waiting(time.Second)).Outcome, "the refusal is final for its id")
	require.EqualValues(t, 1, n.getSession("s").Calls, "what was reserved went back")
}

// one is a node with a session s whose only slot is held by the call held.
func one(t *testing.T) *node {
	t.Helper()
	n := start(t)
	n.putPolicy("name: p", "max_concurrent: 1", "backpressure_threshold: 1")
	n.session("s")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, n.begin("s", "held").Outcome)
	return n
}

func (n *node) waitingIn(pool string) []*v1.Waiter {
	n.t.Helper()
	res, err := n.slots.ListSlots(n.ctx(), &v1.ListSlotsRequest{Pool: pool})
	require.NoError(n.t, err)
	return res.Waiters
}

func TestCancelCallEndsTheWaitOfAnotherRequest(t *testing.T) {
	n := one(t)
	answer := make(chan *v1.BeginCallResponse, 1)
	go func() { answer <- n.begin("s", "c", waiting(time.Minute)) }()
	eventually(t, "it waits", func() bool { return len(n.waitingIn("policy/p")) == 1 })
	res, err := n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "c"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, res.Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_CANCELLED, (<-answer).Outcome)

	res, err = n.calls.CancelCall(n.ctx(), &v1.CancelCallRequest{SessionId: "s", CallId: "held"})
	require.NoError(t, err)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "it runs, so there is a slot to give back")
}

// A waiter of several pools takes them one after another.
func TestWaitingForTwoPools(t *testing.T) {
	n := one(t)
	n.putPool("gpu", 1)
	n.putPool("net", 1)
	gpu := n.acquire("gpu", "g")
	answer := make(chan *v1.BeginCallResponse, 1)
	go func() {
		answer <- n.begin("s", "c", waiting(time.Minute), func(r *v1.BeginCallRequest) {
			r.Pools = []*v1.Want{{Pool: "net"}, {Pool: "gpu"}}
		})
	}()
	eventually(t, "it waits for its policy's pool", func() bool { return len(n.waitingIn("policy/p")) == 1 })
	n.end("s", "held")
	eventually(t, "it waits for gpu", func() bool { return len(n.waitingIn("gpu")) == 1 })
	require.Empty(t, n.waitingIn("net"), "it stands in one queue at a time")
	n.release("gpu", "g", gpu.Token)
	res := <-answer
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	require.Len(t, res.Grants, 3)
}

// A node that shuts down hands its waiters over: the same id at another node
// keeps the place and is admitted.
func TestDrainHandsWaitersOver(t *testing.T) {
	n := one(t)
	refused := make(chan error, 1)
	go func() {
		_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "c", waiting(time.Minute)))
		refused <- err
	}()
	eventually(t, "it waits", func() bool { return len(n.waitingIn("policy/p")) == 1 })
	require.NoError(t, n.server.Drain(n.ctx()))
	requireRefused(t, <-refused, connect.CodeUnavailable, "OUTCOME_UNKNOWN", "same id")
	require.Len(t, n.waitingIn("policy/p"), 1, "the place is kept")

	status, body := n.get("/readyz")
	require.Equal(t, 503, status)
	require.Contains(t, body, "draining")
	status, _ = n.get("/healthz")
	require.Equal(t, 200, status)
	_, err := n.calls.BeginCall(n.ctx(), beginRequest("s", "new"))
	requireRefused(t, err, connect.CodeUnavailable, "NOT_APPLIED", "another node")
	require.EqualValues(t, 2, n.getSession("s").Attempts, "the refused one was not counted")
	batch, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
		{Op: &v1.Operation_Begin{Begin: beginRequest("s", "new")}},
		{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: "s", CallId: "held", Status: v1.Status_STATUS_SUCCEEDED}}},
	}})
	require.NoError(t, err)
	require.Equal(t, "NOT_APPLIED", batch.Results[0].GetError().GetReason())
	require.Equal(t, v1.Outcome_OUTCOME_ENDED, batch.Results[1].GetEnd().GetOutcome(), "what runs may still end")

	other := startOn(t, n.store)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, other.begin("s", "c", waiting(time.Minute)).Outcome)
}

func (n *node) putPool(name string, slots int32) {
	n.t.Helper()
	_, err := n.slots.PutPool(n.ctx(), &v1.PutPoolRequest{Pool: name, Slots: slots, RequestId: "put-" + name})
	require.NoError(n.t, err)
}

func (n *node) acquire(pool, slot string, change ...func(*v1.AcquireSlotRequest)) *v1.AcquireSlotResponse {
	n.t.Helper()
	req := &v1.AcquireSlotRequest{Pool: pool, SlotId: slot, Client: "w"}
	for _, c := range change {
		c(req)
	}
	res, err := n.slots.AcquireSlot(n.ctx(), req)
	require.NoError(n.t, err)
	return res
}

func (n *node) release(pool, slot string, token uint64) *v1.ReleaseSlotResponse {
	n.t.Helper()
	res, err := n.slots.ReleaseSlot(n.ctx(), &v1.ReleaseSlotRequest{Pool: pool, SlotId: slot, Client: "w", Token: token})
	require.NoError(n.t, err)
	return res
}

func TestAcquireSlotWaits(t *testing.T) {
	n := start(t)
	n.putPool("gpu", 1)
	first := n.acquire("gpu", "one")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, first.Outcome)
	answer := make(chan *v1.AcquireSlotResponse, 1)
	go func() {
		answer <- n.acquire("gpu", "two", func(r *v1.AcquireSlotRequest) { r.Wait = durationpb.New(time.Minute) })
	}()
	eventually(t, "it waits", func() bool { return len(n.waitingIn("gpu")) == 1 })
	require.Equal(t, v1.Outcome_OUTCOME_RELEASED, n.release("gpu", "one", first.Token).Outcome)
	second := <-answer
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, second.Outcome)
	require.Greater(t, second.Token, first.Token)
}

// Two requests for the same call get the same answer.
func TestTheSameCallTwiceAtOnce(t *testing.T) {
	n := one(t)
	answers := make(chan *v1.BeginCallResponse, 2)
	for range 2 {
		go func() { answers <- n.begin("s", "c", waiting(time.Minute)) }()
	}
	eventually(t, "they wait", func() bool {
		_, page := n.get("/metrics")
		return strings.Contains(page, "gov_waiting_requests 2")
	})
	n.end("s", "held")
	a, b := <-answers, <-answers
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, a.Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, b.Outcome)
	require.Equal(t, a.Grants[0].Token, b.Grants[0].Token)
	require.EqualValues(t, 2, n.getSession("s").Attempts)
}

// In a batch a place in a queue is answered as such, and asking again is the
// claim.
func TestWaitingInABatch(t *testing.T) {
	n := one(t)
	ask := func() *v1.BeginCallResponse {
		t.Helper()
		res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{
			{Op: &v1.Operation_Begin{Begin: beginRequest("s", "c", waiting(time.Minute))}}}})
		require.NoError(t, err)
		return res.Results[0].GetBegin()
	}
	first := ask()
	require.Equal(t, v1.Outcome_OUTCOME_QUEUED, first.Outcome)
	require.Equal(t, "policy/p", first.Queue.Pool)
	require.EqualValues(t, 1, first.Queue.Position)
	n.end("s", "held")
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, ask().Outcome)
}
