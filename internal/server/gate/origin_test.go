package gate

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/require"
)

// Web pages, and names that are made to resolve to this machine, get nothing of a node
// that asks nobody who they are; what is on this machine is answered.
func TestNeighbours(t *testing.T) {
	ok := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) })
	for _, tt := range []struct {
		host, origin string
		loopback     int // status where the node is on a loopback address
		anywhere     int
	}{
		{"127.0.0.1:7070", "", 200, 200},
		{"127.9.9.9:7070", "", 200, 200},
		{"[::1]:7070", "", 200, 200},
		{"localhost:7070", "", 200, 200},
		{"localhost", "", 200, 200},
		{"LOCALHOST:1", "", 200, 200},
		{"a.localhost:1", "", 200, 200},
		{"evil.example:7070", "", 403, 200},
		{"10.0.0.1:7070", "", 403, 200},
		{"localhost.evil.example", "", 403, 200},
		{"", "", 403, 200},
		{"127.0.0.1:7070", "http://127.0.0.1:7070", 200, 200},
		{"127.0.0.1:7070", "http://evil.example", 403, 403},
		{"127.0.0.1:7070", "http://127.0.0.1:8080", 403, 403},
		{"127.0.0.1:7070", "null", 403, 403},
		{"evil.example", "http://evil.example", 403, 200},
	} {
		for loopback, want := range map[bool]int{true: tt.loopback, false: tt.anywhere} {
			r := httptest.NewRequest(http.MethodPost, "/govnode.v1.SessionService/GetSession", nil)
			r.Host = tt.host
			r.Header.Set("Content-Type", "application/json")
			if tt.origin != "" {
				r.Header.Set("Origin", tt.origin)
			}
			w := httptest.NewRecorder()
			NewNeighbours(ok, loopback).ServeHTTP(w, r)
			require.Equal(t, want, w.Code, "%+v, loopback %v: %s", tt, loopback, w.Body)
		}
	}
}
