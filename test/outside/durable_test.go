//go:build outside

package outside

import (
	"fmt"
	"path/filepath"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// onEach runs a test on each backend.
func onEach(t *testing.T, test func(*testing.T, *cluster)) {
	for _, backend := range backends {
		t.Run(backend, func(t *testing.T) { test(t, start(t, backend)) })
	}
}

// "A session pinned to version 1 of a policy decides by version 1 on every node
// after version 2 was put, after a restart of all nodes, after a restore."
func TestPinnedPolicy(t *testing.T) { onEach(t, pinnedPolicy) }

func pinnedPolicy(t *testing.T, c *cluster) {
	c.open("pinned", "allowed_tools: [read]\nmax_tool_calls: 1000\n")
	one := c.session(c.list()[0], "pinned")
	require.Equal(t, 1, one.PolicyVersion)
	calls := 0
	decidesByOne := func(when string) {
		t.Helper()
		for _, n := range c.list() {
			for tool, want := range map[string]string{"read": admitted, "write": "OUTCOME_DENIED_BY_POLICY"} {
				calls++
				id := fmt.Sprintf("c%d", calls)
				var got answer
				c.post(n, "CallService/BeginCall", object{"sessionId": "pinned", "callId": id, "tool": tool}, &got)
				require.Equal(t, want, got.Outcome, "%s, on %s: %s", when, n.name, tool)
				require.Equal(t, one.PolicyDigest, got.Decision.PolicyDigest)
				if want == admitted {
					c.post(n, "CallService/EndCall", object{"sessionId": "pinned", "callId": id, "status": "STATUS_SUCCEEDED"}, nil)
				}
			}
			s := c.session(n, "pinned")
			require.Equal(t, 1, s.PolicyVersion)
			require.Equal(t, one.PolicyDigest, s.PolicyDigest)
		}
	}
	decidesByOne("at first")

	var put struct{ Version int }
	c.post(c.list()[0], "PolicyService/PutPolicy", object{"name": "pinned", "yaml": "allowed_tools: [write]\nmax_tool_calls: 1000\n"}, &put)
	require.Equal(t, 2, put.Version)
	c.post(c.list()[0], "SessionService/CreateSession", object{"sessionId": "new", "agentId": "outside", "policy": object{"name": "pinned"}}, nil)
	var byTwo answer
	c.post(c.list()[0], "CallService/BeginCall", object{"sessionId": "new", "callId": "c", "tool": "read"}, &byTwo)
	require.Equal(t, "OUTCOME_DENIED_BY_POLICY", byTwo.Outcome, "a new session decides by version 2")
	decidesByOne("after version 2 was put")

	c.stop()
	c.launch()
	decidesByOne("after a restart of all nodes")

	file := filepath.Join(c.dir, "snapshot")
	c.govnode("snapshot", "save", file)
	c.govnode("snapshot", "restore", file)
	decidesByOne("after a restore")
}

// "kill -9 of all three nodes at once, restart: every acknowledged change is
// there."
func TestEveryAcknowledgedChangeIsThere(t *testing.T) { onEach(t, everyAcknowledgedChangeIsThere) }

func everyAcknowledgedChangeIsThere(t *testing.T, c *cluster) {
	c.open("kept", "max_concurrent: 1000\nmax_tool_calls: 100000\n")
	for round := range 2 {
		nodes := c.list()
		// Many at once, so that the kill comes in the middle of something.
		var mu sync.Mutex
		var acknowledged []string
		stop := make(chan struct{})
		var all sync.WaitGroup
		for w := range 12 {
			all.Go(func() {
				for i := 0; ; i++ {
					select {
					case <-stop:
						return
					default:
					}
					id := fmt.Sprintf("k%d-%d-%d", round, w, i)
					if _, err := c.try(nodes[w%3], "CounterService/Set", object{"key": id, "value": id, "requestId": id, "client": fmt.Sprintf("w%d", w)}, nil); err != nil {
						return // the node has died
					}
					mu.Lock()
					acknowledged = append(acknowledged, id)
					mu.Unlock()
				}
			})
		}
		c.await("there is something to lose", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return len(acknowledged) > 1000
		})
		c.kill(nodes...)
		close(stop)
		all.Wait()
		c.back(nodes...)
		t.Logf("round %d: %d changes were acknowledged", round, len(acknowledged))
		for len(acknowledged) > 0 {
			part := acknowledged[:min(len(acknowledged), 500)]
			acknowledged = acknowledged[len(part):]
			var got struct{ Values map[string]string }
			c.post(c.list()[round], "CounterService/BatchGet", object{"keys": part}, &got)
			for _, id := range part {
				require.Equal(t, id, got.Values[id])
			}
		}
	}
	require.Equal(t, "kept", c.session(c.list()[0], "kept").SessionID)
}

// "Tokens of a pool only rise, through restart, restore, delete and
// re-creation."
func TestTokensOnlyRise(t *testing.T) { onEach(t, tokensOnlyRise) }

func tokensOnlyRise(t *testing.T, c *cluster) {
	var last number
	slots := 0
	put := func(id string) {
		t.Helper()
		c.post(c.list()[0], "SlotService/PutPool", object{"pool": "tokens", "slots": 100, "requestId": id}, nil)
	}
	rises := func(when string) {
		t.Helper()
		for _, n := range c.list() {
			slots++
			var a answer
			c.post(n, "SlotService/AcquireSlot", object{"pool": "tokens", "slotId": fmt.Sprintf("s%d", slots), "ttl": "3600s"}, &a)
			require.Equal(t, admitted, a.Outcome)
			require.Greater(t, a.Token, last, when)
			last = a.Token
		}
	}
	put("put-1")
	rises("at first")

	file := filepath.Join(c.dir, "snapshot")
	c.govnode("snapshot", "save", file)
	rises("after the snapshot")
	c.govnode("snapshot", "restore", file)
	rises("after a restore of a state with lower ones")

	nodes := c.list()
	c.kill(nodes...)
	c.back(nodes...)
	rises("after kill -9 of all nodes")

	c.stop()
	c.launch()
	rises("after a restart")

	c.post(c.list()[0], "SlotService/DeletePool", object{"pool": "tokens", "force": true, "requestId": "delete"}, nil)
	put("put-2")
	rises("after delete and re-creation")

	c.govnode("snapshot", "restore", file)
	rises("after a restore of the state before that")
}
