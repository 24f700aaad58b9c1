//go:build attack

package vectors

import (
	"context"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a compromised agent does to sessions and slots that are others', or are no more.
func TestSessionsAndSlots(t *testing.T) {
	onEach(t, func(t *testing.T, s *secured) {
		w := s.worker()
		for _, tt := range []struct {
			name   string
			attack func(t *testing.T, s *secured, w string)
		}{
			{"another's slot", anothersSlot}, {"released twice", releasedTwice}, {"wrong tokens", wrongTokens}, {"ten thousand of one", tenThousandOfOne},
			{"weights", weights}, {"sizes", sizes}, {"another size", anotherSize}, {"a pool made again", poolMadeAgain}, {"times", times},
			{"clocks of clients", clocksOfClients}, {"renewed too late", renewedTooLate}, {"a zombie", zombie},
			{"closed with slots", closedWithSlots}, {"after the end", afterTheEnd}, {"waiters that go", waitersThatGo},
		} {
			t.Run(tt.name, func(t *testing.T) {
				own := *s
				own.t = t
				tt.attack(t, &own, w)
			})
		}
	})
}

// worker makes a token of an agent that opens its own sessions.
func (s *secured) worker() string { return s.token("default", "agent,orchestrator") }

// pool makes a pool of some slots.
func (s *secured) pool(name string, slots int) {
	s.t.Helper()
	s.must(0, s.admin, "SlotService/PutPool", object{"pool": name, "slots": slots, "queueLimit": 4096})
}

// acquire takes a slot, which there has to be, and returns its token.
func (s *secured) acquire(token, pool, id string, more ...any) string {
	s.t.Helper()
	o := s.must(1, token, "SlotService/AcquireSlot", with(object{"pool": pool, "slotId": id, "client": pool, "ttl": "600s"}, more...))
	require.Equal(s.t, "OUTCOME_ADMITTED", o["outcome"], o)
	return o["token"].(string)
}

// with adds fields to a message.
func with(o object, pairs ...any) object {
	for i := 0; i+1 < len(pairs); i += 2 {
		o[pairs[i].(string)] = pairs[i+1]
	}
	return o
}

func (s *secured) release(token, pool, id, slot string) any {
	s.t.Helper()
	return s.must(2, token, "SlotService/ReleaseSlot", object{"pool": pool, "slotId": id, "client": pool, "token": slot})["outcome"]
}

func (s *secured) renew(token string, ref object) any {
	s.t.Helper()
	client, _ := ref["pool"].(string) // that of a call is asked for by nobody's
	o := s.must(2, token, "SlotService/RenewSlots", object{"client": client, "slots": []any{ref}})
	return o["results"].([]any)[0].(object)["outcome"]
}

// open creates a session under a policy of its own, of that name.
func (s *secured) open(token, id string, more ...any) {
	s.t.Helper()
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": id, "yaml": "max_concurrent: 5\nmax_tool_calls: 100000\nmax_attempts: 100000\nallowed_tools: []\nname: p" + id + "\n"})
	s.must(0, token, "SessionService/CreateSession", with(object{"sessionId": id, "agentId": "a", "policy": object{"name": id}}, more...))
}

func anothersSlot(t *testing.T, s *secured, w string) {
	s.pool("20", 2)
	mine := s.acquire(w, "20", "mine")
	secret := sha256.Sum256([]byte("secret"))
	s.open(w, "20", "sessionTokenSha256", base64.StdEncoding.EncodeToString(secret[:]))
	call := s.must(0, w, "CallService/BeginCall", object{"sessionId": "20", "callId": "c", "tool": "t", "sessionToken": "secret", "ttl": "600s"})
	grant := call["grants"].([]any)[0].(object)["token"]
	other := s.worker()
	s.unchanged(t, func() {
		require.Equal(t, "OUTCOME_FENCED", s.release(other, "20", "mine", mine), "the right token of another's slot")
		require.Equal(t, "OUTCOME_FENCED", s.release(w, "20", "mine", mine+"1"), "one's own slot with another token")
		require.Equal(t, "OUTCOME_FENCED", s.renew(other, object{"pool": "20", "slotId": "mine", "token": mine}))
		require.Equal(t, "OUTCOME_LEASE_EXPIRED", s.renew(other, object{"sessionId": "20", "slotId": "c", "token": grant}), "as if there were no such session")
		s.denied(w, "CallService/EndCall", object{"sessionId": "20", "callId": "c", "status": "STATUS_SUCCEEDED", "sessionToken": "guess"}, "not_found")
		s.denied(other, "CallService/CancelCall", object{"sessionId": "20", "callId": "c"}, "not_found")
	})
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "20", "mine", mine))
}

