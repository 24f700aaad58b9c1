package transport

import (
	"bytes"
	"context"
	"io"
	"log/slog"
	"net"
	"os"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// pipes is a listener in memory.
type pipes struct {
	conns  chan net.Conn
	closed chan struct{}
}

func newPipes() *pipes { return &pipes{make(chan net.Conn), make(chan struct{})} }

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.closed:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error { close(p.closed); return nil }
func (*pipes) Addr() net.Addr { return address("pipe:1") }

func (p *pipes) dial(context.Context, string) (net.Conn, error) {
	here, there := net.Pipe()
	p.conns <- there
	return here, nil
}

func newTestPort(l *pipes, cluster string) *Port {
	return Listen(l, Config{Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return cluster }})
}

func TestPort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		p := newTestPort(l, "mine")
		say := func(text string) net.Conn {
			c, err := l.dial(t.Context(), "")
			require.NoError(t, err)
			_, err = io.WriteString(c, text)
			require.NoError(t, err)
			return c
		}
		closed := func(c net.Conn) {
			t.Helper()
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		for name, text := range map[string]string{"rubbish": "\x16\x03\x01", "other cluster": "R\x05other", "no cluster": "R\x00"} {
			t.Log(name)
			c, err := l.dial(t.Context(), "")
			require.NoError(t, err)
			go func() { _, _ = io.WriteString(c, text) }() // the port may not read it all
			closed(c)
		}

		// Who says nothing, or only half of it, is closed after a while.
		start := time.Now()
		closed(say(""))
		closed(say("R\x04mi"))
		require.Equal(t, 2*decideIn, time.Since(start))

		// The byte of HTTP is part of what follows, Raft's is not.
		go say("PRI")
		c, err := p.HTTP().Accept()
		require.NoError(t, err)
		text := make([]byte, 3)
		_, err = io.ReadFull(c, text)
		require.NoError(t, err)
		require.Equal(t, "PRI", string(text))

		raftHalf := half{p, p.raft}
		go func() {
			c, err := raftHalf.Dial("pipe:1", time.Second)
			if err == nil {
				_, err = io.WriteString(c, "vote")
			}
			if err != nil {
				t.Error(err)
			}
		}()
		c, err = raftHalf.Accept()
		require.NoError(t, err)
		text = make([]byte, 4)
		_, err = io.ReadFull(c, text)
		require.NoError(t, err)
		require.Equal(t, "vote", string(text))
		require.Equal(t, "pipe:1", raftHalf.Addr().String())

		require.NoError(t, p.Close())
		_, err = c.Read(text)
		require.Error(t, err, "closing the port closes what it handed on")
		_, err = raftHalf.Accept()
		require.ErrorIs(t, err, net.ErrClosed)
	})
}

// The leader of a cluster may reach a new member before that has heard that it
// is one: the connection waits, and nobody is blamed.
func TestAMemberIsReachedBeforeItKnows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		cluster := ""
		l := newPipes()
		p := Listen(l, Config{Address: "pipe:1", Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})), Cluster: func() string { return cluster }})
		dial := func() net.Conn {
			c, err := l.dial(t.Context(), "")
			require.NoError(t, err)
			_, err = io.WriteString(c, "R\x04mine")
			require.NoError(t, err)
			return c
		}
		start := time.Now()
		_, err := dial().Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "not for ever")
		require.Equal(t, decideIn, time.Since(start))
		require.Contains(t, log.String(), "has not been admitted to a cluster yet")
		require.NotContains(t, log.String(), "another cluster")
		require.NotContains(t, log.String(), "level=WARN")

		c := dial()
		time.Sleep(decideIn - time.Second)
		cluster = "mine"
		p.Admitted()
		accepted, err := half{p, p.raft}.Accept()
		require.NoError(t, err)
		time.Sleep(time.Minute) // its time for saying what it is has no more meaning
		go func() { _, _ = io.WriteString(c, "vote") }()
		text := make([]byte, 4)
		_, err = io.ReadFull(accepted, text)
		require.NoError(t, err)
		require.Equal(t, "vote", string(text))
		require.NoError(t, p.Close())
	})
}

// Connections that say nothing do not take the places of those that do: the
// oldest of them has to go.
func TestSilentConnectionsKeepNobodyOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		p := newTestPort(l, "mine")
		var silent []net.Conn
		for range maxUndecided {
			c, err := l.dial(t.Context(), "")
			require.NoError(t, err)
			silent = append(silent, c)
		}
		start := time.Now()
		for i := range 3 {
			go func() { _, _ = (half{p, p.raft}).Dial("pipe:1", time.Second) }()
			_, err := half{p, p.raft}.Accept()
			require.NoError(t, err)
			if i > 0 {
				continue // there is a place free: nobody else has to go
			}
			_, err = silent[0].Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		require.Zero(t, time.Since(start))
		for _, c := range silent[1:] {
			require.NoError(t, c.SetReadDeadline(time.Now().Add(time.Millisecond)))
			_, err := c.Read(make([]byte, 1))
			require.ErrorIs(t, err, os.ErrDeadlineExceeded, "it may still say what it is")
		}
		require.NoError(t, p.Close())
	})
}

func TestPortIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		p := newTestPort(l, "mine")
		var accepted []net.Conn
		for range maxConns {
			go func() { _, _ = (half{p, p.raft}).Dial("pipe:1", time.Second) }()
			c, err := half{p, p.raft}.Accept()
			require.NoError(t, err)
			accepted = append(accepted, c)
		}
		c, err := l.dial(t.Context(), "")
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "one too many")
		require.NoError(t, accepted[0].Close())
		go func() { _, _ = (half{p, p.raft}).Dial("pipe:1", time.Second) }()
		_, err = half{p, p.raft}.Accept()
		require.NoError(t, err, "a place that was given back can be had")
		require.NoError(t, p.Close())
	})
}

// scarce is a listener that runs out of files a few times.
type scarce struct {
	*pipes
	fails int
}

func (s *scarce) Accept() (net.Conn, error) {
	if s.fails > 0 {
		s.fails--
		return nil, os.ErrDeadlineExceeded
	}
	return s.pipes.Accept()
}

// A connection that cannot be accepted keeps those behind it waiting for a while, and no
// longer.
func TestPortOutOfFiles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &scarce{newPipes(), 3}
		begun := time.Now()
		p := Listen(l, Config{Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }})
		c, err := l.dial(t.Context(), "")
		require.NoError(t, err)
		require.Equal(t, (5+10+20)*time.Millisecond, time.Since(begun))
		go func() { _, _ = io.WriteString(c, "PRI") }()
		accepted, err := p.HTTP().Accept()
		require.NoError(t, err)
		require.NoError(t, accepted.Close())
		require.NoError(t, p.Close())
	})
}
