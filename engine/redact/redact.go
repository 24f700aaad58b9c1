package redact

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/govnode/engine/value"
)

// How texts and trees are redacted: what is replaced in them, and by what.

// A PIIPattern is one kind of text that must not be logged or returned
// (adapter contract 7.4, 21.2).
type PIIPattern struct {
	Name string
	re   *regexp.Regexp
}

// piiPatterns are the patterns of the adapter contract, widened as its
// reference implementation does, and the shapes of well-known credentials.
// Longer shapes come first, so that a part of one is not taken for another.
// The places are those of the bits of a piiSet.
var piiPatterns = [...]PIIPattern{
	piiJWT:        {"jwt", regexp.MustCompile(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}(?:\.[A-Za-z0-9_-]*)?`)},
	piiPrivateKey: {"private_key", regexp.MustCompile(`-----BEGIN [A-Z ]*PRIVATE KEY-----[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY-----|\z)`)},
	piiBearer:     {"bearer", regexp.MustCompile(`(?i)\bbearer\s+[A-Za-z0-9._~+/=-]{8,}`)},
	piiAccessKey:  {"access_key", regexp.MustCompile(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b|\bgh[pousr]_[A-Za-z0-9]{20,}\b|\bsk-[A-Za-z0-9_-]{20,}`)},
	piiCredential: {"credential", regexp.MustCompile(`(?i)(?:password|passwd|secret|token|api[_-]?key)["']?\s*[:=]\s*(?:"[^"]*"|'[^']*'|\S+)`)},
	piiEmail:      {"email", regexp.MustCompile(`\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b`)},
	piiCard:       {"card", regexp.MustCompile(`\b(?:4[0-9]{12}(?:[0-9]{3})?|5[1-5][0-9]{14})\b`)},
	piiSSN:        {"ssn", regexp.MustCompile(`\b\d{3}[\s.-]?\d{2}[\s.-]?\d{4}\b`)},
}

// Text replaces what the patterns find by a mark of its kind. Texts are
// redacted before anything is logged, recorded or returned. A text in which
// nothing can be found costs one look at each byte and is returned as it is.
func Text(text string) string {
	may := piiCandidates(text)
	for kind := 0; may != 0 && kind < len(piiPatterns); kind++ {
		if !may.has(piiKind(kind)) {
			continue
		}
		p := &piiPatterns[kind]
		if redacted := p.re.ReplaceAllLiteralString(text, "[REDACTED:"+p.Name+"]"); redacted != text {
			// A mark ends the word before it, so that another kind may be found
			// there that was not to be found before.
			text, may = redacted, piiCandidates(redacted)
		}
	}
	return text
}

const redactedValue = "[REDACTED]"

// Value redacts every string of a tree, keys included, and whatever
// stands under a key that names a secret. What holds nothing to redact is
// returned as it is.
func Value(v value.Value) value.Value {
	v, _ = redactValue(v)
	return v
}

func redactValue(v value.Value) (out value.Value, changed bool) {
	switch v.Kind() {
	case value.String:
		s, _ := v.AsString()
		if redacted := Text(s); redacted != s {
			return value.OfString(redacted), true
		}
	case value.Number:
		return redactNumber(v)
	case value.List:
		return redactList(v)
	case value.Map:
		return redactMap(v)
	}
	return v, false
}

// redactNumber: a card or social security number may come as a number too. It
// has nine digits at least.
func redactNumber(v value.Value) (out value.Value, changed bool) {
	if n, ok := v.AsInt(); ok && v.IsInteger() && -1e8 < n && n < 1e8 {
		return v, false
	}
	text := v.JSON()
	redacted := Text(text)
	if redacted == text {
		return v, false
	}
	return value.OfString(redacted), true
}

func redactList(v value.Value) (out value.Value, changed bool) {
	var items []value.Value // from the first that is redacted on
	for i := range v.Len() {
		item, redacted := redactValue(v.Index(i))
		if redacted && items == nil {
			items = make([]value.Value, 0, v.Len())
			for j := range i {
				items = append(items, v.Index(j))
			}
		}
		if items != nil {
			items = append(items, item)
		}
	}
	if items == nil {
		return v, false
	}
	return value.OfList(items...), true
}

func redactMap(v value.Value) (out value.Value, changed bool) {
	var pairs []value.Pair // from the first that is redacted on
	i := 0
	for k, old := range v.All() {
		item, redacted := value.OfString(redactedValue), true
		if !secretKey(k, old) {
			item, redacted = redactValue(old)
		}
		key := Text(k)
		if pairs == nil && (redacted || key != k) {
			pairs = make([]value.Pair, 0, v.Len())
			for k, item := range v.All() {
				if len(pairs) == i {
					break
				}
				pairs = append(pairs, value.Pair{Key: k, Value: item})
			}
		}
		if pairs != nil {
			pairs = append(pairs, value.Pair{Key: key, Value: item})
		}
		i++
	}
	if pairs == nil {
		return v, false
	}
	return value.OfMap(pairs...), true
}

// secretWords name secrets wherever they occur in a key.
var secretWords = map[string]bool{
	"password": true, "passwd": true, "pwd": true, "passphrase": true, "secret": true, "secrets": true,
	"credential": true, "credentials": true, "authorization": true, "apikey": true, "cookie": true,
}

// secretKey reports whether a key names a secret. A token is one where it is
// text; token_count and the like are numbers.
func secretKey(key string, v value.Value) bool {
	if v.Kind() == value.Null || !mayNameSecret(key) {
		return false
	}
	var room [64]byte
	before := ""
	for words := string(appendWords(room[:0], key)); words != ""; {
		var w string
		w, words, _ = strings.Cut(words, " ")
		switch {
		case secretWords[w]:
			return true
		case w == "token" && v.Kind() != value.Number && v.Kind() != value.Bool:
			return true
		case w == "key" && (before == "api" || before == "private" || before == "access" || before == "secret"):
			return true
		}
		if w != "" {
			before = w
		}
	}
	return false
}

// appendWords splits a_b, a-b, a.b and aB into lower-case words, which it
// appends with spaces between them.
func appendWords(dst []byte, key string) []byte {
	lower := false
	for _, r := range key {
		if unicode.IsUpper(r) && lower {
			dst = append(dst, ' ')
		}
		lower = unicode.IsLower(r)
		if !unicode.IsLetter(r) && !unicode.IsDigit(r) {
			r = ' '
		}
		dst = utf8.AppendRune(dst, unicode.ToLower(r))
	}
	return dst
}
