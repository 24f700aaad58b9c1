package server

import (
	"context"
	"strconv"
	"sync/atomic"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/internal/server/waiting"
	"example.com/govnode/internal/window"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A frame is one operation of a stream on its way.
type frame struct {
	op     operation // nil once it has its answer
	in     *v1.Operation
	kind   *kind
	result v1.OperationResult
	start  time.Time
	until  time.Time    // when its caller stops waiting
	size   int          // of its arguments, about
	class  window.Class // how it counts in the window of its stream
	notice bool         // not an answer: says that another frame waits
}

// begin takes on what place has made room for. What can be judged at once is
// ordered together. What first needs something that is not on this node, or a
// policy that asks others, goes its own way, so that nobody waits for it.
func (x *exchange) begin(ops []*v1.Operation, now time.Time) {
	store, fields := make([]frame, len(ops)), make([]input.Fields, len(ops)) // of all in one piece
	together := make([]*frame, 0, len(ops))
	var apart []*frame
	size := 0
	for i, in := range ops {
		f := &store[i]
		f.op, f.in, f.start = x.s.operationIn(x.namespace, in), in, now
		f.kind, f.size = f.op.state().kind, f.op.size()
		f.result.Tag = in.GetTag()
		f.until = now.Add(x.s.cfg.RequestTimeout + f.op.patience())
		if t := in.GetTimeout(); t.IsValid() {
			f.until = earlier(f.until, now.Add(t.AsDuration()))
		}
		if x.s.prepareIn(x.quick, &fields[i], f.in, f.op) {
			together = append(together, f)
		} else {
			apart = append(apart, f)
		}
		size += f.size
	}
	x.mu.Lock()
	x.window.Hold(size)
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
	n := x.window.Move(window.InFlight, window.Apart, len(frames))
	for _, f := range frames[:n] {
		f.class = window.Apart
		x.told = append(x.told, f.result.Tag)
	}
	x.mu.Unlock()
	x.wake()
	for _, f := range frames[:n] {
		x.work.Go(func() {
			x.s.prepareIn(x.base, &input.Fields{}, f.in, f.op)
			x.order([]*frame{f})
		})
	}
	for _, f := range frames[n:] {
		x.s.settle(f.op, errTooManyApart())
		x.finish(f, time.Now())
	}
	x.post(frames[n:]...)
}

func errTooManyApart() error {
	return fault.New(connect.CodeResourceExhausted, fault.ReasonOverloaded,
		"guardrails, policy backends or other nodes are asked about "+strconv.Itoa(maxStreamApart)+" operations of this stream at once, which is the most; nothing was applied, send it again with the same id in "+fault.ShedRetry.String()).Later(fault.ShedRetry)
}

func earlier(a, b time.Time) time.Time {
	if b.Before(a) {
		return b
	}
	return a
}

// An exchangeContext carries the namespace of a stream; it stands in front
// because every command asks for it.
type exchangeContext struct {
	context.Context
	namespace any // a string, which is not boxed for every command
	who       *atomic.Pointer[access.Principal]
	quick     bool // what takes long is not done under it
}

func (c *exchangeContext) Value(key any) any {
	switch key.(type) {
	case input.NamespaceKey:
		return c.namespace
	case order.QuickKey:
		return c.quick
	case access.Key:
		return c.who.Load()
	}
	return c.Context.Value(key)
}

// order puts frames in order and posts their answers: together, but for those
// whose premises did not hold, which are ordered again and answered later, and
// those that have to wait. All are ordered as long as the most patient of them
// has time: the deadline of each by itself ends its wait.
func (x *exchange) order(frames []*frame) {
	ops := make([]operation, len(frames))
	ready := make([]*frame, 0, len(frames))
	until := frames[0].start
	for i, f := range frames {
		ops[i] = f.op
		if f.until.After(until) {
			until = f.until
		}
	}
	// What comes on top of the first is for waiting.
	ctx, cancel := context.WithDeadline(x.base, earlier(until, frames[0].start.Add(x.s.cfg.RequestTimeout)))
	defer cancel()
	x.s.proceed(ctx, ops, course{
		queued: func(i int, w *waiting.Wait) { x.wait(frames[i], w) },
		answered: func(done []int) {
			now := time.Now() // once for all
			for _, i := range done {
				x.finish(frames[i], now)
				ready = append(ready, frames[i])
			}
			x.post(ready...)
			ready = ready[:0]
		},
	})
}

// wait lets a frame stand in its queue, to be answered later, and posts the notice of
// it: at once, since its answer may be there before those of its message are.
func (x *exchange) wait(f *frame, w *waiting.Wait) {
	x.mu.Lock()
	if x.window.Move(f.class, window.Waiting, 1) == 1 {
		f.class = window.Waiting
	}
	x.mu.Unlock()
	f.op.queue()
	notice := &frame{notice: true}
	notice.result.Tag = f.result.GetTag()
	put(&notice.result, f.op)
	x.post(notice)
	x.work.Go(func() {
		ctx, cancel := context.WithDeadline(x.waits, f.until)
		defer cancel()
		x.s.await(ctx, f.op, w)
		x.finish(f, time.Now())
		x.post(f)
	})
}

// finish takes over what became of the operation of a frame by now.
func (x *exchange) finish(f *frame, now time.Time) {
	put(&f.result, f.op)
	if err := f.op.state().err; err != nil {
		x.s.metrics.request(f.kind.procedure, err, f.start)
	} else {
		x.methods.answered(f, now)
	}
	f.op, f.in = nil, nil
}

// exchangeMethods count the frames that were answered under the method of each,
// without looking the method up for every frame.
type exchangeMethods [len(kinds)]struct {
	answered prometheus.Counter
	latency  prometheus.Observer
}

func (m *metrics) exchangeMethods() *exchangeMethods {
	var all exchangeMethods
	for i, k := range kinds {
		service, method := methodOf(k.procedure)
		all[i].answered = m.requests.WithLabelValues(service, method, "ok")
		all[i].latency = m.latency.WithLabelValues(service, method)
	}
	return &all
}

func (m *exchangeMethods) answered(f *frame, now time.Time) {
	m[f.kind.number].answered.Inc()
	m[f.kind.number].latency.Observe(now.Sub(f.start).Seconds())
}
