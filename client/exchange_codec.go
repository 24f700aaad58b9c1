package client

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Numbers of fields in call.proto. The operations of Operation and their results
// in OperationResult have the same ones.
const (
	fieldFrames = 1 // of ExchangeRequest

	fieldMaxInFlight = 1 // of ExchangeResponse
	fieldAnswers     = 2
	fieldGoAway      = 3
	fieldLeader      = 4
	fieldApart       = 5

	fieldTag     = 1 // of Operation and OperationResult
	fieldBegin   = 2
	fieldEnd     = 3
	fieldCancel  = 4
	fieldAcquire = 5
	fieldRenew   = 6
	fieldRelease = 7
	fieldTimeout = 8 // of Operation
	fieldError   = 8 // of OperationResult

	fieldOutcome = 1 // of the results that have one
	fieldGrants  = 5 // of BeginCallResponse
	fieldToken   = 2 // of Grant
	fieldTTL     = 3
)

// A packet is an ExchangeRequest in the making.
type packet struct{ raw []byte }

// add writes a frame behind the others, with its tag and with the time it has
// left.
func (p *packet) add(f *frame, now time.Time) {
	left := max(f.told.Sub(now), time.Millisecond)
	timeout := protowire.SizeTag(fieldTimeout) + protowire.SizeBytes(sizeDuration(left))
	size := protowire.SizeTag(fieldTag) + protowire.SizeVarint(f.tag) +
		protowire.SizeTag(f.kind) + protowire.SizeBytes(len(f.raw)) + timeout
	p.raw = protowire.AppendTag(p.raw, fieldFrames, protowire.BytesType)
	p.raw = protowire.AppendVarint(p.raw, uint64(size))
	p.raw = protowire.AppendTag(p.raw, fieldTag, protowire.VarintType)
	p.raw = protowire.AppendVarint(p.raw, f.tag)
	p.raw = protowire.AppendTag(p.raw, f.kind, protowire.BytesType)
	p.raw = protowire.AppendBytes(p.raw, f.raw)
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
		return nil, fmt.Errorf("client: %T is no packet", m)
	}
	return append(dst, p.raw...), nil
}

func (packetCodec) Unmarshal(b []byte, m any) error {
	in, ok := m.(*inbox)
	if !ok {
		return fmt.Errorf("client: %T is no inbox", m)
	}
	return in.read(b)
}

// An inbox is an ExchangeResponse whose answers are as they came, and known to
// be well-formed. Its user calls free.
type inbox struct {
	maxInFlight int32
	goAway      bool
	leader      string
	answers     []answer
	apart       []uint64     // tags of frames that take long and count no more
	buffer      *inboxBuffer // nil for a message of no bytes
}

// An answer is an OperationResult.
type answer struct {
	tag    uint64
	result result
	body   []byte
}

// A result is what the client itself looks at in the result of an operation.
type result struct {
	kind    protowire.Number // the field of OperationResult; 0 if it holds none
	outcome govnodev1.Outcome
	token   uint64        // of the first grant of a begin
	ttl     time.Duration // the shortest of the grants of a begin
	granted bool          // it has a grant
}

type inboxBuffer struct {
	raw     []byte
	answers []answer
}

var inboxBuffers = sync.Pool{New: func() any { return new(inboxBuffer) }}

func (in *inbox) free() {
	if in.buffer == nil {
		return
	}
	clear(in.answers)
	in.buffer.answers, in.answers = in.answers[:0], nil
	inboxBuffers.Put(in.buffer)
	in.buffer = nil
}

var (
	exchangeShape = shapeOf((&govnodev1.ExchangeResponse{}).ProtoReflect().Descriptor())
	errMalformed  = errors.New("client: the node has sent a malformed message")
)

// read takes a message apart. b is not kept.
func (in *inbox) read(b []byte) error {
	if !exchangeShape.fits(b, deepest) {
		return errMalformed
	}
	in.buffer = inboxBuffers.Get().(*inboxBuffer)
	in.buffer.raw = append(in.buffer.raw[:0], b...)
	in.answers = in.buffer.answers
	for b = in.buffer.raw; len(b) > 0; {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(fieldMaxInFlight, protowire.VarintType):
			in.maxInFlight = int32(v.number)
		case v.is(fieldAnswers, protowire.BytesType):
			a, err := readAnswer(v.bytes)
			if err != nil {
				return err
			}
			in.answers = append(in.answers, a)
		case v.is(fieldGoAway, protowire.VarintType):
			in.goAway = protowire.DecodeBool(v.number)
		case v.is(fieldLeader, protowire.BytesType):
			in.leader = string(v.bytes)
		case v.is(fieldApart, protowire.VarintType):
			in.apart = append(in.apart, v.number)
		case v.is(fieldApart, protowire.BytesType):
			for packed := v.bytes; len(packed) > 0; {
				tag, n := protowire.ConsumeVarint(packed)
				in.apart, packed = append(in.apart, tag), packed[n:]
			}
		}
	}
	return nil
}

func readAnswer(b []byte) (a answer, err error) {
	for rest := b; len(rest) > 0; {
		var v fieldValue
		v, rest = nextField(rest)
		switch {
		case v.is(fieldTag, protowire.VarintType):
			a.tag = v.number
		case v.wire == protowire.BytesType && v.field >= fieldBegin && v.field <= fieldError:
			if a.result.kind != 0 {
				return readAnswerAgain(b)
			}
			a.body = v.bytes
			a.result = readResult(v.field, v.bytes)
		}
	}
	return a, nil
}

// readAnswerAgain reads an answer that holds more than one result, of which the
// last one counts, or what all of them come to together.
func readAnswerAgain(b []byte) (answer, error) {
	r := &govnodev1.OperationResult{}
	if err := proto.Unmarshal(b, r); err != nil {
		return answer{}, err
	}
	once, err := proto.MarshalOptions{Deterministic: true}.Marshal(r)
	if err != nil {
		return answer{}, err
	}
	return readAnswer(once)
}

// readResult reads what the client looks at in a result of a kind.
func readResult(kind protowire.Number, b []byte) result {
	r := result{kind: kind}
	if kind == fieldRenew || kind == fieldError {
		return r // has no outcome of its own
	}
	for len(b) > 0 {
		var v fieldValue
		v, b = nextField(b)
		switch {
		case v.is(fieldOutcome, protowire.VarintType):
			r.outcome = govnodev1.Outcome(v.number)
		case kind == fieldBegin && v.is(fieldGrants, protowire.BytesType):
			r.readGrant(v.bytes)
		}
	}
	return r
}

func (r *result) readGrant(b []byte) {
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

// grant takes a grant into account: any token stands for the call, and the
// first lease to end is the one that matters.
func (r *result) grant(token uint64, ttl time.Duration) {
	if !r.granted {
		r.granted, r.token, r.ttl = true, token, ttl
	}
	r.ttl = min(r.ttl, ttl)
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
