package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/limits"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// slotService answers govnode.v1.SlotService; its pools are of package limits.
type slotService struct {
	*Server
	*limits.Service
}

// AcquireSlot takes a slot, or waits for one.
func (s slotService) AcquireSlot(ctx context.Context, req *v1.AcquireSlotRequest) (*v1.AcquireSlotResponse, error) {
	return unary(ctx, s.Server, &acquire{}, req)
}

// An acquire is one AcquireSlot on its way.
type acquire struct {
	request[v1.AcquireSlotRequest, v1.AcquireSlotResponse]
	cmd *session.Acquire
}

func (a *acquire) check(_ context.Context, f *input.Fields) error {
	req := a.req
	f.Pool("pool", req.Pool)
	f.NewID("slotId", req.SlotId, a.s.cfg.Now)
	f.Text("label", req.Label, input.Caps.Label)
	a.cmd = &session.Acquire{
		NS: a.ns, Client: f.Client(req.Client), Slot: req.SlotId, Pool: req.Pool, Label: req.Label,
		Weight:   int32(f.Number("weight", int64(req.Weight), input.Caps.Weight)),
		TTL:      f.Duration("ttl", req.Ttl, input.Caps.TTL),
		MaxHold:  f.Duration("maxHold", req.MaxHold, input.Caps.MaxHold),
		Wait:     f.Duration("wait", req.Wait, input.Caps.Wait),
		Priority: int32(f.Number("priority", int64(req.Priority), input.Caps.Priority)),
	}
	if f.Err != nil {
		return f.Err
	}
	a.cmd.Content = acquireContent(req)
	a.one[0] = a.cmd
	return nil
}

// judgeAgain leaves the command alone that may still be on its way.
func (a *acquire) judgeAgain(context.Context) error {
	next := *a.cmd
	a.cmd = &next
	a.one[0] = a.cmd
	return nil
}

func (a *acquire) hurry() { a.cmd.Wait = 0 }

func (a *acquire) waiting() *waiting.Wait {
	if a.answer.Result.Code != session.Queued {
		return nil
	}
	c := a.cmd
	return &waiting.Wait{
		NS: c.NS, Pool: session.PoolKey(c.NS, c.Pool), Answer: a.ownAnswer(),
		Holder: words.HolderName(session.KindClient, c.Client, c.Slot), Claim: c, Length: c.Wait,
		Renew:  &session.Renew{NS: c.NS, Client: c.Client, ID: c.Slot, Pools: []string{c.Pool}, TTL: input.Caps.TTL.Default},
		Cancel: &session.Cancel{NS: c.NS, Client: c.Client, Call: c.Slot, Pools: []string{c.Pool}},
	}
}

func (a *acquire) queue() {
	a.out = &v1.AcquireSlotResponse{Outcome: v1.Outcome_OUTCOME_QUEUED, Queue: words.PlaceOf(a.answer.Result.Queue), Index: a.answer.Index}
}

func (a *acquire) respond() error {
	res := &a.answer.Result
	switch {
	case res.Code == session.NotFound:
		return fault.NotFound("pool", "there is no pool %q; make it with PutPool", a.cmd.Pool)
	case res.Code == session.Invalid:
		return fault.Invalid("weight", "is %d, and the pool %q has %d slots; ask for less", a.cmd.Weight, a.cmd.Pool, res.Limit)
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("slotId %q of client %q", a.cmd.Slot, a.cmd.Client))
	}
	a.out = &v1.AcquireSlotResponse{
		Outcome: words.Outcomes[res.Code], Pressure: words.PressureOf(res.Pressure), Queue: words.PlaceOf(res.Queue),
		RetryAfter: words.SomeDuration(res.RetryAfter), Reason: slotReasons[res.Code], Index: a.answer.Index,
	}
	if len(res.Grants) > 0 {
		a.out.Token, a.out.Ttl = res.Grants[0].Token, durationpb.New(res.Grants[0].TTL)
	}
	a.s.metrics.slotOutcome(a.out.Outcome)
	return nil
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
	return unary(ctx, s.Server, &renewal{}, req)
}

