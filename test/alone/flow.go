package alone

import (
	"context"
	"errors"
	"strings"
	"sync"
	"time"

	v1 "example.com/govnode/proto/govnode/v1"
)

// stages lets a call of one stage of a workflow end when the session is in the next: what
// it has done is done in the stage in which it was let in.
func stages(s *script) {
	const flow = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: stages}
stages:
  - {id: test, tools: [Bash], checks: [{command_matches: "^test", message: tests alone}], exit: [{condition: command_matches("^test"), message: test first}]}
  - {id: ship, tools: [Bash], checks: [{command_matches: "^(push|test)", message: push alone}], exit: [{condition: command_matches("^test b"), message: test b first}]}
  - {id: end, tools: [Bash], checks: [{command_matches: "^end", message: end alone}]}
`
	if !s.policyWith(flow) || !s.session(nil) {
		return
	}
	begin := func(command string, want v1.Outcome) string {
		req := s.call("Bash")
		req.ArgumentsJson = `{"command": "` + command + `"}`
		s.outcome(s.begin(req), want)
		return req.CallId
	}
	end := func(id string) { s.end(&v1.EndCallRequest{CallId: id, Status: v1.Status_STATUS_SUCCEEDED}) }
	const admitted, denied = v1.Outcome_OUTCOME_ADMITTED, v1.Outcome_OUTCOME_DENIED_BY_POLICY
	begin("push", denied)
	for _, status := range []v1.Status{v1.Status_STATUS_FAILED, v1.Status_STATUS_CANCELLED} { // which is no evidence
		s.end(&v1.EndCallRequest{CallId: begin("test", admitted), Status: status})
		begin("push", denied)
	}
	a, b := begin("test a", admitted), begin("test b", admitted)
	begin("push", denied)
	end(a)
	end(begin("push", admitted))
	end(b)
	begin("end", denied)
	end(begin("test b", admitted))
	begin("end", admitted)
}

// refusal has people refuse a stage of a workflow: who comes next asks them again, and
// goes on once they agree.
func refusal(s *script) {
	const flow = `apiVersion: edictum/v1
kind: Workflow
metadata: {name: build}
stages:
  - {id: review, approval: {message: "May it be built?"}}
  - {id: build, tools: [Edit]}
