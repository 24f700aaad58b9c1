package client

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A wire is how operations travel on a stream. There are two, and they carry the
// same: fast, which writes and reads protobuf by hand, and plain, which leaves it
// to the generated code. With plain a call costs nearly twice the time of the
// processor, HTTP/2 and all, and five times the allocations (BenchmarkCall).
type wire interface {
	// Encode makes a parcel of a request, at which nobody looks later. It
	// returns false for one that cannot be encoded.
	Encode(p *parcel, k kind, request proto.Message) bool
	// Open opens a stream to a node. Nothing is sent yet.
	Open(ctx context.Context, client connect.HTTPClient, url string) stream
}

// A stream carries parcels there and answers back. One goroutine may send while
// another one receives.
type stream interface {
	RequestHeader() http.Header
	// Put adds a parcel to the next message, with the time that it has left.
	Put(p *parcel, tag uint64, left time.Duration)
	// Send sends that message. One of nothing is sent as its headers.
	Send() error
	Receive() (*inbox, error)
	CloseRequest() error
	CloseResponse() error
}

// A kind says what an operation is: its field of Operation, which is that of its
// result in OperationResult.
type kind = protowire.Number

const (
	kindBegin   kind = 2
	kindEnd     kind = 3
	kindCancel  kind = 4
	kindAcquire kind = 5
	kindRenew   kind = 6
	kindRelease kind = 7
	kindError   kind = 8 // of OperationResult
)

// A parcel is one operation, and then its result.
type parcel struct {
	Kind kind
	Size int // of the request, in bytes

	Result result // what the answer says, but for its body

	raw     []byte        // the request, and when that is answered the answer
	message proto.Message // the same, where it is not encoded
}

// Deliver puts the answer into a parcel.
func (p *parcel) Deliver(a *answer) {
	p.Result, p.raw, p.message = a.Result, append(p.raw[:0], a.Body.raw...), a.Body.message
}

// Body returns what was delivered, for whoever keeps it.
func (p *parcel) Body() body {
	if p.message != nil {
		return body{message: p.message}
	}
	raw := make([]byte, len(p.raw))
	copy(raw, p.raw)
	return body{raw: raw}
}

// Err returns what was delivered as an error, if it is one.
func (p *parcel) Err() error {
	if p.Result.Kind != kindError {
		return nil
	}
	e, err := decode[govnodev1.OperationError](body{raw: p.raw, message: p.message})
	if err != nil {
		return err
	}
	return wireError(e)
}

// Reset empties a parcel, and reports whether it is worth to be kept.
func (p *parcel) Reset() bool {
	*p = parcel{raw: p.raw[:0]}
	return cap(p.raw) <= 4<<10
}

// An inbox is what one message of a node says. Its user calls Free.
type inbox struct {
	MaxInFlight int32
	GoAway      bool
	Leader      string
	Answers     []answer
	Apart       []uint64     // tags of frames that take long and count no more
	buffer      *inboxBuffer // of fast; nil for a message of no bytes
}

// An answer is an OperationResult.
type answer struct {
	Tag    uint64
	Result result
	Body   body
}

// A body is the result of an operation, by its bytes or by its message.
type body struct {
	raw     []byte
	message proto.Message
}

// bodyOf returns a message as a body.
func bodyOf(m proto.Message) body { return body{message: m} }

// A messageOf is a pointer to a type of message.
type messageOf[M any] interface {
	*M
	proto.Message
}

// decode returns a body as a message.
func decode[M any, P messageOf[M]](b body) (P, error) {
	if m, ok := b.message.(P); ok {
		return m, nil
	}
	m := P(new(M))
	return m, proto.Unmarshal(b.raw, m)
}

// A result is what the client itself looks at in the result of an operation.
type result struct {
	Kind    kind // 0 if there is none
	Outcome govnodev1.Outcome
	Token   uint64        // of the first grant of a begin
	TTL     time.Duration // the shortest of the grants of a begin
	granted bool          // it has a grant
}

// resultOf reads what the client looks at in a message.
func resultOf(k kind, m proto.Message) result {
	r := result{Kind: k}
	if m, ok := m.(interface{ GetOutcome() govnodev1.Outcome }); ok {
		r.Outcome = m.GetOutcome()
	}
	if m, ok := m.(*govnodev1.BeginCallResponse); ok {
		for _, g := range m.GetGrants() {
			r.grant(g.GetToken(), g.GetTtl().AsDuration())
		}
	}
	return r
}

// grant takes a grant into account: any token stands for the call, and the
// first lease to end is the one that matters.
func (r *result) grant(token uint64, ttl time.Duration) {
	if !r.granted {
		r.granted, r.Token, r.TTL = true, token, ttl
	}
	r.TTL = min(r.TTL, ttl)
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
