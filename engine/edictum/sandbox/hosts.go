package sandbox

import "strings"

// Hosts: they are looked for anywhere in every text, as lenient clients read them.

// hosts looks at the hosts in a text.
func (l *look) hosts(s string) {
	plain := withoutBreaks(s)
	if !strings.ContainsAny(plain, ":%") && !hasTwoSlashes(plain) {
		return
	}
	once := decoded(plain)
	twice := decoded(once)
	last := ""
	for _, form := range [...]string{s, plain, once, withoutBreaks(once), twice, withoutBreaks(twice)} {
		if form != last {
			l.hostsIn(form)
		}
		last = form
	}
}

// hasTwoSlashes reports whether there are two slashes of either sort in a row.
func hasTwoSlashes(s string) bool {
	for i := 1; i < len(s); i++ {
		if isSlash(s[i]) && isSlash(s[i-1]) {
			return true
		}
	}
	return false
}

func isSlash(c byte) bool { return c == '/' || c == '\\' }

// withoutBreaks is a text without what clients take out of URLs.
func withoutBreaks(s string) string {
	if !strings.ContainsAny(s, "\t\r\n") {
		return s
	}
	return strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(s)
}

func (l *look) hostsIn(s string) {
	blanks := len(s) - len(withoutBlanks(s)) // at its beginning
	for i := 0; i < len(s) && l.outside == ""; i++ {
		switch {
		case s[i] == ':':
			scheme := schemeBefore(s, i)
			slashes := countSlashes(s[i+1:])
			switch {
			case scheme == "file":
				l.path("/" + strings.TrimLeft(untilBlank(s[i+1+slashes:]), `/\`))
			case slashes >= 2, special[scheme]:
				rest := s[i+1+slashes:]
				// Without a scheme, as in https?://, it is one only where a host follows.
				if l.spend(len(upTo(rest, urlEnds))) && (slashes > 0 && scheme != "" || startsHost(rest)) {
					l.host(rest, i-len(scheme) <= blanks)
				}
			}
		case i+1 < len(s) && isSlash(s[i]) && isSlash(s[i+1]) && begins(s, i):
			// A host without a scheme. A path that begins with two slashes is one too.
			if rest := s[i+countSlashes(s[i:]):]; hostPart(rest) != "" && l.spend(len(upTo(rest, urlEnds))) {
				l.host(rest, i <= blanks)
			}
		}
	}
}

// withoutBlanks is a text without what clients leave out before a URL.
func withoutBlanks(s string) string {
	return strings.TrimLeftFunc(s, func(r rune) bool { return r <= ' ' })
}

// special are the schemes whose slashes clients put in themselves.
var special = map[string]bool{"http": true, "https": true, "ws": true, "wss": true, "ftp": true}

// schemeBefore is the scheme that ends before a colon, in lower case.
func schemeBefore(s string, colon int) string {
	from := colon
	for from > 0 && isSchemeByte(s[from-1]) {
		from--
	}
	for from < colon && !isLetter(s[from]) {
		from++
	}
	return strings.ToLower(s[from:colon])
}

func isLetter(c byte) bool { return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' }

func isSchemeByte(c byte) bool {
	return isLetter(c) || c >= '0' && c <= '9' || c == '+' || c == '-' || c == '.'
}

func countSlashes(s string) int {
	n := 0
	for n < len(s) && isSlash(s[n]) {
		n++
	}
	return n
}

// startsHost reports whether a text could begin with a host, or with a user before one.
func startsHost(s string) bool {
	return s != "" && (isLetter(s[0]) || s[0] >= '0' && s[0] <= '9' || strings.IndexByte("[_-", s[0]) >= 0) || strings.Contains(hostPart(s), "@")
}

// begins reports whether a place is where a word begins.
func begins(s string, i int) bool {
	return i == 0 || s[i-1] <= ' ' || strings.IndexByte("\"'`=(<>[{,;", s[i-1]) >= 0
}

func untilBlank(s string) string { return upTo(s, " \t\r\n\"'<>?#") }

// hostPart is what stands where a URL has user, host and port.
func hostPart(s string) string { return upTo(s, "/\\?# \t\r\n\"'`<>(){}|^,;") }

// host looks at the host at the beginning of a text. Whole says that a client may be
// given the text as it stands.
//
// For who looks for URLs in a text a comma ends one, and so does a bracket or a quote.
// For the clients it belongs to the user's name, if an @ follows, or to the host.
func (l *look) host(s string, whole bool) {
	if len(l.box.domains) == 0 && len(l.box.notDomains) == 0 {
		return
	}
	h := hostPart(s)
	l.oneHost(h)
	ends, quotes := urlEnds, ""
	if !whole {
		quotes = "\"'`"
		ends += " \t\r\n<>" + quotes
	}
	user := upTo(s, ends)
	if at := strings.LastIndexByte(user, '@'); at >= len(h) {
		l.host(s[at+1:], whole)
		return
	}
	name := strings.TrimRight(upTo(s, urlEnds+"@: \t\r\n<>[]|^"+quotes), ".,;(){}\"'`")
	if len(name) > len(h) && strings.Contains(name[len(h):], ".") {
		l.oneHost(name)
	}
}

// urlEnds end user, host and port for all clients.
const urlEnds = `/\?#`

// upTo is what stands before the first of some bytes.
func upTo(s, ends string) string {
	if i := strings.IndexAny(s, ends); i >= 0 {
		return s[:i]
	}
	return s
}

// oneHost looks at a host with its user and its port.
func (l *look) oneHost(h string) {
	if i := strings.LastIndexByte(h, '@'); i >= 0 {
		h = h[i+1:]
	}
	if strings.HasPrefix(h, "[") {
		if end := strings.IndexByte(h, ']'); end >= 0 {
			h = h[:end+1]
		}
	} else if i := strings.IndexByte(h, ':'); i >= 0 {
		h = h[:i]
	}
	h = strings.ToLower(strings.TrimSuffix(h, "."))
	if why, ok := l.box.allowedHost(h); !ok {
		l.fail("host %q %s", h, why)
	}
}

// isURL reports whether a text is a URL with a scheme other than file.
func isURL(s string) bool {
	i := strings.Index(s, "://")
	if i <= 0 {
		return false
	}
	scheme := schemeBefore(s, i)
	return len(scheme) == i && scheme != "file"
}
