package server

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/approvals"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// BeginCall, once it was put in order: what is judged again, how it waits, and what it is answered.

// take looks at the answer. Where what the verdict rests on no longer holds, it
// judges again on what holds now.
func (b *begin) take(ctx context.Context, answers []storage.Answer) (again bool, err error) {
	if !b.stale(answers) {
		b.findApproval(ctx)
		return false, nil
	}
	if b.another() {
		if err := b.load(ctx, storage.Latest, nil); err != nil {
			return false, err
		}
		if err := b.beside(ctx, storage.Latest); err != nil {
			return false, err
		}
		return true, b.judge(ctx)
	}
	if b.parked != nil { // nothing else is in the way of it
		b.answer.Result = session.Result{Code: session.ApprovalRequired, Approval: b.parked, Counters: b.session.Counters()}
		return false, nil
	}
	res := &b.answer.Result
	if res.Approval != nil { // it was asked about before, and its verdict asks no more
		next := *b.cmd
		next.Asked = true
		b.cmd = &next
		b.one[0] = b.cmd
		return true, nil
	}
	if len(res.Names) > 0 { // budgets are not where they were seen
		return true, b.charge(ctx, storage.Latest)
	}
	read := storage.Nearby
	if len(res.Facts) == 0 { // what this node has seen is not what holds
		read = storage.Latest
	}
	seen := b.cmd.Seen
	if err := b.load(ctx, read, nil); err != nil {
		return false, err
	}
	if err := b.beside(ctx, read); err != nil {
		return false, err
	}
	for i, v := range res.Facts {
		b.learn(seen[i], v)
	}
	return true, b.judge(ctx)
}

// findApproval finds by which approval a call was admitted that runs already. Without it
// the answer stands as well, and it is not worth losing for that.
func (b *begin) findApproval(ctx context.Context) {
	res := &b.answer.Result
	if res.Code != session.Admitted || !res.Repeat || res.Approval != nil || b.cmd.Asking == nil {
		return
	}
	b.approval, _ = approvals.Used(ctx, b.s.store, b.ns, session.ApprovalID(b.ns, b.cmd.Session, b.cmd.Call), b.session.Opened)
}

// failure is the error of an answer that is no outcome.
func (b *begin) failure(res *session.Result) error {
	switch {
	case len(res.Pools) > 0 && session.IsRate(res.Pools[0]) && res.Code == session.NotFound:
		return fault.NotFound("rates", "there is no rate %q; make it with PutRate", session.RateName(res.Pools[0]))
	case len(res.Pools) > 0 && session.IsRate(res.Pools[0]) && res.Code == session.Invalid:
		return fault.Invalid("rates", "the cost at %q is above its limit of %d; ask for less", session.RateName(res.Pools[0]), res.Limit)
	case res.Code == session.NotFound && len(res.Pools) > 0:
		return fault.NotFound("pools", "there is no pool %q; make it with PutPool", res.Pools[0])
	case res.Code == session.NotFound: // this node saw it, and it went since, for instance with a restore
		return fault.NotFound("sessionId", "there is no session %q any more; create it with CreateSession", b.req.SessionId)
	case res.Code == session.Invalid && len(res.Pools) > 0:
		return fault.Invalid("pools", "the weight for %q is above its %d slots; ask for less", res.Pools[0], res.Limit)
	}
	return fault.OfResult(res, fmt.Sprintf("callId %q of sessionId %q", b.req.CallId, b.req.SessionId))
}

// learn takes a fact over that the state machine has told.
func (b *begin) learn(p session.Premise, v int64) {
	switch p.Fact {
	case session.FactCalls:
		b.facts.CallCount = v
	case session.FactAttempts:
		b.facts.Attempts = v
	case session.FactTokens:
		b.facts.TokensUsed = v
	case session.FactActiveSlots:
		b.facts.ActiveSlots, b.inUse = v, true
	case session.FactElapsed:
		b.facts.Elapsed = time.Duration(v)
	case session.FactToolCalls:
		others := b.facts.ToolCalls
		b.facts.ToolCalls = func(tool string) int64 {
			if tool == p.Name {
				return v
			}
			return others(tool)
		}
	}
}

