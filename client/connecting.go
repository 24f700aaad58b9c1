package client

import (
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"sync/atomic"

	"connectrpc.com/connect"
)

// What is known of a request that failed before it was sent: that nothing came of
// it, and often what to do.

// A sending is one request on its way, in its context.
type sending struct{ failed bool } // before it had a connection

type sendingKey struct{}

// A watchful sends requests, and notes of those that failed before they had a
// connection. Their errors do not say so: those of handshakes have many types, and
// some none.
type watchful struct{ connect.HTTPClient }

// watched is a client that notes it, where its transport can be asked; else the client
// as it is.
func watched(c connect.HTTPClient) connect.HTTPClient {
	h, ok := c.(*http.Client)
	if !ok {
		return c
	}
	next := h.Transport
	if next == nil {
		next = http.DefaultTransport
	}
	if _, ok := next.(*http.Transport); !ok {
		return c // it may not look at what the context of a request asks for
	}
	return watchful{c}
}

// Do implements connect.HTTPClient.
func (w watchful) Do(r *http.Request) (*http.Response, error) {
	var connected atomic.Bool
	trace := &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { connected.Store(true) }}
	res, err := w.HTTPClient.Do(r.WithContext(httptrace.WithClientTrace(r.Context(), trace)))
	if err == nil {
		return res, nil
	}
	if s, ok := r.Context().Value(sendingKey{}).(*sending); ok {
		s.failed = !connected.Load()
	}
	if u := new(url.Error); errors.As(err, &u) {
		u.Err = explained(r.URL.Host, u.Err) // connect takes off the rest
	}
	return nil, err
}

// neverSent reports whether no connection came about.
func neverSent(err error) bool {
	return errors.As(err, new(*tls.CertificateVerificationError)) ||
		errors.Is(err, http.ErrSchemeMismatch) || nobodyThere(err)
}

// nobodyThere reports whether a node could not be reached at all, or not through the
// proxy.
func nobodyThere(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && (op.Op == "dial" || op.Op == "proxyconnect")
}

// explained says what to do where certificates, or the lack of them, are why there
// is no answer.
func explained(host string, err error) error {
	var op *net.OpError
	what := ""
	switch {
	case errors.As(err, new(x509.UnknownAuthorityError)):
		what = "the certificate of %s is signed by somebody who is not trusted here: load the ca.crt of the cluster with LoadTLS, or name it in GOVNODE_TLS_CA"
	case errors.As(err, new(x509.HostnameError)):
		what = "the certificate of %s is for another host: name the node in Addresses as its certificate does, or make that with all its hosts"
	case errors.As(err, new(*tls.CertificateVerificationError)):
		what = "the certificate of %s cannot be trusted"
	case errors.Is(err, http.ErrSchemeMismatch):
		what = "%s does not speak TLS: leave TLS out, or write http:// before its address"
	case errors.As(err, &op) && op.Op == "remote error":
		what = "%s refused the connection: it may want a certificate of its cluster, load one with LoadTLS, or name it in GOVNODE_TLS_CERT and GOVNODE_TLS_KEY"
	default:
		return err
	}
	return fmt.Errorf(what+": %w", host, err)
}
