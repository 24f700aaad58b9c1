//go:build attack

package vectors

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"
)

// What a compromised agent does to make counters count less, or one request twice.
func TestCounters(t *testing.T) {
	onEach(t, func(t *testing.T, s *secured) {
		w := s.worker()
		for _, tt := range []struct {
			name   string
			attack func(t *testing.T, s *secured, w string)
		}{
			{"amounts", amounts}, {"a thousand at once", thousandAtOnce}, {"another body", anotherBody}, {"the same id elsewhere", sameIDElsewhere},
			{"ids", badIDs}, {"overflow", overflows}, {"a tool that is not allowed", notAllowed}, {"refunds", refunds}, {"ends", ends},
			{"many tools", manyTools}, {"tools in disguise", disguises},
		} {
			t.Run(tt.name, func(t *testing.T) {
				own := *s
				own.t = t
				tt.attack(t, &own, w)
			})
		}
	})
}

// value reads a value.
func (s *secured) value(token, key string) any {
	s.t.Helper()
	return s.must(2, token, "CounterService/Get", object{"key": key})["value"]
}

// begin asks for a call, and returns its outcome.
func (s *secured) begin(token, in, id, tool string) any {
	s.t.Helper()
	return s.must(1, token, "CallService/BeginCall", object{"sessionId": in, "callId": id, "tool": tool, "ttl": "600s"})["outcome"]
}

// counts are those of a session.
func (s *secured) counts(id string) object {
	s.t.Helper()
	return s.must(2, s.admin, "SessionService/GetSession", object{"sessionId": id})["session"].(object)
}

func amounts(t *testing.T, s *secured, w string) {
	s.open(w, "38")
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "38", "c", "t"))
	s.must(0, w, "CounterService/Set", object{"key": "38", "value": "1", "client": "38"})
	s.unchanged(t, func() {
		for _, amount := range []any{"NaN", "Infinity", "1e3", "0x10", "0.0000001", "9223372036854.775808", "-9223372036854.775809", strings.Repeat("9", 400), "1,5", "+1", " 1", "٣", 1, 1.5} {
			s.denied(w, "CounterService/Increment", object{"key": "38", "amount": amount, "client": "38", "requestId": "i"}, "invalid_argument")
		}
		for _, tokens := range []any{-1, "-1", "9223372036854775807", "9223372036854775808", 1e300, 1.5, "NaN"} {
			s.denied(w, "CallService/BeginCall", object{"sessionId": "38", "callId": "x", "tool": "t", "tokens": tokens}, "invalid_argument")
			s.denied(w, "CallService/EndCall", object{"sessionId": "38", "callId": "c", "status": "STATUS_SUCCEEDED", "tokens": tokens}, "invalid_argument")
		}
	})
}

func thousandAtOnce(t *testing.T, s *secured, w string) {
	const times, callers = 1000, 50
	s.open(w, "39")
	s.pool("39", 3)
	for method, body := range map[string]object{
		"CounterService/Increment": {"key": "39", "amount": "2.5", "client": "39", "requestId": "i"},
		"CallService/BeginCall":    {"sessionId": "39", "callId": "c", "tool": "t", "ttl": "600s"},
		"SlotService/AcquireSlot":  {"pool": "39", "slotId": "s", "client": "39", "ttl": "600s"},
		"CounterService/Append":    {"key": "list", "items": []any{"x"}, "ttl": "600s", "client": "39", "requestId": "a"},
	} {
		answers := make([]answer, times)
		var all sync.WaitGroup
		for c := range callers {
			all.Go(func() {
				for i := c; i < times; i += callers {
					a, err := s.ask(i%3, w, method, body)
					if err != nil {
						t.Error(err)
					}
					answers[i] = a
				}
			})
		}
		all.Wait()
		of := func(a answer) object {
			require.Equal(t, http.StatusOK, a.Status, a)
			o := a.Object()
			for _, passing := range []string{"ttl", "index", "pressure", "decisionId", "decision", "repeat", "repeated", "counters"} {
				delete(o, passing)
			}
			for _, g := range asList(o["grants"]) {
				delete(g.(object), "ttl")
			}
			return o
		}
		first := of(answers[0])
		for _, a := range answers {
			require.Equal(t, first, of(a), method)
		}
	}
	require.Equal(t, "2.5", s.value(w, "39"))
	require.Equal(t, 1, s.held("39"))
	require.Equal(t, 1, s.held("policy/39"))
	require.EqualValues(t, 1, s.counts("39")["attempts"])
	require.EqualValues(t, 1, s.counts("39")["calls"])
	require.Equal(t, "1", s.must(0, w, "CounterService/Range", object{"key": "list"})["length"])
}

