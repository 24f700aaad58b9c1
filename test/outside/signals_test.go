//go:build outside

package outside

import (
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
)

// What signals promise, on three nodes.

// stopInFlight has 1,000 BeginCalls in flight over all nodes while a STOP is sent:
// none that began after its answer is admitted, and those that were kept out
// are admitted under their own ids after CONTINUE.
func stopInFlight(c *cluster) {
	const calls = 1000
	c.open("stopped", "max_concurrent: 4000\nmax_tool_calls: 100000\nmax_attempts: 100000\n")
	nodes := c.list()
	answers, errs, behind := make([]answer, calls), make([]error, calls), make([]bool, calls)
	begin := func(i int) {
		_, errs[i] = c.try(nodes[i%3], "CallService/BeginCall", object{"sessionId": "stopped", "callId": fmt.Sprintf("c%d", i), "tool": "t"}, &answers[i])
	}
	var stood atomic.Bool
	var all sync.WaitGroup
	half := make(chan struct{})
	var done atomic.Int64
	places := make(chan struct{}, 200)
	var stopErr error
	all.Go(func() {
		<-half
		_, stopErr = c.try(nodes[1], "SessionService/Signal", object{"agentId": "outside", "signal": "STOP", "reason": "look"}, nil)
		stood.Store(true)
	})
	for i := range calls {
		places <- struct{}{}
		all.Go(func() {
			behind[i] = stood.Load()
			begin(i)
			<-places
			if done.Add(1) == calls/4 {
				close(half)
			}
		})
	}
	all.Wait()
	require.NoError(c.t, stopErr)
	var took, kept, late int
	for i := range answers {
		require.NoError(c.t, errs[i])
		switch answers[i].Outcome {
		case admitted:
			took++
			require.False(c.t, behind[i], "call %d began behind the answer to the STOP", i)
		case "OUTCOME_STOPPED":
			kept++
		default:
			require.Fail(c.t, answers[i].Outcome)
		}
		if behind[i] {
			late++
		}
	}
	c.t.Logf("%d were admitted before the STOP, %d kept out, of which %d began behind its answer", took, kept, late)
	for i := range 30 { // now all are behind it, on each node
		var a answer
		c.post(nodes[i%3], "CallService/BeginCall", object{"sessionId": "stopped", "callId": fmt.Sprintf("behind%d", i), "tool": "t"}, &a)
		require.Equal(c.t, "OUTCOME_STOPPED", a.Outcome)
	}
	require.Equal(c.t, took, c.session(nodes[0], "stopped").Attempts, "who is kept out is not counted")

	// A call that waits goes on without being sent again.
	waiting, waitErrs := make([]answer, 3), make([]error, 3)
	var waits sync.WaitGroup
	for i := range waiting {
		waits.Go(func() {
			_, waitErrs[i] = c.try(nodes[i], "CallService/BeginCall", object{"sessionId": "stopped", "callId": fmt.Sprintf("waits%d", i), "tool": "t", "wait": "20s"}, &waiting[i])
		})
	}
	for _, n := range nodes {
		c.await("a call is held", func() bool { return strings.Contains(c.metrics(n), "gov_stopped_requests 1") })
	}
	c.post(nodes[2], "SessionService/Signal", object{"agentId": "outside", "signal": "CONTINUE"}, nil)
	began := time.Now()
	waits.Wait()
	took1 := time.Since(began)
	for i := range waiting {
		require.NoError(c.t, waitErrs[i])
		require.Equal(c.t, admitted, waiting[i].Outcome)
	}
	require.Less(c.t, took1, 3*time.Second)
	c.t.Logf("those who waited went on %v after CONTINUE", took1.Round(time.Millisecond))
	again := 0
	for i := range answers {
		if again < 60 && answers[i].Outcome != admitted {
			again++
			begin(i)
			require.NoError(c.t, errs[i])
			require.Equal(c.t, admitted, answers[i].Outcome)
		}
	}
}

// killManySessions frees every slot of an agent with 200 open sessions.
func killManySessions(c *cluster) {
	const sessions = 200
	nodes := c.list()
	c.post(nodes[0], "PolicyService/PutPolicy", object{"name": "killed", "yaml": "max_concurrent: 4000\nmax_tool_calls: 100\n"}, nil)
	var all sync.WaitGroup
	errs := make([]error, sessions)
	places := make(chan struct{}, 40)
	for i := range sessions {
		places <- struct{}{}
		all.Go(func() {
			defer func() { <-places }()
			id := fmt.Sprintf("killed%d", i)
			if _, errs[i] = c.try(nodes[i%3], "SessionService/CreateSession", object{"sessionId": id, "agentId": "doomed", "policy": object{"name": "killed"}}, nil); errs[i] == nil {
				_, errs[i] = c.try(nodes[i%3], "CallService/BeginCall", object{"sessionId": id, "callId": "c", "tool": "t", "ttl": "600s"}, nil)
			}
		})
	}
	all.Wait()
	for _, err := range errs {
		require.NoError(c.t, err)
	}
	inUse := func() int {
		var got struct{ Pool struct{ InUse int } }
		c.post(nodes[2], "SlotService/GetPool", object{"pool": "policy/killed"}, &got)
		return got.Pool.InUse
	}
	require.Equal(c.t, sessions, inUse())
	var killed struct {
		Closed, Released int
		Signal           struct{ Swept bool }
	}
	began := time.Now()
	c.post(nodes[1], "SessionService/Signal", object{"agentId": "doomed", "signal": "KILL", "reason": "enough"}, &killed)
	c.await("every slot is free", func() bool { return inUse() == 0 })
	took := time.Since(began)
	require.Less(c.t, took, 2*time.Second)
	c.t.Logf("%d slots were free after %v; the request closed %d sessions", sessions, took.Round(time.Millisecond), killed.Closed)
	require.True(c.t, killed.Signal.Swept)
	var a answer
	c.post(nodes[0], "CallService/BeginCall", object{"sessionId": "killed7", "callId": "d", "tool": "t"}, &a)
	require.Equal(c.t, "OUTCOME_SESSION_CLOSED", a.Outcome)
	require.Equal(c.t, "killed: enough", a.Reason)
	status, err := c.try(nodes[0], "SessionService/CreateSession", object{"sessionId": "killed-late", "agentId": "doomed", "policy": object{"name": "killed"}}, nil)
	require.Error(c.t, err)
	require.Equal(c.t, 400, status)
	c.post(nodes[0], "SessionService/Signal", object{"agentId": "doomed", "signal": "CONTINUE"}, nil)
}
