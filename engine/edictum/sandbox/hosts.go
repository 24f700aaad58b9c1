package sandbox

import "strings"

// Hosts: they are looked for anywhere in every text, as lenient clients read them.

// hosts looks at the hosts in a text.
func (l *look) hosts(s string) {
	if !strings.ContainsAny(s, ":%") && !strings.Contains(s, "//") && !strings.Contains(s, `\\`) {
		return
	}
	plain := withoutBreaks(s)
	for _, form := range [...]string{s, plain, decoded(plain), decoded(decoded(plain))} {
		l.hostsIn(form)
	}
}

// withoutBreaks is a text without what clients take out of URLs.
func withoutBreaks(s string) string {
	if !strings.ContainsAny(s, "\t\r\n") {
		return s
	}
	return strings.NewReplacer("\t", "", "\r", "", "\n", "").Replace(s)
}

func (l *look) hostsIn(s string) {
	for i := 0; i < len(s) && l.outside == ""; i++ {
		switch {
		case s[i] == ':':
			scheme := schemeBefore(s, i)
			slashes := countSlashes(s[i+1:])
			switch {
			case scheme == "file":
				l.path("/" + strings.TrimLeft(untilBlank(s[i+1+slashes:]), `/\`))
			case scheme != "" && slashes >= 2, special[scheme] && (slashes > 0 || startsHost(s[i+1:])):
				l.host(s[i+1+slashes:])
			}
		case (s[i] == '/' || s[i] == '\\') && i+1 < len(s) && (s[i+1] == '/' || s[i+1] == '\\') && begins(s, i):
			// A host without a scheme. A path that begins with two slashes is one too.
			if rest := s[i+countSlashes(s[i:]):]; hostPart(rest) != "" {
				l.host(rest)
			}
		}
	}
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
	for n < len(s) && (s[n] == '/' || s[n] == '\\') {
		n++
	}
	return n
}

// startsHost reports whether a text could begin with a host.
func startsHost(s string) bool {
	return s != "" && (isLetter(s[0]) || s[0] >= '0' && s[0] <= '9' || s[0] == '[')
}

// begins reports whether a place is where a word begins.
func begins(s string, i int) bool {
	return i == 0 || strings.IndexByte(" \t\r\n\"'`=(<>[{,;", s[i-1]) >= 0
}

func untilBlank(s string) string {
	if i := strings.IndexAny(s, " \t\r\n\"'<>?#"); i >= 0 {
		return s[:i]
	}
	return s
}

// hostPart is what stands where a URL has user, host and port.
func hostPart(s string) string {
	if i := strings.IndexAny(s, "/\\?# \t\r\n\"'`<>(){}|^,;"); i >= 0 {
		return s[:i]
	}
	return s
}

// host looks at the host at the beginning of a text.
func (l *look) host(s string) {
	if len(l.box.domains) == 0 && len(l.box.notDomains) == 0 {
		return
	}
	h := hostPart(s)
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