func asList(v any) []any {
	list, _ := v.([]any)
	return list
}

func anotherBody(t *testing.T, s *secured, w string) {
	s.open(w, "40")
	s.pool("40", 3)
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "40", "open", "t"))
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "40", "ended", "t"))
	s.must(0, w, "CallService/EndCall", object{"sessionId": "40", "callId": "ended", "status": "STATUS_SUCCEEDED", "tokens": "5"})
	s.must(0, w, "CounterService/Increment", object{"key": "40", "amount": "1", "client": "40", "requestId": "i"})
	s.acquire(w, "40", "s")
	s.unchanged(t, func() {
		for _, r := range []struct {
			method string
			body   object
		}{
			{"CallService/BeginCall", object{"sessionId": "40", "callId": "open", "tool": "other", "ttl": "600s"}},
			{"CallService/BeginCall", object{"sessionId": "40", "callId": "ended", "tool": "t", "tokens": "7", "ttl": "600s"}},
			{"CallService/EndCall", object{"sessionId": "40", "callId": "ended", "status": "STATUS_FAILED", "tokens": "5"}},
			{"CounterService/Increment", object{"key": "40", "amount": "-1", "client": "40", "requestId": "i"}},
			{"CounterService/Increment", object{"key": "other", "amount": "1", "client": "40", "requestId": "i"}},
			{"CounterService/Set", object{"key": "40", "value": "0", "client": "40", "requestId": "i"}},
			{"SlotService/AcquireSlot", object{"pool": "40", "slotId": "s", "client": "40", "ttl": "600s", "weight": 2}},
			{"SessionService/CreateSession", object{"sessionId": "40", "agentId": "b", "policy": object{"name": "40"}}},
		} {
			require.Contains(t, s.denied(w, r.method, r.body, "invalid_argument").String(), "was used", r.method)
		}
	})
}

func sameIDElsewhere(t *testing.T, s *secured, w string) {
	s.open(w, "41a")
	s.open(w, "41b")
	for _, in := range []string{"41a", "41b"} {
		require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, in, "c", "t-"+in))
		require.EqualValues(t, 1, s.counts(in)["attempts"])
	}
	for i, client := range []string{"41a", "41b"} {
		s.must(0, w, "CounterService/Increment", object{"key": "41", "amount": fmt.Sprint(i + 1), "client": client, "requestId": "i"})
	}
	require.Equal(t, "3", s.value(w, "41"))
	other := s.token("other", "agent,orchestrator")
	s.must(0, other, "CounterService/Increment", object{"key": "41", "amount": "9", "client": "41a", "requestId": "i"})
	require.Equal(t, "9", s.value(other, "41"))
	require.Equal(t, "3", s.value(w, "41"))
}

func badIDs(t *testing.T, s *secured, w string) {
	s.open(w, "42")
	s.pool("42", 3)
	s.unchanged(t, func() {
		for name, id := range map[string]string{"empty": "", "10 MB": strings.Repeat("x", 10<<20), "129 bytes": strings.Repeat("x", 129), "a NUL": "a\x00b", "a line": "a\nb",
			"an escape": "\x1b[31m", "a blank": "a b", "no ASCII": "ä", "zero width": "a\u200bb", "braces": "{a}", "a star": "*"} {
			for method, body := range map[string]object{
				"CallService/BeginCall":        {"sessionId": "42", "callId": id, "tool": "t"},
				"SlotService/AcquireSlot":      {"pool": "42", "slotId": id, "client": "42"},
				"SlotService/ReleaseSlot":      {"pool": "42", "slotId": id, "client": "42", "token": "1"},
				"CounterService/Increment":     {"key": "42", "client": "42", "requestId": id},
				"SessionService/CreateSession": {"sessionId": id, "agentId": "a", "policy": object{"name": "42"}},
			} {
				if id == "" && (method == "CounterService/Increment" || method == "SessionService/CreateSession") {
					continue // there it means that no id is given
				}
				a, err := s.ask(0, w, method, body)
				if err != nil {
					continue // a body that is too large may be cut off
				}
				require.Contains(t, []string{"invalid_argument", "resource_exhausted"}, a.Code(), "%s in %s: %s", name, method, a)
			}
		}
		for _, binary := range []string{"\xff\xfe", "a\xc0\xaf", "\xed\xa0\x80"} {
			a, err := s.send(0, w, "CallService/BeginCall", []byte(`{"sessionId":"42","tool":"t","callId":"`+binary+`"}`), "Content-Type", "application/json")
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), a)
		}
	})
}

