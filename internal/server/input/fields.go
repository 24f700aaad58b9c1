package input

import (
	"crypto/sha256"
	"fmt"
	"iter"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf16"
	"unicode/utf8"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"

	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/session/ids"
)

// Fields checks the fields of one request and keeps the first problem. Names
// are those of the JSON form.
type Fields struct {
	outer *Fields // of the message in which the one that is checked stands; nil at the outermost
	name  string  // there
	item  int     // its place in a list from 1 on; 0 where it is in none
	// ByNode says that a node asks by itself, under its own client.
	ByNode bool
	Err    error
}

// Nodes is the client under which nodes ask by themselves. Their ids follow from what they
// ask about, so that all ask once: under whatever method anybody else used them before, a
// node would find its id taken.
const Nodes = "workflow"

// Path names a field from the outermost message on, such as
// operations[3].begin.tool. It is made only when something is wrong.
func (f *Fields) Path(field string) string {
	for ; f != nil && f.name != ""; f = f.outer {
		if f.item > 0 {
			field = f.name + "[" + strconv.Itoa(f.item-1) + "]." + field
		} else {
			field = f.name + "." + field
		}
	}
	return field
}

// Refuse says what is wrong with a field, unless something else is already.
func (f *Fields) Refuse(field, format string, args ...any) {
	if f.Err == nil {
		f.Err = fault.Invalid(f.Path(field), format, args...)
	}
}

// In returns the checks of a message within this one.
func (f *Fields) In(field string) *Fields { return &Fields{outer: f, name: field} }

// At returns the checks of an item of a list within this message.
func (f *Fields) At(list string, i int) *Fields { return &Fields{outer: f, name: list, item: i + 1} }

// RefuseWhole refuses the message itself, under the name that it has where it stands.
func (f *Fields) RefuseWhole(text string) {
	if f.Err == nil {
		f.Err = fault.Invalid(f.outer.Path(f.name), "%s", text)
	}
}

// Take keeps the problem of a message within this one.
func (f *Fields) Take(inner *Fields) {
	if f.Err == nil {
		f.Err = inner.Err
	}
}

const idRule = "letters, digits and . _ : @ / -"

// idBytes are the bytes of which idRule speaks: ids are looked through in each call.
var idBytes = func() (in [256]bool) {
	for _, c := range []byte("ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789._:@/-") {
		in[c] = true
	}
	return in
}()

func isIDByte(c byte) bool { return idBytes[c] }

// ID checks an id that must be there.
func (f *Fields) ID(field, id string) { f.idWithin(field, id, Caps.ID) }

func (f *Fields) idWithin(field, id string, b Bound) {
	switch {
	case id == "":
		f.Refuse(field, "is required; choose 1 to %d of %s", b.Max, idRule)
	case int64(len(id)) > b.Max:
		f.Refuse(field, "has %d bytes, the most is %d; choose a shorter one", len(id), b.Max)
	}
	for i := 0; i < len(id); i++ {
		if !isIDByte(id[i]) {
			f.Refuse(field, "byte %d is not allowed; use only %s", i, idRule)
			return
		}
	}
}

// OptionalID checks an id that may be absent.
func (f *Fields) OptionalID(field, id string) {
	if id != "" {
		f.ID(field, id)
	}
}

// Client checks who asks, and returns default where nobody says.
func (f *Fields) Client(id string) string {
	if id == Nodes && !f.ByNode {
		f.Refuse("client", "%q is for what nodes ask by themselves; give another name", Nodes)
	}
	return f.ClientNamed("client", id)
}

// ClientNamed is Client under another name of the field.
func (f *Fields) ClientNamed(field, id string) string {
	if id == "" {
		return "default"
	}
	f.ID(field, id)
	return id
}

// NewID checks an id under which something is remembered. One that carries a time
// far in the future would, once it is forgotten, make all ids stale that are not
// newer.
func (f *Fields) NewID(field, id string, clock func() time.Time) {
	f.ID(field, id)
	t := ids.Time(id)
	if t == 0 || f.Err != nil {
		return
	}
	now, carried := clock(), time.UnixMilli(int64(t))
	if carried.Sub(now) <= Caps.Ahead.Max {
		return
	}
	stamp := Stamp(carried)
	if t == ids.MaxTime {
		stamp += " or later"
	}
	// How far ahead that is may be more than a duration holds.
	f.Refuse(field, "carries the time %s, and the clock of this node says %s; an id that carries a time may be at most %v ahead of the clock of this node. Set the clock right by which ids are made, or choose an id that is no ULID or UUIDv7",
		stamp, Stamp(now), Caps.Ahead.Max)
}

// A madeRequest says who makes it, and under which id, if any.
type madeRequest interface {
	proto.Message
	GetClient() string
	GetRequestId() string
}

