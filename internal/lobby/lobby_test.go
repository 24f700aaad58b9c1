package lobby

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// events are what a stream of them has: their receiver sends more than a connection may
// send that belongs to nothing.
const events = 20000

// A house is a server behind a lobby. Requests to /known are let in, others are not; one
// to /wait lasts until it is given up.
type house struct {
	*Lobby
	t       *testing.T
	address string
	waited  atomic.Int64
}

func newHouse(t *testing.T, cfg Config) *house {
	cfg.Registry = prometheus.NewRegistry()
	l, err := New(cfg)
	require.NoError(t, err)
	h := &house{Lobby: l, t: t}
	var protocols http.Protocols
	protocols.SetHTTP1(true)
	protocols.SetUnencryptedHTTP2(true)
	s := &http.Server{ConnContext: Context, Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxReadFrameSize: MaxFrame}, Handler: Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch r.URL.Path {
		case "/events":
			Welcome(r.Context())
			for range events {
				_, _ = w.Write(make([]byte, 5000)) // the client sends word of each
				w.(http.Flusher).Flush()
			}
			return
		case "/wrong":
			Wrong(r.Context())
			return
		case "/refused":
			Refused(r.Context())
		case "/wait":
			Welcome(r.Context())
			h.waited.Add(1)
			<-r.Context().Done()
			return
		}
		Welcome(r.Context())
		_, _ = io.Copy(io.Discard, r.Body)
	}))}
	raw, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	h.address = raw.Addr().String()
	done := make(chan struct{})
	go func() { defer close(done); _ = s.Serve(l.Over(raw)) }()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		<-done
		require.Eventually(t, func() bool { return h.counted() == [left]int{} }, 10*time.Second, time.Millisecond)
	})
	return h
}

func (h *house) counted() [left]int {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.count
}

// A caller is a connection from an address.
type caller struct {
	net.Conn
	t *testing.T
	r *bufio.Reader
}

func (h *house) from(address string) *caller {
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(address)}}
	c, err := d.Dial("tcp", h.address)
	require.NoError(h.t, err)
	h.t.Cleanup(func() { _ = c.Close() })
	require.NoError(h.t, c.SetDeadline(time.Now().Add(20*time.Second)))
	return &caller{c, h.t, bufio.NewReader(c)}
}

func (c *caller) ask(path string) *caller {
	_, err := io.WriteString(c, "POST "+path+" HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab")
	require.NoError(c.t, err)
	return c
}

func (c *caller) answered() *caller {
	res, err := http.ReadResponse(c.r, nil)
	require.NoError(c.t, err)
	require.Equal(c.t, http.StatusOK, res.StatusCode)
	return c
}

// ended waits until the other side has closed.
func (c *caller) ended() {
	_, err := c.r.ReadByte()
	require.Error(c.t, err)
	require.NotErrorIs(c.t, err, errTimeout)
}

func (h *house) closedFor(reason string) float64 {
	return h.metric("gov_connections_closed_total", reason)
}
func (h *house) slowedFor(reason string) float64 {
	return h.metric("gov_connections_slowed_total", reason)
}

func (h *house) metric(name, reason string) float64 {
	all, err := h.cfg.Registry.(*prometheus.Registry).Gather()
	require.NoError(h.t, err)
	for _, family := range all {
		for _, m := range family.Metric {
			if family.GetName() == name && m.Label[0].GetValue() == reason {
				return m.Counter.GetValue()
			}
		}
	}
	require.Fail(h.t, name)
	return 0
}

// beat waits until what comes is younger than what is there.
func (h *house) beat() {
	was := h.clock.Load()
	require.Eventually(h.t, func() bool { return h.clock.Load() > was+1 }, 10*time.Second, time.Millisecond)
}

// Who says nothing is closed, and is nothing that the server knows of.
func TestSilence(t *testing.T) {
	h := newHouse(t, Config{Connections: 4, Outside: 4, silence: 20 * time.Millisecond})
	h.from("127.0.0.1").ended()
	require.Equal(t, 1.0, h.closedFor("silent"))
	h.from("127.0.0.1").ask("/known").answered()
}