func overflows(t *testing.T, s *secured, w string) {
	for key, value := range map[string]string{"45+": "9223372036854.775807", "45-": "-9223372036854.775808"} {
		s.must(0, w, "CounterService/Set", object{"key": key, "value": value, "client": "45"})
		sign := strings.TrimLeft(key[2:], "+")
		s.unchanged(t, func() {
			for _, amount := range []string{"0.000001", "9223372036854.775807"} {
				a := s.denied(w, "CounterService/Increment", object{"key": key, "amount": sign + amount, "client": "45"}, "invalid_argument")
				require.Contains(t, a.String(), "does not fit")
			}
		})
		require.Equal(t, value, s.value(w, key))
	}
	// The largest that a call may have used, again and again, is far below an overflow.
	s.open(w, "45")
	for i := range 20 {
		id := fmt.Sprint(i)
		require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "45", id, "t"))
		s.must(0, w, "CallService/EndCall", object{"sessionId": "45", "callId": id, "status": "STATUS_SUCCEEDED", "tokens": "1000000000"})
	}
	require.Equal(t, "20000000000", s.counts("45")["tokensUsed"])
}

func notAllowed(t *testing.T, s *secured, w string) {
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "46", "yaml": "allowed_tools: [search]\nmax_attempts: 5\nmax_tool_calls: 5\n"})
	s.must(0, w, "SessionService/CreateSession", object{"sessionId": "46", "agentId": "a", "policy": object{"name": "46"}})
	for i := range 5 {
		require.Equal(t, "OUTCOME_DENIED_BY_POLICY", s.begin(w, "46", fmt.Sprint(i), "shell"))
		require.Equal(t, "OUTCOME_DENIED_BY_POLICY", s.begin(w, "46", fmt.Sprint(i), "shell"), "sent again it is the same attempt")
		require.EqualValues(t, i+1, s.counts("46")["attempts"])
	}
	require.EqualValues(t, 0, s.counts("46")["calls"])
	require.Equal(t, "OUTCOME_ATTEMPT_LIMIT", s.begin(w, "46", "more", "search"), "a loop of refused calls ends")
	s.denied(s.admin, "SlotService/GetPool", object{"pool": "policy/46"}, "not_found") // it never took a slot
}

func refunds(t *testing.T, s *secured, w string) {
	s.must(0, s.admin, "LimitService/PutBudget", object{"budget": "47", "amount": "100"})
	s.must(0, s.admin, "LimitService/PutRate", object{"rate": "47", "limit": 2, "per": "3600s"})
	s.open(w, "47")
	begun := s.must(0, w, "CallService/BeginCall", object{"sessionId": "47", "callId": "c", "tool": "t", "ttl": "600s", "budgets": []any{object{"budget": "47", "amount": "60"}}})
	require.Equal(t, "OUTCOME_ADMITTED", begun["outcome"], begun)
	s.unchanged(t, func() {
		for method, body := range map[string]object{
			"LimitService/AdjustBudget": {"budget": "47", "by": "-60"}, "LimitService/PutBudget": {"budget": "47", "amount": "1000"},
			"LimitService/DeleteBudget": {"budget": "47"}, "LimitService/PutRate": {"rate": "47", "limit": 9, "per": "1s"}, "LimitService/DeleteRate": {"rate": "47"},
			"SlotService/PutPool": {"pool": "policy/47", "slots": 9}, "ClusterService/RepairIDs": {"newerThan": "2020-01-01T00:00:00Z"},
			"PolicyService/PutPolicy": {"name": "47", "yaml": "max_tool_calls: 9\n"},
		} {
			s.denied(w, method, body, "permission_denied")
		}
		s.denied(w, "CallService/EndCall", object{"sessionId": "47", "callId": "c", "status": "STATUS_SUCCEEDED", "spent": []any{object{"budget": "47", "amount": "-1"}}}, "invalid_argument")
		s.denied(w, "CallService/EndCall", object{"sessionId": "47", "callId": "c", "status": "STATUS_SUCCEEDED", "tokens": "-1"}, "invalid_argument")
	})
	over := s.must(0, w, "CallService/BeginCall", object{"sessionId": "47", "callId": "d", "tool": "t", "ttl": "600s", "budgets": []any{object{"budget": "47", "amount": "60"}}})
	require.Equal(t, "OUTCOME_BUDGET_EXCEEDED", over["outcome"])
}

