package redact

// What of a text is personal data or a credential, counted by kind.

// A Class is what a kind of finding belongs to.
type Class uint8

// The classes.
const (
	Credentials Class = iota
	PersonalData
)

// classOf returns the class of a kind.
func classOf(kind piiKind) Class {
	if kind >= piiEmail {
		return PersonalData
	}
	return Credentials
}

// Found is how often a kind occurs in a text.
type Found struct {
	Class Class
	Kind  string
	Count int
}

// maxPasses bounds how often a text is looked through. What stands around a mark
// may be a finding of its own, and so on; a second look finds nothing in nearly
// every text.
const maxPasses = 8

// Find replaces what a text holds of the classes that are wanted, as [Text] does,
// and says what that was. Nothing of them is left in the result; ok is false if
// that could not be reached.
func Find(text string, wanted func(Class) bool) (redacted string, found []Found, ok bool) {
	var counts [len(piiPatterns)]int
	for range maxPasses {
		before := text
		may := piiCandidates(text)
		for kind := range piiPatterns {
			if !may.has(piiKind(kind)) || !wanted(classOf(piiKind(kind))) {
				continue
			}
			p := &piiPatterns[kind]
			n := len(p.re.FindAllStringIndex(text, -1))
			if n == 0 {
				continue
			}
			counts[kind] += n
			text = p.re.ReplaceAllLiteralString(text, "[REDACTED:"+p.Name+"]")
			may = piiCandidates(text)
		}
		if ok = text == before; ok {
			break
		}
	}
	for kind, n := range counts {
		if n > 0 {
			found = append(found, Found{classOf(piiKind(kind)), piiPatterns[kind].Name, n})
		}
	}
	return text, found, ok
}
