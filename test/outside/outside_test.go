//go:build outside

package outside

import (
	"cmp"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	admitted = "OUTCOME_ADMITTED"
	busy     = "OUTCOME_CONCURRENCY_LIMIT"
)

// The sentences of the promise that one cluster can be held to, in order.
func TestFromOutside(t *testing.T) { onEach(t, fromOutside) }

// The same with nodes that nobody but the test watches over.
func TestServeFromOutside(t *testing.T) { fromOutside(t, serveOnRedis(t)) }

func fromOutside(t *testing.T, c *cluster) {
	for _, sentence := range []struct {
		name string
		run  func(*cluster)
	}{
		{"40 parallel BeginCalls over the three nodes on a policy with max_concurrent 5 admit exactly 5, and attempts are 40; the same 40 ids again give the same 40 answers and move no counter", fortyInParallel},
		{"with wait 10s and holders that end, all 40 are admitted, in the order of their index", fortyWait},
		{"the same with all 40 at once", fortyWaitAtOnce},
		{"the slot of a killed process is free within its TTL + 2 seconds", slotOfTheDead},
		{"a late EndCall or release with the old token is LEASE_LOST or FENCED and moves nothing", tooLate},
		{"timeout_seconds 5, two calls 6 seconds apart, nothing between: the second is SESSION_TIMEOUT", timeoutOfASession},
		{"a budget of 100 in a tree of three levels under 64 callers and a crash: never more than 100 is used, and at the end the exact sum", money},
		{"1,000 BeginCalls in flight over all nodes while STOP is sent: none that began after its answer is admitted, and CONTINUE lets a waiting call in without sending it again", stopInFlight},
		{"an approval is asked on one node and decided on another, the leader or any node is killed, and the call goes on at the rest, exactly once; two of two are needed, the same one twice is one, and other arguments are refused", askedAndApproved},
		{"KILL of an agent with 200 open sessions frees every slot in under 2 seconds", killManySessions},
		{"after kill -9 of the leader, or of any node over a Redis, a surviving node gives an outcome, not an error, within 3 seconds", leaderDies},
	} {
		t.Run(sentence.name, func(t *testing.T) {
			c.t = t
			sentence.run(c)
		})
	}
}

// begin sends the same BeginCall for n calls of a session, in parallel and in
// turn to the three nodes.
func (c *cluster) begin(id string, n int, more object) []answer {
	c.t.Helper()
	nodes := c.list()
	answers, errs := make([]answer, n), make([]error, n)
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() {
			body := object{"sessionId": id, "callId": fmt.Sprintf("c%d", i), "tool": "t"}
			for k, v := range more {
				body[k] = v
			}
			_, errs[i] = c.try(nodes[i%len(nodes)], "CallService/BeginCall", body, &answers[i])
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(c.t, err)
	}
	return answers
}

func fortyInParallel(c *cluster) {
	c.open("forty", "max_concurrent: 5\nmax_tool_calls: 100\n")
	first := c.begin("forty", 40, nil)
	var took, refused int
	for _, a := range first {
		switch a.Outcome {
		case admitted:
			took++
		case busy:
			refused++
		}
	}
	require.Equal(c.t, 5, took)
	require.Equal(c.t, 35, refused)
	before := c.session(c.list()[0], "forty")
	require.Equal(c.t, 40, before.Attempts)
	require.Equal(c.t, 5, before.Calls)

	again := c.begin("forty", 40, nil)
	for i := range again {
		require.Equal(c.t, first[i].Outcome, again[i].Outcome)
		require.Equal(c.t, first[i].Reason, again[i].Reason)
		require.Equal(c.t, first[i].Decision, again[i].Decision)
		require.NotEmpty(c.t, again[i].DecisionID)
		require.Equal(c.t, first[i].DecisionID, again[i].DecisionID)
		require.Equal(c.t, first[i].Grants, again[i].Grants)
	}
	for _, n := range c.list() {
		require.Equal(c.t, before, c.session(n, "forty"))
	}
}

