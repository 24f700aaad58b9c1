package server

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"google.golang.org/protobuf/types/known/durationpb"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// slotService answers govnode.v1.SlotService; its pools are in pools.go.
type slotService struct{ *Server }

// pool checks the name of a pool that was put. The pools of policies belong to
// their calls.
func (f *fields) pool(field, name string) {
	f.id(field, name)
	if strings.HasPrefix(name, session.PolicyPool("")) {
		f.refuse(field, "begins with policy/, which is reserved for the pools of policies; choose another name")
	}
}

// AcquireSlot takes a slot, or waits for one.
func (s slotService) AcquireSlot(ctx context.Context, req *v1.AcquireSlotRequest) (*v1.AcquireSlotResponse, error) {
	a, err := s.newAcquire(ctx, traceOf(ctx), &fields{}, req)
	if err != nil {
		return nil, err
	}
	if err := s.order(ctx, a); err != nil {
		return nil, err
	}
	if a.answer.Result.Code == session.Queued {
		if err := s.wait(ctx, a.waiting()); err != nil {
			return nil, err
		}
	}
	return a.response()
}

// An acquire is one AcquireSlot on its way.
type acquire struct {
	*trace
	s      *Server
	cmd    *session.Acquire
	answer storage.Answer
}

func (s *Server) newAcquire(ctx context.Context, t *trace, f *fields, req *v1.AcquireSlotRequest) (*acquire, error) {
	f.pool("pool", req.Pool)
	s.newID(f, "slotId", req.SlotId)
	f.text("label", req.Label, caps.Label)
	cmd := &session.Acquire{
		NS: namespace(ctx), Client: f.client(req.Client), Slot: req.SlotId, Pool: req.Pool, Label: req.Label,
		Weight:   int32(f.number("weight", int64(req.Weight), caps.Weight)),
		TTL:      f.duration("ttl", req.Ttl, caps.TTL),
		MaxHold:  f.duration("maxHold", req.MaxHold, caps.MaxHold),
		Wait:     f.duration("wait", req.Wait, caps.Wait),
		Priority: int32(f.number("priority", int64(req.Priority), caps.Priority)),
	}
	if f.err != nil {
		return nil, f.err
	}
	cmd.Content = acquireContent(req)
	return &acquire{trace: t, s: s, cmd: cmd}, nil
}

func (a *acquire) commands() []session.Command { return []session.Command{a.cmd} }

func (a *acquire) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	a.answer = answers[0]
	if a.answer.Outcome != storage.Applied {
		return false, answerError(&a.answer)
	}
	return false, a.failure()
}

// failure returns the error of a result that is no answer.
func (a *acquire) failure() error {
	res := &a.answer.Result
	switch {
	case res.Code == session.NotFound:
		return notFound("pool", "there is no pool %q; make it with PutPool", a.cmd.Pool)
	case res.Code == session.Invalid:
		return invalid("weight", "is %d, and the pool %q has %d slots; ask for less", a.cmd.Weight, a.cmd.Pool, res.Limit)
	case res.Code.Failure():
		return failure(res, fmt.Sprintf("slotId %q of client %q", a.cmd.Slot, a.cmd.Client))
	}
	return nil
}

func (a *acquire) waiting() *wait {
	c := a.cmd
	return &wait{
		ns: c.NS, pool: session.PoolKey(c.NS, c.Pool), answer: &a.answer,
		holder: holderName(session.KindClient, c.Client, c.Slot), claim: c, length: c.Wait,
		renew:  &session.Renew{NS: c.NS, Client: c.Client, ID: c.Slot, Pools: []string{c.Pool}, TTL: caps.TTL.Default},
		cancel: &session.Cancel{NS: c.NS, Client: c.Client, Call: c.Slot, Pools: []string{c.Pool}},
	}
}

func (a *acquire) response() (*v1.AcquireSlotResponse, error) {
	if err := a.failure(); err != nil {
		return nil, err
	}
	res := &a.answer.Result
	out := &v1.AcquireSlotResponse{
		Outcome: outcomes[res.Code], Pressure: pressureOf(res.Pressure), Queue: placeOf(res.Queue),
		RetryAfter: someDuration(res.RetryAfter), Index: a.answer.Index,
	}
	if len(res.Grants) > 0 {
		out.Token, out.Ttl = res.Grants[0].Token, durationpb.New(res.Grants[0].TTL)
	}
	out.Reason = slotReasons[res.Code]
	a.s.metrics.slotOutcome(out.Outcome)
	return out, nil
}