`
	if !s.policyWith(flow) || !s.session(nil) {
		return
	}
	asked := func(req *v1.BeginCallRequest, not string) string {
		res := s.begin(req)
		if s.outcome(res, v1.Outcome_OUTCOME_APPROVAL_REQUIRED); s.over {
			return ""
		}
		id := res.Approval.GetId()
		s.wrong(id == "" || id == not || res.Approval.State != v1.ApprovalState_APPROVAL_STATE_PENDING, "the approval is %v", res.Approval)
		return id
	}
	first := s.call("Edit")
	id := asked(first, "")
	if other := asked(s.call("Edit"), ""); !s.over {
		same(s, "the approval of another call", other, id) // it is of the stage
	}
	s.vote(s.rng.IntN(2), id, v1.Vote_VOTE_DENY)
	if res := s.begin(first); !s.over && res.Approval.GetId() == "" {
		s.outcome(res, v1.Outcome_OUTCOME_DENIED_BY_POLICY)
	} else if !s.over { // it came twice, if only between nodes, and has asked again
		s.wrong(res.Outcome != v1.Outcome_OUTCOME_APPROVAL_REQUIRED || res.Approval.Id == id, "the answer is %v", res)
	}
	next := s.call("Edit")
	id = asked(next, id)
	s.vote(s.rng.IntN(2), id, v1.Vote_VOTE_APPROVE)
	s.outcome(s.begin(next), v1.Outcome_OUTCOME_ADMITTED)
	s.outcome(s.begin(s.call("Edit")), v1.Outcome_OUTCOME_ADMITTED)
}

// follow follows what is decided about a session at all nodes: nothing is told twice, and
// where nothing was amiss nothing is missing.
func follow(s *script) {
	if !s.policy("max_tool_calls: 100\nallowed_tools: [one]\n") || !s.session(nil) {
		return
	}
	ctx, stop := context.WithTimeout(s.outer, 2*lasts)
	defer stop()
	type place struct {
		node     string
		sequence uint64
		at       string
	}
	var mu sync.Mutex
	told, decisions, silent, gaps, cursor := map[place]int{}, map[string]bool{}, false, false, ""
	latest := time.Now() // when something was heard
	ready, begun := make(chan struct{}), sync.Once{}
	// listen follows at a node until the stream ends, or by its first word alone.
	listen := func(at *node, once bool) error {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		mu.Lock()
		req := &v1.FollowRequest{Cluster: true, SessionId: s.own, After: cursor}
		mu.Unlock()
		stream, err := at.events.Follow(ctx, req)
		if err != nil {
			return err
		}
		defer func() { _ = stream.Close() }()
		for stream.Receive() {
			m := stream.Msg()
			mu.Lock()
			latest = time.Now()
			if m.Cursor == "" {
				s.broke(s.own + " is told something without a cursor: " + m.String())
			}
			if cursor = m.Cursor; m.Event != nil {
				told[place{m.Event.Node, m.Event.Sequence, m.Event.Timestamp}]++
				decisions[m.Event.DecisionId] = true
				if m.Event.SessionId != s.own {
					s.broke(s.own + " is told of another session: " + m.Event.String())
				}
			}
			// Of who has no place in the cursor yet nothing is told but that he is silent.
			silent, gaps = len(m.Unreachable) > 0, gaps || m.Gap != nil
			for _, n := range m.Unreachable {
				gaps = gaps || !strings.Contains(","+m.Cursor, ","+n+":")
			}
			mu.Unlock()
			if once {
				return nil
			}
			begun.Do(func() { close(ready) })
		}
		return errors.Join(errors.New("the stream has ended"), stream.Err())
	}
	var under sync.WaitGroup
	first, resumed := s.rng.IntN(len(s.nodes)), s.rng.IntN(2) == 0
	under.Go(func() {
		for i := first; ctx.Err() == nil; i++ { // the next one may be there
			mu.Lock()
			once := resumed && cursor == "" // and then goes on from its cursor
			mu.Unlock()
			if listen(s.nodes[i%len(s.nodes)], once) != nil {
				select {
				case <-ctx.Done():
				case <-time.After(200 * time.Millisecond):
				}
			}
		}
	})
	defer under.Wait()
	defer stop()
	select {
	case <-ready:
	case <-time.After(5 * time.Second):
		return
	}
	want, once := map[string]bool{}, true
	for range 4 + s.rng.IntN(4) {
		req := s.call("two")
		res, ok := done(s, "begin two", func(ctx context.Context, n *node) (*v1.BeginCallResponse, error) { return n.calls.BeginCall(ctx, req) })
		if !ok {
			break
		}
		s.outcome(res, v1.Outcome_OUTCOME_DENIED_BY_POLICY)
		want[res.DecisionId], once = true, once && s.tries == 1
		select {
		case <-ctx.Done():
		case <-time.After(time.Duration(s.rng.Int64N(int64(time.Second)))):
		}
	}
	heard := func() (all bool) {
		mu.Lock()
		defer mu.Unlock()
		for id := range want {
			if !decisions[id] {
				return false
			}
		}
		return true
	}
	// A node whose power was cut closes no connection: it is noticed by its silence, within
	// 20 s, by other nodes as by the one who listens here.
	made := time.Now()
	for !heard() && ctx.Err() == nil && time.Since(made) < 26*time.Second {
		time.Sleep(100 * time.Millisecond)
	}
	complete, left := heard(), ctx.Err() != nil
	stop()
	under.Wait()
	mu.Lock()
	defer mu.Unlock()
	s.last = "follow"
	for p, times := range told {
		s.wrong(times > 1, "%v is told %d times", p, times)
	}
	deaf := latest.Before(made.Add(10 * time.Second)) // who speaks says something every 15 s
	s.wrong(!complete && !left && !silent && !gaps && !deaf && once, "of the decisions %v there are %v alone, and nothing says why", want, decisions)
}