// fortyWait lets 40 calls ask for 5 slots, one after the other and in turn at
// the three nodes, and then lets the holders end one by one. Whoever came first
// must be admitted first, wherever it waits: so the order of the index is the
// order in which they came.
func fortyWait(c *cluster) {
	const calls, limit = 40, 5
	c.open("queue", "max_concurrent: 5\nmax_tool_calls: 100\n")
	nodes := c.list()
	answers := make([]answer, calls)
	errs := make([]error, calls)
	answered := make([]chan struct{}, calls)
	waiting := func() int {
		var list struct{ Waiters []object }
		c.post(nodes[0], "SlotService/ListSlots", object{"pool": "policy/queue"}, &list)
		return len(list.Waiters)
	}
	for i := range calls {
		answered[i] = make(chan struct{})
		go func() {
			defer close(answered[i])
			_, errs[i] = c.try(nodes[i%3], "CallService/BeginCall", object{"sessionId": "queue", "callId": fmt.Sprintf("c%d", i), "tool": "t", "wait": "10s"}, &answers[i])
		}()
		if i < limit {
			<-answered[i]
		} else {
			c.await("the call stands in the queue", func() bool { return waiting() == i-limit+1 })
		}
	}
	for i := range calls {
		<-answered[i]
		require.NoError(c.t, errs[i])
		require.Equal(c.t, admitted, answers[i].Outcome, answers[i].Reason)
		if i > 0 {
			if c.led() { // an index is that of a log
				require.Greater(c.t, answers[i].Index, answers[i-1].Index, "call %d was overtaken", i-1)
			}
			require.Greater(c.t, answers[i].Grants[0].Token, answers[i-1].Grants[0].Token)
		}
		if i >= limit-1 { // one slot at a time becomes free
			c.post(nodes[(i+1)%3], "CallService/EndCall", object{"sessionId": "queue", "callId": fmt.Sprintf("c%d", i-limit+1), "status": "STATUS_SUCCEEDED"}, nil)
		}
	}
	for i := calls - limit + 1; i < calls; i++ {
		c.post(nodes[i%3], "CallService/EndCall", object{"sessionId": "queue", "callId": fmt.Sprintf("c%d", i), "status": "STATUS_SUCCEEDED"}, nil)
	}
	s := c.session(nodes[0], "queue")
	require.Equal(c.t, counters{Attempts: calls, Calls: calls, Executions: calls}, s.counters)
}

// fortyWaitAtOnce is the same with all calls at once and holders that end as
// soon as they are admitted: nobody is left out, and nobody counts twice.
func fortyWaitAtOnce(c *cluster) {
	c.open("crowd", "max_concurrent: 5\nmax_tool_calls: 100\n")
	nodes := c.list()
	answers := make([]answer, 40)
	errs := make([]error, len(answers))
	var all sync.WaitGroup
	for i := range answers {
		all.Go(func() {
			id := fmt.Sprintf("c%d", i)
			if _, errs[i] = c.try(nodes[i%3], "CallService/BeginCall", object{"sessionId": "crowd", "callId": id, "tool": "t", "wait": "10s"}, &answers[i]); errs[i] != nil {
				return
			}
			_, errs[i] = c.try(nodes[(i+1)%3], "CallService/EndCall", object{"sessionId": "crowd", "callId": id, "status": "STATUS_SUCCEEDED"}, nil)
		})
	}
	all.Wait()
	tokens := map[number]bool{}
	for i, a := range answers {
		require.NoError(c.t, errs[i])
		require.Equal(c.t, admitted, a.Outcome, a.Reason)
		require.Len(c.t, a.Grants, 1)
		tokens[a.Grants[0].Token] = true
	}
	require.Len(c.t, tokens, 40, "each has a token of its own")
	// Slots that become free at the same moment for calls that wait at different
	// nodes are claimed by those nodes, and the index is that of the claim.
	slices.SortFunc(answers, func(a, b answer) int {
		return cmp.Or(cmp.Compare(a.Index, b.Index), cmp.Compare(a.Grants[0].Token, b.Grants[0].Token))
	})
	swapped := 0
	for i := 1; i < len(answers); i++ {
		if answers[i].Grants[0].Token < answers[i-1].Grants[0].Token {
			swapped++
		}
	}
	if !c.led() {
		require.Zero(c.t, swapped) // without an index they are in the order of their tokens
	}
	c.t.Logf("%d of 40 were answered out of the order of their tokens", swapped)
	s := c.session(nodes[0], "crowd")
	require.Equal(c.t, counters{Attempts: 40, Calls: 40, Executions: 40}, s.counters)
}

// slotOfTheDead takes the one slot of a pool and never renews it, as a process
// does that was killed; somebody else waits for it on another node.
func slotOfTheDead(c *cluster) {
	nodes := c.list()
	c.post(nodes[0], "SlotService/PutPool", object{"pool": "dead", "slots": 1, "requestId": "put-dead"}, nil)
	for i, ttl := range []time.Duration{time.Second, 4 * time.Second} {
		var dead, next answer
		c.post(nodes[0], "SlotService/AcquireSlot", object{"pool": "dead", "slotId": fmt.Sprintf("dead-%d", i), "client": "dead", "ttl": ttl.String()}, &dead)
		require.Equal(c.t, admitted, dead.Outcome)
		began := time.Now()
		c.post(nodes[1], "SlotService/AcquireSlot", object{"pool": "dead", "slotId": fmt.Sprintf("next-%d", i), "client": "next", "wait": "20s"}, &next)
		took := time.Since(began)
		require.Equal(c.t, admitted, next.Outcome)
		require.Greater(c.t, next.Token, dead.Token)
		require.LessOrEqual(c.t, took, ttl+2*time.Second)
		require.GreaterOrEqual(c.t, took, ttl-500*time.Millisecond, "a lease must not be cut short")
		c.post(nodes[2], "SlotService/ReleaseSlot", object{"pool": "dead", "slotId": fmt.Sprintf("next-%d", i), "client": "next", "token": fmt.Sprint(next.Token)}, nil)
	}
}