// slotReasons are the words of a refused slot. The limit is left to pressure,
// since a repeat does not remember it.
var slotReasons = map[session.Code]string{
	session.ConcurrencyLimit: "Max concurrency of the pool reached",
	session.QueueFull:        "Max concurrency of the pool reached, and its queue is full",
	session.WaitTimeout:      "No slot became free while the request waited",
	session.WaitCancelled:    "The wait was given up by its caller",
	session.LeaseLost:        "The lease of this slot ran out, or its pool was deleted",
	session.AlreadyEnded:     "This slot was released; take a new slotId for a new slot",
}

// RenewSlots renews everything that a process holds.
func (s slotService) RenewSlots(ctx context.Context, req *v1.RenewSlotsRequest) (*v1.RenewSlotsResponse, error) {
	r, err := s.newRenewal(ctx, traceOf(ctx), &fields{}, req)
	if err != nil {
		return nil, err
	}
	if err := s.order(ctx, r); err != nil {
		return nil, err
	}
	return r.out, nil
}

// A renewal is one RenewSlots on its way; every slot has a command of its own.
type renewal struct {
	*trace
	cmds []*session.Renew
	open []int // which of cmds have no answer yet
	out  *v1.RenewSlotsResponse
}

func (s *Server) newRenewal(ctx context.Context, t *trace, f *fields, req *v1.RenewSlotsRequest) (*renewal, error) {
	client := f.client(req.Client)
	ttl := f.duration("ttl", req.Ttl, caps.TTL)
	f.count("slots", len(req.Slots), caps.Renewals)
	if f.err != nil {
		return nil, f.err
	}
	r := &renewal{trace: t, out: &v1.RenewSlotsResponse{Results: make([]*v1.SlotRenewal, len(req.Slots))}}
	for i, slot := range req.Slots {
		in := f.at("slots", i)
		c, err := s.renewOne(ctx, in, client, slot)
		if err != nil {
			return nil, err
		}
		c.TTL = ttl
		r.cmds, r.open = append(r.cmds, c), append(r.open, i)
		r.out.Results[i] = &v1.SlotRenewal{Slot: slot, Outcome: v1.Outcome_OUTCOME_LEASE_EXPIRED}
	}
	return r, nil
}

func (s *Server) renewOne(ctx context.Context, f *fields, client string, slot *v1.SlotRef) (*session.Renew, error) {
	f.id("slotId", slot.GetSlotId())
	f.optionalID("sessionId", slot.GetSessionId())
	c := &session.Renew{NS: namespace(ctx), ID: slot.GetSlotId(), Token: slot.GetToken()}
	if slot.GetSessionId() == "" {
		f.pool("pool", slot.GetPool())
		c.Client, c.Pools = client, []string{slot.GetPool()}
		return c, f.err
	}
	if f.err != nil {
		return nil, f.err
	}
	c.Session = slot.GetSessionId()
	found, err := s.store.Get(ctx, session.SessionKey(c.NS, c.Session), storage.Nearby)
	if err != nil {
		return nil, readError(err)
	}
	if x, ok := found.Record.(*session.Session); ok && x != nil {
		c.Pools = callPools(x, c.ID)
	}
	return c, nil
}

func (r *renewal) commands() []session.Command {
	cmds := make([]session.Command, len(r.open))
	for n, i := range r.open {
		cmds[n] = r.cmds[i]
	}
	return cmds
}

func (r *renewal) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	var open []int
	for n, i := range r.open {
		a := &answers[n]
		if a.Outcome != storage.Applied {
			return false, answerError(a)
		}
		r.out.Index = max(r.out.Index, a.Index)
		if a.Result.Code == session.StalePremise && r.cmds[i].Session != "" {
			r.cmds[i].Pools = a.Result.Pools
			open = append(open, i)
			continue
		}
		result := r.out.Results[i]
		if outcome, ok := outcomes[a.Result.Code]; ok {
			result.Outcome = outcome
		} // a slot of another pool is not held in the one named: LEASE_EXPIRED
		if a.Result.Code == session.Renewed && len(a.Result.Grants) > 0 {
			result.Ttl = durationpb.New(a.Result.Grants[0].TTL)
		}
	}
	r.open = open
	return len(open) > 0, nil
}

// ReleaseSlot gives a slot back.
func (s slotService) ReleaseSlot(ctx context.Context, req *v1.ReleaseSlotRequest) (*v1.ReleaseSlotResponse, error) {
	r, err := s.newRelease(ctx, traceOf(ctx), &fields{}, req)
	if err != nil {
		return nil, err
	}
	if err := s.order(ctx, r); err != nil {
		return nil, err
	}
	return r.response(), nil
}

