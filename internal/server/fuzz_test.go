package server

import (
	"encoding/json"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

// A line of the audit log is one line and one object, and says what it was given,
// whatever callers put into their texts.
func FuzzAuditLine(f *testing.F) {
	f.Add("t", "a tool")
	f.Add("\"}\n{\"verdict\":\"allowed", "\x00\x1b[2J\u2028\xff")
	f.Fuzz(func(t *testing.T, one, other string) {
		l := append(line("{").text("one", one).bool("yes", true).number("n", 7).text("other", other), '}')
		require.NotContains(t, string(l), "\n")
		require.True(t, utf8.Valid(l))
		var got struct {
			One, Other string
			Yes        bool
			N          uint64
		}
		require.NoError(t, json.Unmarshal(l, &got))
		require.Equal(t, []any{strings.ToValidUTF8(one, ""), strings.ToValidUTF8(other, ""), true, uint64(7)},
			[]any{without(got.One, one), without(got.Other, other), got.Yes, got.N})
	})
}

// without leaves out what stands for bytes that are not UTF-8.
func without(got, given string) string {
	if utf8.ValidString(given) {
		return got
	}
	return strings.ReplaceAll(got, "\ufffd", "")
}
