package server

import (
	"context"

	"golang.org/x/sync/errgroup"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
)

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