// A renewal is one RenewSlots on its way; every slot has a command of its own.
type renewal struct {
	request[v1.RenewSlotsRequest, v1.RenewSlotsResponse]
	cmds    []*session.Renew // nil: of a session that is not there
	open    []int            // which of cmds have no answer yet
	secrets []string         // of the sessions of calls
	failure error            // of the first slot of which it is not known
}

func (r *renewal) check(ctx context.Context, f *input.Fields) error {
	client := f.Client(r.req.Client)
	ttl := f.Duration("ttl", r.req.Ttl, input.Caps.TTL)
	f.Count("slots", len(r.req.Slots), input.Caps.Renewals)
	if f.Err != nil {
		return f.Err
	}
	r.cmds, r.open, r.failure = nil, nil, nil
	if r.secrets == nil {
		r.secrets = make([]string, len(r.req.Slots))
	}
	r.out = &v1.RenewSlotsResponse{Results: make([]*v1.SlotRenewal, len(r.req.Slots))}
	look := ctx
	for i, slot := range r.req.Slots {
		at := f.At("slots", i)
		if slot != nil {
			secretOf(at, &slot.SessionToken, &r.secrets[i])
		}
		c, err := r.s.renewOne(look, at, client, slot, r.secrets[i])
		if errors.Is(err, order.ErrTakesLong) && r.failure != nil {
			err = r.failure
		}
		if err != nil && (at.Err != nil || errors.Is(err, order.ErrTakesLong)) {
			return err
		}
		if err != nil { // what is asked beyond this node may take all the time that the others have
			look = context.WithValue(ctx, order.QuickKey{}, true)
		}
		if c != nil {
			c.TTL = ttl
			r.open = append(r.open, i)
		}
		r.cmds = append(r.cmds, c)
		r.out.Results[i] = &v1.SlotRenewal{Slot: slot, Outcome: v1.Outcome_OUTCOME_LEASE_EXPIRED}
		if err != nil {
			r.unknown(i, err)
		}
	}
	return r.nothing()
}

// unknown leaves open what became of one slot: a record that cannot be read, or a change that
// was not applied, is no word about the others, and a process asks for all that it holds at
// once.
func (r *renewal) unknown(i int, err error) {
	r.out.Results[i].Outcome = v1.Outcome_OUTCOME_UNSPECIFIED
	r.failure = cmp.Or(r.failure, err)
}

// nothing is the error of a request that knows of none of its slots; nil if it does.
func (r *renewal) nothing() error {
	for _, x := range r.out.Results {
		if x.Outcome != v1.Outcome_OUTCOME_UNSPECIFIED {
			return nil
		}
	}
	return r.failure
}

func (*renewal) apart() bool { return true }

// renewOne is the command for one slot; nil for a call whose session is not there.
func (s *Server) renewOne(ctx context.Context, f *input.Fields, client string, slot *v1.SlotRef, secret string) (*session.Renew, error) {
	f.ID("slotId", slot.GetSlotId())
	f.OptionalID("sessionId", slot.GetSessionId())
	c := &session.Renew{NS: input.Namespace(ctx), ID: slot.GetSlotId(), Token: slot.GetToken()}
	if slot.GetSessionId() == "" {
		f.Pool("pool", slot.GetPool())
		c.Client, c.Pools = client, []string{slot.GetPool()}
		return c, f.Err
	}
	if f.Err != nil {
		return nil, f.Err
	}
	c.Session = slot.GetSessionId()
	return s.renewalOf(ctx, f, c, secret, storage.Nearby)
}

// renewalOf completes the command by what is known of the session of its call; nil where
// that is not there.
func (s *Server) renewalOf(ctx context.Context, f *input.Fields, c *session.Renew, secret string, read storage.Read) (*session.Renew, error) {
	found, err := s.sessionWith(ctx, c.NS, f, c.Session, secret, read)
	if err != nil {
		if fault.Of(err).Reason == fault.ReasonNotFound {
			return nil, nil
		}
		return nil, err
	}
	x := found.Record.(*session.Session)
	c.Pools, c.Opened = callPools(x, x.Find(c.ID)), x.Opened
	return c, nil
}