func (b *begin) hurry() { b.cmd.Wait, b.until = 0, time.Time{} }

func (b *begin) waiting() *waiting.Wait {
	if code := b.answer.Result.Code; code == session.Stopped || code == session.ApprovalRequired {
		b.tellAsked()
		return b.held()
	}
	if b.answer.Result.Code != session.Queued {
		return nil
	}
	b.queued = true
	return &waiting.Wait{
		NS: b.ns, Pool: session.PoolKey(b.ns, b.answer.Result.Queue.Pool), Answer: b.ownAnswer(),
		Holder: words.HolderName(session.KindSession, b.cmd.Session, b.cmd.Call), Claim: b.cmd, Length: b.cmd.Wait,
		Renew: &session.Renew{
			NS: b.ns, Session: b.cmd.Session, ID: b.cmd.Call, Pools: poolNames(b.cmd), TTL: input.Caps.TTL.Default, Opened: b.cmd.Opened,
		},
		Cancel: &session.Cancel{NS: b.ns, Session: b.cmd.Session, Call: b.cmd.Call, Pools: poolNames(b.cmd), Opened: b.cmd.Opened},
	}
}

// commands is the one command. Once something has kept it out it asks for what is
// left of its wait.
func (b *begin) commands() []session.Command {
	if b.heldUp {
		next := *b.cmd // the other may still be on its way
		next.Wait = max(time.Until(b.until), 0)
		b.cmd = &next
		b.one[0] = b.cmd
	}
	return b.one[:]
}

// held describes the wait of a call that a STOP keeps out, or about which people
// are asked: nothing of the wait is stored, so that the call is sent again when that
// is over. Nil once nothing is left of its wait.
func (b *begin) held() *waiting.Wait {
	b.heldUp = true
	left := time.Until(b.until)
	if left <= 0 {
		return nil
	}
	if b.ownAnswer(); b.answer.Result.Code == session.ApprovalRequired {
		return &waiting.Wait{NS: b.ns, Length: left, Held: approvals.Pending(session.ApprovalKey(b.ns, b.answer.Result.Approval.ID))}
	}
	h := b.answer.Result.Signal
	k, stands := session.SignalsKey(b.ns), func(r session.Record) bool {
		x, _ := r.(*session.Signals)
		return x != nil && stops(x.HaltOf(b.session.Agent.Value(), b.session.Policy.Value()))
	}
	if h.Target.Scope == session.OfSession {
		k, stands = session.SessionKey(b.ns, b.cmd.Session), func(r session.Record) bool {
			x, _ := r.(*session.Session)
			return x != nil && x.Phase == session.PhaseOpen && stops(x.Halt(b.cmd.Session))
		}
	}
	return &waiting.Wait{NS: b.ns, Length: left, Held: &waiting.Held{For: "a STOP keeps the call out", Key: k, Stands: stands}}
}

// stops reports whether a signal is one that ends without what it is for.
func stops(h *session.Halt) bool { return h != nil && h.Signal == session.Stop }

// poolNames are the pools and rates at which a call may wait.
func poolNames(c *session.Begin) []string {
	names := make([]string, 0, len(c.Pools)+len(c.Rates))
	for i := range c.Pools {
		names = append(names, c.Pools[i].Pool)
	}
	for i := range c.Rates {
		names = append(names, c.Rates[i].Pool)
	}
	return names
}

func (b *begin) queue() {
	res := &b.answer.Result
	b.out = &v1.BeginCallResponse{
		Outcome: v1.Outcome_OUTCOME_QUEUED, Signal: words.SignalOf(res.Signal, 0), DecisionId: words.DecisionID(b.s.store, b.ns, b.cmd.Session, b.cmd.Call),
		Approval: words.ApprovalOf(res.Approval),
		Counters: words.CountersOf(res.Counters), Queue: words.PlaceOf(res.Queue), Index: b.answer.Index,
	}
}

