package engine

import (
	"regexp"
	"strings"
	"unicode"

	"example.com/govnode/engine/value"
)

// A PIIPattern is one kind of text that must not be logged or returned
// (adapter contract 7.4, 21.2).
type PIIPattern struct {
	Name string
	re   *regexp.Regexp
}

// piiPatterns are the patterns of the adapter contract, widened as its
// reference implementation does, and the shapes of well-known credentials.
// Longer shapes come first, so that a part of one is not taken for another.
var piiPatterns = []PIIPattern{
	{"jwt", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`)},
	{"private_key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`)},
	{"bearer", regexp.MustCompile(`(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}`)},
	{"access_key", regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bsk-[A-Za-z0-9_-]{20,}`)},
	{"credential", regexp.MustCompile(`(?i)(?:password|passwd|secret|token|api[_-]?key)["']?\s*[:=]\s*(?:"[^"]*"|'[^']*'|\S+)`)},
	{"email", regexp.MustCompile(`\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b`)},
	{"card", regexp.MustCompile(`\b(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14})\b`)},
	{"ssn", regexp.MustCompile(`\b\d{3}[\s.-]?\d{2}[\s.-]?\d{4}\b`)},
}

// DetectPII returns the names of the kinds of personal data or credentials
// that occur in text, each once.
func DetectPII(text string) []string {
	var out []string
	for _, p := range piiPatterns {
		if p.re.MatchString(text) {
			out = append(out, p.Name)
		}
	}
	return out
}

// Redact replaces what DetectPII would find by a mark of its kind. Texts are
// redacted before anything is logged, recorded or returned.
func Redact(text string) string {
	for _, p := range piiPatterns {
		if p.re.MatchString(text) {
			text = p.re.ReplaceAllLiteralString(text, "[REDACTED:"+p.Name+"]")
		}
	}
	return text
}

const redactedValue = "[REDACTED]"

// RedactValue redacts every string of a tree, keys included, and whatever
// stands under a key that names a secret.
func RedactValue(v value.Value) value.Value {
	switch v.Kind() {
	case value.String:
		s, _ := v.AsString()
		return value.OfString(Redact(s))
	case value.Number:
		// A card or social security number may come as a number too.
		if text := v.JSON(); Redact(text) != text {
			return value.OfString(Redact(text))
		}
		return v
	case value.List:
		items := make([]value.Value, 0, v.Len())
		for item := range v.Items() {
			items = append(items, RedactValue(item))
		}
		return value.OfList(items...)
	case value.Map:
		pairs := make([]value.Pair, 0, v.Len())
		for k, item := range v.All() {
			if secretKey(k, item) {
				item = value.OfString(redactedValue)
			} else {
				item = RedactValue(item)
			}
			pairs = append(pairs, value.Pair{Key: Redact(k), Value: item})
		}
		return value.OfMap(pairs...)
	}
	return v
}

// secretWords name secrets wherever they occur in a key.
var secretWords = map[string]bool{
	"password": true, "passwd": true, "pwd": true, "passphrase": true, "secret": true, "secrets": true,
	"credential": true, "credentials": true, "authorization": true, "apikey": true, "cookie": true,
}

// secretKey reports whether a key names a secret. A token is one where it is
// text; token_count and the like are numbers.
func secretKey(key string, v value.Value) bool {
	if v.Kind() == value.Null {
		return false
	}
	words := keyWords(key)
	for i, w := range words {
		switch {
		case secretWords[w]:
			return true
		case w == "token" && v.Kind() != value.Number && v.Kind() != value.Bool:
			return true
		case w == "key" && i > 0 && (words[i-1] == "api" || words[i-1] == "private" || words[i-1] == "access" || words[i-1] == "secret"):
			return true
		}
	}
	return false
}

// keyWords splits a_b, a-b, a.b and aB into lower-case words.
func keyWords(key string) []string {
	var b strings.Builder
	lower := false
	for _, r := range key {
		if unicode.IsUpper(r) && lower {
			b.WriteByte(' ')
		}
		lower = unicode.IsLower(r)
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			r = ' '
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return strings.Fields(b.String())
}
