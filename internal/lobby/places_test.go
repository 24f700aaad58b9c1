package lobby

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
)

// at is a connection from somewhere.
type at struct {
	net.Conn
	remote string
}

func (a at) RemoteAddr() net.Addr { return named(a.remote) }

type named string

func (named) Network() string  { return "tcp" }
func (n named) String() string { return string(n) }

// Connections of one host are of one place, however it is written: an IPv6 network of 64
// bits is one host, and an IPv4 address is one in IPv6 too.
func TestPlacesAreHosts(t *testing.T) {
	groups := [][]string{
		{"192.0.2.1:1", "192.0.2.1:2", "[::ffff:192.0.2.1]:3"},
		{"192.0.2.2:1"},
		{"[2001:db8:1:2::1]:1", "[2001:db8:1:2:ffff:ffff:ffff:ffff]:2", "[2001:db8:1:2::1%eth0]:1"},
		{"[2001:db8:1:3::1]:1"},
		{"[2001:db8:0:2::1]:1"},
		{"pipe", "@"}, // those without an address
	}
	seen := map[string]int{}
	for i, group := range groups {
		first := addressOf(at{remote: group[0]})
		for _, remote := range group {
			require.Equal(t, first, addressOf(at{remote: remote}), remote)
		}
		was, there := seen[first.String()]
		require.False(t, there, "%v is that of group %d", group, was)
		seen[first.String()] = i
	}
}

// A place is forgotten when nothing is left of it: no connection, no answer that waits,
// no turn and no wrong token that was taken lately.
func TestPlacesAreForgotten(t *testing.T) {
	for name, leave := range map[string]func(*place){
		"":              func(*place) {},
		"an answer":     func(p *place) { p.delayed = 1 },
		"a turn":        func(p *place) { p.turns.tokens--; p.turns.filled = time.Now().Add(time.Hour) },
		"a wrong token": func(p *place) { p.wrong.tokens--; p.wrong.filled = time.Now().Add(time.Hour) },
		"a connection":  nil,
	} {
		l, err := New(Config{Connections: 10, Outside: 10, Handshakes: 10, Registry: prometheus.NewRegistry()})
		require.NoError(t, err)
		here, there := net.Pipe()
		c := l.enter(here)
		p := c.at
		if leave != nil {
			require.NoError(t, c.Close())
			leave(p)
		}
		l.next(false)
		require.Len(t, l.places, 1, "it is looked for at times alone")
		l.next(true)
		require.Equal(t, name == "", len(l.places) == 0, name)
		_ = c.Close()
		_ = there.Close()
	}
}

// Where there is no room several go at once, one and a share of those that may.
func TestAShareMakesRoom(t *testing.T) {
	for many, gone := range map[int]int{1: 1, 63: 1, 64: 2, 130: 3} {
		l, err := New(Config{Connections: 1000, Outside: many, Registry: prometheus.NewRegistry()})
		require.NoError(t, err)
		var all []*conn
		enter := func() {
			here, there := net.Pipe()
			all = append(all, l.enter(here))
			t.Cleanup(func() { _, _ = here.Close(), there.Close() })
		}
		for range many {
			enter()
		}
		require.Equal(t, many, l.count[outside])
		enter()
		require.Equal(t, many-gone+1, l.count[outside], many)
		closed := 0
		for _, c := range all {
			select {
			case <-c.gone:
				closed++
			default:
			}
		}
		require.Equal(t, gone, closed)
		require.Equal(t, outside, all[many].state, "who came last stays")
	}
}

// Those who wait for their turn are closed with the listener.
func TestWhoWaitsGoesWithTheListener(t *testing.T) {
	l, err := New(Config{Connections: 100, Outside: 100, Handshakes: 1, Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	x := l.Over(raw)
	var conns []net.Conn
	for range 9 {
		c, err := net.Dial("tcp", raw.Addr().String())
		require.NoError(t, err)
		defer func() { _ = c.Close() }()
		_, err = c.Write([]byte("x"))
		require.NoError(t, err)
		conns = append(conns, c)
	}
	require.Eventually(t, func() bool { return len(l.waiting()) > 0 }, 10*time.Second, time.Millisecond)
	require.NoError(t, x.Close())
	_, err = x.Accept()
	require.ErrorIs(t, err, net.ErrClosed)
	for _, c := range conns { // nobody has accepted one
		require.NoError(t, c.SetReadDeadline(time.Now().Add(20*time.Second)))
		_, err := c.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded, "it stayed open")
	}
}

// A bucket that is owed has a bound: who has taken very much pays no longer than that.
func TestWhatIsOwedHasABound(t *testing.T) {
	now := time.Now()
	b := newBucket(100, 200)
	b.filled = now
	for range 200 {
		require.Zero(t, b.owe(now, time.Second))
	}
	require.Equal(t, 10*time.Millisecond, b.owe(now, time.Second))
	require.Equal(t, 20*time.Millisecond, b.owe(now, time.Second))
	for range 1000 {
		require.LessOrEqual(t, b.owe(now, time.Second), time.Second)
	}
	require.Equal(t, time.Second, b.owe(now, time.Second))
	require.Equal(t, 510*time.Millisecond, b.owe(now.Add(500*time.Millisecond), time.Second))
	require.False(t, b.full(now.Add(3*time.Second)))
	require.True(t, b.full(now.Add(3011*time.Millisecond)))
	require.True(t, b.take(now.Add(3011*time.Millisecond)))
	for range 199 {
		require.True(t, b.take(now.Add(3011*time.Millisecond)))
	}
	require.False(t, b.take(now.Add(3011*time.Millisecond)))
	require.True(t, b.take(now.Add(3022*time.Millisecond)))
}

// A request that has come over no connection of a lobby is served like any.
func TestWithoutALobby(t *testing.T) {
	Welcome(context.Background())
	Wrong(context.Background())
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	require.Equal(t, context.Background(), Context(context.Background(), here))
	served := false
	Handler(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served = true })).ServeHTTP(nil, &http.Request{})
	require.True(t, served)
}

// An answer is flushed through, and whoever has just ended a request came last.
func TestAnswersAreFlushedAndRequestsCount(t *testing.T) {
	l, err := New(Config{Connections: 10, Outside: 10, Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	here, there := net.Pipe()
	defer func() { _, _ = here.Close(), there.Close() }()
	c := l.enter(here)
	l.clock.Add(7)
	w := httptest.NewRecorder()
	Handler(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		require.EqualValues(t, 1, c.requests.Load())
		w.(http.Flusher).Flush()
	})).ServeHTTP(w, httptest.NewRequestWithContext(Context(t.Context(), c), http.MethodGet, "/", nil))
	require.True(t, w.Flushed)
	require.Zero(t, c.requests.Load())
	require.EqualValues(t, 7, c.last.Load()-c.since)
	require.NoError(t, c.Close())
}