func releasedTwice(t *testing.T, s *secured, w string) {
	s.pool("21", 1)
	token := s.acquire(w, "21", "a")
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "21", "a", token))
	s.acquire(w, "21", "b")
	s.unchanged(t, func() {
		for range 3 {
			require.Equal(t, "OUTCOME_ALREADY_RELEASED", s.release(w, "21", "a", token))
		}
	})
}

func renewedTooLate(t *testing.T, s *secured, w string) {
	s.pool("22", 1)
	token := s.acquire(w, "22", "a", "ttl", "1s")
	s.until("the lease has run out", func() bool { return len(s.slots("22")) == 0 })
	s.looksSame(func() {
		require.Equal(t, "OUTCOME_LEASE_EXPIRED", s.renew(w, object{"pool": "22", "slotId": "a", "token": token}))
		require.Equal(t, "OUTCOME_LEASE_EXPIRED", s.release(w, "22", "a", token))
	})
}

func zombie(t *testing.T, s *secured, w string) {
	s.pool("23", 1)
	old := s.acquire(w, "23", "old", "ttl", "1s")
	next := s.acquire(w, "23", "next", "wait", "20s")
	s.looksSame(func() {
		require.Equal(t, "OUTCOME_FENCED", s.release(w, "23", "old", old))
		require.Equal(t, "OUTCOME_FENCED", s.release(w, "23", "next", old), "the old token on the new slot")
		require.Equal(t, "OUTCOME_FENCED", s.renew(w, object{"pool": "23", "slotId": "next", "token": old}))
	})
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "23", "next", next))
}

func wrongTokens(t *testing.T, s *secured, w string) {
	s.pool("24", 3)
	s.acquire(w, "24", "before")
	token, err := strconv.ParseUint(s.acquire(w, "24", "a"), 10, 64)
	require.NoError(t, err)
	s.acquire(w, "24", "behind")
	s.unchanged(t, func() {
		for _, wrong := range []uint64{token + 1, token - 1, 0, 1<<64 - 1} {
			text := strconv.FormatUint(wrong, 10)
			require.Equal(t, "OUTCOME_FENCED", s.release(w, "24", "a", text), text)
			require.Equal(t, "OUTCOME_FENCED", s.renew(w, object{"pool": "24", "slotId": "a", "token": text}), text)
		}
		for _, none := range []any{"-1", "18446744073709551616", 1.5, "x"} {
			s.denied(w, "SlotService/ReleaseSlot", object{"pool": "24", "slotId": "a", "client": "24", "token": none}, "invalid_argument")
		}
	})
}

// batch sends operations of one kind, 1,000 at a time, and counts what became of them: by
// outcome, or by the reason of an error.
func (s *secured) batch(token, kind string, n int, op func(i int) object) map[any]int {
	s.t.Helper()
	counts := map[any]int{}
	for first := 0; first < n; first += 1000 {
		var ops []any
		for i := first; i < min(n, first+1000); i++ {
			ops = append(ops, object{kind: op(i)})
		}
		for _, r := range s.must(first/1000%3, token, "CallService/BatchCalls", object{"operations": ops})["results"].([]any) {
			if of, ok := r.(object)[kind].(object); ok {
				counts[of["outcome"]]++
			} else {
				counts[r.(object)["error"].(object)["reason"]]++
			}
		}
	}
	return counts
}

