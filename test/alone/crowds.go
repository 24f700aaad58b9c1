package alone

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
)

// What is done to many at once is done to all of them, however many the service takes in
// one go.

// A crowd is many sessions of a namespace of its own, or among others where people are known
// by what they show.
type crowd struct {
	*script
	namespace string
	at        []*node // at which each asks that asks beside others
}

func (s *script) crowd() *crowd {
	c := &crowd{script: s}
	if !s.known {
		c.namespace = s.own
	}
	for range 64 {
		c.at = append(c.at, s.nodes[s.rng.IntN(len(s.nodes))])
	}
	return c
}

func (c *crowd) in(ctx context.Context) context.Context {
	if c.namespace == "" {
		return ctx
	}
	ctx, info := connect.NewClientContext(ctx)
	info.RequestHeader().Set("Govnode-Namespace", c.namespace)
	return ctx
}

// each asks for each of n things, many of them at once, and again where nobody answers. The
// script is over if one of them has no answer in the end.
func (c *crowd) each(step string, n int, ask func(ctx context.Context, n *node, i int) error) {
	if c.over {
		return
	}
	c.last = step
	next, reasons, without := make(chan int), make([]string, n), make([]bool, n)
	var under sync.WaitGroup
	for range 16 {
		under.Go(func() {
			for i := range next {
				without[i] = true
				for try := 0; try < asks && without[i] && c.ctx.Err() == nil; try++ {
					ctx, cancel := context.WithTimeout(c.ctx, 3*time.Second)
					err := ask(c.in(ctx), c.at[(i+try)%len(c.at)], i)
					cancel()
					if err == nil {
						without[i] = false
					} else if reasons[i] = refused(err); reasons[i] != "" || strings.Contains(err.Error(), "as many signals stand") {
						reasons[i] = cmp.Or(reasons[i], err.Error())
						without[i] = false
					} else {
						select {
						case <-c.ctx.Done():
						case <-time.After(100 * time.Millisecond):
						}
					}
				}
			}
		})
	}
	for i := range n {
		next <- i
	}
	close(next)
	under.Wait()
	if slices.Contains(without, true) {
		c.over = true
		return
	}
	c.steps += n
	for i, reason := range reasons {
		c.wrong(reason != "", "number %d is refused: %s", i, reason)
	}
}

// all sends operations together, until each has an answer or is refused for a reason.
func (c *crowd) all(step string, ops []*v1.Operation) []*v1.OperationResult {
	for range asks {
		res, ok := done(c.script, step, func(ctx context.Context, n *node) (*v1.BatchCallsResponse, error) {
			return n.calls.BatchCalls(c.in(ctx), &v1.BatchCallsRequest{Operations: ops})
		})
		if !ok {
			return nil
		}
		if c.wrong(len(res.Results) != len(ops), "%d operations have %d results", len(ops), len(res.Results)); c.over {
			return nil
		}
		if !slices.ContainsFunc(res.Results, func(r *v1.OperationResult) bool {
			return r.GetError() != nil && slices.Contains([]string{"", "NOT_APPLIED", "OUTCOME_UNKNOWN", "STALE_ID", "OVERLOADED", "QUOTA_EXCEEDED"}, r.GetError().Reason)
		}) {
			return res.Results
		}
		c.pause(200 * time.Millisecond)
	}
	c.over = true
	return nil
}

// begins begins a call of each session, and holds what is answered to what has to come of it.
func (c *crowd) begins(sessions []string, want v1.Outcome, signal string) (calls []string) {
	var ops []*v1.Operation
	for _, session := range sessions {
		req := c.call("one")
		req.SessionId = session
		ops, calls = append(ops, &v1.Operation{Op: &v1.Operation_Begin{Begin: req}}), append(calls, req.CallId)
	}
	for i, r := range c.all(fmt.Sprintf("begin %d", len(ops)), ops) {
		b := r.GetBegin()
		c.wrong(b == nil || b.Outcome != want || b.Signal.GetSignal() != signal, "number %d of %d, of %s, is %v, want %v and the signal %q", i, len(ops), sessions[i], r, want, signal)
	}
	return calls
}

// open makes sessions of an agent and a policy.
func (c *crowd) open(ids []string, agent, policy func(id string) string) {
	c.each(fmt.Sprintf("create %d sessions", len(ids)), len(ids), func(ctx context.Context, n *node, i int) error {
		_, err := n.sessions.CreateSession(ctx, &v1.CreateSessionRequest{
			SessionId: ids[i], AgentId: agent(ids[i]), Policy: &v1.PolicyRef{Ref: &v1.PolicyRef_Name{Name: policy(ids[i])}}, IdleTtl: durationpb.New(time.Hour),
		})
		return err
	})
}