// respond says what came of the call, and writes it into the audit.
func (b *begin) respond() error {
	res := &b.answer.Result
	if res.Code.Failure() {
		return b.failure(res)
	}
	a := &beginAnswer{}
	out := &a.out
	out.Outcome, out.DecisionId, out.Index = words.Outcomes[res.Code], words.DecisionID(b.s.store, b.ns, b.cmd.Session, b.cmd.Call), b.answer.Index
	out.Grants, out.Pressure, out.Counters = a.grantsOf(res.Grants), words.PressureOf(res.Pressure), &a.counters
	out.RetryAfter, out.Queue = words.SomeDuration(res.RetryAfter), words.PlaceOf(res.Queue)
	words.SetCounters(&a.counters, res.Counters)
	if res.Code == session.BudgetExceeded && len(res.Budgets) > 0 {
		out.Budget = &v1.BudgetAmount{Budget: res.Budgets[0].Budget, Amount: input.FormatDecimal(res.Budgets[0].Left())}
	}
	out.Signal, out.Approval = words.SignalOf(res.Signal, 0), words.ApprovalOf(cmp.Or(res.Approval, b.approval))
	out.Decision = b.said(res, a)
	if !out.Decision.Allowed {
		out.Reason = out.Decision.Reason
	}
	if res.Code == session.RateLimited {
		out.Rate = session.RateName(res.Pools[0])
	}
	if out.Decision.Allowed && res.Rule == ruleModified {
		if out.ModifiedArguments = b.modified; b.modified == nil {
			return errModifiedBefore(fmt.Sprintf("callId %q of sessionId %q", b.req.CallId, b.req.SessionId))
		}
	}
	out.Reviews = res.Code == session.Admitted && b.policy.WantsOutput(b.input)
	b.s.audit.call(b, out)
	b.tellAsked()
	b.s.audit.budgets(b.ns, engine.Input{AgentID: b.input.AgentID, SessionID: b.cmd.Session, CallID: b.cmd.Call}, res)
	b.s.metrics.outcome(out.Outcome)
	b.out = out
	return nil
}

// A beginAnswer holds the messages of one answer, so that they are allocated
// together.
type beginAnswer struct {
	out        v1.BeginCallResponse
	decision   v1.Decision
	evaluation durationpb.Duration
	counters   v1.Counters
	grants     [2]v1.Grant
	ttls       [2]durationpb.Duration
	list       [2]*v1.Grant
}

func (a *beginAnswer) grantsOf(grants []session.Grant) []*v1.Grant {
	if len(grants) > len(a.grants) {
		return words.GrantsOf(grants)
	}
	for i, g := range grants {
		to := &a.grants[i]
		to.Pool, to.Token, to.Ttl = g.Pool, g.Token, words.SetDuration(&a.ttls[i], g.TTL)
		a.list[i] = to
	}
	return a.list[:len(grants)]
}

// failed writes a decision into the audit that was reached and not spent.
func (b *begin) failed(err error) { b.s.audit.failedCall(b, err) }

func (b *begin) size() int {
	if b.req.Arguments != nil || b.req.Context != nil || len(b.req.Metadata) > 0 {
		return bareSize + proto.Size(b.req)
	}
	return bareSize + len(b.req.ArgumentsJson) + len(b.req.ContextJson) + len(b.req.MetadataJson)
}

// beginContent names the content of a call without its wait: a waiter that asks
// again asks for the same call.
func beginContent(req *v1.BeginCallRequest) session.Digest {
	wait := req.Wait
	req.Wait = nil
	d := input.Content(req)
	req.Wait = wait
	return d
}

// errModifiedBefore answers the repeat of a call that was admitted with arguments
// that a guardrail had changed, where the guardrails do not give them again. To
// admit it with the old ones would be wrong, and to deny it untrue.
func errModifiedBefore(subject string) error {
	return fault.New(connect.CodeUnavailable, fault.ReasonOutcomeUnknown,
		subject+": it was admitted with arguments that a guardrail changed, and the guardrails do not give them again now; send it again with the same id, or end it with EndCall and begin another")
}

// errModified refuses a call whose arguments a guardrail has changed into what
// the answer cannot hold: to admit it with the old ones would be wrong.
func errModified(err error) error {
	return fault.New(connect.CodeFailedPrecondition, fault.ReasonInvalidField, "arguments: a guardrail changed them into what a Struct cannot hold: "+err.Error())
}
