package sim

import (
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// upset does to a cluster what it has to stand behind a restore: nothing, a change of its
// leader, or a restart of all nodes.
func upset(t *testing.T, f *fleet, nodes []*reader, how int) string {
	t.Helper()
	switch how {
	case 1:
		was := f.leader()
		if len(nodes) == 1 || was == nil {
			return "nothing happened"
		}
		require.NoError(t, was.up().TransferLeadership(t.Context(), ""))
		require.NoError(t, f.ready(healWithin))
		return "the leadership was handed on"
	case 2:
		was := f.leader()
		if len(nodes) == 1 || was == nil {
			return "nothing happened"
		}
		was.crash(false)
		require.NoError(t, f.ready(healWithin))
		require.NoError(t, was.start(entrance{}))
		require.NoError(t, f.ready(healWithin))
		return "the leader crashed"
	case 3:
		for _, h := range f.hosts {
			h.crash(false)
		}
		for _, h := range f.hosts {
			require.NoError(t, h.start(entrance{}))
		}
		require.NoError(t, f.ready(healWithin))
		return "all nodes began again"
	}
	return "nothing happened"
}

// aging is how long that lasts which ages makes.
const aging = 3 * time.Minute

// ages makes what is over when aging has passed.
func (r *reader) ages() {
	r.t.Helper()
	want(r, r.policies.PutPolicy, &v1.PutPolicyRequest{Yaml: "name: p\nmax_tool_calls: 100\nmax_concurrent: 4\n", RequestId: newID()})
	all := durationpb.New(aging)
	want(r, r.sessions.CreateSession, &v1.CreateSessionRequest{SessionId: "aging", AgentId: "aging", IdleTtl: all, Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}})
	want(r, r.limits.PutRate, &v1.PutRateRequest{Rate: "aging", Limit: 2, Per: all, RequestId: newID()})
	want(r, r.limits.TakeRate, &v1.TakeRateRequest{Rate: "aging", Cost: 2, RequestId: newID()})
	want(r, r.limits.PutBudget, &v1.PutBudgetRequest{Budget: "aging", Amount: "5", Per: all, RequestId: newID()})
	want(r, r.limits.AdjustBudget, &v1.AdjustBudgetRequest{Budget: "aging", By: "5", RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "aging", Value: "1", Ttl: all, RequestId: newID()})
	want(r, r.counters.Append, &v1.AppendRequest{Key: "aging", Items: []string{"one"}, Ttl: all, RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: "lasting", Value: "1", RequestId: newID()})
	want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: "pool", Slots: 1, RequestId: newID()})
	want(r, r.slots.AcquireSlot, &v1.AcquireSlotRequest{Pool: "pool", SlotId: newID(), Ttl: durationpb.New(time.Hour)})
}

// aged holds what ages made to be there still, or to be over.
func (r *reader) aged(when string, over bool) {
	r.t.Helper()
	all := want(r, r.sessions.ListSessions, &v1.ListSessionsRequest{AgentId: "aging"}).Sessions
	open := len(all) == 1 && all[0].State == v1.SessionState_SESSION_STATE_OPEN
	require.NotEqual(r.t, over, open, "%s: time goes on behind a restore, and a session that nobody uses expires with it: %v", when, all)
	require.True(r.t, !open || all[0].IdleLeft.AsDuration() <= aging, "%s: %v", when, all)
	rate := want(r, r.limits.GetRate, &v1.GetRateRequest{Rate: "aging"}).Rate
	require.Equal(r.t, over, rate.Used == 0, "%s: what was spent at a rate stays spent, for as long as its window: %v", when, rate)
	b := want(r, r.limits.GetBudget, &v1.GetBudgetRequest{Budget: "aging"}).Budget
	require.Equal(r.t, over, b.Used == "0", "%s: a budget is whole again when its period is over: %v", when, b)
	x := want(r, r.counters.Get, &v1.GetRequest{Key: "aging"})
	require.NotEqual(r.t, over, x.Found, "%s: a value has its time, before a restore and behind it: %v", when, x)
	l := want(r, r.counters.Range, &v1.RangeRequest{Key: "aging"})
	require.Equal(r.t, over, len(l.Items) == 0, "%s: items have their time, before a restore and behind it: %v", when, l)
	require.True(r.t, want(r, r.counters.Get, &v1.GetRequest{Key: "lasting"}).Found)
}

