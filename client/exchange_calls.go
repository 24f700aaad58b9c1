package client

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/proto"

	"example.com/govnode/client/internal/wire"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// The operations that go over streams, each by one, or as a request of its own
// where there is none.

// A lazy is a message that is decoded when somebody asks for it. It is safe for
// concurrent use.
type lazy[M any, P wire.MessageOf[M]] struct {
	once sync.Once
	body wire.Body
}

func (l *lazy[M, P]) get() P {
	l.once.Do(func() {
		m, _ := wire.Decode[M, P](l.body) // it was seen to be well-formed when it came
		l.body = wire.BodyOf(m)
	})
	m, _ := wire.Decode[M, P](l.body) // as it is
	return m
}

// A reply is what a node has answered, over a stream or to a request of its own.
type reply struct {
	wire.Result
	body wire.Body
}

// begin asks the node of an errand for a call.
func (e *errand) begin(r *govnodev1.BeginCallRequest) (reply, error) {
	return e.exchange(wire.KindBegin, r, r.GetWait() != nil, func(ctx context.Context) (proto.Message, error) {
		return e.node.calls.BeginCall(ctx, r)
	})
}

// endCall tells the node of an errand that a call has ended.
func (e *errand) endCall(r *govnodev1.EndCallRequest) (reply, error) {
	return e.exchange(wire.KindEnd, r, false, func(ctx context.Context) (proto.Message, error) {
		return e.node.calls.EndCall(ctx, r)
	})
}

func (e *errand) cancelCall(r *govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
	return whole[govnodev1.CancelCallResponse](e.exchange(wire.KindCancel, r, false, func(ctx context.Context) (proto.Message, error) {
		return e.node.calls.CancelCall(ctx, r)
	}))
}

func (e *errand) acquireSlot(r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
	return whole[govnodev1.AcquireSlotResponse](e.exchange(wire.KindAcquire, r, r.GetWait() != nil, func(ctx context.Context) (proto.Message, error) {
		return e.node.slots.AcquireSlot(ctx, r)
	}))
}

func (e *errand) renewSlots(r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
	return whole[govnodev1.RenewSlotsResponse](e.exchange(wire.KindRenew, r, false, func(ctx context.Context) (proto.Message, error) {
		return e.node.slots.RenewSlots(ctx, r)
	}))
}

func (e *errand) releaseSlot(r *govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
	return whole[govnodev1.ReleaseSlotResponse](e.exchange(wire.KindRelease, r, false, func(ctx context.Context) (proto.Message, error) {
		return e.node.slots.ReleaseSlot(ctx, r)
	}))
}

// whole decodes a reply.
func whole[M any, P wire.MessageOf[M]](a reply, err error) (P, error) {
	if err != nil {
		return nil, err
	}
	return wire.Decode[M, P](a.body)
}

// exchange sends a request over the stream to the node of an errand where that
// is possible, else by itself.
func (e *errand) exchange(k wire.Kind, req proto.Message, mayWait bool, unary func(context.Context) (proto.Message, error)) (reply, error) {
	if e.node.line != nil {
		if a, err := e.overStream(k, req, mayWait); !errors.Is(err, errUnary) {
			return a, err
		}
	}
	m, err := alone(e, unary)
	if err != nil {
		return reply{}, err
	}
	return reply{Result: wire.ResultOf(k, m), body: wire.BodyOf(m)}, nil
}

// overStream sends a request over the stream to the node of an errand, or says
// errUnary.
func (e *errand) overStream(k wire.Kind, req proto.Message, mayWait bool) (reply, error) {
	f := frames.Get().(*frame)
	f.mayWait = mayWait
	if !e.c.cfg.wire.Encode(&f.Parcel, k, req) {
		return reply{}, errUnary // says what is wrong with it
	}
	if err := e.node.line.do(e, f); err != nil {
		return reply{}, err
	}
	defer f.free()
	if f.Result.Kind != k {
		return reply{}, errLeftOut // it is an answer to something else, or none
	}
	return reply{Result: f.Result, body: f.Body()}, nil
}

// alone makes an attempt by a request of its own.
func alone[Res any](e *errand, ask func(context.Context) (Res, error)) (Res, error) {
	ctx, cancel := e.attemptContext()
	defer cancel()
	s := &sending{}
	res, err := ask(context.WithValue(ctx, sendingKey{}, s))
	if err != nil && s.failed {
		err = notSent(err)
	}
	return res, err
}
