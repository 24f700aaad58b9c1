package wire

import (
	"time"
	"unicode/utf8"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// An encoder writes the requests that there are many of as proto.Marshal does,
// which takes several times as long. A test holds the two together, field by
// field.
type encoder struct {
	raw []byte
	bad bool // something in it cannot be encoded
}

// begin writes a BeginCallRequest.
func (e *encoder) begin(r *govnodev1.BeginCallRequest) {
	e.text(1, r.GetSessionId())
	e.text(2, r.GetCallId())
	e.number(3, int64(r.GetKind()))
	e.text(4, r.GetTool())
	if m := r.GetArguments(); m != nil {
		e.message(5, m)
	}
	if m := r.GetContext(); m != nil {
		e.message(6, m)
	}
	for _, w := range r.GetPools() {
		e.want(7, w)
	}
	e.duration(8, r.GetTtl())
	e.duration(9, r.GetMaxHold())
	e.duration(10, r.GetWait())
	e.number(11, int64(r.GetPriority()))
	e.number(12, r.GetTokens())
	e.text(13, r.GetArgumentsJson())
	e.text(14, r.GetContextJson())
	e.number(15, int64(r.GetOrder()))
	for key, value := range r.GetMetadata() {
		e.entry(16, key, value)
	}
	for _, w := range r.GetRates() {
		e.message(17, w)
	}
	for _, b := range r.GetBudgets() {
		e.message(18, b)
	}
	e.text(19, r.GetServerLabel())
	e.text(20, r.GetMetadataJson())
	e.text(21, r.GetSessionToken())
}

// end writes an EndCallRequest.
func (e *encoder) end(r *govnodev1.EndCallRequest) {
	e.text(1, r.GetSessionId())
	e.text(2, r.GetCallId())
	e.number(3, int64(r.GetStatus()))
	if m := r.GetOutput(); m != nil {
		e.message(4, m)
	}
	if r.Tokens != nil { // 0 is that none was used
		e.raw = protowire.AppendTag(e.raw, 5, protowire.VarintType)
		e.raw = protowire.AppendVarint(e.raw, uint64(*r.Tokens))
	}
	for _, b := range r.GetSpent() {
		e.message(6, b)
	}
	if m := r.GetBegin(); m != nil {
		e.message(7, m)
	}
	e.text(8, r.GetSessionToken())
}

func (e *encoder) text(field protowire.Number, s string) {
	if s == "" {
		return
	}
	e.bad = e.bad || !utf8.ValidString(s)
	e.raw = protowire.AppendTag(e.raw, field, protowire.BytesType)
	e.raw = protowire.AppendString(e.raw, s)
}

func (e *encoder) number(field protowire.Number, n int64) {
	if n == 0 {
		return
	}
	e.raw = protowire.AppendTag(e.raw, field, protowire.VarintType)
	e.raw = protowire.AppendVarint(e.raw, uint64(n))
}

// head begins a field that has a length.
func (e *encoder) head(field protowire.Number, size int) {
	e.raw = protowire.AppendTag(e.raw, field, protowire.BytesType)
	e.raw = protowire.AppendVarint(e.raw, uint64(size))
}

func (e *encoder) message(field protowire.Number, m proto.Message) {
	var err error
	e.head(field, proto.Size(m))
	e.raw, err = proto.MarshalOptions{UseCachedSize: true}.MarshalAppend(e.raw, m)
	e.bad = e.bad || err != nil
}

func (e *encoder) duration(field protowire.Number, d *durationpb.Duration) {
	if d == nil {
		return
	}
	e.head(field, sizeNumber(d.GetSeconds())+sizeNumber(int64(d.GetNanos())))
	e.number(1, d.GetSeconds())
	e.number(2, int64(d.GetNanos()))
}

func (e *encoder) want(field protowire.Number, w *govnodev1.Want) {
	e.head(field, sizeText(w.GetPool())+sizeNumber(int64(w.GetWeight())))
	e.text(1, w.GetPool())
	e.number(2, int64(w.GetWeight()))
}

// entry writes one entry of a map, which has its two fields even if they are
// empty.
func (e *encoder) entry(field protowire.Number, key, value string) {
	e.head(field, 2+protowire.SizeBytes(len(key))+protowire.SizeBytes(len(value)))
	for i, s := range [...]string{key, value} {
		e.bad = e.bad || !utf8.ValidString(s)
		e.head(protowire.Number(i+1), len(s))
		e.raw = append(e.raw, s...)
	}
}

// sizeText and sizeNumber are for fields of numbers up to 15.
func sizeText(s string) int {
	if s == "" {
		return 0
	}
	return 1 + protowire.SizeBytes(len(s))
}

func sizeNumber(n int64) int {
	if n == 0 {
		return 0
	}
	return 1 + protowire.SizeVarint(uint64(n))
}

func sizeDuration(d time.Duration) int {
	return sizeNumber(int64(d/time.Second)) + sizeNumber(int64(d%time.Second))
}

func appendDuration(b []byte, field protowire.Number, d time.Duration) []byte {
	e := encoder{raw: b}
	e.head(field, sizeDuration(d))
	e.number(1, int64(d/time.Second))
	e.number(2, int64(d%time.Second))
	return e.raw
}