// passes holds time to go on for what is made now: nothing is over too early, nor late.
func (r *reader) passes(when string, other *reader) {
	r.t.Helper()
	t, two := r.t, durationpb.New(2*time.Second)
	r.since, other.since = "time has to go on behind "+when, "time has to go on behind "+when
	begun := time.Now()
	in := func(what string, least, most time.Duration) {
		t.Helper()
		took := time.Since(begun)
		require.True(t, least <= took && took <= most, "%s: %s after %v; it has to be after %v to %v", when, what, took, least, most)
	}
	pool := newID()
	want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: pool, Slots: 1, RequestId: newID()})
	take := func(r *reader, ttl, wait time.Duration) *v1.AcquireSlotResponse {
		return want(r, r.slots.AcquireSlot, &v1.AcquireSlotRequest{Pool: pool, SlotId: newID(), Ttl: durationpb.New(ttl), Wait: durationpb.New(wait)})
	}
	begun = time.Now()
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, take(r, 2*time.Second, 0).Outcome)
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, take(other, 10*time.Minute, 20*time.Second).Outcome, "%s: the slot of one who is gone", when)
	in("the slot of one who is gone is free", 2*time.Second, 7*time.Second)
	begun = time.Now()
	require.Equal(t, v1.Outcome_OUTCOME_WAIT_TIMEOUT, take(r, 2*time.Second, 3*time.Second).Outcome)
	in("a wait of 3s ends", 3*time.Second, 5*time.Second)

	// What is made together, and is over within 7 s.
	session, call, name := newID(), newID(), newID()
	put := &v1.CreateSessionRequest{SessionId: session, AgentId: session, IdleTtl: durationpb.New(10 * time.Second), Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: "p"}}}
	want(r, r.sessions.CreateSession, put)
	want(r, r.limits.PutRate, &v1.PutRateRequest{Rate: name, Limit: 1, Per: two, RequestId: newID()})
	begun = time.Now()
	res := want(r, r.calls.BeginCall, &v1.BeginCallRequest{SessionId: session, CallId: call, Tool: "t", Ttl: two})
	require.Equal(t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome)
	spend := func(outcome v1.Outcome) {
		t.Helper()
		got := want(other, other.limits.TakeRate, &v1.TakeRateRequest{Rate: name, RequestId: newID()})
		require.Equal(t, outcome, got.Outcome, "%s: a rate after %v: %v", when, time.Since(begun), got)
	}
	spend(v1.Outcome_OUTCOME_ADMITTED)
	spend(v1.Outcome_OUTCOME_RATE_LIMITED)
	want(r, r.limits.PutBudget, &v1.PutBudgetRequest{Budget: name, Amount: "1", Per: durationpb.New(time.Hour), RequestId: newID()})
	want(r, r.counters.Set, &v1.SetRequest{Key: name, Value: "1", Ttl: two, RequestId: newID()})
	asked := want(r, r.approvals.Request, &v1.ApprovalServiceRequestRequest{AgentId: session, Tool: "t", Timeout: two, RequestId: newID()}).Approval
	see := func(r *reader, over bool) {
		t.Helper()
		value := want(r, r.counters.Get, &v1.GetRequest{Key: name})
		require.NotEqual(t, over, value.Found, "%s: a value of 2s after %v", when, time.Since(begun))
		x := want(r, r.sessions.GetSession, &v1.GetSessionRequest{SessionId: session}).Session
		require.Equal(t, over, len(x.OpenCalls) == 0, "%s: a lease of 2s after %v: %v", when, time.Since(begun), x)
		require.True(t, x.IdleLeft.AsDuration() <= 12*time.Second && x.Age.AsDuration() <= 10*time.Second, "%s: the session is %v", when, x)
		a := want(r, r.approvals.Get, &v1.ApprovalServiceGetRequest{Id: asked.Id}).Approval
		require.Equal(t, over, a.State == v1.ApprovalState_APPROVAL_STATE_EXPIRED, "%s: a question of 2s after %v: %v", when, time.Since(begun), a)
		require.LessOrEqual(t, a.Age.AsDuration(), 10*time.Second, "%s: the question is %v", when, a)
		b := want(r, r.limits.GetBudget, &v1.GetBudgetRequest{Budget: name}).Budget
		require.True(t, b.PeriodEnds.AsDuration() <= time.Hour && b.PeriodEnds.AsDuration() > 0, "%s: %v", when, b)
	}
	see(r, false)
	time.Sleep(7*time.Second - time.Since(begun))
	see(r, true)
	see(other, true)
	spend(v1.Outcome_OUTCOME_ADMITTED)
	require.Equal(t, v1.Outcome_OUTCOME_LEASE_LOST, want(r, r.calls.EndCall, &v1.EndCallRequest{SessionId: session, CallId: call, Status: v1.Status_STATUS_SUCCEEDED}).Outcome, "%s", when)
	time.Sleep(10 * time.Second)
	x := want(other, other.sessions.GetSession, &v1.GetSessionRequest{SessionId: session}).Session
	require.Equal(t, v1.SessionState_SESSION_STATE_EXPIRED, x.State, "%s: a session of 10s whose call was over 15s ago is %v", when, x)
}

