package server

import (
	"cmp"
	"context"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

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
