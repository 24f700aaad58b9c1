package wire

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Fast is the wire that encodes and decodes by hand: requests by whoever asks,
// side by side, so that the goroutine that sends only puts bytes together; and
// answers by whoever looks at them.
type Fast struct{}

// Numbers of fields in call.proto, beside those of the kinds.
const (
	fieldFrames = 1 // of ExchangeRequest

	fieldMaxInFlight = 1 // of ExchangeResponse
	fieldAnswers     = 2
	fieldGoAway      = 3
	fieldLeader      = 4
	fieldApart       = 5

	fieldTag     = 1 // of Operation and OperationResult
	fieldTimeout = 8 // of Operation

	fieldOutcome = 1 // of the results that have one
	fieldGrants  = 5 // of BeginCallResponse
	fieldToken   = 2 // of Grant
	fieldTTL     = 3
)

func (Fast) Encode(p *Parcel, k Kind, request proto.Message) bool {
	enc := encoder{raw: p.raw}
	switch r := request.(type) {
	case *govnodev1.BeginCallRequest:
		enc.begin(r)
	case *govnodev1.EndCallRequest:
		enc.end(r)
	default:
		var err error
		enc.raw, err = proto.MarshalOptions{}.MarshalAppend(enc.raw, request)
		enc.bad = err != nil
	}
	p.Kind, p.raw, p.Size = k, enc.raw, len(enc.raw)
	return !enc.bad
}

func (Fast) Open(ctx context.Context, client connect.HTTPClient, url string) Stream {
	c := connect.NewClient[packet, Inbox](client, url, connect.WithCodec(packetCodec{}), connect.WithAcceptCompression("gzip", nil, nil))
	return &fastStream{BidiStreamForClient: c.CallBidiStream(ctx)}
}

type fastStream struct {
	*connect.BidiStreamForClient[packet, Inbox]
	next packet
}

func (s *fastStream) Put(p *Parcel, tag uint64, left time.Duration) { s.next.add(p, tag, left) }

func (s *fastStream) Send() error {
	if len(s.next.raw) == 0 {
		return s.BidiStreamForClient.Send(nil)
	}
	err := s.BidiStreamForClient.Send(&s.next)
	s.next.raw = s.next.raw[:0]
	return err
}

// A packet is an ExchangeRequest in the making.
type packet struct{ raw []byte }

// add writes a parcel behind the others, with its tag and with the time it has
// left.
func (p *packet) add(of *Parcel, tag uint64, left time.Duration) {
	timeout := protowire.SizeTag(fieldTimeout) + protowire.SizeBytes(sizeDuration(left))
	size := protowire.SizeTag(fieldTag) + protowire.SizeVarint(tag) +
		protowire.SizeTag(of.Kind) + protowire.SizeBytes(len(of.raw)) + timeout
	p.raw = protowire.AppendTag(p.raw, fieldFrames, protowire.BytesType)
	p.raw = protowire.AppendVarint(p.raw, uint64(size))
	p.raw = protowire.AppendTag(p.raw, fieldTag, protowire.VarintType)
	p.raw = protowire.AppendVarint(p.raw, tag)
	p.raw = protowire.AppendTag(p.raw, of.Kind, protowire.BytesType)
	p.raw = protowire.AppendBytes(p.raw, of.raw)
	p.raw = appendDuration(p.raw, fieldTimeout, left)
}

// packetCodec is Connect's codec for the messages of a stream: what is sent is
// encoded already, and of what is received only what is needed is decoded.
type packetCodec struct{}

func (packetCodec) Name() string { return "proto" }

func (packetCodec) Marshal(m any) ([]byte, error) { return packetCodec{}.MarshalAppend(nil, m) }

func (packetCodec) MarshalAppend(dst []byte, m any) ([]byte, error) {
	p, ok := m.(*packet)
	if !ok {
		return nil, fmt.Errorf("wire: %T is no packet", m)
	}
	return append(dst, p.raw...), nil
}

func (packetCodec) Unmarshal(b []byte, m any) error {
	in, ok := m.(*Inbox)
	if !ok {
		return fmt.Errorf("wire: %T is no inbox", m)
	}
	return in.read(b)
}