func tenThousandOfOne(t *testing.T, s *secured, w string) {
	const tries = 10_000
	s.open(w, "25")
	calls := s.batch(w, "begin", tries, func(i int) object {
		return object{"sessionId": "25", "callId": fmt.Sprint("c", i), "tool": "t", "ttl": "600s"}
	})
	require.Equal(t, map[any]int{"OUTCOME_ADMITTED": 5, "OUTCOME_CONCURRENCY_LIMIT": tries - 5}, calls)
	require.Equal(t, 5, s.held("policy/25"))
	s.pool("25", 4096)
	slots := s.batch(w, "acquire", tries, func(i int) object {
		return object{"pool": "25", "slotId": fmt.Sprint("s", i), "client": "25", "ttl": "600s"}
	})
	require.Equal(t, map[any]int{"OUTCOME_ADMITTED": 1024, "TOO_MANY_OPEN": tries - 1024}, slots, "the rest of the pool is for others")
	require.Equal(t, 1024, s.held("25"))
}

func weights(t *testing.T, s *secured, w string) {
	s.pool("26", 2)
	s.unchanged(t, func() {
		for _, weight := range []any{-1, 3, 1 << 31, int64(-1) << 31, "NaN", 1.5, 1e300, "two"} {
			s.denied(w, "SlotService/AcquireSlot", object{"pool": "26", "slotId": "x", "client": "26", "weight": weight}, "invalid_argument")
		}
	})
	s.acquire(w, "26", "unsaid", "weight", 0)
	require.Equal(t, 1, s.held("26"), "0 is what is not said, and that is 1")
}

func sizes(t *testing.T, s *secured, _ string) {
	s.unchanged(t, func() {
		for _, slots := range []any{0, -1, 4097, 1 << 31, "9223372036854775808", "-9223372036854775808", "NaN", 0.5} {
			s.denied(s.admin, "SlotService/PutPool", object{"pool": "27", "slots": slots}, "invalid_argument")
		}
		s.denied(s.admin, "SlotService/GetPool", object{"pool": "27"}, "not_found")
	})
}

func anotherSize(t *testing.T, s *secured, w string) {
	made := object{"pool": "28", "slots": 1, "requestId": "28", "client": "op"}
	s.must(0, s.admin, "SlotService/PutPool", made)
	s.unchanged(t, func() {
		s.must(1, s.admin, "SlotService/PutPool", made)
		a := s.denied(s.admin, "SlotService/PutPool", with(object{}, "pool", "28", "slots", 100, "requestId", "28", "client", "op"), "invalid_argument")
		require.Contains(t, a.String(), "ID_REUSED")
		s.denied(w, "SlotService/PutPool", object{"pool": "28", "slots": 100}, "permission_denied")
	})
}

func poolMadeAgain(t *testing.T, s *secured, w string) {
	s.pool("29", 2)
	first, last := s.acquire(w, "29", "first"), s.acquire(w, "29", "last")
	s.unchanged(t, func() {
		s.denied(s.admin, "SlotService/DeletePool", object{"pool": "29"}, "failed_precondition")
		s.denied(w, "SlotService/DeletePool", object{"pool": "29", "force": true}, "permission_denied")
	})
	s.must(0, s.admin, "SlotService/DeletePool", object{"pool": "29", "force": true})
	s.pool("29", 2)
	require.Equal(t, "OUTCOME_FENCED", s.release(w, "29", "last", last), "before anybody has a slot of the new pool")
	next := s.acquire(w, "29", "next")
	of := func(token string) int { n, err := strconv.Atoi(token); require.NoError(t, err); return n }
	require.Greater(t, of(next), of(last))
	require.Greater(t, of(last), of(first))
	require.Equal(t, "OUTCOME_FENCED", s.release(w, "29", "first", first))
	s.unchanged(t, func() {
		for _, token := range []string{first, last} {
			require.Equal(t, "OUTCOME_FENCED", s.release(w, "29", "first", token))
			require.Equal(t, "OUTCOME_FENCED", s.release(w, "29", "last", token))
			require.Equal(t, "OUTCOME_FENCED", s.release(w, "29", "next", token))
		}
	})
	require.Equal(t, 1, s.held("29"), "who came after has the slot")
}