// Maker checks whose request it is; the request may be without an id, and can
// then not be sent again.
func (f *Fields) Maker(req madeRequest, now func() time.Time) session.Maker {
	id := req.GetRequestId()
	if id != "" {
		f.NewID("requestId", id, now)
	}
	m := session.Maker{Client: f.Client(req.GetClient()), Request: id}
	if id != "" {
		m.Content = Fingerprint(req)
	}
	return m
}

// entry names an entry of a map by its key, of which it shows as much as a person
// needs to find it.
func entry(field, key string) string {
	if most := 40; len(key) > most {
		key = Clip(key, most) + "…"
	}
	quoted := strconv.Quote(key)
	if quoted == `"`+key+`"` {
		quoted = key
	}
	return field + "[" + quoted + "]"
}

// Text checks a text for people: valid UTF-8 without characters that would make
// a line of a log or a terminal read as something else.
func (f *Fields) Text(field, s string, b Bound) {
	n := int64(len(s))
	switch {
	case n < b.Min:
		f.Refuse(field, "is required")
	case n > b.Max:
		f.Refuse(field, "has %d bytes, the most is %d", n, b.Max)
	case !utf8.ValidString(s):
		f.Refuse(field, "is not valid UTF-8")
	case strings.ContainsFunc(s, unicode.IsControl):
		f.Refuse(field, "holds a control character; take it out")
	default:
		if i := strings.IndexFunc(s, misleads); i >= 0 {
			r, _ := utf8.DecodeRuneInString(s[i:])
			f.Refuse(field, "holds %U at byte %d, which changes the order or the lines in which text is shown; take it out", r, i)
		}
	}
}

// misleads reports whether a character makes text read in another order than it
// has, or begins a new line.
func misleads(r rune) bool {
	return unicode.In(r, unicode.Bidi_Control, unicode.Zl, unicode.Zp)
}

// Plain writes JSON text so that it reads as what it is: as escapes where it has
// characters that mislead, or that a terminal does not print. It stays the same JSON.
func Plain(json string) string {
	hidden := func(r rune) bool { return misleads(r) || !unicode.IsPrint(r) }
	if strings.IndexFunc(json, hidden) < 0 {
		return json
	}
	var b strings.Builder
	for _, r := range json {
		switch {
		case !hidden(r):
			b.WriteRune(r)
		case r > 0xffff:
			hi, lo := utf16.EncodeRune(r)
			fmt.Fprintf(&b, `\u%04x\u%04x`, hi, lo)
		default:
			fmt.Fprintf(&b, `\u%04x`, r)
		}
	}
	return b.String()
}

// Number checks a number; 0 stands for the default where there is one.
func (f *Fields) Number(field string, n int64, b Bound) int64 {
	if n == 0 && b.Default != 0 {
		return b.Default
	}
	f.Within(field, n, b)
	return n
}

// Within checks that a number is within a bound.
func (f *Fields) Within(field string, n int64, b Bound) {
	if n < b.Min || n > b.Max {
		f.Refuse(field, "is %d; it must be from %d to %d", n, b.Min, b.Max)
	}
}

// Count checks how many items there are.
func (f *Fields) Count(field string, n int, b Bound) {
	if int64(n) < b.Min {
		f.Refuse(field, "is empty; name at least one")
	}
	if int64(n) > b.Max {
		f.Refuse(field, "has %d items, the most is %d", n, b.Max)
	}
}

// Duration checks a duration; absent stands for the default.
func (f *Fields) Duration(field string, d *durationpb.Duration, s Span) time.Duration {
	if d == nil {
		return s.Default
	}
	if err := d.CheckValid(); err != nil {
		f.Refuse(field, "is no valid duration: %v", err)
		return s.Default
	}
	if v := d.AsDuration(); v >= s.Min && v <= s.Max {
		return v
	}
	sent := seconds(d.AsDuration())
	if d.Seconds != int64(d.AsDuration()/time.Second) { // more than a time.Duration can say
		sent = strconv.FormatInt(d.Seconds, 10) + "s"
	}
	f.Refuse(field, "is %s; it must be from %s to %s", sent, seconds(s.Min), seconds(s.Max))
	return s.Default
}

// seconds writes a duration as requests have it: in JSON there are no hours.
func seconds(d time.Duration) string {
	return strconv.FormatFloat(d.Seconds(), 'f', -1, 64) + "s"
}

// Enum checks that a value is one that this build knows.
func Enum[E interface {
	~int32
	String() string
}](f *Fields, field string, v E, names map[int32]string) {
	if _, ok := names[int32(v)]; !ok {
		var known []string
		for n, name := range names {
			if n != 0 {
				known = append(known, name)
			}
		}
		slices.Sort(known)
		f.Refuse(field, "is %d, which is none of its values; it must be one of %s", int32(v), strings.Join(known, ", "))
	}
}

