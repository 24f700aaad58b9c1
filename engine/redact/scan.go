package redact

import "strings"

// A look at a text that tells cheaply which patterns of redact.go may have a
// match in it.

// A piiKind is the place of a pattern in piiPatterns.
type piiKind uint8

const (
	piiJWT piiKind = iota
	piiPrivateKey
	piiBearer
	piiAccessKey
	piiCredential
	piiEmail
	piiCard
	piiSSN
)

// A piiSet is a set of kinds, one bit each.
type piiSet uint8

func (s piiSet) has(k piiKind) bool { return s&(1<<k) != 0 }

// piiTriggers are the bytes that a match of some pattern has to hold, of each
// pattern those that are rare in other texts. Around them alone it is worth
// looking closer.
var piiTriggers = bytesOf("J", "bB", "A_-", ":=", "@", "0123456789")

// The expressions alone take a millisecond for a kilobyte, which is more than
// all the rest of a call; behind this scan they take some microseconds.

// piiCandidates returns the kinds that text may hold. A kind that is left out
// has no match; one that is named is for its expression to confirm. It reads
// each byte once, looks at a bounded number around a trigger, and allocates
// nothing.
func piiCandidates(text string) piiSet {
	var found piiSet
	for i := 0; i < len(text); i++ {
		if !piiTriggers[text[i]] {
			continue
		}
		switch text[i] {
		case 'J':
			if endsWord(text, i, "ey") && spanOf(&base64URL, text[i+1:], 8) == 8 {
				found |= 1 << piiJWT
			}
		case 'b', 'B':
			if beginsWord(text, i) && hasPrefixFold(text[i+1:], "earer") && i+6 < len(text) && isSpace(text[i+6]) {
				found |= 1 << piiBearer
			}
			if strings.HasSuffix(text[:i], "-----") && strings.HasPrefix(text[i:], "BEGIN ") {
				found |= 1 << piiPrivateKey
			}
		case 'A':
			if beginsWord(text, i) && (strings.HasPrefix(text[i:], "AKIA") || strings.HasPrefix(text[i:], "ASIA")) {
				found |= 1 << piiAccessKey
			}
		case '_':
			if i > 0 && endsWord(text, i-1, "gh") {
				found |= 1 << piiAccessKey
			}
		case '-':
			if endsWord(text, i, "sk") {
				found |= 1 << piiAccessKey
			}
		case ':', '=':
			if followsSecret(text[:i]) {
				found |= 1 << piiCredential
			}
		case '@':
			if i > 0 && emailLocal[text[i-1]] && i+1 < len(text) && emailDomain[text[i+1]] {
				found |= 1 << piiEmail
			}
		default:
			if !beginsWord(text, i) {
				continue
			}
			if isCard(text[i:]) {
				found |= 1 << piiCard
			}
			if isSSN(text[i:]) {
				found |= 1 << piiSSN
			}
		}
	}
	return found
}

var (
	digits      = bytesOf("0123456789")
	letters     = bytesOf("abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ")
	wordBytes   = union(&letters, &digits, "_")
	base64URL   = union(&letters, &digits, "_-")
	emailLocal  = union(&letters, &digits, "._%+-")
	emailDomain = union(&letters, &digits, ".-")
)

func bytesOf(sets ...string) (t [256]bool) {
	for _, set := range sets {
		for _, c := range []byte(set) {
			t[c] = true
		}
	}
	return t
}

func union(a, b *[256]bool, more string) (t [256]bool) {
	for c := range t {
		t[c] = a[c] || b[c] || strings.IndexByte(more, byte(c)) >= 0
	}
	return t
}

// beginsWord reports whether no word character stands before place i, which
// holds one.
func beginsWord(text string, i int) bool { return i == 0 || !wordBytes[text[i-1]] }

// endsWord reports whether word, a word from its first character on, stands
// right before place i.
func endsWord(text string, i int, word string) bool {
	return strings.HasSuffix(text[:i], word) && beginsWord(text, i-len(word))
}

