package server

import (
	"cmp"
	"context"

	"golang.org/x/sync/errgroup"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// Messages of many operations: how each kind stands in one, and how a batch is
// answered.

// A kind is one of the operations that a message may have many of. This is the one
// place that knows how each stands in a message.
type kind struct {
	field     string // of v1.Operation
	procedure string // of the same operation as a request of its own
	number    int    // its place in kinds
	// from makes the operation of a message; nil if it is of another kind.
	from func(s *Server, ns string, op *v1.Operation) operation
	// into puts the answer of an operation of this kind into a result.
	into func(r *v1.OperationResult, op operation)
}

var kinds = [...]*kind{
	kindOf[begin]("begin", govnodev1connect.CallServiceBeginCallProcedure, (*v1.Operation).GetBegin,
		func(r *v1.OperationResult, out *v1.BeginCallResponse) {
			r.Result = &v1.OperationResult_Begin{Begin: out}
		}),
	kindOf[end]("end", govnodev1connect.CallServiceEndCallProcedure, (*v1.Operation).GetEnd,
		func(r *v1.OperationResult, out *v1.EndCallResponse) { r.Result = &v1.OperationResult_End{End: out} }),
	kindOf[cancel]("cancel", govnodev1connect.CallServiceCancelCallProcedure, (*v1.Operation).GetCancel,
		func(r *v1.OperationResult, out *v1.CancelCallResponse) {
			r.Result = &v1.OperationResult_Cancel{Cancel: out}
		}),
	kindOf[acquire]("acquire", govnodev1connect.SlotServiceAcquireSlotProcedure, (*v1.Operation).GetAcquire,
		func(r *v1.OperationResult, out *v1.AcquireSlotResponse) {
			r.Result = &v1.OperationResult_Acquire{Acquire: out}
		}),
	kindOf[renewal]("renew", govnodev1connect.SlotServiceRenewSlotsProcedure, (*v1.Operation).GetRenew,
		func(r *v1.OperationResult, out *v1.RenewSlotsResponse) {
			r.Result = &v1.OperationResult_Renew{Renew: out}
		}),
	kindOf[release]("release", govnodev1connect.SlotServiceReleaseSlotProcedure, (*v1.Operation).GetRelease,
		func(r *v1.OperationResult, out *v1.ReleaseSlotResponse) {
			r.Result = &v1.OperationResult_Release{Release: out}
		}),
	// What is none of them is last; it is counted under the stream that brought it.
	kindOf[missing]("op", govnodev1connect.CallServiceExchangeProcedure, func(op *v1.Operation) *v1.Operation { return cmp.Or(op, &v1.Operation{}) },
		func(*v1.OperationResult, *v1.OperationResult) {}),
}

func init() {
	for i, k := range kinds {
		k.number = i
	}
}

func kindOf[O, Req, Res any, P interface {
	*O
	operationOf[Req, Res]
}](field, procedure string, get func(*v1.Operation) *Req, put func(*v1.OperationResult, *Res)) *kind {
	k := &kind{field: field, procedure: procedure}
	k.from = func(s *Server, ns string, op *v1.Operation) operation {
		req := get(op)
		if req == nil {
			return nil
		}
		o := P(new(O))
		o.init(s, ns, k, req)
		return o
	}
	k.into = func(r *v1.OperationResult, op operation) { put(r, op.(P).response()) }
	return k
}

// operationIn is the operation that a part of a message stands for.
func (s *Server) operationIn(ns string, in *v1.Operation) operation {
	for _, k := range kinds[:len(kinds)-1] {
		if op := k.from(s, ns, in); op != nil {
			return op
		}
	}
	return kinds[len(kinds)-1].from(s, ns, in)
}

// prepareIn is prepare for a part of a message, of which f is the place there.
func (s *Server) prepareIn(ctx context.Context, f *input.Fields, in *v1.Operation, op operation) (done bool) {
	f.Duration("timeout", in.GetTimeout(), input.Caps.Timeout)
	own := f.In(op.state().kind.field)
	own.Take(f)
	return s.prepare(ctx, own, op)
}

// put puts what became of an operation into a result.
func put(r *v1.OperationResult, op operation) {
	p := op.state()
	if p.err != nil {
		r.Result = &v1.OperationResult_Error{Error: fault.OperationError(p.err)}
		return
	}
	p.kind.into(r, op)
}

// A missing is a part of a message that says nothing.
type missing struct {
	request[v1.Operation, v1.OperationResult]
}

func (*missing) check(_ context.Context, f *input.Fields) error {
	f.RefuseWhole("is missing; send one of begin, end, cancel, acquire, renew and release")
	return f.Err
}

func (*missing) respond() error { return nil }

// BatchCalls orders many operations together, each with a result of its own. A
// call that has to wait is answered OUTCOME_QUEUED: asking again with the same
// id claims its slot, and keeps its place for ten seconds more.
func (s callService) BatchCalls(ctx context.Context, req *v1.BatchCallsRequest) (*v1.BatchCallsResponse, error) {
	f := &input.Fields{}
	f.Count("operations", len(req.Operations), input.Caps.Operations)
	if f.Err != nil {
		return nil, f.Err
	}
	ops := s.prepareAll(ctx, req.Operations)
	ctx, cancel := withTimeouts(ctx, req.Operations)
	defer cancel()
	s.proceed(ctx, ops, course{})
	out := &v1.BatchCallsResponse{Results: make([]*v1.OperationResult, len(ops))}
	for i, op := range ops {
		out.Results[i] = &v1.OperationResult{Tag: req.Operations[i].GetTag()}
		put(out.Results[i], op)
	}
	return out, nil
}

// withTimeouts waits as long as the most patient operation does, since all are
// answered in one message.
func withTimeouts(ctx context.Context, ops []*v1.Operation) (context.Context, context.CancelFunc) {
	longest := input.Caps.Timeout.Min
	for _, op := range ops {
		if op.GetTimeout() == nil {
			return context.WithCancel(ctx)
		}
		longest = max(longest, min(op.Timeout.AsDuration(), input.Caps.Timeout.Max))
	}
	return context.WithTimeout(ctx, longest)
}

// maxJudged is how many operations of a batch ask others at the same time, be it
// a policy backend, a guardrail or another node.
const maxJudged = 16

// prepareAll checks and judges the operations of a batch. Those that ask nobody
// beyond this node come first, one after another; the others side by side, so that
// a batch takes about as long as one of them. The places in the list are those of
// the batch, and so what is spent is spent in its order.
func (s *Server) prepareAll(ctx context.Context, parts []*v1.Operation) []operation {
	ops := make([]operation, len(parts))
	prepare := func(ctx context.Context, i int) (done bool) {
		return s.prepareIn(ctx, (&input.Fields{}).At("operations", i), parts[i], ops[i])
	}
	var others errgroup.Group
	others.SetLimit(maxJudged)
	near := context.WithValue(ctx, quickKey{}, true)
	for i, part := range parts {
		ops[i] = s.operationIn(input.Namespace(ctx), part)
		if prepare(near, i) {
			continue
		}
		others.Go(func() error {
			prepare(ctx, i)
			return nil // each has an error of its own
		})
	}
	_ = others.Wait() // never one
	return ops
}