// TestRestoresOfOtherTimesInVirtualTime restores the state of a cluster that is older by
// hours into young ones, where time goes on from there, and that of a young one into the
// older, where it does not go back.
func TestRestoresOfOtherTimesInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	inVirtualTime(t, func(t *testing.T) {
		old, olds := founded(t, 1)
		defer func() { require.NoError(t, old.end()) }()
		// What it says at an hour, so that its time does not stand at what was written last.
		for range 5 {
			time.Sleep(time.Hour)
			want(olds[0], olds[0].counters.Set, &v1.SetRequest{Key: "hour", Value: "1", RequestId: newID()})
		}
		olds[0].ages()
		saved := olds[0].save()
		savedAt := time.Now()

		var young []byte
		into := func(how int) {
			f, nodes := founded(t, 3)
			defer func() { require.NoError(t, f.end()) }()
			if how == 0 {
				nodes[0].ages()
				young = nodes[0].save()
			}
			restoredAt := time.Now()
			nodes[rand.IntN(len(nodes))].restore(saved)
			for _, n := range nodes {
				n.aged("directly behind a restore", false)
			}
			when := "a restore from an older cluster, and " + upset(t, f, nodes, how)
			one, other := nodes[rand.IntN(len(nodes))], nodes[rand.IntN(len(nodes))]
			one.passes(when, other)
			time.Sleep(aging - time.Minute - time.Since(restoredAt))
			for _, n := range nodes {
				n.aged(when+", before its time", false)
			}
			time.Sleep(aging + 5*time.Second - time.Since(restoredAt))
			for _, n := range nodes {
				n.aged(when+", when its time is over", true)
			}
		}
		for how := range 4 {
			into(how)
		}

		require.Greater(t, time.Since(savedAt), aging)
		for how := range 2 {
			olds[0].restore(young)
			for range 2 {
				olds[0].aged("directly behind a restore from a younger cluster, to which time does not go back", true)
				time.Sleep(3 * time.Second)
			}
			when := "a restore from a younger cluster, and " + upset(t, old, olds, 3*how)
			olds[0].aged(when, true)
			olds[0].passes(when, olds[0])
			for i := range 3 { // and again, at once
				olds[0].restore([][]byte{saved, young, young}[i])
				olds[0].passes(fmt.Sprintf("%s, and %d more", when, i+1), olds[0])
			}
		}
	})
}

// A most is the newest token of each pool that anybody was ever given.
type most map[string]uint64

func (m most) take(t *testing.T, when, pool string, token uint64) {
	t.Helper()
	require.Greater(t, token, m[pool], "%s: tokens of %s only rise, also above those that were given out between restores", when, pool)
	m[pool] = token
}

// give takes slots in each way there is, and holds their tokens to be above all before.
func (r *reader) give(when string, newest most, session string) {
	r.t.Helper()
	for range 1 + rand.IntN(2) {
		id := newID()
		token := r.slot(id)
		newest.take(r.t, when, "pool", token)
		res := want(r, r.slots.ReleaseSlot, &v1.ReleaseSlotRequest{Pool: "pool", SlotId: id, Token: token})
		require.Equal(r.t, v1.Outcome_OUTCOME_RELEASED, res.Outcome)
	}
	for range 2 { // a pool that is made, and made again
		want(r, r.slots.PutPool, &v1.PutPoolRequest{Pool: "again", Slots: 1, RequestId: newID()})
		id := newID()
		res := want(r, r.slots.AcquireSlot, &v1.AcquireSlotRequest{Pool: "again", SlotId: id})
		require.Equal(r.t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "%s: %v", when, res)
		newest.take(r.t, when, "again", res.Token)
		want(r, r.slots.ReleaseSlot, &v1.ReleaseSlotRequest{Pool: "again", SlotId: id, Token: res.Token})
		want(r, r.slots.DeletePool, &v1.DeletePoolRequest{Pool: "again", RequestId: newID()})
	}
	for _, s := range []string{"s1", session} {
		id := newID()
		res := want(r, r.calls.BeginCall, &v1.BeginCallRequest{SessionId: s, CallId: id, Tool: "search"})
		require.Equal(r.t, v1.Outcome_OUTCOME_ADMITTED, res.Outcome, "%s: %v", when, res)
		newest.take(r.t, when, res.Grants[0].Pool, res.Grants[0].Token)
		want(r, r.calls.EndCall, &v1.EndCallRequest{SessionId: s, CallId: id, Status: v1.Status_STATUS_SUCCEEDED})
	}
}

