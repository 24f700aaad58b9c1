package wire

import (
	"context"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Plain is the wire of the generated code: what fast is held to.
type Plain struct{}

func (Plain) Encode(p *Parcel, k Kind, request proto.Message) bool {
	p.Kind, p.Size, p.message = k, proto.Size(request), proto.Clone(request)
	_, err := proto.Marshal(request)
	return err == nil
}

func (Plain) Open(ctx context.Context, client connect.HTTPClient, url string) Stream {
	c := connect.NewClient[govnodev1.ExchangeRequest, govnodev1.ExchangeResponse](client, url, connect.WithAcceptCompression("gzip", nil, nil))
	return &plainStream{BidiStreamForClient: c.CallBidiStream(ctx)}
}

type plainStream struct {
	*connect.BidiStreamForClient[govnodev1.ExchangeRequest, govnodev1.ExchangeResponse]
	next *govnodev1.ExchangeRequest // nil if nothing was put
}

func (s *plainStream) Put(p *Parcel, tag uint64, left time.Duration) {
	op := &govnodev1.Operation{Tag: tag, Timeout: durationpb.New(left)}
	m := op.ProtoReflect()
	m.Set(m.Descriptor().Fields().ByNumber(p.Kind), protoreflect.ValueOfMessage(p.message.ProtoReflect()))
	if s.next == nil {
		s.next = &govnodev1.ExchangeRequest{}
	}
	s.next.Frames = append(s.next.Frames, op)
}

func (s *plainStream) Send() error {
	next := s.next
	s.next = nil
	return s.BidiStreamForClient.Send(next)
}

func (s *plainStream) Receive() (*Inbox, error) {
	m, err := s.BidiStreamForClient.Receive()
	if err != nil {
		return nil, err
	}
	return inboxOf(m), nil
}

// inboxOf returns a message as an inbox.
func inboxOf(m *govnodev1.ExchangeResponse) *Inbox {
	in := &Inbox{MaxInFlight: m.GetMaxInFlight(), GoAway: m.GetGoAway(), Leader: m.GetLeaderAddress(), Apart: m.GetApart()}
	for _, r := range m.GetAnswers() {
		a := Answer{Tag: r.GetTag()}
		from := r.ProtoReflect()
		if field := from.WhichOneof(from.Descriptor().Oneofs().ByName("result")); field != nil {
			a.Body = BodyOf(from.Get(field).Message().Interface())
			a.Result = ResultOf(field.Number(), a.Body.message)
		}
		in.Answers = append(in.Answers, a)
	}
	return in
}
