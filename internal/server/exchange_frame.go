package server

import (
	"context"
	"errors"
	"net/http"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"google.golang.org/protobuf/proto"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A frame is one operation of a stream on its way.
type frame struct {
	op     *v1.Operation
	part   *part // nil once it is refused
	own    trace // of the operation, once it has its answer
	result *v1.OperationResult
	kind   frameKind
	start  time.Time
	until  time.Time // when its caller stops waiting
	size   int       // of its arguments, about
	waits  bool      // it counts among the waiting of its stream
	apart  bool      // it counts among those that are set apart
	notice bool      // not an answer: says that another frame waits
	done   bool      // it has its answer
	left   bool      // it has gone to the sender, or to those who wait
}

type frameKind uint8

const (
	frameNone frameKind = iota
	frameBegin
	frameEnd
	frameCancel
	frameAcquire
	frameRenew
	frameRelease
	frameKinds
)

func kindOf(op *v1.Operation) frameKind {
	switch op.GetOp().(type) {
	case *v1.Operation_Begin:
		return frameBegin
	case *v1.Operation_End:
		return frameEnd
	case *v1.Operation_Cancel:
		return frameCancel
	case *v1.Operation_Acquire:
		return frameAcquire
	case *v1.Operation_Renew:
		return frameRenew
	case *v1.Operation_Release:
		return frameRelease
	}
	return frameNone
}

// sizeOf says how much memory a frame holds until it is answered, as far as its
// sender decides that.
func sizeOf(op *v1.Operation) int {
	const bare = 256
	switch o := op.GetOp().(type) {
	case *v1.Operation_Begin:
		r := o.Begin
		if r.GetArguments() == nil && r.GetContext() == nil && len(r.GetMetadata()) == 0 {
			return bare + len(r.GetArgumentsJson()) + len(r.GetContextJson())
		}
	case *v1.Operation_End:
		if o.End.GetOutput() == nil {
			return bare
		}
	case *v1.Operation_Cancel, *v1.Operation_Acquire, *v1.Operation_Release:
		return bare
	}
	return bare + proto.Size(op)
}

// begin takes on what place has made room for. What can be judged at once is
// ordered together. What first needs something that is not on this node, or a
// policy that asks others, goes its own way, so that nobody waits for it.
func (x *exchange) begin(ops []*v1.Operation, now time.Time) {
	store := make([]frame, len(ops))
	together := make([]*frame, 0, len(ops))
	var apart []*frame
	size := 0
	for i, op := range ops {
		f := &store[i]
		f.op, f.kind, f.start, f.size = op, kindOf(op), now, sizeOf(op)
		f.result = &v1.OperationResult{Tag: op.GetTag()}
		if x.prepare(x.quick, f) {
			together = append(together, f)
		} else {
			apart = append(apart, f)
		}
		size += f.size
	}
	x.mu.Lock()
	x.bytes += size
	x.mu.Unlock()
	if len(apart) > 0 {
		x.setApart(apart)
	}
	if len(together) > 0 {
		x.work.Go(func() { x.order(together) })
	}
	x.work.Done() // for place
}

// setApart lets frames be judged side by side, each as long as that takes. They
// hold up no others, here or at the other side, which is told of it.
func (x *exchange) setApart(frames []*frame) {
	x.mu.Lock()
	n := min(len(frames), maxStreamApart-x.apart)
	for _, f := range frames[:n] {
		f.apart = true
		x.told = append(x.told, f.result.Tag)
	}
	x.apart += n
	x.unanswered -= n
	x.room.Signal()
	x.mu.Unlock()
	x.wake()
	for _, f := range frames[:n] {
		x.work.Go(func() {
			x.prepare(x.base, f)
			x.order([]*frame{f})
		})
	}
	for _, f := range frames[n:] {
		x.refuse(f, errTooManyApart())
	}
	x.post(frames[n:]...)
}

func errTooManyApart() error {
	return later(newError(connect.CodeResourceExhausted, reasonOverloaded,
		"guardrails, policy backends or other nodes are asked about "+itoa(maxStreamApart)+" operations of this stream at once, which is the most; nothing was applied, send it again with the same id in "+shedRetry.String(),
		"retryAfter", shedRetry.String()), shedRetry)
}

// prepare checks and judges a frame, as the handler of its method does. It
// returns false where that would take long and the context does not allow it.
func (x *exchange) prepare(ctx context.Context, f *frame) (done bool) {
	done = true
	defer x.recovered(f)
	part, err := x.s.newPart(ctx, &fields{}, f.op)
	if errors.Is(err, errTakesLong) {
		return false
	}
	if err != nil {
		f.own = part.own
		x.refuse(f, err)
		return true
	}
	limit := x.s.cfg.RequestTimeout + waitOf(f.op)
	if t := f.op.GetTimeout(); t != nil {
		limit = min(limit, t.AsDuration())
	}
	part.result = f.result
	f.part, f.until = part, f.start.Add(limit)
	return true
}

// errTakesLong is why an operation was not prepared under a quick context: it
// would have asked somebody beyond this node.
var errTakesLong = errors.New("server: this needs more than what is on this node")

// An exchangeContext carries the namespace of a stream; it stands in front
// because every command asks for it.
type exchangeContext struct {
	context.Context
	namespace any  // a string, which is not boxed for every command
	quick     bool // what takes long is not done under it
}

func (c *exchangeContext) Value(key any) any {
	switch key.(type) {
	case namespaceKey:
		return c.namespace
	case quickKey:
		return c.quick
	}
	return c.Context.Value(key)
}

type quickKey struct{}

// quick reports whether errTakesLong is wanted instead of what takes long.
func quick(ctx context.Context) bool {
	q, _ := ctx.Value(quickKey{}).(bool)
	return q
}

// waitOf returns how long a frame is prepared to wait for a slot.
func waitOf(op *v1.Operation) time.Duration {
	switch o := op.GetOp().(type) {
	case *v1.Operation_Begin:
		return o.Begin.GetWait().AsDuration()
	case *v1.Operation_Acquire:
		return o.Acquire.GetWait().AsDuration()
	}
	return 0
}

// order puts frames in order and posts their answers: together, but for those
// whose premises did not hold, which are ordered again and answered later, and
// those that have to wait. All are ordered as long as the most patient of them
// has time: the deadline of each by itself ends its wait.
func (x *exchange) order(frames []*frame) {
	defer x.salvage(frames)
	open := make([]*frame, 0, len(frames))
	ops := make([]operation, 0, len(frames))
	ready := make([]*frame, 0, len(frames)+4)
	until := frames[0].start
	for _, f := range frames {
		if f.done { // refused
			ready = append(ready, f)
			continue
		}
		open, ops = append(open, f), append(ops, f.part.operation)
		if f.until.After(until) {
			until = f.until
		}
	}
	if most := frames[0].start.Add(x.s.cfg.RequestTimeout); until.After(most) {
		until = most // what comes on top of it is for waiting
	}
	if len(ops) == 0 {
		x.post(ready...)
		return
	}
	ctx, cancel := context.WithDeadline(x.base, until)
	defer cancel()
	x.s.orderRounds(ctx, ops, func(i int, err error) {
		f := open[i]
		if w := f.waiting(); err == nil && w != nil {
			ready = append(ready, x.wait(f, w))
			return
		}
		x.finish(f, err)
		ready = append(ready, f)
	}, func() {
		x.post(ready...)
		ready = ready[:0]
	})
}

// waiting describes the wait of a frame that was queued; nil if it was not.
func (f *frame) waiting() *wait {
	switch o := f.part.operation.(type) {
	case *begin:
		if o.answer.Outcome == storage.Applied && o.answer.Result.Code == session.Queued {
			return o.waiting()
		}
	case *acquire:
		if o.answer.Outcome == storage.Applied && o.answer.Result.Code == session.Queued {
			return o.waiting()
		}
	}
	return nil
}

// wait lets a frame stand in its queue, to be answered later, and returns the
// notice of it.
func (x *exchange) wait(f *frame, w *wait) *frame {
	x.mu.Lock()
	if x.waiting < maxStreamWaits {
		if f.apart {
			x.apart--
		} else {
			x.unanswered--
		}
		f.waits, f.apart = true, false
		x.waiting++
		x.room.Signal()
	}
	x.mu.Unlock()
	f.left = true
	notice := &frame{notice: true, result: f.queued()}
	x.work.Go(func() {
		defer x.post(f)
		defer x.recovered(f)
		ctx, cancel := context.WithDeadline(x.waits, f.until)
		defer cancel()
		x.finish(f, x.s.wait(ctx, w))
	})
	return notice
}

// queued says where a frame stands. It is no answer: nothing was decided that
// the audit or the metrics should hold.
func (f *frame) queued() *v1.OperationResult {
	r := &v1.OperationResult{Tag: f.result.GetTag()}
	switch o := f.part.operation.(type) {
	case *begin:
		r.Result = &v1.OperationResult_Begin{Begin: &v1.BeginCallResponse{
			Outcome: v1.Outcome_OUTCOME_QUEUED, DecisionId: decisionID(o.s.store, o.ns, o.cmd.Session, o.cmd.Call),
			Counters: countersOf(o.answer.Result.Counters), Queue: placeOf(o.answer.Result.Queue), Index: o.answer.Index,
		}}
	case *acquire:
		r.Result = &v1.OperationResult_Acquire{Acquire: &v1.AcquireSlotResponse{
			Outcome: v1.Outcome_OUTCOME_QUEUED, Queue: placeOf(o.answer.Result.Queue), Index: o.answer.Index,
		}}
	}
	return r
}

// finish puts the answer of a frame into words, or says why there is none.
func (x *exchange) finish(f *frame, err error) {
	err = f.part.settle(err)
	f.own = f.part.own
	if err != nil {
		x.refuse(f, err)
		return
	}
	f.done, f.part, f.op = true, nil, nil
	x.methods.answered(f)
}

func (x *exchange) refuse(f *frame, err error) {
	f.result.Result = &v1.OperationResult_Error{Error: operationError(err)}
	f.done, f.part, f.op = true, nil, nil
	x.s.metrics.request(exchangeProcedures[f.kind], err, f.start)
}

// recovered answers a frame whose handling panicked, so that one bad frame
// costs one answer and not the node. It must be deferred.
func (x *exchange) recovered(f *frame) {
	if cause := recover(); cause != nil {
		x.refuse(f, x.panicked(cause))
	}
}

// salvage answers what a panic left without an answer. It must be deferred.
func (x *exchange) salvage(frames []*frame) {
	cause := recover()
	if cause == nil {
		return
	}
	err := x.panicked(cause)
	var rest []*frame
	for _, f := range frames {
		if f.left {
			continue
		}
		if !f.done {
			x.refuse(f, err)
		}
		rest = append(rest, f)
	}
	x.post(rest...)
}

func (x *exchange) panicked(cause any) error {
	spec := connect.Spec{Procedure: govnodev1connect.CallServiceExchangeProcedure, StreamType: connect.StreamTypeBidi}
	return x.s.recovered(x.base, spec, http.Header{}, cause)
}

// exchangeMethods count the frames that were answered under the method of each,
// without looking the method up for every frame.
type exchangeMethods [frameKinds]struct {
	answered prometheus.Counter
	latency  prometheus.Observer
}

func (m *metrics) exchangeMethods() *exchangeMethods {
	var all exchangeMethods
	for kind, procedure := range exchangeProcedures {
		service, method := methodOf(procedure)
		all[kind].answered = m.requests.WithLabelValues(service, method, "ok")
		all[kind].latency = m.latency.WithLabelValues(service, method)
	}
	return &all
}

func (m *exchangeMethods) answered(f *frame) {
	m[f.kind].answered.Inc()
	m[f.kind].latency.Observe(time.Since(f.start).Seconds())
}