type inboxBuffer struct {
	raw     []byte
	answers []Answer
}

var inboxBuffers = sync.Pool{New: func() any { return new(inboxBuffer) }}

// Free lets the answers be overwritten.
func (in *Inbox) Free() {
	if in.buffer == nil {
		return
	}
	clear(in.Answers)
	in.buffer.answers, in.Answers = in.Answers[:0], nil
	inboxBuffers.Put(in.buffer)
	in.buffer = nil
}

var (
	exchangeShape = shapeOf((&govnodev1.ExchangeResponse{}).ProtoReflect().Descriptor())
	errMalformed  = errors.New("wire: the node has sent a malformed message")
)

// read takes a message apart. b is not kept.
func (in *Inbox) read(b []byte) error {
	if !exchangeShape.fits(b, deepest) {
		return errMalformed
	}
	in.buffer = inboxBuffers.Get().(*inboxBuffer)
	in.buffer.raw = append(in.buffer.raw[:0], b...)
	in.Answers = in.buffer.answers
	for b = in.buffer.raw; len(b) > 0; {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(fieldMaxInFlight, protowire.VarintType):
			in.MaxInFlight = int32(v.number)
		case v.is(fieldAnswers, protowire.BytesType):
			a, err := readAnswer(v.bytes)
			if err != nil {
				return err
			}
			in.Answers = append(in.Answers, a)
		case v.is(fieldGoAway, protowire.VarintType):
			in.GoAway = protowire.DecodeBool(v.number)
		case v.is(fieldLeader, protowire.BytesType):
			in.Leader = string(v.bytes)
		case v.is(fieldApart, protowire.VarintType):
			in.Apart = append(in.Apart, v.number)
		case v.is(fieldApart, protowire.BytesType):
			for packed := v.bytes; len(packed) > 0; {
				tag, n := protowire.ConsumeVarint(packed)
				in.Apart, packed = append(in.Apart, tag), packed[n:]
			}
		}
	}
	return nil
}

func readAnswer(b []byte) (a Answer, err error) {
	for rest := b; len(rest) > 0; {
		var v fieldValue
		v, rest = nextField(rest)
		switch {
		case v.is(fieldTag, protowire.VarintType):
			a.Tag = v.number
		case v.wire == protowire.BytesType && v.field >= KindBegin && v.field <= KindTake:
			if a.Result.Kind != 0 {
				return readAnswerAgain(b)
			}
			a.Body.raw = v.bytes
			a.Result = readResult(v.field, v.bytes)
		}
	}
	return a, nil
}

// readAnswerAgain reads an answer that holds more than one result, of which the
// last one counts, or what all of them come to together.
func readAnswerAgain(b []byte) (Answer, error) {
	r := &govnodev1.OperationResult{}
	if err := proto.Unmarshal(b, r); err != nil {
		return Answer{}, err
	}
	once, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return Answer{}, err
	}
	return readAnswer(once)
}

// readResult reads what the client looks at in a result of a kind.
func readResult(k Kind, b []byte) Result {
	r := Result{Kind: k}
	if k == KindRenew || k == KindError {
		return r // has no outcome of its own
	}
	for len(b) > 0 {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(fieldOutcome, protowire.VarintType):
			r.Outcome = govnodev1.Outcome(v.number)
		case k == KindBegin && v.is(fieldGrants, protowire.BytesType):
			r.readGrant(v.bytes)
		}
	}
	return r
}

func (r *Result) readGrant(b []byte) {
	var token uint64
	var ttl durationpb.Duration
	for len(b) > 0 {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(fieldToken, protowire.VarintType):
			token = v.number
		case v.is(fieldTTL, protowire.BytesType):
			readDuration(v.bytes, &ttl)
		}
	}
	r.grant(token, ttl.AsDuration())
}

func readDuration(b []byte, d *durationpb.Duration) {
	for len(b) > 0 {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(1, protowire.VarintType):
			d.Seconds = int64(v.number)
		case v.is(2, protowire.VarintType):
			d.Nanos = int32(v.number)
		}
	}
}
