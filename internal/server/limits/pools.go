package limits

import (
	"context"
	"fmt"
	"time"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/words"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Pools: how they are put, deleted, read and listed, and who has their slots.

// PutPool makes a pool, or changes one. Lowering its slots revokes nothing.
func (s *Service) PutPool(ctx context.Context, req *v1.PutPoolRequest) (*v1.PutPoolResponse, error) {
	f := &input.Fields{}
	f.Pool("pool", req.Pool)
	slots := int32(f.Number("slots", int64(req.Slots), input.Caps.Slots))
	threshold := int32(f.Number("backpressureThreshold", int64(req.BackpressureThreshold), input.Caps.Threshold))
	if threshold == 0 {
		threshold = slots
	}
	queue := int32(input.Caps.Queue.Default)
	if req.QueueLimit != nil {
		f.Within("queueLimit", int64(*req.QueueLimit), input.Caps.Queue)
		queue = *req.QueueLimit
	}
	cmd := &session.PutPool{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Pool: req.Pool,
		Slots: slots, Threshold: threshold, Queue: queue,
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, "pool_put", req.Pool, fmt.Sprintf("%d slots, threshold %d, queue %d", slots, threshold, queue), cmd.NS, cmd.By)
	out := &v1.PutPoolResponse{Index: a.Index}
	if after := a.Result.After; after != nil && after.Pool != nil { // a repeat may come after DeletePool
		out.Pool = poolOf(req.Pool, *after.Pool)
	}
	return out, nil
}

// DeletePool removes a pool. It is refused while somebody holds or waits,
// unless it is forced.
func (s *Service) DeletePool(ctx context.Context, req *v1.DeletePoolRequest) (*v1.DeletePoolResponse, error) {
	f := &input.Fields{}
	f.Pool("pool", req.Pool)
	cmd := &session.DeletePool{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Pool: req.Pool, Force: req.Force}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, func(res *session.Result) error {
		switch res.Code {
		case session.NotFound:
			return fault.NotFound("pool", "there is no pool %q", req.Pool)
		case session.PoolInUse:
			return fault.OfResult(res, fmt.Sprintf("pool %q", req.Pool))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	s.changed(ctx, &a, "pool_deleted", req.Pool, "", cmd.NS, cmd.By)
	return &v1.DeletePoolResponse{Index: a.Index}, nil
}

// GetPool returns a pool as it stands.
func (s *Service) GetPool(ctx context.Context, req *v1.GetPoolRequest) (*v1.GetPoolResponse, error) {
	p, found, err := s.findPool(ctx, req.Pool, req.Consistency)
	if err != nil {
		return nil, err
	}
	return &v1.GetPoolResponse{Pool: poolOf(req.Pool, countsOf(p)), AppliedIndex: found.Index}, nil
}

// findPool returns a pool, also that of a policy.
func (s *Service) findPool(ctx context.Context, name string, c v1.Consistency) (*session.Pool, storage.Found, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, c)
	f.PoolOrPolicy("pool", name)
	if f.Err != nil {
		return nil, storage.Found{}, f.Err
	}
	found, err := s.Store.Get(ctx, session.PoolKey(input.Namespace(ctx), name), read)
	if err != nil {
		return nil, found, fault.OfRead(err)
	}
	p, ok := found.Record.(*session.Pool)
	if !ok || p == nil {
		return nil, found, fault.NotFound("pool", "there is no pool %q; make it with PutPool. The pool of a policy is there from its first call on", name)
	}
	return p, found, nil
}

func countsOf(p *session.Pool) session.PoolCounts {
	return session.PoolCounts{
		Slots: p.Slots, Threshold: p.Threshold, MaxQueue: p.MaxQueue,
		InUse: p.InUse(), Waiting: int32(len(p.Queue)), Last: p.Last,
	}
}

func poolOf(name string, p session.PoolCounts) *v1.Pool {
	return &v1.Pool{
		Pool: name, Slots: p.Slots, BackpressureThreshold: p.Threshold, QueueLimit: p.MaxQueue,
		InUse: p.InUse, Waiting: p.Waiting, LastToken: p.Last,
	}
}

// ListPools returns pools in the order of their names.
func (s *Service) ListPools(ctx context.Context, req *v1.ListPoolsRequest) (*v1.ListPoolsResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	page := order.PageOf(f, req.PageSize, req.PageToken)
	if f.Err != nil {
		return nil, f.Err
	}
	entries, next, view, err := s.Store.List(ctx, session.KindPool, page, read, func(k session.Key, _ session.Record) bool { return !session.IsRate(k.Name()) })
	if err != nil {
		return nil, err
	}
	out := &v1.ListPoolsResponse{NextPageToken: next, AppliedIndex: view.Index}
	for _, e := range entries {
		out.Pools = append(out.Pools, poolOf(e.Key.Name(), countsOf(e.Record.(*session.Pool))))
	}
	return out, nil
}

// ListSlots tells who holds slots of a pool, and who waits, in order.
func (s *Service) ListSlots(ctx context.Context, req *v1.ListSlotsRequest) (*v1.ListSlotsResponse, error) {
	p, found, err := s.findPool(ctx, req.Pool, req.Consistency)
	if err != nil {
		return nil, err
	}
	out := &v1.ListSlotsResponse{Pool: poolOf(req.Pool, countsOf(p)), AppliedIndex: found.Index}
	names := &holders{s: s, ctx: ctx, sessions: map[string]*session.Session{}}
	for i := range p.Leases {
		l := &p.Leases[i]
		slot := &v1.Slot{
			Label: words.TextOf(l.Label), Token: l.Token, Weight: l.Weight,
			Age: durationpb.New(max(found.Now-l.Since, 0)), Ttl: durationpb.New(max(l.Expires-found.Now, 0)),
		}
		slot.Holder, slot.SessionId, slot.SlotId, slot.Tool = names.of(l.Holder)
		if names.hidden(slot.SessionId) {
			continue
		}
		out.Slots = append(out.Slots, slot)
	}
	for i := range p.Queue {
		t := &p.Queue[i]
		w := &v1.Waiter{
			Label: words.TextOf(t.Label), Position: int32(i + 1), Weight: t.Weight, Priority: t.Priority,
			WaitLeft: durationpb.New(max(t.Until-found.Now, time.Duration(0))),
		}
		w.Holder, w.SessionId, w.SlotId, _ = names.of(t.Holder)
		if names.hidden(w.SessionId) {
			continue
		}
		out.Waiters = append(out.Waiters, w)
	}
	return out, nil
}

// holders says who stands behind the holders of a pool, each session looked up
// once.
type holders struct {
	s        *Service
	ctx      context.Context
	sessions map[string]*session.Session
}

// hidden reports whether a session is out of the scope of who asks.
func (h *holders) hidden(sess string) bool {
	return sess != "" && h.sessions[sess] == nil && access.From(h.ctx).Scoped()
}

func (h *holders) of(holder string) (who, sess, slot, tool string) {
	kind, maker, id := session.SplitHolder(holder)
	if kind != session.KindSession {
		return maker, "", id, ""
	}
	x, ok := h.sessions[maker]
	if !ok {
		// A listing is for people: a session that cannot be read is left
		// without its agent.
		read := storage.Nearby
		if _, ok := h.s.Store.Reader.(storage.Gatherer); ok {
			read = storage.Latest // what is near is not as new there as the pool that was read before
		}
		found, err := h.s.Store.Get(h.ctx, session.SessionKey(input.Namespace(h.ctx), maker), read)
		if err == nil {
			x, _ = found.Record.(*session.Session)
		}
		h.sessions[maker] = x
	}
	if x == nil {
		return "", maker, id, ""
	}
	if held := x.Find(id); held != nil {
		tool = words.TextOf(held.Tool)
	}
	return x.Agent.Value(), maker, id, tool
}
