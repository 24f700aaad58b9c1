package server

import (
	"cmp"
	"context"
	"time"

	"golang.org/x/sync/errgroup"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/waiting"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// An operation is a request on its way to its answer. This is what one of a kind
// has of its own; the steps, and what all have in common on each of them, are in
// pipeline.go. Commands carry premises: which pools a call holds, what a name
// points to, what a verdict rests on. Where one no longer holds, the answer brings
// what holds now, and the operation is ordered again.
type operation interface {
	// check checks the fields and finds what the request is about. It may be
	// called again, after order.ErrTakesLong.
	check(ctx context.Context, f *input.Fields) error
	// judge reaches the verdict on what was checked.
	judge(ctx context.Context) error
	// judgeAgain judges what was kept out by what holds by now.
	judgeAgain(ctx context.Context) error
	// commands returns what is to be ordered now.
	commands() []session.Command
	// hurry has it not wait, before it is ordered.
	hurry()
	// apart says that it takes answers of commands that were not applied as well: it
	// has an answer for each.
	apart() bool
	// take looks at the answers, all of commands that were applied unless they stand
	// apart, and reports whether the operation has to be ordered again.
	take(ctx context.Context, answers []storage.Answer) (again bool, err error)
	// waiting describes the wait of an operation that was queued; nil if it was not.
	waiting() *waiting.Wait
	// queue makes the answer that says where it stands. It is not the last one:
	// nothing was decided that the audit or the metrics should hold.
	queue()
	// respond puts the answer into words, and into the audit and the metrics.
	respond() error
	// failed takes down a verdict that could not be told. It is called for what was
	// checked and has an error.
	failed(err error)

	// size is about how much memory it holds, as far as its sender decides that.
	size() int
	// patience is how long it may stand in a queue.
	patience() time.Duration
	state() *progress
}

// progress is how far an operation has come. Every operation has one.
type progress struct {
	trace   order.Trace
	s       *Server
	ns      string
	who     *access.Principal // nil where nobody is asked
	kind    *kind             // as a part of a message; nil for a request of its own
	checked bool
	spent   bool  // from the operations of its namespace
	waits   bool  // it is one of the waiters of its namespace
	settled bool  // it has its answer, or err
	err     error // why it has no answer
}

func (p *progress) state() *progress { return p }

// A request is what operations embed: how they come about and are answered, and the
// steps of one that has nothing to do on them.
type request[Req, Res any] struct {
	progress
	req    *Req
	out    *Res
	one    [1]session.Command // of most, which are one command
	answer *storage.Answer    // to it, among those of its message; nil before there is one
}

func (r *request[Req, Res]) init(s *Server, ns string, k *kind, req *Req) {
	r.s, r.ns, r.kind, r.req = s, ns, k, req
}

func (r *request[Req, Res]) response() *Res { return r.out }

func (r *request[Req, Res]) commands() []session.Command { return r.one[:] }

func (r *request[Req, Res]) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	r.answer = &answers[0]
	return false, nil
}

// stale keeps the answer, and reports whether a premise of the command did not hold.
func (r *request[Req, Res]) stale(answers []storage.Answer) bool {
	r.answer = &answers[0]
	return r.answer.Result.Code == session.StalePremise || r.another()
}

// ownAnswer gives an operation that waits its answer alone. It waits for long, and would
// keep those of its whole message as long.
func (r *request[Req, Res]) ownAnswer() *storage.Answer {
	own := *r.answer
	r.answer = &own
	return r.answer
}

// another reports whether another session has the id by now than the one by which the
// command was judged. That one is to be looked at as it stands: it may have another agent
// and another secret.
func (r *request[Req, Res]) another() bool { return r.answer.Result.Code == session.StaleSession }

func (*request[Req, Res]) judge(context.Context) error      { return nil }
func (*request[Req, Res]) judgeAgain(context.Context) error { return nil }
func (*request[Req, Res]) waiting() *waiting.Wait           { return nil }
func (*request[Req, Res]) hurry()                           {}
func (*request[Req, Res]) apart() bool                      { return false }
func (*request[Req, Res]) queue()                           {}
func (*request[Req, Res]) failed(error)                     {}

// bareSize is about what an operation holds that carries nothing of the caller's.
const bareSize = 256

func (*request[Req, Res]) size() int { return bareSize }

func (r *request[Req, Res]) patience() time.Duration { return patienceOf(r.req) }

// patienceOf is how long a request may wait for a slot.
func patienceOf(req any) time.Duration {
	if w, ok := req.(waitingRequest); ok && w.GetWait().IsValid() {
		return min(max(w.GetWait().AsDuration(), 0), input.Caps.Wait.Max)
	}
	return 0
}

// An operationOf is an operation whose request and answer are known.
type operationOf[Req, Res any] interface {
	operation
	init(s *Server, ns string, k *kind, req *Req)
	response() *Res
}

// unary sees a request through that is one operation.
func unary[Req, Res any](ctx context.Context, s *Server, op operationOf[Req, Res], req *Req) (*Res, error) {
	op.init(s, input.Namespace(ctx), nil, req)
	s.prepare(ctx, &input.Fields{}, op)
	s.proceed(ctx, []operation{op}, course{
		queued: func(_ int, w *waiting.Wait) { s.await(ctx, op, w) },
	})
	order.TraceOf(ctx).Join(&op.state().trace)
	if err := op.state().err; err != nil {
		return nil, err
	}
	return op.response(), nil
}

// A waiting request says how long it is prepared to wait.
type waitingRequest interface{ GetWait() *durationpb.Duration }

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
		order.TraceOf(ctx).Join(&op.state().trace)
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
	near := context.WithValue(ctx, order.QuickKey{}, true)
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
	kindOf[take]("take", govnodev1connect.LimitServiceTakeRateProcedure, (*v1.Operation).GetTake,
		func(r *v1.OperationResult, out *v1.TakeRateResponse) { r.Result = &v1.OperationResult_Take{Take: out} }),
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
	f.RefuseWhole("is missing; send one of begin, end, cancel, acquire, renew, release and take")
	return f.Err
}

func (*missing) respond() error { return nil }
