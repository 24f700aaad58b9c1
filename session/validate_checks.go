package session

import (
	"cmp"
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"example.com/govnode/internal/toolname"
)

// The checks of which validate.go is made: numbers, lengths, ids and texts.

// between checks a number.
func between[T cmp.Ordered](v *validator, field string, x, least, most T) {
	if x < least || x > most {
		v.fail(field, outside(x, least, most))
	}
}

func outside[T any](x, least, most T) string {
	return fmt.Sprintf("%v is out of bounds; give %v to %v", x, least, most)
}

func (v *validator) count(field string, n, least, most int) {
	if n < least || n > most {
		v.fail(field, fmt.Sprintf("has %d elements; give %d to %d", n, least, most))
	}
}

func (v *validator) length(field string, n, least, most int) {
	if n < least || n > most {
		v.fail(field, fmt.Sprintf("has %d bytes; give %d to %d", n, least, most))
	}
}

func (v *validator) digest(field string, d Digest) {
	if d == (Digest{}) {
		v.fail(field, "is missing; give the digest of a policy")
	}
}

func (v *validator) request(ns string, by Maker) {
	v.namespace(ns)
	v.id("By.Client", by.Client)
	v.optional("By.Request", by.Request)
}

// maker checks that exactly one of a client and a session is named.
func (v *validator) maker(field, client, session string) {
	switch {
	case client != "" && session != "":
		v.fail(field, "stands beside Session; give one of the two")
	case session != "":
		v.id("Session", session)
	default:
		v.id(field, client)
	}
}

func (v *validator) namespace(ns string) {
	if problem := badNamespace(ns); problem != "" {
		v.fail("NS", problem)
	}
}

func (v *validator) id(field, id string) {
	if problem := badID(id); problem != "" {
		v.fail(field, problem)
	}
}

func (v *validator) optional(field, id string) {
	if id != "" {
		v.id(field, id)
	}
}

func (v *validator) ownPool(field, pool string) {
	if problem := badOwnPool(pool); problem != "" {
		v.fail(field, problem)
	}
}

// pools checks a premise: names, each once.
func (v *validator) pools(pools []string, most int) {
	v.count("Pools", len(pools), 0, most)
	if v.err != nil {
		return
	}
	for i, p := range pools {
		if problem := badPool(p); problem != "" {
			v.fail(fmt.Sprintf("Pools[%d]", i), problem)
		}
		if len(pools) <= MaxPools+1+MaxRates && contains(pools[:i], p) {
			v.fail(fmt.Sprintf("Pools[%d]", i), "is named twice")
		}
	}
	if len(pools) > MaxPools+1+MaxRates {
		seen := make(map[string]bool, len(pools))
		for i, p := range pools {
			if seen[p] {
				v.fail(fmt.Sprintf("Pools[%d]", i), "is named twice")
			}
			seen[p] = true
		}
	}
}

// text checks a name that people read: of one line, and without what would
// hide or spoof it in a terminal or a log.
func (v *validator) text(field, s string, least, most int) {
	if len(s) < least {
		v.fail(field, "is missing")
	}
	v.free(field, s, most)
	for _, r := range s {
		if unicode.IsControl(r) {
			v.fail(field, "has a control character in it; leave it out")
			return
		}
	}
}

// toolName refuses names that pass for others, since limits and counters go by them.
func (v *validator) toolName(field, name string) {
	if problem := toolname.Problem(name); problem != "" {
		v.fail(field, problem)
	}
}

func (v *validator) free(field, s string, most int) {
	if len(s) > most {
		v.length(field, len(s), 0, most)
	} else if !utf8.ValidString(s) {
		v.fail(field, "is not UTF-8")
	}
}

func badOwnPool(pool string) string {
	if strings.HasPrefix(pool, policyPrefix) {
		return "names beginning with policy/ are reserved for the pools of policies; choose another"
	}
	if IsRate(pool) {
		return "names beginning with rate/ are reserved for rates; choose another"
	}
	return badID(pool)
}

func badPool(pool string) string {
	if IsRate(pool) {
		return badName(RateName(pool), maxRatePool, inID|inRate, idAlphabet+" #")
	}
	return badID(strings.TrimPrefix(pool, policyPrefix))
}

func badID(id string) string { return badName(id, MaxID, inID, idAlphabet) }

const idAlphabet = "A-Z a-z 0-9 . _ : @ / -"

func badNamespace(ns string) string {
	return badName(ns, MaxNamespace, inNamespace, "A-Z a-z 0-9 . _ -")
}

// badName returns what is wrong with an id or a namespace; "" if nothing is.
func badName(s string, most int, of uint8, alphabet string) string {
	if s == "" {
		return "is missing"
	}
	if len(s) > most {
		return fmt.Sprintf("has %d bytes; give at most %d", len(s), most)
	}
	for i := 0; i < len(s); i++ {
		if alphabets[s[i]]&of == 0 {
			return fmt.Sprintf("has a %q in it; use only %s", s[i], alphabet)
		}
	}
	return ""
}

const (
	inID uint8 = 1 << iota
	inNamespace
	inRate
)

// alphabets tells of each byte where it may stand. A table, since ids are
// checked on every call.
var alphabets = func() (t [256]uint8) {
	for c := range t {
		switch {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
			t[c] = inID | inNamespace
		case c == ':', c == '@', c == '/':
			t[c] = inID
		case c == '#':
			t[c] = inRate
		}
	}
	return t
}()

// indexed names an element of a list.
func indexed(field string, i int) string { return fmt.Sprintf("%s[%d]", field, i) }