// Mapping reads a JSON object that comes as a message or as exact text.
func (f *Fields) Mapping(field string, s *structpb.Struct, text string) value.Value {
	switch {
	case text == "" && s == nil:
		return value.Value{}
	case text == "":
		return f.structure(field, s)
	case s != nil:
		f.Refuse(field+"Json", "is given beside %s; send one of them", field)
		return value.Value{}
	case int64(len(text)) > Caps.Arguments.Max:
		f.Refuse(field+"Json", "has %d bytes, the most is %d", len(text), Caps.Arguments.Max)
		return value.Value{}
	}
	v, err := value.Parse([]byte(text))
	if err != nil {
		f.Refuse(field+"Json", "%v", err)
	} else if v.Kind() != value.Map {
		f.Refuse(field+"Json", "is a JSON %s; it must be an object", v.Kind())
	}
	return v
}

func (f *Fields) structure(field string, s *structpb.Struct) value.Value {
	if bad := StructProblem(structpb.NewStructValue(s), 0); bad != "" {
		f.Refuse(field, "%s", bad)
		return value.Value{}
	}
	v := value.FromStruct(s)
	// A text takes at most six bytes for one on the wire (\u0000), a number 25
	// for nine: what is small on the wire is small as text and is not printed
	// to be measured.
	if n := proto.Size(s); int64(n) > Caps.Arguments.Max/8 {
		if n := len(v.AppendJSON(nil)); int64(n) > Caps.Arguments.Max {
			f.Refuse(field, "has %d bytes as JSON, the most is %d", n, Caps.Arguments.Max)
		}
	}
	return v
}

// StructProblem says what is wrong with a value that JSON cannot hold, or
// nothing.
func StructProblem(v *structpb.Value, depth int) string {
	if int64(depth) > Caps.Depth.Max {
		return "is nested too deeply; the most is " + strconv.FormatInt(Caps.Depth.Max, 10)
	}
	switch k := v.GetKind().(type) {
	case *structpb.Value_StructValue:
		for _, inner := range k.StructValue.GetFields() {
			if bad := StructProblem(inner, depth+1); bad != "" {
				return bad
			}
		}
	case *structpb.Value_ListValue:
		for _, inner := range k.ListValue.GetValues() {
			if bad := StructProblem(inner, depth+1); bad != "" {
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

// Attributes checks and sorts what the maker of a session wants kept with it.
func (f *Fields) Attributes(field string, m map[string]string) []session.Attr {
	f.Count(field, len(m), Caps.Attributes)
	attrs := make([]session.Attr, 0, len(m))
	for name, text := range Sorted(m) {
		where := entry(field, name)
		if name == "" {
			f.Refuse(field, "has a name that is empty")
		}
		if n := int64(len(name) + len(text)); n > Caps.Attribute.Max {
			f.Refuse(where, "name and value have %d bytes, the most is %d", n, Caps.Attribute.Max)
		}
		f.idWithin(where, name, Caps.Attribute)
		attrs = append(attrs, session.Attr{Name: name, Value: text})
	}
	return attrs
}

// Fingerprint is of the content of a request: what the same id must not be
// used for again with another.
func Fingerprint(req proto.Message) session.Fingerprint { return Short(Content(req)) }

// Short is the fingerprint of a content.
func Short(content session.Digest) session.Fingerprint { return session.Fingerprint(content[:8]) }

// Content is the whole digest of which a fingerprint is the beginning.
func Content(req proto.Message) session.Digest {
	// A request that was decoded can be encoded.
	b := contents.Get().(*[]byte)
	*b, _ = proto.MarshalOptions{Deterministic: true}.MarshalAppend((*b)[:0], req)
	sum := sha256.Sum256(*b)
	if cap(*b) <= 64<<10 {
		contents.Put(b)
	}
	return sum
}

// contents are buffers for what is hashed.
var contents = sync.Pool{New: func() any { return new([]byte) }}

// Sorted iterates over a map in the order of its keys.
func Sorted[V any](m map[string]V) iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range slices.Sorted(maps.Keys(m)) {
			if !yield(k, m[k]) {
				return
			}
		}
	}
}

// Clip shortens a text to so many bytes.
func Clip(s string, n int) string {
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "")
}

// Stamp is a time as records and audit lines have it.
func Stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000000Z07:00") }

// Metadata checks what an adapter sends beside a call (adapter contract 5.1): texts by
// name, or a JSON object.
func (f *Fields) Metadata(m map[string]string, text string) value.Value {
	if text != "" {
		if len(m) > 0 {
			f.Refuse("metadataJson", "is given beside metadata; send one of them")
		}
		return f.Mapping("metadata", nil, text)
	}
	if len(m) == 0 {
		return value.Value{}
	}
	pairs := make([]value.Pair, 0, len(m))
	f.Count("metadata", len(m), Caps.Metadata)
	for name, text := range Sorted(m) {
		where := entry("metadata", name)
		f.Text(where, name, Caps.Attribute)
		if n := int64(len(name) + len(text)); n > Caps.Attribute.Max {
			f.Refuse(where, "name and value have %d bytes, the most is %d", n, Caps.Attribute.Max)
		}
		pairs = append(pairs, value.Pair{Key: name, Value: value.OfString(text)})
	}
	return value.OfMap(pairs...)
}