// Idle ones of the address with most make room, the one that is idle for longest first.
// Those with a request under way stay, and those of others.
func TestIdleMakesRoom(t *testing.T) {
	h := newHouse(t, Config{Connections: 4, Outside: 100})
	other := h.from("127.0.0.3").ask("/known").answered()
	busy := h.from("127.0.0.2").ask("/wait")
	require.Eventually(t, func() bool { return h.waited.Load() == 1 }, 10*time.Second, time.Millisecond)
	idle := h.from("127.0.0.2").ask("/known").answered()
	h.beat()
	younger := h.from("127.0.0.2").ask("/known").answered()
	h.from("127.0.0.4").ask("/known").answered()
	idle.ended()
	require.Equal(t, 1.0, h.closedFor("crowded"))
	other.ask("/known").answered()
	younger.ask("/known").answered()
	h.from("127.0.0.5").ask("/known").answered()
	younger.ended()
	for _, address := range []string{"127.0.0.6", "127.0.0.7", "127.0.0.8"} { // each address has one
		h.from(address).ask("/known").answered()
	}
	h.from("127.0.0.2").ask("/wait")
	require.Eventually(t, func() bool { return h.waited.Load() == 2 }, 10*time.Second, time.Millisecond)
	require.NoError(t, busy.SetReadDeadline(time.Now().Add(time.Millisecond)))
	_, err := busy.r.ReadByte()
	require.ErrorIs(t, err, errTimeout) // it is there
}

// There is room for few whom nobody knows, however many connections there may be.
func TestStrangersAreFew(t *testing.T) {
	h := newHouse(t, Config{Connections: 8 * strangerShare, Outside: 1000})
	guest := h.from("127.0.0.2").ask("/known").answered()
	first := h.from("127.0.0.2").ask("/wrong").answered()
	h.beat()
	for range 8 {
		h.from("127.0.0.2").ask("/wrong").answered()
	}
	first.ended()
	require.LessOrEqual(t, h.counted()[stranger], 8)
	guest.ask("/known").answered()
}

// Silent ones beyond their number make room as well.
func TestSilentMakeRoom(t *testing.T) {
	h := newHouse(t, Config{Connections: 4, Outside: 2})
	first := h.from("127.0.0.2")
	require.Eventually(t, func() bool { return h.counted()[outside] == 1 }, 10*time.Second, time.Millisecond)
	h.beat()
	h.from("127.0.0.2")
	h.from("127.0.0.2")
	first.ended()
	h.from("127.0.0.3").ask("/known").answered()
}

// Handshakes take turns; who came last is first, and another address is not kept.
func TestTurns(t *testing.T) {
	l, err := New(Config{Connections: 1000, Outside: 1000, Handshakes: 1, Registry: prometheus.NewRegistry()})
	require.NoError(t, err)
	var ends []net.Conn
	come := func() *conn {
		one, other := net.Pipe()
		ends = append(ends, one, other)
		return l.enter(one)
	}
	for range 4 {
		require.True(t, l.turn(come()))
	}
	early, last := come(), come()
	require.False(t, l.turn(early))
	require.False(t, l.turn(last))
	early.at.turns.tokens = 1
	next, late := l.next(false)
	require.Equal(t, []*conn{last}, next)
	require.Empty(t, late)
	l.clock.Add(int64(longestOut/beat) + 1)
	_, late = l.next(false)
	require.Equal(t, []*conn{early}, late)
	for _, c := range ends {
		require.NoError(t, c.Close())
	}
}

// stream speaks HTTP/2 over a connection.
func (h *house) stream() (*caller, *http2.Framer) {
	c := h.from("127.0.0.1")
	_, err := io.WriteString(c, http2.ClientPreface)
	require.NoError(h.t, err)
	f := http2.NewFramer(c, c.r)
	require.NoError(h.t, f.WriteSettings())
	go func() { _, _ = io.Copy(io.Discard, c.r) }()
	return c, f
}

