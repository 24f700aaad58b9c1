package edictum

import (
	"bytes"
	"io"
	"net/http"
)

// local sends requests to a handler of this process. It is what the client of the
// API has in the place of a network.
type local struct{ http.Handler }

// tokenKey is under which a context has the token that a request shows.
type tokenKey struct{}

// Do implements connect.HTTPClient.
func (l local) Do(req *http.Request) (*http.Response, error) {
	if err := req.Context().Err(); err != nil {
		return nil, err
	}
	served := req.Clone(req.Context())
	if token, _ := req.Context().Value(tokenKey{}).(string); token != "" { // its namespace is that of the request
		served.Header.Set("Authorization", "Bearer "+token)
		served.Header.Del("Govnode-Namespace")
	}
	served.RequestURI = req.URL.RequestURI()
	if served.Body == nil {
		served.Body = http.NoBody
	}
	a := &answer{header: http.Header{}, status: http.StatusOK}
	l.ServeHTTP(a, served)
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: a.header, Body: io.NopCloser(&a.body), ContentLength: int64(a.body.Len()), Request: req,
	}, nil
}

// An answer holds what a handler answers.
type answer struct {
	header  http.Header
	status  int
	written bool
	body    bytes.Buffer
}

func (a *answer) Header() http.Header { return a.header }

func (a *answer) WriteHeader(status int) {
	if !a.written {
		a.status, a.written = status, true
	}
}

func (a *answer) Write(b []byte) (int, error) {
	a.written = true
	return a.body.Write(b)
}
