package gate

import (
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
)

// NewNeighbours stands in front of a node that asks nobody who they are. A web page
// that somebody on this machine looks at is no neighbour: it names itself as the Origin
// of what it sends, and one that has its own name resolved to a loopback address names
// that as the Host. Loopback says that the node is reached on this machine alone, so
// that no other Host can be meant.
func NewNeighbours(next http.Handler, loopback bool) http.Handler {
	errors := connect.NewErrorWriter()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var why string
		switch origin := r.Header.Get("Origin"); {
		case origin != "" && !sameHost(origin, r.Host):
			why = "the request comes from a web page of " + quoted(origin) + "; a node that asks nobody who they are answers no web pages. Start it with --auth tokens, and let a server of the page's send the requests"
		case loopback && !isLoopback(r.Host):
			why = "the request is meant for the host " + quoted(r.Host) + ", and this node asks nobody who they are and is on a loopback address; name it as 127.0.0.1 or localhost"
		default:
			next.ServeHTTP(w, r)
			return
		}
		refusal := fault.New(connect.CodePermissionDenied, fault.ReasonForbidden, why).Connect()
		if errors.IsSupported(r) {
			_ = errors.Write(w, r, refusal) // whoever hung up needs no answer
			return
		}
		http.Error(w, why, http.StatusForbidden)
	})
}

func quoted(host string) string {
	if len(host) > 80 {
		host = host[:80]
	}
	return "\"" + strings.Map(func(r rune) rune {
		if r < ' ' || r > '~' {
			return '?'
		}
		return r
	}, host) + "\""
}

func sameHost(origin, host string) bool {
	u, err := url.Parse(origin)
	return err == nil && u.Host != "" && strings.EqualFold(u.Host, host)
}

// isLoopback reports whether a Host header names this machine.
func isLoopback(host string) bool {
	if name, _, err := net.SplitHostPort(host); err == nil {
		host = name
	}
	host = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	if a, err := netip.ParseAddr(host); err == nil {
		return a.IsLoopback()
	}
	host = strings.ToLower(host)
	return host == "localhost" || strings.HasSuffix(host, ".localhost")
}