// poolsOf returns the pools in which a call of a session has slots, as far as this
// node has seen; none where it knows no such session.
func (s *Server) poolsOf(ctx context.Context, ns, sess, call string) ([]string, error) {
	found, err := s.store.Get(ctx, session.SessionKey(ns, sess), storage.Nearby)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	if x, ok := found.Record.(*session.Session); ok && x != nil {
		return callPools(x, x.Find(call)), nil
	}
	return nil, nil
}

// judge leaves out what is not there while the namespace owes for such: it keeps the answer
// that it has. Where nothing is left the request is refused.
func (r *renewal) judge(ctx context.Context) error {
	if len(r.open) == 0 {
		return nil
	}
	debt := r.s.quotas.Debt(ctx, r.ns)
	if debt.Wait == 0 {
		return nil
	}
	if order.Quick(ctx) {
		return order.ErrTakesLong
	}
	keys := make([]session.Key, len(r.open))
	for n, i := range r.open {
		if c := r.cmds[i]; c.Session != "" {
			keys[n] = session.SessionKey(c.NS, c.Session)
		} else {
			keys[n] = session.ClientKey(c.NS, c.Client)
		}
	}
	records, _, err := r.s.store.ReadAll(ctx, keys, storage.Latest)
	if err != nil {
		return err
	}
	held := make([]int, 0, len(r.open))
	for n, i := range r.open {
		if quota.Has(records[n], r.cmds[i]) {
			held = append(held, i)
		}
	}
	if r.open = held; len(held) == 0 {
		return debt.Refusal()
	}
	return nil
}

func (r *renewal) commands() []session.Command {
	cmds := make([]session.Command, len(r.open))
	for n, i := range r.open {
		cmds[n] = r.cmds[i]
	}
	return cmds
}

func (r *renewal) take(ctx context.Context, answers []storage.Answer) (again bool, err error) {
	var open []int
	for n, i := range r.open {
		a := &answers[n]
		r.out.Index = max(r.out.Index, a.Index)
		if a.Outcome != storage.Applied {
			r.unknown(i, fault.OfAnswer(a))
			continue
		}
		if a.Result.Code == session.StalePremise && r.cmds[i].Session != "" {
			r.cmds[i].Pools = a.Result.Pools
			open = append(open, i)
			continue
		}
		if a.Result.Code == session.StaleSession { // see request.another
			next := *r.cmds[i]
			if r.cmds[i], err = r.s.renewalOf(ctx, nil, &next, r.secrets[i], storage.Latest); err != nil {
				r.unknown(i, err)
			} else if r.cmds[i] != nil {
				open = append(open, i)
			}
			continue
		}
		result := r.out.Results[i]
		if outcome, ok := words.Outcomes[a.Result.Code]; ok {
			result.Outcome = outcome
		} // a slot of another pool is not held in the one named: LEASE_EXPIRED
		if a.Result.Code == session.Renewed && len(a.Result.Grants) > 0 {
			result.Ttl = durationpb.New(a.Result.Grants[0].TTL)
		}
	}
	r.open = open
	return len(open) > 0, r.nothing()
}

// respond adds what stands against the sessions of calls, each looked up once.
func (r *renewal) respond() error {
	seen := map[string]*v1.Signal{}
	for i, c := range r.cmds {
		if c == nil || c.Session == "" {
			continue
		}
		h, ok := seen[c.Session]
		if !ok {
			h = r.s.standing(context.Background(), r.ns, c.Session)
			seen[c.Session] = h
		}
		r.out.Results[i].Signal = h
	}
	return nil
}

func (r *renewal) size() int { return bareSize + proto.Size(r.req) }

// ReleaseSlot gives a slot back.
func (s slotService) ReleaseSlot(ctx context.Context, req *v1.ReleaseSlotRequest) (*v1.ReleaseSlotResponse, error) {
	return unary(ctx, s.Server, &release{}, req)
}

// A release is one ReleaseSlot on its way.
type release struct {
	request[v1.ReleaseSlotRequest, v1.ReleaseSlotResponse]
	cmd *session.Release
}

