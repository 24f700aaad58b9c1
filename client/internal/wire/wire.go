package wire

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

// A Wire is how operations travel on a stream. There are two, and they carry the
// same: fast, which writes and reads protobuf by hand, and plain, which leaves it
// to the generated code. With plain a call costs nearly twice the time of the
// processor, HTTP/2 and all, and five times the allocations (BenchmarkCall).
type Wire interface {
	// Encode makes a parcel of a request, at which nobody looks later. It
	// returns false for one that cannot be encoded.
	Encode(p *Parcel, k Kind, request proto.Message) bool
	// Open opens a stream to a node. Nothing is sent yet.
	Open(ctx context.Context, client connect.HTTPClient, url string) Stream
}

// A Stream carries parcels there and answers back. One goroutine may send while
// another one receives.
type Stream interface {
	RequestHeader() http.Header
	// Put adds a parcel to the next message, with the time that it has left.
	Put(p *Parcel, tag uint64, left time.Duration)
	// Send sends that message. One of nothing is sent as its headers.
	Send() error
	Receive() (*Inbox, error)
	CloseRequest() error
	CloseResponse() error
}

// A Kind says what an operation is: its field of Operation, which is that of its
// result in OperationResult.
type Kind = protowire.Number

const (
	KindBegin   Kind = 2
	KindEnd     Kind = 3
	KindCancel  Kind = 4
	KindAcquire Kind = 5
	KindRenew   Kind = 6
	KindRelease Kind = 7
	KindError   Kind = 8 // of OperationResult
	KindTake    Kind = 9
)

// A Parcel is one operation, and then its result.
type Parcel struct {
	Kind Kind
	Size int // of the request, in bytes

	Result Result // what the answer says, but for its body

	raw     []byte        // the request, and when that is answered the answer
	message proto.Message // the same, where it is not encoded
}

// Deliver puts the answer into a parcel.
func (p *Parcel) Deliver(a *Answer) {
	p.Result, p.raw, p.message = a.Result, append(p.raw[:0], a.Body.raw...), a.Body.message
}

// Body returns what was delivered, for whoever keeps it.
func (p *Parcel) Body() Body {
	if p.message != nil {
		return Body{message: p.message}
	}
	raw := make([]byte, len(p.raw))
	copy(raw, p.raw)
	return Body{raw: raw}
}

// Err returns what was delivered as an error, if it is one.
func (p *Parcel) Err() error {
	if p.Result.Kind != KindError {
		return nil
	}
	e, err := Decode[govnodev1.OperationError](Body{raw: p.raw, message: p.message})
	if err != nil {
		return err
	}
	return Error(e)
}

// Reset empties a parcel, and reports whether it is worth to be kept.
func (p *Parcel) Reset() bool {
	*p = Parcel{raw: p.raw[:0]}
	return cap(p.raw) <= 4<<10
}

// An Inbox is what one message of a node says. Its user calls Free.
type Inbox struct {
	MaxInFlight int32
	GoAway      bool
	Leader      string
	Answers     []Answer
	Apart       []uint64     // tags of frames that take long and count no more
	buffer      *inboxBuffer // of fast; nil for a message of no bytes
}

// An Answer is an OperationResult.
type Answer struct {
	Tag    uint64
	Result Result
	Body   Body
}

// A Body is the result of an operation, by its bytes or by its message.
type Body struct {
	raw     []byte
	message proto.Message
}

// BodyOf returns a message as a body.
func BodyOf(m proto.Message) Body { return Body{message: m} }

// A MessageOf is a pointer to a type of message.
type MessageOf[M any] interface {
	*M
	proto.Message
}

// Decode returns a body as a message.
func Decode[M any, P MessageOf[M]](b Body) (P, error) {
	if m, ok := b.message.(P); ok {
		return m, nil
	}
	m := P(new(M))
	return m, proto.Unmarshal(b.raw, m)
}

// A Result is what the client itself looks at in the result of an operation.
type Result struct {
	Kind    Kind // 0 if there is none
	Outcome govnodev1.Outcome
	Token   uint64        // of the first grant of a begin
	TTL     time.Duration // the shortest of the grants of a begin
	granted bool          // it has a grant
}

// ResultOf reads what the client looks at in a message.
func ResultOf(k Kind, m proto.Message) Result {
	r := Result{Kind: k}
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
func (r *Result) grant(token uint64, ttl time.Duration) {
	if !r.granted {
		r.granted, r.Token, r.TTL = true, token, ttl
	}
	r.TTL = min(r.TTL, ttl)
}

// Error is what an error in a frame would be as the error of a request of
// its own.
func Error(e *govnodev1.OperationError) error {
	var code connect.Code
	if code.UnmarshalText([]byte(e.GetCode())) != nil {
		code = connect.CodeUnknown
	}
	err := connect.NewWireError(code, errors.New(e.GetMessage()))
	info := &errdetails.ErrorInfo{Reason: e.GetReason(), Domain: "govnode", Metadata: map[string]string{}}
	details := []proto.Message{info}
	if n := e.GetNewerThan(); n != 0 {
		info.Metadata["newerThan"] = strconv.FormatInt(n, 10)
	}
	if d := e.GetRetryAfter(); d != nil {
		info.Metadata["retryAfter"] = d.AsDuration().String()
		details = append(details, &errdetails.RetryInfo{RetryDelay: d})
	}
	for _, m := range details {
		if detail, e := connect.NewErrorDetail(m); e == nil {
			err.AddDetail(detail)
		}
	}
	return err
}