func (c *crowd) put(name, text string) {
	req := &v1.PutPolicyRequest{Yaml: "name: " + name + "\n" + text, RequestId: c.id(), Client: c.own}
	done(c.script, "put a policy there", func(ctx context.Context, n *node) (*v1.PutPolicyResponse, error) {
		return n.policies.PutPolicy(c.in(ctx), req)
	})
}

// signal sends a signal for many.
func (c *crowd) signal(signal string, target *v1.SignalRequest) (*v1.SignalResponse, string) {
	req := &v1.SignalRequest{Target: target.Target, Signal: signal, Reason: "all of you", RequestId: c.id(), Client: c.own}
	res, reason, _ := told(c.script, "send "+signal, func(ctx context.Context, n *node) (*v1.SignalResponse, error) {
		return n.sessions.Signal(c.in(ctx), req)
	})
	return res, reason
}

// signals reads all signals there are, by their targets.
func (c *crowd) signals(size int32) (all []*v1.Signal) {
	found(c.script, "list signals there", func(ctx context.Context, n *node, token string) ([]*v1.Signal, string, error) {
		res, err := n.sessions.ListSignals(c.in(ctx), &v1.ListSignalsRequest{PageSize: size, PageToken: token})
		return res.GetSignals(), res.GetNextPageToken(), err
	}, func(x *v1.Signal) bool { all = append(all, x); return true })
	return all
}

// sessionsOf reads the sessions of an agent, by their ids.
func (c *crowd) sessionsOf(agent string, size int32) map[string]*v1.Session {
	all := map[string]*v1.Session{}
	found(c.script, fmt.Sprintf("list sessions by %d", size), func(ctx context.Context, n *node, token string) ([]*v1.Session, string, error) {
		res, err := n.sessions.ListSessions(c.in(ctx), &v1.ListSessionsRequest{AgentId: agent, PageSize: size, PageToken: token})
		return res.GetSessions(), res.GetNextPageToken(), err
	}, func(x *v1.Session) bool {
		c.wrong(all[x.SessionId] != nil, "%s is listed twice", x.SessionId)
		all[x.SessionId] = x
		return true
	})
	return all
}

func (c *crowd) inUse(pool string) int32 {
	res, _ := done(c.script, "get the pool", func(ctx context.Context, n *node) (*v1.GetPoolResponse, error) {
		return n.slots.GetPool(c.in(ctx), &v1.GetPoolRequest{Pool: pool})
	})
	return res.GetPool().GetInUse()
}

// ends ends calls that were taken from their sessions.
func (c *crowd) ends(sessions, calls []string, signal string) {
	var ops []*v1.Operation
	for i, id := range calls {
		ops = append(ops, &v1.Operation{Op: &v1.Operation_End{End: &v1.EndCallRequest{SessionId: sessions[i], CallId: id, Status: v1.Status_STATUS_SUCCEEDED}}})
	}
	for i, r := range c.all(fmt.Sprintf("end %d", len(ops)), ops) {
		e := r.GetEnd()
		c.wrong(e == nil || e.Outcome != v1.Outcome_OUTCOME_LEASE_LOST || e.Signal.GetSignal() != signal, "number %d of %d, of %s, is %v", i, len(ops), sessions[i], r)
	}
}

// crowdSizes are just below, at and above what a sweep takes in one go, once and twice.
var crowdSizes = []int{127, 128, 129, 129, 129, 150, 256, 257}

func (c *crowd) ids(n int) (ids []string) {
	for i := range n {
		ids = append(ids, fmt.Sprintf("%s-%03d", c.own, i))
	}
	return ids
}

