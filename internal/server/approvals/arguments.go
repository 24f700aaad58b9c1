package approvals

import (
	"crypto/sha256"

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

// Preview is what people see of arguments: redacted, no more than fits, and with
// escapes in place of what would make it read as something else.
func Preview(arguments value.Value) string {
	text := input.Plain(string(Canonical(engine.RedactValue(arguments))))
	if most := session.MaxPreview; len(text) > most {
		return input.Clip(text, most-len("…")) + "…"
	}
	return text
}
