package approvals

import (
	"crypto/sha256"
	"fmt"
	"math"

	"github.com/go-json-experiment/json/jsontext"

	"example.com/govnode/engine"
	"example.com/govnode/engine/value"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/session"
)

// Arguments, as approvals name them and as people see them.

// Canonical is the JSON of arguments in one form: keys in order, numbers as they
// were written, so that two that differ in any digit stay two. A call without
// arguments has the empty object.
func Canonical(arguments value.Value) []byte {
	if arguments.Kind() == value.Null {
		return []byte("{}")
	}
	text := jsontext.Value(arguments.JSON())
	// It fails for what is no JSON, which this is.
	_ = text.Canonicalize(jsontext.CanonicalizeRawInts(false), jsontext.CanonicalizeRawFloats(false))
	return text
}

// Digest names arguments by their content.
func Digest(arguments value.Value) session.Digest { return sha256.Sum256(Canonical(arguments)) }

// Preview is what people see of arguments: all of them, redacted, with escapes in
// place of what would make them read as something else, and with long texts cut
// short, which then say how long they are. It is false if that is still too much:
// whoever chooses the arguments must not choose which of them are seen.
func Preview(arguments value.Value) (text string, ok bool) {
	arguments = engine.RedactValue(arguments)
	for most := session.MaxPreview; most >= 16; most /= 4 {
		if text = input.Plain(string(Canonical(shortened(arguments, most)))); len(text) <= session.MaxPreview {
			return text, true
		}
	}
	return "", false
}

// shortened cuts the texts in a tree.
func shortened(v value.Value, most int) value.Value {
	switch v.Kind() {
	case value.String:
		if s, _ := v.AsString(); len(s) > most {
			return value.OfString(fmt.Sprintf("%s… (%d bytes)", input.Clip(s, most), len(s)))
		}
	case value.List:
		items := make([]value.Value, 0, v.Len())
		for item := range v.Items() {
			items = append(items, shortened(item, most))
		}
		return value.OfList(items...)
	case value.Map:
		pairs := make([]value.Pair, 0, v.Len())
		for key, item := range v.All() {
			pairs = append(pairs, value.Pair{Key: key, Value: shortened(item, most)})
		}
		return value.OfMap(pairs...)
	}
	return v
}

// Problem says why people cannot decide about arguments; empty if they can. What
// came as a google.protobuf.Struct has only doubles: an integer that is too large
// for one was another before it came.
func Problem(arguments value.Value, fromStruct bool) string {
	if fromStruct {
		if n := rounded(arguments); n != "" {
			return "have the number " + n + ", which may have been another one before it was rounded to a double; send argumentsJson, so that people see what is called"
		}
	}
	if _, ok := Preview(arguments); !ok {
		return fmt.Sprintf("are too many for people to be shown all of them in %d bytes, with long texts cut short; send fewer", session.MaxPreview)
	}
	return ""
}

// rounded returns a number that is as large as doubles that are no exact integers;
// empty if there is none.
func rounded(v value.Value) string {
	switch v.Kind() {
	case value.Number:
		if f, _ := v.AsFloat(); math.Abs(f) >= 1<<53 {
			return v.JSON()
		}
	case value.List:
		for item := range v.Items() {
			if n := rounded(item); n != "" {
				return n
			}
		}
	case value.Map:
		for _, item := range v.All() {
			if n := rounded(item); n != "" {
				return n
			}
		}
	}
	return ""
}
