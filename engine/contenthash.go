package engine

import (
	"fmt"
	"strings"
	"unicode"

	"example.com/govnode/engine/call"
	"example.com/govnode/engine/source"
	"example.com/govnode/engine/value"
)

// hashTable holds the SHA-256 hashes of tools, by name.
type hashTable struct {
	hashes map[string]string // 64 lower-case hexadecimal digits
	strict bool
}

type hashVerdict struct {
	allowed bool
	unknown bool // no hash is registered; allowed in the lax mode alone
	rule    uint16
	reason  string
}

// check compares the hash that came with a call with the registered one. A
// tool that has a hash must bring it, in either mode.
func (t *hashTable) check(in *call.Input, tool string) hashVerdict {
	want, known := "", false
	if t != nil {
		want, known = t.hashes[tool]
	}
	if !known && in.ContentHash != nil {
		want, known = in.ContentHash(tool)
	}
	metadata, _ := in.Context.Get("metadata") // where those of a request stand
	return compareHash(tool, want, known, contentHash(metadata), t == nil || t.strict)
}

func compareHash(tool, want string, known bool, got string, strict bool) hashVerdict {
	switch {
	case !known && !strict:
		return hashVerdict{allowed: true, unknown: true}
	case !known:
		return hashVerdict{rule: ruleHashUnknown, reason: textHashUnknown(tool)}
	case got == "":
		return hashVerdict{rule: ruleHashMissing, reason: textHashMissing(tool)}
	case !strings.EqualFold(want, got):
		return hashVerdict{rule: ruleHashMismatch, reason: fmt.Sprintf(
			"Tool '%s' content hash mismatch: expected %s… got %s… (possible tampering or wrapper)", tool, shortHash(want), shortHash(got))}
	}
	return hashVerdict{allowed: true}
}

// shortHash is the first twelve characters, printable.
func shortHash(h string) string {
	n := 0
	return strings.Map(func(r rune) rune {
		if n++; n > 12 {
			return -1
		}
		if !unicode.IsPrint(r) {
			return '?'
		}
		return r
	}, h)
}

// contentHash reads the hash that an adapter put into the metadata of a call
// (adapter contract 5.5), and nowhere else.
func contentHash(metadata value.Value) string {
	return strings.TrimPrefix(metadata.TextAt("content_hash"), source.DigestPrefix)
}