// TestRestoresAgainInVirtualTime restores a copy twice, and an older one behind a newer, in
// a cluster whose leader changes and whose nodes begin again between.
func TestRestoresAgainInVirtualTime(t *testing.T) {
	if os.Getenv("GOVNODE_L1_ALONE") == "" {
		t.Skip("it is run by TestAlone, in a process of its own")
	}
	inVirtualTime(t, func(t *testing.T) {
		f, nodes := founded(t, 3)
		defer func() { require.NoError(t, f.end()) }()
		any := func() *reader { return nodes[rand.IntN(len(nodes))] }
		one := any()
		slot, asked, _ := one.fill()
		large := strings.Repeat("0123456789abcdef", 60_000/16)
		for i := range 20 { // more than one chunk of a copy, and than one piece of a chunk
			want(one, one.counters.Set, &v1.SetRequest{Key: fmt.Sprint("large", i), Value: large + fmt.Sprint(i), RequestId: newID()})
		}
		time.Sleep(2 * time.Minute) // what was brief is over
		type copied struct {
			state   *seen
			bytes   []byte
			counted string
		}
		var copies []copied
		count := func(id, sum, when string) {
			t.Helper()
			got := want(one, one.counters.Increment, &v1.IncrementRequest{Key: "count", RequestId: id})
			require.Equal(t, sum, got.Value, when)
		}
		first, second := newID(), newID()
		count(first, "1", "")
		copies = append(copies, copied{one.see(), one.save(), "1"})
		one.change(slot, asked, copies[0].state.standings)
		count(second, "2", "")
		copies = append(copies, copied{one.see(), one.save(), "2"})

		newest := most{}
		for n, which := range []int{1, 0, 0, 1, 0} {
			c := copies[which]
			one = any()
			want(one, one.access.DenySubject, &v1.DenySubjectRequest{RequestId: newID(), Subject: fmt.Sprint("cert:", n), Reason: "why"})
			want(one, one.counters.Set, &v1.SetRequest{Key: fmt.Sprint("large", n), Value: "otherwise", RequestId: newID()})
			last := one.see()
			any().restore(c.bytes)
			when := fmt.Sprintf("restore %d, of copy %d", n+1, which+1)
			expected := restored(c.state, last)
			for i, x := range nodes {
				got := x.see()
				raised(t, last, got)
				require.Equal(t, last.chains.Generation+1, got.chains.Generation, "each restore raises the generation")
				alike(t, when+", "+f.hosts[i].name, numberless(expected), numberless(got))
				for i := range 20 {
					text := want(x, x.counters.Get, &v1.GetRequest{Key: fmt.Sprint("large", i)}).Value
					require.True(t, text == large+fmt.Sprint(i), "%s: a restore brings back all that the copy has, and %d of %d bytes came", when, len(text), len(large)+1)
				}
			}
			count(first, "1", "an id of before is remembered")
			count(second, "2", "what came after is not, or is remembered")
			between := newID()
			count(between, "3", "what came between restores is gone")
			one.session("between") // the same, each time
			one.give(when, newest, "between")
			stands := one.see()
			when += ", and " + upset(t, f, nodes, (n+rand.IntN(2))%4)
			one = any()
			for i, x := range nodes {
				got := x.see()
				alike(t, when+", "+f.hosts[i].name, stands, got)
				require.Equal(t, stands.chains.Generation, got.chains.Generation, "%s: only a restore raises the generation", when)
				require.True(t, proto.Equal(stands.tokens, got.tokens))
			}
			count(between, "3", when+": an id is remembered")
			one.give(when, newest, "between")
		}
	})
}
