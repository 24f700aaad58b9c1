package server

import (
	"context"
	"errors"
	"net/http"

	"connectrpc.com/connect"
	"golang.org/x/sync/errgroup"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// BatchCalls orders many operations together, each with a result of its own. A
// call that has to wait is answered OUTCOME_QUEUED: asking again with the same
// id claims its slot, and keeps its place for ten seconds more.
func (s callService) BatchCalls(ctx context.Context, req *v1.BatchCallsRequest) (*v1.BatchCallsResponse, error) {
	f := &fields{}
	f.count("operations", len(req.Operations), caps.Operations)
	if f.err != nil {
		return nil, f.err
	}
	out := &v1.BatchCallsResponse{Results: make([]*v1.OperationResult, len(req.Operations))}
	var parts []*part
	var ops []operation
	all, errs := s.newParts(ctx, req.Operations)
	for i, p := range all {
		out.Results[i] = &v1.OperationResult{Tag: req.Operations[i].GetTag()}
		if errs[i] != nil {
			_ = s.audit.written(&p.own) // it has an error already
			out.Results[i].Result = &v1.OperationResult_Error{Error: operationError(errs[i])}
			continue
		}
		p.result = out.Results[i]
		parts, ops = append(parts, p), append(ops, p.operation)
	}
	if len(parts) == 0 {
		return out, nil
	}
	ctx, cancel := withTimeouts(ctx, req.Operations)
	defer cancel()
	for i, err := range s.orderAll(ctx, ops) {
		if err := parts[i].settle(err); err != nil {
			parts[i].result.Result = &v1.OperationResult_Error{Error: operationError(err)}
		}
	}
	for _, p := range parts {
		if err := s.audit.written(&p.own); err != nil {
			p.result.Result = &v1.OperationResult_Error{Error: operationError(err)}
		}
	}
	return out, nil
}

// withTimeouts waits as long as the most patient operation does, since all are
// answered in one message.
func withTimeouts(ctx context.Context, ops []*v1.Operation) (context.Context, context.CancelFunc) {
	longest := caps.Timeout.Min
	for _, op := range ops {
		if op.GetTimeout() == nil {
			return context.WithCancel(ctx)
		}
		longest = max(longest, min(op.Timeout.AsDuration(), caps.Timeout.Max))
	}
	return context.WithTimeout(ctx, longest)
}

// A part is one operation of a batch.
type part struct {
	operation
	own    trace // of the operation
	result *v1.OperationResult
	finish func(*v1.OperationResult) error // puts the answer into the result
}

// settle puts the answer of an operation into its result, or returns the error
// that is its answer.
func (p *part) settle(err error) error {
	if err == nil {
		err = p.finish(p.result)
	} else if b, ok := p.operation.(*begin); ok {
		b.failed(err)
	}
	return p.own.said(err)
}

// maxJudged is how many operations of a batch ask others at the same time, be it
// a policy backend, a guardrail or another node.
const maxJudged = 16

// newParts checks and judges all operations. Those that ask nobody beyond this
// node come first, one after another; the others side by side, so that a batch
// takes about as long as one of them. The places in the lists are those of the
// operations, and so what is spent is spent in their order.
func (s *Server) newParts(ctx context.Context, ops []*v1.Operation) ([]*part, []error) {
	parts, errs := make([]*part, len(ops)), make([]error, len(ops))
	prepare := func(ctx context.Context, i int) {
		parts[i], errs[i] = s.newPart(ctx, (&fields{}).at("operations", i), ops[i])
	}
	var others errgroup.Group
	others.SetLimit(maxJudged)
	near := context.WithValue(ctx, quickKey{}, true)
	for i := range ops {
		if prepare(near, i); !errors.Is(errs[i], errTakesLong) {
			continue
		}
		others.Go(func() error {
			defer func() {
				if cause := recover(); cause != nil {
					parts[i], errs[i] = &part{}, s.recovered(ctx, connect.Spec{Procedure: govnodev1connect.CallServiceBatchCallsProcedure}, http.Header{}, cause)
				}
			}()
			prepare(ctx, i)
			return nil // each has an error of its own
		})
	}
	_ = others.Wait() // never one
	return parts, errs
}

// newPart checks and judges an operation. There is a part even with an error: it
// has the trace.
func (s *Server) newPart(ctx context.Context, f *fields, op *v1.Operation) (*part, error) {
	p := &part{}
	f.duration("timeout", op.GetTimeout(), caps.Timeout)
	if f.err != nil {
		return p, f.err
	}
	switch o := op.GetOp().(type) {
	case *v1.Operation_Begin:
		return p, s.beginPart(ctx, p, f.in("begin"), o.Begin)
	case *v1.Operation_End:
		e, err := s.newEnd(ctx, &p.own, f.in("end"), o.End)
		p.operation, p.finish = e, func(r *v1.OperationResult) error {
			r.Result = &v1.OperationResult_End{End: e.response()}
			return nil
		}
		return p, err
	case *v1.Operation_Cancel:
		c, err := s.newCancel(ctx, &p.own, f.in("cancel"), o.Cancel)
		p.operation, p.finish = c, func(r *v1.OperationResult) error {
			r.Result = &v1.OperationResult_Cancel{Cancel: c.response()}
			return nil
		}
		return p, err
	case *v1.Operation_Acquire:
		return p, s.acquirePart(ctx, p, f.in("acquire"), o.Acquire)
	case *v1.Operation_Renew:
		n, err := s.newRenewal(ctx, &p.own, f.in("renew"), o.Renew)
		p.operation, p.finish = n, func(r *v1.OperationResult) error {
			r.Result = &v1.OperationResult_Renew{Renew: n.out}
			return nil
		}
		return p, err
	case *v1.Operation_Release:
		l, err := s.newRelease(ctx, &p.own, f.in("release"), o.Release)
		p.operation, p.finish = l, func(r *v1.OperationResult) error {
			r.Result = &v1.OperationResult_Release{Release: l.response()}
			return nil
		}
		return p, err
	}
	return p, invalid(f.path("op"), "is missing; send one of begin, end, cancel, acquire, renew and release")
}

func (s *Server) beginPart(ctx context.Context, p *part, f *fields, req *v1.BeginCallRequest) error {
	if err := s.admit(govnodev1connect.CallServiceBeginCallProcedure); err != nil {
		return err
	}
	b, err := s.newBegin(ctx, &p.own, f, req)
	if err != nil {
		return err
	}
	if err := b.judge(ctx); err != nil {
		if !errors.Is(err, errTakesLong) { // else it is judged again, with more time
			b.failed(err)
		}
		return err
	}
	p.operation, p.finish = b, func(r *v1.OperationResult) error {
		answer, err := b.response()
		r.Result = &v1.OperationResult_Begin{Begin: answer}
		return err
	}
	return nil
}

func (s *Server) acquirePart(ctx context.Context, p *part, f *fields, req *v1.AcquireSlotRequest) error {
	if err := s.admit(govnodev1connect.SlotServiceAcquireSlotProcedure); err != nil {
		return err
	}
	a, err := s.newAcquire(ctx, &p.own, f, req)
	if err != nil {
		return err
	}
	p.operation, p.finish = a, func(r *v1.OperationResult) error {
		answer, err := a.response()
		r.Result = &v1.OperationResult_Acquire{Acquire: answer}
		return err
	}
	return nil
}

var _ = []operation{(*begin)(nil), (*end)(nil), (*cancel)(nil), (*acquire)(nil), (*renewal)(nil), (*release)(nil), (*forced)(nil), (*opening)(nil), (*closing)(nil), (*deletion)(nil)}