func times(t *testing.T, s *secured, w string) {
	s.pool("30", 2)
	s.open(w, "30")
	token := s.acquire(w, "30", "a")
	s.unchanged(t, func() {
		for _, ttl := range []string{"0s", "-1s", "0.000000001s", "3155760000s", "9223372036854775807s", "NaN", "1h"} {
			s.denied(w, "SlotService/AcquireSlot", object{"pool": "30", "slotId": "x", "client": "30", "ttl": ttl}, "invalid_argument")
			s.denied(w, "SlotService/RenewSlots", object{"client": "30", "ttl": ttl, "slots": []any{object{"pool": "30", "slotId": "a", "token": token}}}, "invalid_argument")
			s.denied(w, "CallService/BeginCall", object{"sessionId": "30", "callId": "x", "tool": "t", "ttl": ttl}, "invalid_argument")
			s.denied(w, "SessionService/CreateSession", object{"sessionId": "30x", "agentId": "a", "policy": object{"name": "30"}, "idleTtl": ttl}, "invalid_argument")
		}
	})
}

func closedWithSlots(t *testing.T, s *secured, w string) {
	s.pool("31", 3)
	s.open(w, "31")
	for i := range 3 {
		s.must(i, w, "CallService/BeginCall", object{"sessionId": "31", "callId": fmt.Sprint(i), "tool": "t", "ttl": "600s", "pools": []any{object{"pool": "31"}}})
	}
	require.Equal(t, 3, s.held("31"))
	var freed atomic.Int64
	var all sync.WaitGroup
	for i := range 12 {
		all.Go(func() {
			a, err := s.ask(i%3, w, "SessionService/CloseSession", object{"sessionId": "31"})
			if err != nil || a.Status != http.StatusOK {
				t.Errorf("%v %v", a, err)
				return
			}
			freed.Add(int64(a.Object()["released"].(float64)))
		})
	}
	all.Wait()
	require.EqualValues(t, 6, freed.Load(), "three slots of the pool and three of the policy, each by one of the requests")
	require.Equal(t, 0, s.held("31"))
	taken := s.acquire(w, "31", "all", "weight", 3)
	s.looksSame(func() {
		s.must(0, w, "SessionService/CloseSession", object{"sessionId": "31"})
		require.Equal(t, "OUTCOME_LEASE_LOST", s.must(1, w, "CallService/EndCall", object{"sessionId": "31", "callId": "0", "status": "STATUS_SUCCEEDED"})["outcome"])
	})
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "31", "all", taken))
}

func afterTheEnd(t *testing.T, s *secured, w string) {
	s.open(w, "32")
	s.must(0, w, "SessionService/CloseSession", object{"sessionId": "32"})
	s.looksSame(func() {
		for i := range 3 {
			require.Equal(t, "OUTCOME_SESSION_CLOSED", s.must(i, w, "CallService/BeginCall", object{"sessionId": "32", "callId": "c", "tool": "t"})["outcome"])
		}
		s.denied(w, "CallService/EndCall", object{"sessionId": "32", "callId": "c", "status": "STATUS_SUCCEEDED"}, "failed_precondition")
		s.denied(w, "SessionService/CreateSession", object{"sessionId": "32", "agentId": "b", "policy": object{"name": "32"}}, "invalid_argument")
		require.Equal(t, "OUTCOME_LEASE_EXPIRED", s.renew(w, object{"sessionId": "32", "slotId": "c", "token": "1"}))
	})
}