// spanOf returns how many bytes of a set text begins with, up to most.
func spanOf(set *[256]bool, text string, most int) int {
	n := 0
	for n < len(text) && n < most && set[text[n]] {
		n++
	}
	return n
}

func isSpace(c byte) bool { return c == ' ' || c == '\t' || c == '\n' || c == '\f' || c == '\r' }

// hasPrefixFold is strings.HasPrefix without regard to case, for a prefix of
// lower-case letters that no letter beyond ASCII is folded to.
func hasPrefixFold(text, prefix string) bool {
	if len(text) < len(prefix) {
		return false
	}
	for i := range len(prefix) {
		if text[i]|0x20 != prefix[i] {
			return false
		}
	}
	return true
}

// secretNames are what the pattern of credentials looks for before a colon or
// an equals sign.
var secretNames = [...]string{"password", "passwd", "secret", "token", "apikey", "api_key", "api-key"}

// secretEnds are their last letters.
var secretEnds = bytesOf("dtny", "DTNY")

// followsSecret reports whether one of secretNames may end text, perhaps with a
// quote and white space behind it.
func followsSecret(text string) bool {
	n := len(text)
	for n > 0 && isSpace(text[n-1]) {
		n--
	}
	if n > 0 && (text[n-1] == '"' || text[n-1] == '\'') {
		n--
	}
	if n == 0 || !secretEnds[text[n-1]] {
		return false // as of nearly every key
	}
	for _, name := range secretNames {
		if mayEndIn(text[:n], name) {
			return true
		}
	}
	return false
}

// mayEndIn reports whether text may end in name, which is in lower case, without
// regard to case. Of the letters beyond ASCII, one is folded to s and one to k;
// whether it is that one is left to the expression.
func mayEndIn(text, name string) bool {
	for i := 1; i <= len(name); i++ {
		if i > len(text) {
			return false
		}
		c, want := text[len(text)-i], name[len(name)-i]
		switch {
		case c >= 0x80:
			return want == 's' || want == 'k'
		case c == want || want >= 'a' && c|0x20 == want:
		default:
			return false
		}
	}
	return true
}

// isCard reports whether a number of the pattern of cards begins text.
func isCard(text string) bool {
	n := spanOf(&digits, text, 17)
	if n < len(text) && wordBytes[text[n]] {
		return false
	}
	return n == 16 && (text[0] == '4' || text[0] == '5' && '1' <= text[1] && text[1] <= '5') || n == 13 && text[0] == '4'
}

// isSSN reports whether a number of the pattern of social security numbers
// begins text. A separator is no digit, so there is one way to read it.
func isSSN(text string) bool {
	for _, group := range [...]int{3, 2} {
		if spanOf(&digits, text, group) < group {
			return false
		}
		text = text[group:]
		if text != "" && (isSpace(text[0]) || text[0] == '.' || text[0] == '-') {
			text = text[1:]
		}
	}
	return spanOf(&digits, text, 5) == 4 && (len(text) == 4 || !wordBytes[text[4]])
}

// keyTriggers begin, in lower case, every word that makes a key the name of a
// secret, after three letters of it.
var keyTriggers = [...]string{"pas", "pwd", "sec", "cre", "aut", "api", "coo", "tok", "key"}

// mayNameSecret reports whether secretKey has to take a key apart. It may say so
// of a key that names none.
func mayNameSecret(key string) bool {
	for i := range len(key) {
		switch c := key[i]; {
		case c >= 0x80:
			return true // it may stand for an ASCII letter in lower case
		case len(key)-i < 3:
		default:
			switch c | 0x20 {
			case 'p', 's', 'c', 'a', 't', 'k':
				for _, w := range keyTriggers {
					if hasPrefixFold(key[i:], w) {
						return true
					}
				}
			}
		}
	}
	return false
}
