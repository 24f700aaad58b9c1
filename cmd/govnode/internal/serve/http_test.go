package serve

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/internal/lobby"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// serveHTTP serves a handler as a node does and returns where.
func serveHTTP(t *testing.T, h http.Handler) string {
	t.Helper()
	l, err := address.Listen("listen", "127.0.0.1:0", 0)
	require.NoError(t, err)
	s := newHTTPServer(h, slog.New(slog.DiscardHandler))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	return l.Addr().String()
}

// shortBody is how long the tests let a body take.
const shortBody = 50 * time.Millisecond

// A sender that does not send its body is cut off; one whose handler is still
// at work is not, and a stream may take its time.
func TestBodiesHaveATime(t *testing.T) {
	read := make(chan error, 1)
	address := serveHTTP(t, boundBody(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		_, err := io.ReadAll(r.Body)
		read <- err
	}), shortBody))
	post := func(path string) (net.Conn, error) {
		conn, err := net.Dial("tcp", address)
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab")
		return conn, err
	}

	_, err := post("/govnode.v1.CallService/BeginCall")
	require.NoError(t, err)
	require.ErrorContains(t, <-read, "timeout")

	conn, err := post(govnodev1connect.ClusterServiceRestoreProcedure)
	require.NoError(t, err)
	select {
	case err := <-read:
		t.Fatalf("a stream was cut: %v", err)
	case <-time.After(4 * shortBody):
	}
	_, err = io.WriteString(conn, "cd")
	require.NoError(t, err)
	require.NoError(t, <-read)
}

// A call that waits outlives the time that its body had.
func TestHandlersMayTakeLonger(t *testing.T) {
	for name, protocol := range map[string]func(*http.Protocols){
		"http1": func(p *http.Protocols) { p.SetHTTP1(true) },
		"h2c":   func(p *http.Protocols) { p.SetUnencryptedHTTP2(true) },
	} {
		t.Run(name, func(t *testing.T) {
			address := serveHTTP(t, boundBody(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.ReadAll(r.Body)
				select {
				case <-r.Context().Done():
					http.Error(w, context.Cause(r.Context()).Error(), http.StatusTeapot)
				case <-time.After(4 * shortBody):
					_, _ = io.WriteString(w, r.Proto)
				}
			}), shortBody))
			transport := &http.Transport{Protocols: new(http.Protocols)}
			protocol(transport.Protocols)
			defer transport.CloseIdleConnections()
			for _, body := range []string{"{}", ""} {
				res, err := (&http.Client{Transport: transport}).Post("http://"+address, "application/json", strings.NewReader(body))
				require.NoError(t, err)
				got, err := io.ReadAll(res.Body)
				require.NoError(t, err)
				require.Equal(t, http.StatusOK, res.StatusCode, "%s", got)
				require.Equal(t, map[string]string{"http1": "HTTP/1.1", "h2c": "HTTP/2.0"}[name], string(got))
			}
		})
	}
}

func TestHeadersAreBounded(t *testing.T) {
	address := serveHTTP(t, http.NotFoundHandler())
	for size, want := range map[int]int{headerBytes / 2: http.StatusNotFound, 2 * headerBytes: http.StatusRequestHeaderFieldsTooLarge} {
		req, err := http.NewRequest(http.MethodGet, "http://"+address, nil)
		require.NoError(t, err)
		req.Header.Set("X-Long", strings.Repeat("a", size))
		res, err := http.DefaultClient.Do(req)
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
		require.Equal(t, want, res.StatusCode, size)
	}
}

// No more connections than allowed are served at once; the next is when one
// ends.
func TestConnectionsAreBounded(t *testing.T) {
	l, err := address.Listen("listen", "127.0.0.1:0", 1)
	require.NoError(t, err)
	s := newHTTPServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	go func() { _ = s.Serve(l) }()
	t.Cleanup(func() { _ = s.Close() })
	ask := func() (net.Conn, *bufio.Reader) {
		conn, err := net.Dial("tcp", l.Addr().String())
		require.NoError(t, err)
		t.Cleanup(func() { _ = conn.Close() })
		_, err = io.WriteString(conn, "GET / HTTP/1.1\r\nHost: x\r\n\r\n")
		require.NoError(t, err)
		return conn, bufio.NewReader(conn)
	}
	first, answer := ask()
	_, err = answer.ReadString('\n')
	require.NoError(t, err)
	second, answer := ask()
	require.NoError(t, second.SetReadDeadline(time.Now().Add(4*shortBody)))
	_, err = answer.ReadString('\n')
	require.ErrorContains(t, err, "timeout")
	require.NoError(t, first.Close())
	require.NoError(t, second.SetReadDeadline(time.Now().Add(30*time.Second)))
	_, err = answer.ReadString('\n')
	require.NoError(t, err)
}

// The lobby counts the bytes of a body when they are read, so that frames have to be as
// small as it says; else large bodies are taken for floods.
func TestFramesAreSmall(t *testing.T) {
	s := newHTTPServer(http.NotFoundHandler(), slog.New(slog.DiscardHandler))
	require.Equal(t, lobby.MaxFrame, s.HTTP2.MaxReadFrameSize)
}
