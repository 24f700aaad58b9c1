package client

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// A frame is one operation that goes over a stream. It is encoded by whoever
// asks for it, so that nothing of the request is looked at later.
type frame struct {
	raw     []byte // an Operation, but for its tag
	mayWait bool
	done    chan outcome // capacity 1

	// Guarded by link.mu.
	tag     uint64
	gone    bool // its caller has gone before it was sent
	waits   bool
	message *message // nil until it is sent

	// What is encoded; kept with the frame to spare the making of it.
	op      govnodev1.Operation
	begin   govnodev1.Operation_Begin
	end     govnodev1.Operation_End
	timeout durationpb.Duration
}

// An outcome is what became of a frame: a result, or why there is none.
type outcome struct {
	result *govnodev1.OperationResult
	err    error
}

var frames = sync.Pool{New: func() any { return &frame{done: make(chan outcome, 1)} }}

// free makes a frame ready for its next use. Nobody else must know it any more.
func (f *frame) free() {
	f.raw, f.mayWait, f.tag, f.gone, f.waits, f.message = f.raw[:0], false, 0, false, false, nil
	f.op.Op, f.op.Timeout, f.begin.Begin, f.end.End = nil, nil, nil, nil
	if cap(f.raw) <= 4<<10 {
		frames.Put(f)
	}
}

// encode writes the operation down as it is sent.
func (f *frame) encode(ctx context.Context) error {
	if end, ok := ctx.Deadline(); ok {
		left := max(time.Until(end), time.Millisecond)
		f.timeout.Seconds, f.timeout.Nanos = int64(left/time.Second), int32(left%time.Second)
		f.op.Timeout = &f.timeout
	}
	raw, err := proto.MarshalOptions{}.MarshalAppend(f.raw[:0], &f.op)
	f.raw = raw
	f.op.Op, f.op.Timeout, f.begin.Begin, f.end.End = nil, nil, nil, nil
	return err
}

// do sends an operation over the stream to the node and returns its result, or
// errUnary where that is not possible.
func (l *line) do(ctx context.Context, f *frame) (*govnodev1.OperationResult, error) {
	if err := f.encode(ctx); err != nil || len(f.raw) > maxFrame {
		return nil, errUnary // says what is wrong with it
	}
	k, err := l.ready(ctx)
	if err != nil {
		return nil, err
	}
	if err := k.add(f); err != nil {
		if errors.Is(err, errUnary) {
			return nil, err
		}
		return nil, notSent(err)
	}
	select {
	case o := <-f.done:
		f.free()
		if o.err != nil {
			return nil, o.err
		}
		if e := o.result.GetError(); e != nil {
			return nil, wireError(e)
		}
		return o.result, nil
	case <-ctx.Done():
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	if f.message == nil {
		f.gone = true
		return nil, notSent(context.Cause(ctx))
	}
	return nil, context.Cause(ctx)
}

// wireError is what an error in a frame would be as the error of a request of
// its own.
func wireError(e *govnodev1.OperationError) error {
	var code connect.Code
	if code.UnmarshalText([]byte(e.GetCode())) != nil {
		code = connect.CodeUnknown
	}
	err := connect.NewWireError(code, errors.New(e.GetMessage()))
	info := &errdetails.ErrorInfo{Reason: e.GetReason(), Domain: "govnode"}
	if n := e.GetNewerThan(); n != 0 {
		info.Metadata = map[string]string{"newerThan": strconv.FormatInt(n, 10)}
	}
	if detail, e := connect.NewErrorDetail(info); e == nil {
		err.AddDetail(detail)
	}
	return err
}

// A packet is an ExchangeRequest in the making.
type packet struct{ raw []byte }

// Numbers of fields in call.proto.
const (
	fieldFrames = 1 // of ExchangeRequest
	fieldTag    = 1 // of Operation
)

// add writes a frame behind the others, with its tag.
func (p *packet) add(f *frame) {
	p.raw = protowire.AppendTag(p.raw, fieldFrames, protowire.BytesType)
	p.raw = protowire.AppendVarint(p.raw, uint64(protowire.SizeTag(fieldTag)+protowire.SizeVarint(f.tag)+len(f.raw)))
	p.raw = protowire.AppendTag(p.raw, fieldTag, protowire.VarintType)
	p.raw = protowire.AppendVarint(p.raw, f.tag)
	p.raw = append(p.raw, f.raw...)
}

// packetCodec is Connect's codec for messages that are encoded already.
type packetCodec struct{}

func (packetCodec) Name() string { return "proto" }

func (packetCodec) Marshal(m any) ([]byte, error) { return packetCodec{}.MarshalAppend(nil, m) }

func (packetCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, ok := m.(*packet)
	if !ok {
		return nil, fmt.Errorf("client: %T is no packet", m)
	}
	return append(dst, p.raw...), nil
}

func (packetCodec) Unmarshal(b []byte, m any) error {
	r, ok := m.(proto.Message)
	if !ok {
		return fmt.Errorf("client: %T is no message", m)
	}
	return proto.Unmarshal(b, r)
}

// streamedCalls is CallService with what can go over a stream going there.
type streamedCalls struct {
	govnodev1connect.CallServiceClient
	line *line
}

func (s *streamedCalls) BeginCall(ctx context.Context, req *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
	f := frames.Get().(*frame)
	f.begin.Begin, f.mayWait = req, req.GetWait() != nil
	f.op.Op = &f.begin
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.CallServiceClient.BeginCall(ctx, req)
	}
	return r.GetBegin(), err
}

func (s *streamedCalls) EndCall(ctx context.Context, req *govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
	f := frames.Get().(*frame)
	f.end.End = req
	f.op.Op = &f.end
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.CallServiceClient.EndCall(ctx, req)
	}
	return r.GetEnd(), err
}

func (s *streamedCalls) CancelCall(ctx context.Context, req *govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
	f := frames.Get().(*frame)
	f.op.Op = &govnodev1.Operation_Cancel{Cancel: req}
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.CallServiceClient.CancelCall(ctx, req)
	}
	return r.GetCancel(), err
}

// streamedSlots is SlotService with what can go over a stream going there.
type streamedSlots struct {
	govnodev1connect.SlotServiceClient
	line *line
}

func (s *streamedSlots) AcquireSlot(ctx context.Context, req *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
	f := frames.Get().(*frame)
	f.op.Op, f.mayWait = &govnodev1.Operation_Acquire{Acquire: req}, req.GetWait() != nil
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.SlotServiceClient.AcquireSlot(ctx, req)
	}
	return r.GetAcquire(), err
}

func (s *streamedSlots) RenewSlots(ctx context.Context, req *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
	f := frames.Get().(*frame)
	f.op.Op = &govnodev1.Operation_Renew{Renew: req}
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.SlotServiceClient.RenewSlots(ctx, req)
	}
	return r.GetRenew(), err
}

func (s *streamedSlots) ReleaseSlot(ctx context.Context, req *govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
	f := frames.Get().(*frame)
	f.op.Op = &govnodev1.Operation_Release{Release: req}
	r, err := s.line.do(ctx, f)
	if errors.Is(err, errUnary) {
		return s.SlotServiceClient.ReleaseSlot(ctx, req)
	}
	return r.GetRelease(), err
}