// Thousands who wait and are cut off leave no place in the queue, also where a slot is
// handed to some of them meanwhile.
func waitersThatGo(t *testing.T, s *secured, w string) {
	const waiters = 1500
	s.pool("35", 1)
	token := s.acquire(w, "35", "held", "ttl", "600s")
	ctx, cut := context.WithCancel(context.Background())
	defer cut()
	var all sync.WaitGroup
	for i := range waiters {
		all.Go(func() {
			s.askUntil(ctx, i%3, w, "SlotService/AcquireSlot", object{"pool": "35", "slotId": fmt.Sprint("w", i), "client": fmt.Sprint("c", i%10), "wait": "600s", "ttl": "600s"})
		})
	}
	queue := func() int {
		waiting, _ := s.must(0, s.admin, "SlotService/ListSlots", object{"pool": "35"})["waiters"].([]any)
		return len(waiting)
	}
	s.until("all wait", func() bool { return queue() == waiters })
	all.Go(cut)
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "35", "held", token))
	all.Wait()
	s.until("the queue is empty", func() bool { return queue() == 0 })
	s.until("nobody is counted as waiting", func() bool {
		used := s.must(0, s.Secured.Operator(), "AccessService/GetQuotas", object{"namespace": "default"})["used"].(object)
		return used["waiters"] == "0"
	})
	// A slot whose new holder was cut off on the way to its answer is that holder's until its lease ends.
	for _, held := range s.slots("35") {
		o := held.(object)
		s.must(0, s.admin, "SlotService/ForceRelease", object{"pool": "35", "slotId": o["slotId"], "holderClient": o["holder"]})
	}
	s.acquire(w, "35", "next")
	require.Equal(t, 1, s.held("35"))
}

func clocksOfClients(t *testing.T, s *secured, w string) {
	s.pool("37", 1)
	token := s.acquire(w, "37", "a", "ttl", "600s")
	s.unchanged(t, func() {
		for _, field := range []string{"now", "at", "time", "timestamp", "clock"} {
			s.denied(w, "SlotService/ReleaseSlot", object{"pool": "37", "slotId": "a", "client": "37", "token": token, field: "2100-01-01T00:00:00Z"}, "invalid_argument")
		}
	})
	var headers []string
	for _, name := range []string{"Date", "X-Time", "X-Request-Start", "Govnode-Now", "Govnode-Time"} {
		headers = append(headers, name, "Fri, 01 Jan 2100 00:00:00 GMT")
	}
	a, err := s.ask(0, w, "SlotService/AcquireSlot", object{"pool": "37", "slotId": "b", "client": "37"}, headers...)
	require.NoError(t, err)
	require.Equal(t, "OUTCOME_CONCURRENCY_LIMIT", a.Object()["outcome"], "the lease of the holder goes on")
	require.Equal(t, "OUTCOME_RELEASED", s.release(w, "37", "a", token))
}

// A namespace has no more sessions than its quota, however many are asked for, and nodes
// do not grow by those that they refuse.
func TestMillionSessions(t *testing.T) {
	t.Parallel()
	const most, tries, callers = 1000, 12_000, 64
	s := secure(t, 3)
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "p", "yaml": "max_tool_calls: 3\n"})
	s.must(0, s.Secured.Operator(), "AccessService/PutQuotas", object{"namespace": "default", "quotas": object{"sessions": most}})
	w := s.worker()
	var made, over, other, next atomic.Int64
	create := func(until int64) {
		var all sync.WaitGroup
		for range callers {
			all.Go(func() {
				for i := next.Add(1); i <= until; i = next.Add(1) {
					a, err := s.ask(int(i%3), w, "SessionService/CreateSession", object{"sessionId": fmt.Sprint("s", i), "agentId": "a", "policy": object{"name": "p"}})
					switch {
					case err == nil && a.Status == http.StatusOK:
						made.Add(1)
					case err == nil && strings.Contains(a.String(), "QUOTA_EXCEEDED"):
						over.Add(1)
					default:
						other.Add(1)
					}
				}
			})
		}
		all.Wait()
		next.Store(until)
	}
	create(tries / 4)
	var before []int
	for i := range s.Nodes {
		now, _ := s.memory(i)
		before = append(before, now)
	}
	create(tries)
	require.Zero(t, other.Load())
	require.GreaterOrEqual(t, made.Load(), int64(most))
	require.LessOrEqual(t, made.Load(), int64(most+callers), "what was under way may pass it")
	require.Equal(t, int64(tries), made.Load()+over.Load())
	for i := range s.Nodes {
		now, _ := s.memory(i)
		require.Less(t, now-before[i], 64<<20, "%s had %d bytes", s.Nodes[i].Name, before[i])
	}
}
