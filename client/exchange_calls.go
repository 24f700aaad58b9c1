package client

import (
	"context"
	"errors"
	"sync"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A messageOf is a pointer to a type of message.
type messageOf[M any] interface {
	*M
	proto.Message
}

// A lazy is a message that is decoded when somebody asks for it. It is safe for
// concurrent use.
type lazy[M any, P messageOf[M]] struct {
	once    sync.Once
	raw     []byte
	message P
}

func (l *lazy[M, P]) get() P {
	l.once.Do(func() {
		if l.message == nil {
			l.message = new(M)
			_ = proto.Unmarshal(l.raw, l.message) // it was seen to be well-formed when it came
			l.raw = nil
		}
	})
	return l.message
}

// A reply is the result of a begin or an end, by its bytes where it came over a
// stream and else by its message.
type reply[P proto.Message] struct {
	result
	raw     []byte
	message P
}

// begin asks the node of an errand for a call.
func (e *errand) begin(r *govnodev1.BeginCallRequest) (a reply[*govnodev1.BeginCallResponse], err error) {
	if e.node.line != nil {
		f := newFrame(fieldBegin, r.GetWait() != nil)
		enc := encoder{raw: f.raw}
		enc.begin(r)
		if a.result, a.raw, err = e.overStream(f, enc); !errors.Is(err, errUnary) {
			return a, err
		}
	}
	ctx, cancel := e.attemptContext()
	defer cancel()
	a.message, err = e.node.calls.BeginCall(ctx, r)
	a.result = result{kind: fieldBegin, outcome: a.message.GetOutcome()}
	for _, g := range a.message.GetGrants() {
		a.grant(g.GetToken(), g.GetTtl().AsDuration())
	}
	return a, err
}

// endCall tells the node of an errand that a call has ended.
func (e *errand) endCall(r *govnodev1.EndCallRequest) (a reply[*govnodev1.EndCallResponse], err error) {
	if e.node.line != nil {
		f := newFrame(fieldEnd, false)
		enc := encoder{raw: f.raw}
		enc.end(r)
		if a.result, a.raw, err = e.overStream(f, enc); !errors.Is(err, errUnary) {
			return a, err
		}
	}
	ctx, cancel := e.attemptContext()
	defer cancel()
	a.message, err = e.node.calls.EndCall(ctx, r)
	a.result = result{kind: fieldEnd, outcome: a.message.GetOutcome()}
	return a, err
}

// overStream sends what is encoded over the stream to the node of an errand, or
// says errUnary.
func (e *errand) overStream(f *frame, enc encoder) (result, []byte, error) {
	f.raw = enc.raw
	if enc.bad {
		return result{}, nil, errUnary // says what is wrong with it
	}
	if err := e.node.line.do(e, f); err != nil {
		return result{}, nil, err
	}
	defer f.free()
	if f.result.kind != f.kind {
		return result{}, nil, nil // it is an answer to something else, and says nothing
	}
	raw := make([]byte, len(f.raw))
	copy(raw, f.raw)
	return f.result, raw, nil
}

func (e *errand) cancelCall(r *govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
	return exchanged(e, fieldCancel, r, false, func(ctx context.Context) (*govnodev1.CancelCallResponse, error) {
		return e.node.calls.CancelCall(ctx, r)
	})
}

func (e *errand) acquireSlot(r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
	return exchanged(e, fieldAcquire, r, r.GetWait() != nil, func(ctx context.Context) (*govnodev1.AcquireSlotResponse, error) {
		return e.node.slots.AcquireSlot(ctx, r)
	})
}

func (e *errand) renewSlots(r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
	return exchanged(e, fieldRenew, r, false, func(ctx context.Context) (*govnodev1.RenewSlotsResponse, error) {
		return e.node.slots.RenewSlots(ctx, r)
	})
}

func (e *errand) releaseSlot(r *govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
	return exchanged(e, fieldRelease, r, false, func(ctx context.Context) (*govnodev1.ReleaseSlotResponse, error) {
		return e.node.slots.ReleaseSlot(ctx, r)
	})
}

// exchanged sends a request over the stream to the node of an errand where that
// is possible, else by itself.
func exchanged[M any, P messageOf[M]](e *errand, kind protowire.Number, req proto.Message, mayWait bool, unary func(context.Context) (P, error)) (P, error) {
	if e.node.line != nil {
		f := newFrame(kind, mayWait)
		raw, err := proto.MarshalOptions{}.MarshalAppend(f.raw, req)
		_, raw, err = e.overStream(f, encoder{raw: raw, bad: err != nil})
		if err == nil {
			res := P(new(M))
			return res, proto.Unmarshal(raw, res)
		}
		if !errors.Is(err, errUnary) {
			return nil, err
		}
	}
	return alone(e, unary)
}

// alone makes an attempt by a request of its own.
func alone[Res any](e *errand, ask func(context.Context) (Res, error)) (Res, error) {
	ctx, cancel := e.attemptContext()
	defer cancel()
	return ask(ctx)
}