// A release is one ReleaseSlot on its way.
type release struct {
	*trace
	s      *Server
	cmd    *session.Release
	answer storage.Answer
}

func (s *Server) newRelease(ctx context.Context, t *trace, f *fields, req *v1.ReleaseSlotRequest) (*release, error) {
	f.pool("pool", req.Pool)
	f.id("slotId", req.SlotId)
	cmd := &session.Release{NS: namespace(ctx), Client: f.client(req.Client), Slot: req.SlotId, Pool: req.Pool, Token: req.Token}
	return &release{trace: t, s: s, cmd: cmd}, f.err
}

func (r *release) commands() []session.Command { return []session.Command{r.cmd} }

func (r *release) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	r.answer = answers[0]
	res := &r.answer.Result
	switch {
	case r.answer.Outcome != storage.Applied:
		return false, answerError(&r.answer)
	case res.Code == session.NotFound || res.Code == session.StalePremise:
		return false, notFound("slotId", "client %q has no slot %q of the pool %q; check pool and client", r.cmd.Client, r.cmd.Slot, r.cmd.Pool)
	case res.Code.Failure():
		return false, failure(res, fmt.Sprintf("slotId %q of client %q", r.cmd.Slot, r.cmd.Client))
	}
	return false, nil
}

func (r *release) response() *v1.ReleaseSlotResponse {
	out := &v1.ReleaseSlotResponse{Outcome: outcomes[r.answer.Result.Code], Index: r.answer.Index}
	switch {
	case out.Outcome != v1.Outcome_OUTCOME_FENCED:
	case r.cmd.Token == 0:
		out.Reason = "no token is given, so nothing was released; send the one with which the slot was granted: the slot may have another holder by now"
	default:
		out.Reason = "token " + strconv.FormatUint(r.cmd.Token, 10) + " is not the one under which the slot is held, so nothing was released"
	}
	r.s.metrics.slotOutcome(out.Outcome)
	return out
}

// ForceRelease frees a slot that its holder does not give back. What was not
// held is an outcome, so that an operator can be sure that it is free.
func (s slotService) ForceRelease(ctx context.Context, req *v1.ForceReleaseRequest) (*v1.ForceReleaseResponse, error) {
	f := &fields{}
	f.id("slotId", req.SlotId)
	f.optionalID("sessionId", req.SessionId)
	cmd := &session.ForceRelease{NS: namespace(ctx), By: s.maker(f, req.Client, req.RequestId, req), Session: req.SessionId, ID: req.SlotId}
	if req.SessionId == "" {
		f.pool("pool", req.Pool)
		cmd.Holder, cmd.Pools = f.clientNamed("holderClient", req.HolderClient), []string{req.Pool}
	} else if req.HolderClient != "" {
		f.refuse("holderClient", "is given beside sessionId; the slot of a call is held by its session")
	}
	if f.err != nil {
		return nil, f.err
	}
	if req.SessionId != "" {
		found, err := s.store.Get(ctx, session.SessionKey(cmd.NS, req.SessionId), storage.Nearby)
		if err != nil {
			return nil, readError(err)
		}
		if x, ok := found.Record.(*session.Session); ok && x != nil {
			cmd.Pools = callPools(x, req.SlotId)
		}
	}
	o := &forced{trace: traceOf(ctx), cmd: cmd}
	if err := s.order(ctx, o); err != nil {
		return nil, err
	}
	s.audit.forced(o.trace, cmd, o.out.Outcome)
	return o.out, nil
}

// A forced is one ForceRelease on its way.
type forced struct {
	*trace
	cmd *session.ForceRelease
	out *v1.ForceReleaseResponse
}

func (o *forced) commands() []session.Command { return []session.Command{o.cmd} }

func (o *forced) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	res := &answers[0].Result
	o.out = &v1.ForceReleaseResponse{Outcome: v1.Outcome_OUTCOME_RELEASED, Index: answers[0].Index}
	switch {
	case answers[0].Outcome != storage.Applied:
		return false, answerError(&answers[0])
	case res.Code == session.StalePremise && o.cmd.Session != "":
		o.cmd.Pools = res.Pools
		return true, nil
	case res.Code == session.NotFound || res.Code == session.StalePremise:
		o.out.Outcome = v1.Outcome_OUTCOME_NOT_FOUND
		return false, nil
	case res.Code.Failure():
		return false, failure(res, fmt.Sprintf("requestId %q of client %q", o.cmd.By.Request, o.cmd.By.Client))
	}
	return false, nil
}
