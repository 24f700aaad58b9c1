package server

import (
	"crypto/sha256"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine/value"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/session/ids"
)

// fields checks the fields of one request and keeps the first problem. Names
// are those of the JSON form.
type fields struct {
	outer *fields // of the message in which the one that is checked stands; nil at the outermost
	name  string  // there
	item  int     // its place in a list from 1 on; 0 where it is in none
	err   error
}

// path names a field from the outermost message on, such as
// operations[3].begin.tool. It is made only when something is wrong.
func (f *fields) path(field string) string {
	for ; f != nil && f.name != ""; f = f.outer {
		if f.item > 0 {
			field = f.name + "[" + itoa(int64(f.item-1)) + "]." + field
		} else {
			field = f.name + "." + field
		}
	}
	return field
}

func (f *fields) refuse(field, format string, args ...any) {
	if f.err == nil {
		f.err = invalid(f.path(field), format, args...)
	}
}

// in returns the checks of a message within this one.
func (f *fields) in(field string) *fields { return &fields{outer: f, name: field} }

// at returns the checks of an item of a list within this message.
func (f *fields) at(list string, i int) *fields { return &fields{outer: f, name: list, item: i + 1} }

// take keeps the problem of a message within this one.
func (f *fields) take(inner *fields) {
	if f.err == nil {
		f.err = inner.err
	}
}

const idRule = "letters, digits and . _ : @ / -"

func isIDByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("._:@/-", c) >= 0
}

// id checks an id that must be there.
func (f *fields) id(field, id string) { f.idWithin(field, id, caps.ID) }

func (f *fields) idWithin(field, id string, b bound) {
	switch {
	case id == "":
		f.refuse(field, "is required; choose 1 to %d of %s", b.Max, idRule)
	case int64(len(id)) > b.Max:
		f.refuse(field, "has %d bytes, the most is %d; choose a shorter one", len(id), b.Max)
	}
	for i := 0; i < len(id); i++ {
		if !isIDByte(id[i]) {
			f.refuse(field, "byte %d is not allowed; use only %s", i, idRule)
			return
		}
	}
}

// optionalID checks an id that may be absent.
func (f *fields) optionalID(field, id string) {
	if id != "" {
		f.id(field, id)
	}
}

// client checks who asks, and returns default where nobody says.
func (f *fields) client(id string) string { return f.clientNamed("client", id) }

func (f *fields) clientNamed(field, id string) string {
	if id == "" {
		return "default"
	}
	f.id(field, id)
	return id
}

// newID checks an id under which something is remembered. One that carries a time
// far in the future would, once it is forgotten, make all ids stale that are not
// newer.
func (s *Server) newID(f *fields, field, id string) {
	f.id(field, id)
	t := ids.Time(id)
	if t == 0 || f.err != nil {
		return
	}
	now, carried := s.cfg.Now(), time.UnixMilli(int64(t))
	if carried.Sub(now) <= caps.Ahead.Max {
		return
	}
	stamp := stampOf(carried)
	if t == ids.MaxTime {
		stamp += " or later"
	}
	// How far ahead that is may be more than a duration holds.
	f.refuse(field, "carries the time %s, and the clock of this node says %s; an id that carries a time may be at most %v ahead of the clock of this node. Set the clock right by which ids are made, or choose an id that is no ULID or UUIDv7",
		stamp, stampOf(now), caps.Ahead.Max)
}

// maker checks whose request it is; the request may be without an id, and can
// then not be sent again.
func (s *Server) maker(f *fields, client, request string, req proto.Message) session.Maker {
	if request != "" {
		s.newID(f, "requestId", request)
	}
	m := session.Maker{Client: f.client(client), Request: request}
	if request != "" {
		m.Content = fingerprint(req)
	}
	return m
}

// entry names an entry of a map by its key, of which it shows as much as a person
// needs to find it.
func entry(field, key string) string {
	if most := 40; len(key) > most {
		key = clip(key, most) + "…"
	}
	quoted := strconv.Quote(key)
	if quoted == `"`+key+`"` {
		quoted = key
	}
	return field + "[" + quoted + "]"
}

