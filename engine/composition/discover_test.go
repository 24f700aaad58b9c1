package composition

import (
	"net/url"
	"regexp"
	"strings"
	"testing"
)

// FuzzPath holds that the check of a path sees through every escape up to twice,
// whatever broken ones stand beside it.
func FuzzPath(f *testing.F) {
	for _, path := range []string{"%2e%2e", "%2e%2e/%zz", "%2e%2e/100%/x", "%252e%252e/%", "a/%2", "%%32e%%32e/x", "C%3a/x", "a%00b", `..\x`, "%2fetc", "%g0/../.."} {
		f.Add(path)
	}
	escape := regexp.MustCompile("%[0-9a-fA-F]{2}")
	decode := func(s string) string {
		return escape.ReplaceAllStringFunc(s, func(e string) string {
			decoded, err := url.PathUnescape(e)
			if err != nil {
				panic(err)
			}
			return decoded
		})
	}
	f.Fuzz(func(t *testing.T, path string) {
		_, inside := cleanPath(path)
		text := path
		for range 3 {
			if escapes(strings.ReplaceAll(text, `\`, "/")) && inside {
				t.Fatalf("%q passes and can be read as %q", path, text)
			}
			text = decode(text)
		}
		if path == "" {
			return
		}
		if _, also := cleanPath(path + "/%zz"); also != inside {
			t.Fatalf("%q is inside: %t; with a broken escape behind it: %t", path, inside, also)
		}
	})
}