func tooLate(c *cluster) {
	nodes := c.list()
	c.post(nodes[0], "SlotService/PutPool", object{"pool": "late", "slots": 1, "requestId": "put-late"}, nil)
	c.open("late", "max_tool_calls: 100\n")
	var call, slot, next answer
	c.post(nodes[0], "CallService/BeginCall", object{"sessionId": "late", "callId": "c", "tool": "t", "ttl": "1s"}, &call)
	require.Equal(c.t, admitted, call.Outcome)
	c.post(nodes[0], "SlotService/AcquireSlot", object{"pool": "late", "slotId": "old", "client": "one", "ttl": "1s"}, &slot)
	require.Equal(c.t, admitted, slot.Outcome)
	// Granted when the lease of the old one has run out, and that of the call
	// before it.
	c.post(nodes[1], "SlotService/AcquireSlot", object{"pool": "late", "slotId": "new", "client": "two", "wait": "10s"}, &next)
	require.Equal(c.t, admitted, next.Outcome)

	settled := c.session(nodes[2], "late")
	require.Equal(c.t, 1, settled.Executions, "a call whose lease ran out counts as executed")
	for _, n := range nodes {
		var late answer
		c.post(n, "CallService/EndCall", object{"sessionId": "late", "callId": "c", "status": "STATUS_FAILED"}, &late)
		require.Equal(c.t, "OUTCOME_LEASE_LOST", late.Outcome)
		require.Equal(c.t, settled, c.session(n, "late"))

		var release answer
		c.post(n, "SlotService/ReleaseSlot", object{"pool": "late", "slotId": "old", "client": "one", "token": fmt.Sprint(slot.Token)}, &release)
		require.Contains(c.t, []string{"OUTCOME_LEASE_EXPIRED", "OUTCOME_FENCED"}, release.Outcome)
		// The holder's own slot, with the token of the one before it.
		c.post(n, "SlotService/ReleaseSlot", object{"pool": "late", "slotId": "new", "client": "two", "token": fmt.Sprint(slot.Token)}, &release)
		require.Equal(c.t, "OUTCOME_FENCED", release.Outcome)
		var renewed struct{ Results []struct{ Outcome string } }
		c.post(n, "SlotService/RenewSlots", object{"client": "two", "slots": []object{{"pool": "late", "slotId": "new", "token": fmt.Sprint(next.Token)}}}, &renewed)
		require.Equal(c.t, "OUTCOME_RENEWED", renewed.Results[0].Outcome, "the present holder has kept its slot")
	}
}

func timeoutOfASession(c *cluster) {
	c.open("timeout", "timeout_seconds: 5\nmax_tool_calls: 100\n")
	nodes := c.list()
	var one, two answer
	c.post(nodes[0], "CallService/BeginCall", object{"sessionId": "timeout", "callId": "one", "tool": "t"}, &one)
	require.Equal(c.t, admitted, one.Outcome)
	<-time.After(6 * time.Second) // which is what the sentence is about
	c.post(nodes[1], "CallService/BeginCall", object{"sessionId": "timeout", "callId": "two", "tool": "t"}, &two)
	require.Equal(c.t, "OUTCOME_SESSION_TIMEOUT", two.Outcome)
	require.NotEmpty(c.t, two.Reason)
}

// leaderDies kills the leader three times, and asks both others at that moment.
func leaderDies(c *cluster) {
	c.open("leader", "max_concurrent: 100\nmax_tool_calls: 1000\n")
	for round := range 3 {
		leads, others := c.leader()
		c.kill(leads)
		began := time.Now()
		answers, errs, took := make([]answer, 2), make([]error, 2), make([]time.Duration, 2)
		var both sync.WaitGroup
		for i, n := range others {
			both.Go(func() {
				_, errs[i] = c.try(n, "CallService/BeginCall", object{"sessionId": "leader", "callId": fmt.Sprintf("r%d-%d", round, i), "tool": "t"}, &answers[i])
				took[i] = time.Since(began)
			})
		}
		both.Wait()
		for i := range others {
			require.NoError(c.t, errs[i])
			require.Equal(c.t, admitted, answers[i].Outcome)
			require.LessOrEqual(c.t, took[i], 3*time.Second)
		}
		c.t.Logf("round %d: %s was killed; outcomes after %v and %v", round, leads.name, took[0].Round(time.Millisecond), took[1].Round(time.Millisecond))
		c.back(leads)
	}
	for _, n := range c.list() {
		require.Equal(c.t, 6, c.session(n, "leader").Attempts, "every outcome was counted once")
	}
}