// swept kills many sessions at once, each with a call, between others that are not meant.
// When it is swept, all of them are closed, and stay so when it is lifted.
func swept(s *script) {
	c := s.crowd()
	n := crowdSizes[s.rng.IntN(len(crowdSizes))]
	beside := s.own + "-beside"
	for _, name := range []string{s.own, beside} {
		c.put(name, "max_tool_calls: 100\nmax_concurrent: 500\n")
	}
	const everything = 2
	scope := s.rng.IntN(3)
	if s.known {
		scope = s.rng.IntN(2)
	}
	target := []*v1.SignalRequest{
		{Target: &v1.SignalRequest_AgentId{AgentId: s.own}}, {Target: &v1.SignalRequest_PolicyName{PolicyName: s.own}}, {Target: &v1.SignalRequest_Everything{Everything: true}},
	}[scope]
	ids := c.ids(n)
	others := []string{s.own + "-", ids[n/2] + "-other", ids[n-1] + "-other"}
	if scope == everything {
		others = nil
	}
	of := func(least int) func(string) string {
		return func(id string) string {
			if scope == least && slices.Contains(others, id) {
				return beside
			}
			return s.own
		}
	}
	agent, policy := of(0), of(1)
	c.open(append(slices.Clone(ids), others...), agent, policy)
	calls := c.begins(append(slices.Clone(ids), others...), v1.Outcome_OUTCOME_ADMITTED, "")
	if s.over {
		return
	}
	res, reason := c.signal("KILL", target)
	if s.wrong(reason != "", "it is refused: %s", reason); s.over {
		return
	}
	s.wrong(res.Signal.GetSignal() != "KILL" || res.Closed < 0 || int(res.Closed) > n || res.Released != res.Closed, "what stands is %v", res)
	c.begins(ids, v1.Outcome_OUTCOME_SESSION_CLOSED, "KILL") // from its answer on nothing is admitted
	for tries := 0; !s.over && !res.GetSignal().GetSwept(); tries++ {
		if all := c.signals(100); !s.over {
			i := slices.IndexFunc(all, func(x *v1.Signal) bool {
				return x.GetAgentId() == s.own || x.GetPolicyName() == s.own || x.GetEverything() && c.namespace != ""
			})
			if s.wrong(i < 0 || all[max(i, 0)].Signal != "KILL", "signals are %v", all); s.over {
				return
			}
			if all[i].Swept {
				break
			}
		}
		if tries == 4*asks {
			s.over = true // it is not swept
			return
		}
		s.pause(300 * time.Millisecond)
	}
	got := c.sessionsOf(s.own, []int32{127, 128, 129, 1000}[s.rng.IntN(4)])
	if s.over {
		return
	}
	s.last = fmt.Sprintf("list what is killed of %d", n)
	for i, id := range ids {
		x := got[id]
		s.wrong(x.GetState() != v1.SessionState_SESSION_STATE_CLOSED || len(x.OpenCalls) > 0 || x.Executions != 1 || x.ClosedReason != "killed: all of you",
			"it is swept, and number %d of %d is %v", i, n, x)
	}
	for _, id := range others {
		if agent(id) == s.own {
			x := got[id]
			s.wrong(x.GetState() != v1.SessionState_SESSION_STATE_OPEN || len(x.OpenCalls) != 1, "one that is not meant is %v", x)
		}
	}
	open := c.inUse("policy/" + s.own)
	s.wrong(!s.over && int(open) != len(others)*(1-scope%2), "it is swept, and %d slots are in use", open)
	c.ends(ids, calls[:n], "KILL")
	if _, reason := c.signal("CONTINUE", target); !s.over {
		same(s, "the reason", reason, "")
	}
	c.begins(ids, v1.Outcome_OUTCOME_SESSION_CLOSED, "KILL") // what was closed stays closed
	c.open([]string{s.own + "-new"}, agent, policy)
	c.begins(append(others, s.own+"-new"), v1.Outcome_OUTCOME_ADMITTED, "")
}