// text checks a text for people: valid UTF-8 without characters that would make
// a line of a log or a terminal read as something else.
func (f *fields) text(field, s string, b bound) {
	n := int64(len(s))
	switch {
	case n < b.Min:
		f.refuse(field, "is required")
	case n > b.Max:
		f.refuse(field, "has %d bytes, the most is %d", n, b.Max)
	case !utf8.ValidString(s):
		f.refuse(field, "is not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		f.refuse(field, "holds a control character; take it out")
	default:
		if i := strings.IndexFunc(s, misleads); i >= 0 {
			r, _ := utf8.DecodeRuneInString(s[i:])
			f.refuse(field, "holds %U at byte %d, which changes the order or the lines in which text is shown; take it out", r, i)
		}
	}
}

// misleads reports whether a character makes text read in another order than it
// has, or begins a new line.
func misleads(r rune) bool {
	return unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// number checks a number; 0 stands for the default where there is one.
func (f *fields) number(field string, n int64, b bound) int64 {
	if n == 0 && b.Default != 0 {
		return b.Default
	}
	f.within(field, n, b)
	return n
}

func (f *fields) within(field string, n int64, b bound) {
	if n < b.Min || n > b.Max {
		f.refuse(field, "is %d; it must be from %d to %d", n, b.Min, b.Max)
	}
}

// count checks how many items there are.
func (f *fields) count(field string, n int, b bound) {
	if int64(n) < b.Min {
		f.refuse(field, "is empty; name at least one")
	}
	if int64(n) > b.Max {
		f.refuse(field, "has %d items, the most is %d", n, b.Max)
	}
}

// duration checks a duration; absent stands for the default.
func (f *fields) duration(field string, d *durationpb.Duration, s span) time.Duration {
	if d == nil {
		return s.Default
	}
	if err := d.CheckValid(); err != nil {
		f.refuse(field, "is no valid duration: %v", err)
		return s.Default
	}
	if v := d.AsDuration(); v >= s.Min && v <= s.Max {
		return v
	}
	sent := seconds(d.AsDuration())
	if d.Seconds != int64(d.AsDuration()/time.Second) { // more than a time.Duration can say
		sent = itoa(d.Seconds) + "s"
	}
	f.refuse(field, "is %s; it must be from %s to %s", sent, seconds(s.Min), seconds(s.Max))
	return s.Default
}

// seconds writes a duration as requests have it: in JSON there are no hours.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// enum checks that a value is one that this build knows.
func enum[E interface {
	~int32
	String() string
}](f *fields, field string, v E, names map[int32]string) {
	if _, ok := names[int32(v)]; !ok {
		var known []string
		for n, name := range names {
			if n != 0 {
				known = append(known, name)
			}
		}
		slices.Sort(known)
		f.refuse(field, "is %d, which is none of its values; it must be one of %s", int32(v), strings.Join(known, ", "))
	}
}

// mapping reads a JSON object that comes as a message or as exact text.
func (f *fields) mapping(field string, s *structpb.Struct, text string) value.Value {
	switch {
	case text == "" && s == nil:
		return value.Value{}
	case text == "":
		return f.structure(field, s)
	case s != nil:
		f.refuse(field+"Json", "is given beside %s; send one of them", field)
		return value.Value{}
	case int64(len(text)) > caps.Arguments.Max:
		f.refuse(field+"Json", "has %d bytes, the most is %d", len(text), caps.Arguments.Max)
		return value.Value{}
	}
	v, err := value.Parse([]byte(text))
	if err != nil {
		f.refuse(field+"Json", "%v", err)
	} else if v.Kind() != value.Map {
		f.refuse(field+"Json", "is a JSON %s; it must be an object", v.Kind())
	}
	return v
}

func (f *fields) structure(field string, s *structpb.Struct) value.Value {
	if bad := structProblem(structpb.NewStructValue(s), 0); bad != "" {
		f.refuse(field, "%s", bad)
		return value.Value{}
	}
	v := value.FromStruct(s)
	// A text takes at most six bytes for one on the wire (\u0000), a number 25
	// for nine: what is small on the wire is small as text and is not printed
	// to be measured.
	if n := proto.Size(s); int64(n) > caps.Arguments.Max/8 {
		if n := len(v.AppendJSON(nil)); int64(n) > caps.Arguments.Max {
			f.refuse(field, "has %d bytes as JSON, the most is %d", n, caps.Arguments.Max)
		}
	}
	return v
}

// structProblem says what is wrong with a value that JSON cannot hold, or
// nothing.
func structProblem(v *structpb.Value, depth int) string {
	if int64(depth) > caps.Depth.Max {
		return "is nested too deeply; the most is " + itoa(caps.Depth.Max)
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		for _, inner := range k.StructValue.GetFields() {
			if bad := structProblem(inner, depth+1); bad != "" {
				return bad
			}
		}
	case *structpb.Value_ListValue:
		for _, inner := range k.ListValue.GetValues() {
			if bad := structProblem(inner, depth+1); bad != "" {
				return bad
			}
		}
	case *structpb.Value_NumberValue:
		if math.IsNaN(k.NumberValue) || math.IsInf(k.NumberValue, 0) {
			return "holds a number that JSON does not have"
		}
	case nil:
		return "holds a value of no kind"
	}
	return ""
}

// attributes checks and sorts what the maker of a session wants kept with it.
func (f *fields) attributes(field string, m map[string]string) []session.Attr {
	f.count(field, len(m), caps.Attributes)
	attrs := make([]session.Attr, 0, len(m))
	for name, text := range sorted(m) {
		where := entry(field, name)
		if name == "" {
			f.refuse(field, "has a name that is empty")
		}
		if n := int64(len(name) + len(text)); n > caps.Attribute.Max {
			f.refuse(where, "name and value have %d bytes, the most is %d", n, caps.Attribute.Max)
		}
		f.idWithin(where, name, caps.Attribute)
		attrs = append(attrs, session.Attr{Name: name, Value: text})
	}
	return attrs
}

// fingerprint is of the content of a request: what the same id must not be
// used for again with another.
func fingerprint(req proto.Message) (p session.Fingerprint) {
	// A request that was decoded can be encoded.
	b := contents.Get().(*[]byte)
	*b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend((*b)[:0], req)
	sum := sha256.Sum256(*b)
	copy(p[:], sum[:])
	if cap(*b) <= 64<<10 {
		contents.Put(b)
	}
	return p
}

// contents are buffers for what is hashed.
var contents = sync.Pool{New: func() any { return new([]byte) }}

// beginContent is the fingerprint of a call without its wait: a waiter that
// asks again asks for the same call.
func beginContent(req *v1.BeginCallRequest) session.Fingerprint {
	wait := req.Wait
	req.Wait = nil
	p := fingerprint(req)
	req.Wait = wait
	return p
}

func acquireContent(req *v1.AcquireSlotRequest) session.Fingerprint {
	wait := req.Wait
	req.Wait = nil
	p := fingerprint(req)
	req.Wait = wait
	return p
}