// Frames that belong to no request come at a pace; so do requests that are given up.
func TestFloodsOfFrames(t *testing.T) {
	for name, flood := range map[string]func(h *house, f *http2.Framer, n int) error{
		"pings":    func(_ *house, f *http2.Framer, _ int) error { return f.WritePing(false, [8]byte{}) },
		"settings": func(_ *house, f *http2.Framer, _ int) error { return f.WriteSettings() },
		"resets": func(h *house, f *http2.Framer, n int) error {
			var block bytes.Buffer
			e := hpack.NewEncoder(&block)
			for _, x := range [][2]string{{":method", "POST"}, {":scheme", "http"}, {":authority", "x"}, {":path", "/wait"}} {
				_ = e.WriteField(hpack.HeaderField{Name: x[0], Value: x[1]})
			}
			if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: uint32(2*n + 1), BlockFragment: block.Bytes(), EndHeaders: true}); err != nil {
				return err
			}
			for h.waited.Load() <= int64(n) { // Go itself ends connections whose requests are reset before they have begun
				if h.slowedFor("frames") > 0 {
					return net.ErrClosed
				}
				time.Sleep(100 * time.Microsecond)
			}
			return f.WriteRSTStream(uint32(2*n+1), http2.ErrCodeCancel)
		},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Config{Connections: 4, Outside: 4})
			c, f := h.stream()
			stop := make(chan struct{})
			go func() {
				defer close(stop)
				for n := 0; flood(h, f, n) == nil; n++ {
				}
			}()
			require.Eventually(t, func() bool { return h.slowedFor("frames") > 0 }, 20*time.Second, time.Millisecond)
			h.from("127.0.0.1").ask("/known").answered()
			require.NoError(t, c.Close()) // also while its bytes wait
			<-stop
		})
	}
}

// underWay is how many requests there are.
func (h *house) underWay() (n int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range h.places {
		for c := range p.conns {
			n += c.requests.Load()
		}
	}
	return n
}

// What belongs to requests is not slowed.
func TestRequestsAreNotSlowed(t *testing.T) {
	h := newHouse(t, Config{Connections: 4, Outside: 4})
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	client := &http.Client{Transport: &http.Transport{Protocols: &protocols}}
	defer client.CloseIdleConnections()
	post := func(size int) {
		res, err := client.Post("http://"+h.address+"/known", "text/plain", strings.NewReader(strings.Repeat("a", size)))
		require.NoError(t, err)
		require.NoError(t, res.Body.Close())
	}
	res, err := client.Post("http://"+h.address+"/events", "text/plain", nil)
	require.NoError(t, err)
	n, err := io.CopyBuffer(struct{ io.Writer }{io.Discard}, struct{ io.Reader }{res.Body}, make([]byte, 4096))
	require.NoError(t, err)
	require.EqualValues(t, events*5000, n)
	require.NoError(t, res.Body.Close())
	post(8 << 20)
	for range 2000 {
		post(100)
	}

	// All that a caller waits for may be given up at once, as when it ends.
	const waits = 200
	ctx, giveUp := context.WithCancel(t.Context())
	defer giveUp()
	var all sync.WaitGroup
	for range waits {
		all.Go(func() {
			req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://"+h.address+"/wait", nil)
			if err == nil {
				_, err = client.Do(req)
			}
			if !errors.Is(err, context.Canceled) {
				t.Errorf("a wait that was given up ended with %v", err)
			}
		})
	}
	require.Eventually(t, func() bool { return h.waited.Load() == waits }, 20*time.Second, time.Millisecond)
	giveUp()
	all.Wait()
	require.Eventually(t, func() bool { return h.underWay() == 0 }, 20*time.Second, time.Millisecond)
	post(100)
	require.Zero(t, h.slowedFor("frames"))
}

