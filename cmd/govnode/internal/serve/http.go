package serve

import (
	"crypto/tls"
	"log/slog"
	"net"
	"net/http"
	"time"

	"example.com/govnode/internal/lobby"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// The HTTP server of the API.

// Limits of the API port. They keep those who send slowly, or nothing, from
// taking the place of others. There is no limit on the time that an answer
// takes: a call may wait for minutes, and its handler bounds that.
const (
	headerTimeout = 5 * time.Second
	bodyTimeout   = 15 * time.Second
	idleTimeout   = 60 * time.Second
	headerBytes   = 16 << 10
	streamsPerTCP = 128 // requests at once over one HTTP/2 connection
	pingAfter     = 30 * time.Second
	pingTimeout   = 15 * time.Second
)

// newHTTPServer serves a handler over HTTP/1.1 and over HTTP/2 without TLS,
// which gRPC clients need, on the same port.
func newHTTPServer(h http.Handler, log *slog.Logger) *http.Server {
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler:           lobby.Handler(boundBody(h, bodyTimeout)),
		ConnContext:       lobby.Context,
		Protocols:         &protocols,
		ReadHeaderTimeout: headerTimeout,
		IdleTimeout:       idleTimeout,
		MaxHeaderBytes:    headerBytes,
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: streamsPerTCP,
			MaxReadFrameSize:     lobby.MaxFrame,
			// A peer that vanished without a word is found out, so that its
			// waits do not stand until their end.
			SendPingTimeout: pingAfter,
			PingTimeout:     pingTimeout,
		},
		ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug),
	}
}

// overTLS makes a server speak TLS alone, HTTP/1.1 and HTTP/2 over it.
func overTLS(s *http.Server, secure *tls.Config) {
	s.Protocols.SetUnencryptedHTTP2(false)
	s.Protocols.SetHTTP2(true)
	s.TLSConfig = secure
}

// serveOn serves until the server is shut down.
func serveOn(s *http.Server, l net.Listener) error {
	if s.TLSConfig == nil {
		return s.Serve(l)
	}
	return s.ServeTLS(l, "", "") // the certificate is that of TLSConfig
}

// longBodies are the requests whose body may go on for as long as its sender
// likes: their handlers bound them.
var longBodies = map[string]bool{
	govnodev1connect.CallServiceExchangeProcedure:   true,
	govnodev1connect.ClusterServiceRestoreProcedure: true,
}

// boundBody gives the sender of a request a time in which its body must have
// arrived. It is not http.Server.ReadTimeout because that would end a stream
// as well.
func boundBody(next http.Handler, timeout time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		// Without a body the server is already watching whether the client
		// hangs up, and a deadline would look like that.
		if r.Body != http.NoBody && !longBodies[r.URL.Path] {
			// Both writers that http.Server hands in know deadlines.
			_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(timeout))
		}
		next.ServeHTTP(w, r)
	})
}