// crowded closes a session with many open calls: all their slots are free.
func crowded(s *script) {
	c := s.crowd()
	n := []int{64, 65, 128, 129, 129, 257, 1024}[s.rng.IntN(7)] // the last is as many as may be
	c.put(s.own, "max_attempts: 2000\nmax_tool_calls: 2000\nmax_concurrent: 2000\n")
	self := func(string) string { return s.own }
	c.open([]string{s.own}, self, self)
	sessions := slices.Repeat([]string{s.own}, n)
	calls := c.begins(sessions, v1.Outcome_OUTCOME_ADMITTED, "")
	if s.over {
		return
	}
	if n == 1024 {
		more := s.call("one")
		for _, r := range c.all("begin one more", []*v1.Operation{{Op: &v1.Operation_Begin{Begin: more}}}) {
			same(s, "the reason", r.GetError().GetReason(), "TOO_MANY_OPEN")
		}
	}
	res, ok := done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(c.in(ctx), &v1.GetSessionRequest{SessionId: s.own})
	})
	s.wrong(ok && len(res.Session.OpenCalls) != n, "%d calls are open of %d", len(res.GetSession().GetOpenCalls()), n)
	if open := c.inUse("policy/" + s.own); !s.over {
		same(s, "slots in use", int(open), n)
	}
	signal := ""
	var released int32
	if s.rng.IntN(2) == 0 {
		signal = "KILL"
		res, reason := c.signal("KILL", &v1.SignalRequest{Target: &v1.SignalRequest_SessionId{SessionId: s.own}})
		if s.wrong(reason != "" || !res.GetSignal().GetSwept(), "it is refused, or not done when it is answered: %s %v", reason, res); s.over {
			return
		}
		// None, and no slots, where it was asked for again, if only between nodes.
		s.wrong(res.Closed != 1 && res.Closed != 0, "%d sessions are closed", res.Closed)
		released = res.Released
	} else {
		res, ok := done(s, "close the session", func(ctx context.Context, n *node) (*v1.CloseSessionResponse, error) {
			return n.sessions.CloseSession(c.in(ctx), &v1.CloseSessionRequest{SessionId: s.own})
		})
		if !ok {
			return
		}
		released = res.Released
	}
	s.wrong(int(released) != n && released != 0, "%d slots of %d are freed", released, n)
	if open := c.inUse("policy/" + s.own); !s.over {
		same(s, "slots in use", open, 0)
	}
	res, ok = done(s, "get the session", func(ctx context.Context, n *node) (*v1.GetSessionResponse, error) {
		return n.sessions.GetSession(c.in(ctx), &v1.GetSessionRequest{SessionId: s.own})
	})
	if ok {
		x := res.Session
		s.wrong(x.State != v1.SessionState_SESSION_STATE_CLOSED || len(x.OpenCalls) > 0 || int(x.Executions) != n, "of %d calls the session is %.300v", n, x)
	}
	c.ends(sessions, calls, signal)
	c.begins([]string{s.own}, v1.Outcome_OUTCOME_SESSION_CLOSED, signal)
}

// stopped stops many sessions one by one, and many agents: each stands, is listed once, and
// is lifted.
func stopped(s *script) {
	c := s.crowd()
	n := []int{100, 101, 129}[s.rng.IntN(3)]
	c.put(s.own, "max_tool_calls: 100\nmax_concurrent: 500\n")
	self := func(string) string { return s.own }
	ids := c.ids(n)
	c.open(ids, self, self)
	requests := func() (ids []string) {
		for range n {
			ids = append(ids, s.id())
		}
		return ids
	}
	each := func(signal string, target func(req *v1.SignalRequest, i int)) {
		request := requests()
		c.each(fmt.Sprintf("send %d %s", n, signal), n, func(ctx context.Context, n *node, i int) error {
			req := &v1.SignalRequest{Signal: signal, Reason: "each", RequestId: request[i], Client: s.own}
			target(req, i)
			_, err := n.sessions.Signal(ctx, req)
			return err
		})
	}
	list := func(want int) {
		got := map[string]int{}
		for _, x := range c.signals([]int32{0, 99, 128, 1000}[s.rng.IntN(4)]) {
			if id := x.GetSessionId() + x.GetAgentId(); strings.HasPrefix(id, s.own) {
				got[id]++
				s.wrong(got[id] > 1 || x.Signal != "STOP" || x.Reason != "each", "listed %d times is %v", got[id], x)
			}
		}
		s.wrong(!s.over && len(got) != want, "%d signals of %d are listed", len(got), want)
	}
	session := func(req *v1.SignalRequest, i int) { req.Target = &v1.SignalRequest_SessionId{SessionId: ids[i]} }
	each("STOP", session)
	list(n)
	c.begins(ids, v1.Outcome_OUTCOME_STOPPED, "STOP")
	each("CONTINUE", session)
	list(0)
	c.begins(ids, v1.Outcome_OUTCOME_ADMITTED, "")
	if s.over || c.namespace == "" { // where others' stand as well
		return
	}
	if n = 128; s.rng.IntN(3) == 0 {
		n = 256 // as many as may
	}
	ids = c.ids(n)
	agent := func(req *v1.SignalRequest, i int) { req.Target = &v1.SignalRequest_AgentId{AgentId: ids[i]} }
	each("STOP", agent)
	list(n)
	each("CONTINUE", agent)
	list(0)
}
