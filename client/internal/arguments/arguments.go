package arguments

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strconv"
	"sync"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"google.golang.org/protobuf/types/known/structpb"
)

// How the arguments of a call go into its request: as JSON text, or as a Struct
// what cannot be written here.

// mostNested is how deeply what goes as text may be nested.
const mostNested = 128

var texts = sync.Pool{New: func() any { return new([]byte) }}

// Encode returns a map as what a request carries it as: a JSON text, which is
// the same whenever the map is, or a Struct, beside a text of the caller's own
// and for what is not written down here. What neither can hold is an error.
func Encode(field string, m map[string]any, beside string) (text string, s *structpb.Struct, err error) {
	if m == nil {
		return "", nil, nil
	}
	if beside == "" {
		room := texts.Get().(*[]byte)
		defer texts.Put(room)
		b, ok := appendObject((*room)[:0], m, 1)
		if cap(b) <= 4<<10 {
			*room = b
		}
		if ok {
			return string(b), nil, nil
		}
	}
	if s, err = structpb.NewStruct(m); err != nil {
		return "", nil, fmt.Errorf("client: %s: %w", field, err)
	}
	return "", s, nil
}

// appendObject writes a map as JSON, keys in order. Where it cannot it says so:
// that is for structpb.NewStruct, or for the service, to object to.
func appendObject(b []byte, m map[string]any, depth int) (_ []byte, ok bool) {
	if depth > mostNested {
		return b, false
	}
	var room [16]string
	keys := room[:0]
	for key := range m {
		keys = append(keys, key)
	}
	slices.Sort(keys)
	b = append(b, '{')
	for i, key := range keys {
		if i > 0 {
			b = append(b, ',')
		}
		if b, ok = appendText(b, key); !ok {
			return b, false
		}
		b = append(b, ':')
		if b, ok = appendValue(b, m[key], depth); !ok {
			return b, false
		}
	}
	return append(b, '}'), true
}

func appendList(b []byte, list []any, depth int) (_ []byte, ok bool) {
	if depth > mostNested {
		return b, false
	}
	b = append(b, '[')
	for i, v := range list {
		if i > 0 {
			b = append(b, ',')
		}
		if b, ok = appendValue(b, v, depth); !ok {
			return b, false
		}
	}
	return append(b, ']'), true
}

// appendValue writes a value of one of the types that structpb.NewValue takes.
func appendValue(b []byte, v any, depth int) ([]byte, bool) {
	switch v := v.(type) {
	case nil:
		return append(b, "null"...), true
	case bool:
		return strconv.AppendBool(b, v), true
	case string:
		return appendText(b, v)
	case []byte:
		return append(base64.StdEncoding.AppendEncode(append(b, '"'), v), '"'), true
	case map[string]any:
		return appendObject(b, v, depth+1)
	case []any:
		return appendList(b, v, depth+1)
	}
	return appendNumber(b, v)
}

func appendText(b []byte, s string) ([]byte, bool) {
	for i := range len(s) {
		if c := s[i]; c < ' ' || c == '"' || c == '\\' || c >= utf8.RuneSelf {
			b, err := jsontext.AppendQuote(b, s)
			return b, err == nil // it objects to what is not UTF-8
		}
	}
	b = append(append(b, '"'), s...)
	return append(b, '"'), true
}

func appendNumber(b []byte, v any) ([]byte, bool) {
	switch v := v.(type) {
	case int:
		return strconv.AppendInt(b, int64(v), 10), true
	case int8:
		return strconv.AppendInt(b, int64(v), 10), true
	case int16:
		return strconv.AppendInt(b, int64(v), 10), true
	case int32:
		return strconv.AppendInt(b, int64(v), 10), true
	case int64:
		return strconv.AppendInt(b, v, 10), true
	case uint:
		return strconv.AppendUint(b, uint64(v), 10), true
	case uint8:
		return strconv.AppendUint(b, uint64(v), 10), true
	case uint16:
		return strconv.AppendUint(b, uint64(v), 10), true
	case uint32:
		return strconv.AppendUint(b, uint64(v), 10), true
	case uint64:
		return strconv.AppendUint(b, v, 10), true
	case float32:
		return appendFloat(b, float64(v))
	case float64:
		return appendFloat(b, v)
	case json.Number:
		if n, err := strconv.ParseInt(string(v), 10, 64); err == nil {
			return strconv.AppendInt(b, n, 10), true
		}
		f, err := v.Float64()
		if err != nil {
			return b, false
		}
		return appendFloat(b, f)
	}
	return b, false
}

// appendFloat writes a double as the service would print it if it came in a
// Struct: integral ones as integers, up to 21 digits, the others in the words
// of Python's repr, which patterns of policies may be matched on.
func appendFloat(b []byte, f float64) ([]byte, bool) {
	size := math.Abs(f)
	switch {
	case math.IsNaN(f) || math.IsInf(f, 0):
		return b, false
	case f == 0:
		return append(b, '0'), true // not -0
	case f == math.Trunc(f) && size < 1e21:
		return strconv.AppendFloat(b, f, 'f', 0, 64), true
	case size < 1e-4 || size >= 1e16:
		return strconv.AppendFloat(b, f, 'e', -1, 64), true
	}
	return strconv.AppendFloat(b, f, 'f', -1, 64), true
}
