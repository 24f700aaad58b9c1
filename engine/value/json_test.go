package value

import (
	"bytes"
	"encoding/json"
	"errors"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

func TestParseRefuses(t *testing.T) {
	cases := []struct {
		name   string
		json   string
		offset int64
		reason string
	}{
		{"nothing", "", 0, "unexpected end"},
		{"only space", "  ", 2, "unexpected end"},
		{"half a document", `{"a": [1, `, 10, "unexpected end"},
		{"two documents", `{} {}`, 3, "more text after the end"},
		{"garbage behind", `1 x`, 2, ""},
		{"byte order mark", "\ufeff{}", 0, "invalid character"},
		{"single quotes", "{'a': 1}", 1, "invalid character"},
		{"a trailing comma", `[1,]`, 3, ""},
		{"a comment", "[1 /* one */]", 3, ""},
		{"a number with a leading zero", "[01]", 2, ""},
		{"NaN", "[NaN]", 1, "invalid character"},
		{"duplicate key", `{"a": 1, "b": 2, "a": 3}`, 17, `duplicate key`},
		{"duplicate key, one escaped", `{"a": 1, "\u0061": 3}`, 9, `duplicate key`},
		{"duplicate key, nested", `{"a": {"b": 1, "b": 1}}`, 15, `duplicate key`},
		{"invalid UTF-8", "[\"a\xff\"]", 3, "invalid UTF-8"},
		{"lone surrogate", `["\ud800"]`, 2, "invalid surrogate pair"},
		{"control character in a string", "[\"a\nb\"]", 3, "invalid character"},
		{"bad escape", `["\x41"]`, 2, "invalid escape"},
		{"too large for a double", `{"a": 1e400}`, 11, "too large for a double"},
		{"too many digits", "[" + strings.Repeat("1", 4301) + "]", 4302, "4301 characters"},
		{"too deep, lists", strings.Repeat("[", 129) + strings.Repeat("]", 129), 128, "deeper than 128"},
		{"too deep, maps", strings.Repeat(`{"a":`, 129) + "1" + strings.Repeat("}", 129), 127*5 + 4, "deeper than 128"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			v, err := Parse([]byte(c.json))
			require.Error(t, err)
			require.Equal(t, Value{}, v)
			var at *SyntaxError
			require.True(t, errors.As(err, &at))
			require.Contains(t, at.Reason, c.reason)
			require.InDelta(t, c.offset, at.Offset, 1, "%v", err)
			require.Contains(t, err.Error(), "invalid JSON at byte ")
		})
	}
}

func TestParseAccepts(t *testing.T) {
	for _, json := range []string{"null", " true\n", `"\ud83d\ude00"`, "[]", "{}", `{"": 0}`, `"\u0000"`,
		strings.Repeat("[", 128) + strings.Repeat("]", 128), `{"a": {"a": {"a": 1}}, "b": {"a": 1}}`} {
		_, err := Parse([]byte(json))
		require.NoError(t, err, json)
	}
	v := parse(t, `"\ud83d\ude00\/\"\\\b\u00e9"`)
	text, _ := v.AsString()
	require.Equal(t, "😀/\"\\\bé", text)
}

// A parsed tree keeps no hold on the caller's bytes.
func TestParseCopies(t *testing.T) {
	text := []byte(`{"key": "value", "n": 12345678901234567890}`)
	v, err := Parse(text)
	require.NoError(t, err)
	before := v.JSON()
	for i := range text {
		text[i] = 'x'
	}
	require.Equal(t, before, v.JSON())
}

func TestHostileDocumentsAreCheap(t *testing.T) {
	hostile := map[string]string{
		"depth 100,000":     strings.Repeat("[", 100_000),
		"depth in maps":     strings.Repeat(`{"a":`, 100_000),
		"a million digits":  "[" + strings.Repeat("9", 1<<20) + "]",
		"a million zeroes":  "[0." + strings.Repeat("0", 1<<20) + "1e9999999]",
		"one long key":      `{"` + strings.Repeat("k", 1<<20),
		"a long bad string": `"` + strings.Repeat("\\u0041", 1<<17) + "\\ud800",
	}
	for name, json := range hostile {
		t.Run(name, func(t *testing.T) {
			text := []byte(json)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			_, err := Parse(text)
			runtime.ReadMemStats(&after)
			require.Error(t, err)
			require.Less(t, after.TotalAlloc-before.TotalAlloc, uint64(16<<20))
			require.Less(t, len(err.Error()), 400)
		})
	}
}

func FuzzParse(f *testing.F) {
	for _, seed := range []string{`{"a": [1, -0, 1e5, "x\n", null, true]}`, `[[[[]]]]`, `"\ud800"`, `{"a":1,"a":2}`, "1e400", "\ufeff", `{"b":{"a":0.1}}`, "123456789012345678901234567890"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, text []byte) {
		v, err := Parse(text)
		if err != nil {
			var at *SyntaxError
			if !errors.As(err, &at) || at.Offset < 0 || at.Offset > int64(len(text)) {
				t.Fatalf("error without a place in the text: %v", err)
			}
			return
		}
		if !json.Valid(text) {
			t.Fatalf("accepted %q, which is no JSON", text)
		}
		again, err := Parse([]byte(v.JSON()))
		if err != nil || again.JSON() != v.JSON() || !Equal(v, again) {
			t.Fatalf("%q does not survive a round trip: %v", text, err)
		}
		if repr := v.Repr(); !utf8.ValidString(repr) || strings.ContainsAny(repr, "\n\x00\x7f") {
			t.Fatalf("repr %q is not printable", repr)
		}
		v.Leaves(func(s string) bool { return utf8.ValidString(s) || t.Failed() })
	})
}

// A text is quoted as the library quotes it, whatever byte stands at whatever place.
func TestAppendQuote(t *testing.T) {
	check := func(text string) {
		t.Helper()
		want, _ := jsontext.AppendQuote([]byte("x"), text)
		require.Equal(t, string(want), string(AppendQuote([]byte("x"), text)), "%q", text)
	}
	for size := range 20 {
		for place := range size {
			for c := range 256 {
				text := bytes.Repeat([]byte("a"), size)
				text[place] = byte(c)
				check(string(text))
				text[(place+1)%size] = byte(c) // and its neighbour
				check(string(text))
			}
		}
	}
	for _, text := range []string{"", "é", "日本語 and more of it", "\u2028", "\xff\xfe", "a\x00b", `{"a":"b\\c"}`} {
		check(text)
	}
}

// What reads a document has nothing left of the one before it.
func TestParsersAreUsedAgain(t *testing.T) {
	documents := []struct{ json, want string }{
		{`{"a":{"b":[1,2`, "unexpected end of the document"}, {`{"a":1}`, `{"a":1}`}, {`[1,]`, "invalid"}, {`[[[1]]]`, `[[[1]]]`},
		{`{"a":1,"a":2}`, "duplicate key"}, {`"` + strings.Repeat("x", 5000) + `"`, strings.Repeat("x", 5000)}, {`"text"`, `"text"`}, {``, "unexpected end"},
	}
	var all sync.WaitGroup
	for range 4 {
		all.Go(func() {
			for i := range 400 {
				d := documents[i%len(documents)]
				v, err := Parse([]byte(d.json))
				said := v.JSON()
				if err != nil {
					said = err.Error()
				}
				assert.Contains(t, said, d.want)
			}
		})
	}
	all.Wait()
}
