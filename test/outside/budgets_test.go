//go:build outside

package outside

import (
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/stretchr/testify/require"
)

// A bill is what one call adds to its budget, once it has come to its end.
type bill struct {
	leaf string
	cost int
}

// money lets 64 callers charge the leaves of a tree of three levels whose root
// has 100, while a node is killed. Some callers die with their calls, which then
// have cost what was assumed.
func money(c *cluster) {
	const callers, rounds, leaves, amount = 64, 3, 8, 100
	c.open("money", "max_concurrent: 1000\nbackpressure_threshold: 1000\nmax_tool_calls: 100000\nmax_attempts: 100000\n")
	put := func(name, parent string) {
		c.post(c.list()[0], "LimitService/PutBudget", object{"budget": name, "parent": parent, "amount": fmt.Sprint(amount), "requestId": "put-" + name}, nil)
	}
	put("org", "")
	put("team-0", "org")
	put("team-1", "org")
	for i := range leaves {
		put(fmt.Sprint("leaf-", i), fmt.Sprint("team-", i%2))
	}

	var over atomic.Int64
	done := make(chan struct{})
	var watched, all sync.WaitGroup
	watched.Go(func() {
		for i := 0; ; i++ {
			select {
			case <-done:
				return
			default:
			}
			if used, ok := c.used(i, "org"); ok && used > amount {
				over.Store(int64(used))
			}
		}
	})
	var mu sync.Mutex
	var bills []bill
	refused := 0
	for caller := range callers {
		all.Go(func() {
			for round := range rounds {
				id, leaf, assumed := fmt.Sprintf("m%d-%d", caller, round), fmt.Sprint("leaf-", (caller+round)%leaves), 1+(caller+round)%4
				dies := (caller+round)%3 == 0
				ttl := "60s"
				if dies {
					ttl = "1s"
				}
				var begun, ended answer
				c.surely(caller, "CallService/BeginCall", object{
					"sessionId": "money", "callId": id, "tool": "t", "ttl": ttl,
					"budgets": []object{{"budget": leaf, "amount": fmt.Sprint(assumed)}},
				}, &begun)
				cost := assumed
				switch {
				case begun.Outcome == "OUTCOME_BUDGET_EXCEEDED":
					mu.Lock()
					refused++
					mu.Unlock()
					continue
				case dies && begun.Outcome == "OUTCOME_LEASE_LOST": // of a first try whose answer was lost
				case begun.Outcome != admitted:
					c.t.Errorf("%s: %s: %s", id, begun.Outcome, begun.Reason)
					return
				case !dies:
					cost = assumed * round / rounds
					c.surely(caller+1, "CallService/EndCall", object{
						"sessionId": "money", "callId": id, "status": "STATUS_SUCCEEDED",
						"spent": []object{{"budget": leaf, "amount": fmt.Sprint(cost)}},
					}, &ended)
					if ended.Outcome != "OUTCOME_ENDED" && ended.Outcome != "OUTCOME_ALREADY_ENDED" {
						c.t.Errorf("%s: %s", id, ended.Outcome)
						return
					}
				}
				mu.Lock()
				bills = append(bills, bill{leaf, cost})
				mu.Unlock()
			}
		})
	}
	killed := c.list()[0]
	c.kill(killed)
	c.back(killed)
	all.Wait()
	close(done)
	watched.Wait()
	require.Zero(c.t, over.Load(), "used of %d", amount)
	require.NotZero(c.t, refused, "the money was not enough for all")

	want := map[string]int{}
	for _, b := range bills {
		var n int
		_, err := fmt.Sscanf(b.leaf, "leaf-%d", &n)
		require.NoError(c.t, err)
		for _, name := range []string{b.leaf, fmt.Sprint("team-", n%2), "org"} {
			want[name] += b.cost
		}
	}
	for name, sum := range want {
		used, ok := c.used(1, name)
		require.True(c.t, ok)
		require.Equal(c.t, sum, used, name)
	}
}

// used reads what is used of a budget, of any node that answers.
func (c *cluster) used(i int, name string) (used int, ok bool) {
	nodes := c.list()
	var got struct{ Budget struct{ Used string } }
	status, err := c.try(nodes[i%len(nodes)], "LimitService/GetBudget", object{"budget": name}, &got)
	if err != nil || status != http.StatusOK {
		return 0, false
	}
	_, err = fmt.Sscan(got.Budget.Used, &used)
	return used, err == nil
}

// surely sends a request to one node after the other until it has an outcome.
func (c *cluster) surely(first int, method string, body object, out *answer) {
	for i, end := first, time.Now().Add(time.Minute); ; i++ {
		nodes := c.list()
		status, err := c.try(nodes[i%len(nodes)], method, body, out)
		if err == nil && status == http.StatusOK {
			return
		}
		if time.Now().After(end) {
			c.t.Errorf("%s: HTTP %d, %v", method, status, err)
			return
		}
		<-time.After(5 * time.Millisecond) // as a client does that sends again
	}
}