func ends(t *testing.T, s *secured, w string) {
	s.open(w, "48a")
	s.open(w, "48b")
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "48a", "mine", "t"))
	end := func(in, id string) object {
		return object{"sessionId": in, "callId": id, "status": "STATUS_SUCCEEDED", "tokens": "3"}
	}
	s.unchanged(t, func() {
		s.denied(w, "CallService/EndCall", end("48a", "never"), "not_found")
		s.denied(w, "CallService/EndCall", end("48b", "mine"), "not_found")
		s.denied(w, "CallService/EndCall", end("48c", "mine"), "not_found")
	})
	require.Equal(t, "OUTCOME_ENDED", s.must(0, w, "CallService/EndCall", end("48a", "mine"))["outcome"])
	s.unchanged(t, func() {
		for i := range 3 {
			require.Equal(t, "OUTCOME_ALREADY_ENDED", s.must(i, w, "CallService/EndCall", end("48a", "mine"))["outcome"])
		}
	})
	require.Equal(t, "3", s.counts("48a")["tokensUsed"])
	require.EqualValues(t, 1, s.counts("48a")["executions"])
}

func manyTools(t *testing.T, s *secured, w string) {
	const tries, most = 100_000, 256
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "49", "yaml": "max_tool_calls: 1000000\nmax_attempts: 1000000\nmax_concurrent: 4096\n"})
	s.must(0, w, "SessionService/CreateSession", object{"sessionId": "49", "agentId": "a", "policy": object{"name": "49"}})
	tools := s.batch(w, "begin", tries, func(i int) object {
		return object{"sessionId": "49", "callId": fmt.Sprint("c", i), "tool": fmt.Sprint("tool", i), "ttl": "600s"}
	})
	require.Equal(t, map[any]int{"OUTCOME_ADMITTED": most, "TOO_MANY_TOOLS": tries - most}, tools)
	require.Len(t, s.counts("49")["callsByTool"], most)
	require.EqualValues(t, most, s.counts("49")["calls"])
}

func disguises(t *testing.T, s *secured, w string) {
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "50", "yaml": "max_calls_per_tool: {exec: 1}\nmax_tool_calls: 9\n"})
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "50d", "yaml": "version: '1.0'\nname: d\nrules:\n" +
		"  - name: no-exec\n    condition: {field: tool_name, operator: eq, value: exec}\n    action: deny\n"})
	for _, id := range []string{"50", "50d"} {
		s.must(0, w, "SessionService/CreateSession", object{"sessionId": id, "agentId": "a", "policy": object{"name": id}})
	}
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "50", "c", "exec"))
	s.unchanged(t, func() {
		for _, name := range []string{"Exec", "EXEC", "eXec", "\u0435xec", "ex\u0435c", "\u0435\u0445\u0435\u0441", "ｅｘｅｃ", "𝐞𝐱𝐞𝐜", "ex\u200bec", "exec\u200d", "\ufeffexec", "exec\u2060", "ex\u00adec",
			"exec\ufe0f", "exec\U000e0061", "exec ", " exec", "exec\u00a0", "exec\u3164", "exec\u202e", "exec\x00", "exec\n"} {
			for _, in := range []string{"50", "50d"} {
				s.denied(w, "CallService/BeginCall", object{"sessionId": in, "callId": "x", "tool": name}, "invalid_argument")
			}
			s.denied(w, "PolicyService/Evaluate", object{"policy": object{"name": "50d"}, "tool": name}, "invalid_argument")
		}
	})
	require.Equal(t, "OUTCOME_TOOL_LIMIT", s.begin(w, "50", "again", "exec"))
	require.Equal(t, "OUTCOME_DENIED_BY_POLICY", s.begin(w, "50d", "c", "exec"))
	require.Equal(t, "OUTCOME_ADMITTED", s.begin(w, "50", "other", "search"))
}
