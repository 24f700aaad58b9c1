package alone

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
)

// kinds reaches the limits of calls of each kind, and opens the breaker.
func kinds(s *script) {
	if !s.policy("max_model_calls: 1\nmax_agent_calls: 0\nmax_handoffs: 2\nmax_sampling_requests: 1\nmax_consecutive_failures: 2\nbreaker_reset: 1h\nblocked_patterns: [drop table]\n") || !s.session(nil) {
		return
	}
	try := func(kind v1.Kind, tool string, want v1.Outcome) string {
		req := s.call(tool)
		req.Kind = kind
		res := s.begin(req)
		s.outcome(res, want)
		if !s.over && want == v1.Outcome_OUTCOME_BREAKER_OPEN {
			s.wrong(res.RetryAfter.AsDuration() < 50*time.Minute, "one is tried in %v", res.RetryAfter.AsDuration())
		}
		return req.CallId
	}
	const admitted, limit = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_KIND_LIMIT
	for kind := range v1.Kind_name {
		if kind == int32(v1.Kind_KIND_AGENT) { // of which none is left
			continue
		}
		req := s.call("one")
		req.Kind, req.ArgumentsJson = v1.Kind(kind), `{"prompt": "DROP TABLE users"}`
		if s.rng.IntN(2) == 0 && kind > int32(v1.Kind_KIND_TOOL) && kind != int32(v1.Kind_KIND_SAMPLING) {
			req.Tool = ""
		}
		s.outcome(s.begin(req), v1.Outcome_OUTCOME_DENIED_BY_POLICY)
	}
	model := try(v1.Kind_KIND_MODEL, "", admitted)
	try(v1.Kind_KIND_MODEL, "", limit)
	try(v1.Kind_KIND_AGENT, "", limit)
	try(v1.Kind_KIND_HANDOFF, "", admitted)
	sampling := try(v1.Kind_KIND_SAMPLING, "one", admitted)
	try(v1.Kind_KIND_SAMPLING, "one", limit)
	try(v1.Kind_KIND_SAMPLING, "two", admitted)
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(ctx, &v1.GetSessionRequest{SessionId: s.own})
	})
	if ok {
		s.alike("the counters by kind", res.Session.KindCounters, &v1.KindCounters{ModelCalls: 1, Handoffs: 1, SamplingRequests: map[string]int32{"one": 1, "two": 1}})
	}
	for _, signal := range []string{"STOP", "CONTINUE"} { // which leave what was counted
		req := &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: s.own}, Signal: signal, RequestId: s.id(), Client: s.own}
		done(s, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) { return n.sessions.Signal(ctx, req) })
	}
	try(v1.Kind_KIND_MODEL, "", limit)
	for _, id := range []string{model, sampling} {
		s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_FAILED})
	}
	try(v1.Kind_KIND_TOOL, "one", v1.Outcome_OUTCOME_BREAKER_OPEN)
	try(v1.Kind_KIND_HANDOFF, "", v1.Outcome_OUTCOME_BREAKER_OPEN)
}

// counter adds decimals to a value, and what is none to none.
func counter(s *script) {
	add := func(key, amount string) (string, string) {
		req := &v1.IncrementRequest{Key: key, Amount: amount, RequestId: s.id(), Client: s.own}
		res, reason, _ := told(s, "add "+amount, func(ctx context.Context, n *node) (*v1.IncrementResponse, error) {
			return n.counters.Increment(ctx, req)
		})
		return res.GetValue(), reason
	}
	sum := int64(0)
	for range 2 + s.rng.IntN(5) {
		n := s.rng.Int64N(4_000_001) - 2_000_000
		sum += n
		got, reason := add(s.own, decimal(n))
		if s.over {
			return
		}
		s.wrong(reason != "" || got != decimal(sum), "the sum is %q (%s), want %s", got, reason, decimal(sum))
	}
	set := &v1.SetRequest{Key: s.own + "-text", Value: "text", RequestId: s.id(), Client: s.own}
	if _, ok := done(s, "set a text", func(ctx context.Context, n *node) (*v1.SetResponse, error) { return n.counters.Set(ctx, set) }); !ok {
		return
	}
	if _, reason := add(s.own+"-text", "1"); !s.over {
		same(s, "the reason", reason, "NOT_A_NUMBER")
	}
	all, ok := done(s, "get both", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
		return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: []string{s.own, s.own + "-text"}})
	})
	if ok {
		s.wrong(len(all.Values) != 2 || all.Values[s.own] != decimal(sum) || all.Values[s.own+"-text"] != "text", "values are %v", all.Values)
	}
}

// together reads two values while they are added to in turn: they are read as they stood at
// one instant, where the one is never behind the other, and ahead by one at most.
func together(s *script) {
	a, b := s.own+"-a", s.own+"-b"
	ctx, stop := context.WithCancel(s.ctx)
	defer stop()
	var under sync.WaitGroup
	defer under.Wait()
	defer stop()
	// The writer has requests of its own beside the steps of the script, and ends where one is
	// not answered.
	nodes := slices.Clone(s.nodes)
	at := s.rng.IntN(len(nodes))
	under.Go(func() {
		for i := range 40 {
			req := &v1.IncrementRequest{Key: []string{a, b}[i%2], Amount: "1", RequestId: s.id(), Client: s.own}
			asking, cancel := context.WithTimeout(ctx, 3*time.Second)
			_, err := nodes[(at+i)%len(nodes)].counters.Increment(asking, req)
			if cancel(); err != nil {
				return
			}
		}
	})
	keys := []string{a}
	for i := range 60 { // that are not there, so that the two are not read side by side
		keys = append(keys, fmt.Sprintf("%s-%d", a, i))
	}
	keys = append(keys, b)
	for range 12 {
		if s.rng.IntN(2) == 0 {
			slices.Reverse(keys)
		}
		res, ok := done(s, "get both", func(ctx context.Context, n *node) (*v1.BatchGetResponse, error) {
			return n.counters.BatchGet(ctx, &v1.BatchGetRequest{Keys: keys})
		})
		if !ok {
			return
		}
		first, _ := strconv.Atoi(cmp.Or(res.Values[a], "0"))
		second, _ := strconv.Atoi(cmp.Or(res.Values[b], "0"))
		s.wrong(second > first || first > second+1, "values are %v, which never stood together", res.Values)
	}
}

// decimal writes millionths as the service does.
func decimal(n int64) string {
	sign := ""
	if n < 0 {
		sign, n = "-", -n
	}
	text := fmt.Sprintf("%s%d.%06d", sign, n/1_000_000, n%1_000_000)
	return strings.TrimSuffix(strings.TrimRight(text, "0"), ".")
}