func (r *release) check(_ context.Context, f *input.Fields) error {
	req := r.req
	f.Pool("pool", req.Pool)
	f.ID("slotId", req.SlotId)
	r.cmd = &session.Release{NS: r.ns, Client: f.Client(req.Client), Slot: req.SlotId, Pool: req.Pool, Token: req.Token}
	r.one[0] = r.cmd
	return f.Err
}

func (r *release) respond() error {
	res := &r.answer.Result
	switch {
	case res.Code == session.NotFound || res.Code == session.StalePremise:
		return fault.NotFound("slotId", "client %q has no slot %q of the pool %q; check pool and client", r.cmd.Client, r.cmd.Slot, r.cmd.Pool)
	case res.Code.Failure():
		return fault.OfResult(res, fmt.Sprintf("slotId %q of client %q", r.cmd.Slot, r.cmd.Client))
	}
	r.out = &v1.ReleaseSlotResponse{Outcome: words.Outcomes[res.Code], Index: r.answer.Index}
	switch {
	case r.out.Outcome != v1.Outcome_OUTCOME_FENCED:
	case r.cmd.Token == 0:
		r.out.Reason = "no token is given, so nothing was released; send the one with which the slot was granted: the slot may have another holder by now"
	default:
		r.out.Reason = "token " + strconv.FormatUint(r.cmd.Token, 10) + " is not the one under which the slot is held, or somebody else took it, so nothing was released"
	}
	r.s.metrics.slotOutcome(r.out.Outcome)
	return nil
}

// ForceRelease frees a slot that its holder does not give back. What was not
// held is an outcome, so that an operator can be sure that it is free.
func (s slotService) ForceRelease(ctx context.Context, req *v1.ForceReleaseRequest) (*v1.ForceReleaseResponse, error) {
	return unary(ctx, s.Server, &forced{}, req)
}

// A forced is one ForceRelease on its way.
type forced struct {
	request[v1.ForceReleaseRequest, v1.ForceReleaseResponse]
	cmd *session.ForceRelease
}

func (o *forced) check(ctx context.Context, f *input.Fields) error {
	req := o.req
	f.ID("slotId", req.SlotId)
	f.OptionalID("sessionId", req.SessionId)
	o.cmd = &session.ForceRelease{NS: o.ns, By: f.Maker(req, o.s.cfg.Now), Session: req.SessionId, ID: req.SlotId}
	o.one[0] = o.cmd
	if req.SessionId == "" {
		f.Pool("pool", req.Pool)
		o.cmd.Holder, o.cmd.Pools = f.ClientNamed("holderClient", req.HolderClient), []string{req.Pool}
	} else if req.HolderClient != "" {
		f.Refuse("holderClient", "is given beside sessionId; the slot of a call is held by its session")
	}
	if f.Err != nil || req.SessionId == "" {
		return f.Err
	}
	hidden, err := o.s.store.Hidden(ctx, session.SessionKey(o.ns, req.SessionId))
	if err != nil {
		return err
	}
	if hidden { // it is ordered all the same, for nobody: so its id is answered as ever
		o.cmd.Session = o.s.cfg.NewID()
	}
	o.cmd.Pools, err = o.s.poolsOf(ctx, o.ns, req.SessionId, req.SlotId)
	return err
}

func (o *forced) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	if again = o.stale(answers) && o.cmd.Session != ""; again {
		o.cmd.Pools = o.answer.Result.Pools
	}
	return again, nil
}

func (o *forced) respond() error {
	res := &o.answer.Result
	o.out = &v1.ForceReleaseResponse{Outcome: v1.Outcome_OUTCOME_RELEASED, Index: o.answer.Index}
	switch {
	case res.Code == session.NotFound || res.Code == session.StalePremise:
		o.out.Outcome = v1.Outcome_OUTCOME_NOT_FOUND
	case res.Code.Failure():
		return order.RequestFailure(o.cmd.By)(res)
	}
	if o.answer.First() {
		told := *o.cmd
		told.Session = o.req.SessionId
		o.s.audit.forced(&o.trace, &told, o.out.Outcome)
	}
	return nil
}

func acquireContent(req *v1.AcquireSlotRequest) session.Fingerprint {
	wait := req.Wait
	req.Wait = nil
	p := input.Fingerprint(req)
	req.Wait = wait
	return p
}