// Answers to wrong tokens wait when there are many, and end when nobody waits for them.
// Who shows a good one is answered at once.
func TestWrongTokens(t *testing.T) {
	h := newHouse(t, Config{Connections: 1000, Outside: 1000})
	for range 2 * wrongTokens {
		Wrong(context.WithValue(t.Context(), connKey{}, h.stub()))
	}
	require.Zero(t, h.slowedFor("tokens"))
	c := h.stub()
	ctx, cancel := context.WithCancel(context.WithValue(t.Context(), connKey{}, c))
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 2 * wrongTokens * int(longestWait/time.Second) { // none of them waits once its request is given up
			Wrong(ctx)
		}
	}()
	require.Eventually(t, func() bool { return h.slowedFor("tokens") > 0 }, 20*time.Second, time.Millisecond)
	h.from("127.0.0.1").ask("/known").answered()
	cancel()
	<-done
	h.mu.Lock()
	c.at.delayed = mostDelayed
	h.mu.Unlock()
	Wrong(context.WithValue(t.Context(), connKey{}, c))
	<-c.gone
}

// stub is a connection of an address of its own, without an other end.
func (h *house) stub() *conn {
	one, other := net.Pipe()
	h.t.Cleanup(func() { _, _ = one.Close(), other.Close() })
	c := h.enter(one)
	h.t.Cleanup(func() { _ = c.Close() })
	return c
}

// A connection earns by what is done for it and pays for refusals: with few of them it is
// never slowed, and however many there are it is heard again soon.
func TestRefusalsCost(t *testing.T) {
	for name, test := range map[string]struct {
		done, refused, rounds int
		slowed                bool
	}{
		"all is done":                 {1, 0, 1000, false},
		"a few are refused":           {3, 1, 1000, false},
		"a burst, and little of that": {100, 15, 1, false},
		"most are refused":            {1, 3, 1000, true},
		"all are refused":             {0, 1, 1000, true},
		"so many at once":             {0, 1000, 1, true},
	} {
		t.Run(name, func(t *testing.T) {
			h := newHouse(t, Config{Connections: 4, Outside: 4})
			c := h.stub()
			ctx := context.WithValue(t.Context(), connKey{}, c)
			for range test.rounds {
				for range test.done {
					c.earn(ofRequest)
				}
				for range test.refused {
					c.earn(ofRequest)
				}
				for range test.refused {
					Refused(ctx)
				}
				require.GreaterOrEqual(t, c.spare.Load(), int64(-mostOwed))
			}
			require.Equal(t, test.slowed, h.slowedFor("refusals") > 0)
			require.Equal(t, test.slowed, c.spare.Load() < 0)
		})
	}
	Refused(t.Context()) // over no connection of a lobby
}

// Who is refused over and over is read at a pace, others are not.
func TestFloodsOfRefusals(t *testing.T) {
	h := newHouse(t, Config{Connections: 4, Outside: 4})
	c := h.from("127.0.0.1")
	go func() {
		for range 1000 {
			if _, err := io.WriteString(c, "POST /refused HTTP/1.1\r\nHost: x\r\nContent-Length: 2\r\n\r\nab"); err != nil {
				return
			}
		}
	}()
	require.Eventually(t, func() bool { return h.slowedFor("refusals") > 0 && h.slowedFor("frames") > 0 }, 20*time.Second, time.Millisecond)
	h.from("127.0.0.1").ask("/known").answered()
}

// Who is let in when its connection has gone is counted no more: else those who come and
// go would take all the room there is, for ever.
func TestAWelcomeThatComesLate(t *testing.T) {
	h := newHouse(t, Config{Connections: 1000, Outside: 1000})
	for _, leaves := range []func(c *conn){
		func(c *conn) { require.NoError(t, c.Close()) },
		func(c *conn) { // to make room
			h.mu.Lock()
			h.forget(c)
			h.mu.Unlock()
		},
	} {
		c := h.stub()
		require.True(t, h.turn(c))
		require.Equal(t, 1, h.counted()[stranger])
		leaves(c)
		Welcome(context.WithValue(t.Context(), connKey{}, c))
		require.Equal(t, [left]int{}, h.counted())
		require.Equal(t, [left]int{}, c.at.count)
	}
}
