package transport

import (
	"bytes"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
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
			require.NoError(t, c.SetReadDeadline(time.Time{}))
		}

		// There is one place free. Whoever comes when there is none takes the place of
		// the next.
		start = time.Now()
		for i := range 3 {
			_, err := l.dial(t.Context(), "")
			require.NoError(t, err)
			if i == 0 {
				continue
			}
			_, err = silent[i].Read(make([]byte, 1))
			require.ErrorIs(t, err, io.EOF)
		}
		require.Zero(t, time.Since(start))
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
		start := time.Now()
		c, err := l.dial(t.Context(), "")
		require.NoError(t, err)
		_, err = c.Read(make([]byte, 1))
		require.ErrorIs(t, err, io.EOF, "one too many")
		require.Zero(t, time.Since(start), "it is not listened to")
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

		// The next time it begins with a short while again.
		synctest.Wait()
		l.fails = 1
		begun = time.Now()
		for range 2 { // the one that is waited for already, and the one behind
			_, err = l.dial(t.Context(), "")
			require.NoError(t, err)
		}
		require.Equal(t, 5*time.Millisecond, time.Since(begun))
		require.NoError(t, p.Close())
	})
}

// Who has said what it is has its connection for good, however many come later that
// say nothing.
func TestWhoHasSpokenStays(t *testing.T) {
	for name, secure := range map[string]bool{"with TLS": true, "without": false} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := newPipes()
				here := Config{Node: "a", Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }}
				there := here
				there.Node = "b"
				if secure {
					ca := newCA(t, "govnode")
					here.TLS, there.TLS = certified(t, ca, pki.Node, "a"), certified(t, ca, pki.Node, "b")
				}
				a, b := Listen(l, here), Listen(newPipes(), there)
				opened := make(chan net.Conn, 1)
				go func() {
					c, err := half{b, b.raft}.Dial("pipe:1", time.Second)
					if err != nil {
						t.Error(err)
					}
					opened <- c
				}()
				accepted, err := half{a, a.raft}.Accept()
				require.NoError(t, err)
				var silent []net.Conn
				for range maxUndecided + 1 {
					c, err := l.dial(t.Context(), "")
					require.NoError(t, err)
					silent = append(silent, c)
				}
				_, err = silent[0].Read(make([]byte, 1))
				require.ErrorIs(t, err, io.EOF)
				go func() { _, _ = io.WriteString(<-opened, "vote") }()
				text := make([]byte, 4)
				require.NoError(t, accepted.SetReadDeadline(time.Now().Add(time.Second)))
				_, err = io.ReadFull(accepted, text)
				require.NoError(t, err)
				require.Equal(t, "vote", string(text))
				require.NoError(t, a.Close())
				require.NoError(t, b.Close())
			})
		})
	}
}

// A node that is taken for a member of another cluster is told so, if it is the one
// that is meant: another may have had its address.
func TestAForeignClusterIsToldOf(t *testing.T) {
	for _, c := range []struct{ node, said, told string }{
		{"a", "other b a", "other"}, {"a", "other b c", ""}, {"a", "other b ", ""}, {"a", "other", ""},
		{"", "other b ", ""}, {"", "other b a", ""}, {"a", "mine b a", ""}, {"a", "mine b ", ""}, {"a", "mine", ""},
	} {
		for _, asked := range []bool{true, false} {
			told := ""
			p := &Port{
				cfg:     Config{Node: c.node, Cluster: func() string { return "mine" }, Logger: slog.New(slog.DiscardHandler)},
				belongs: make(chan struct{}), closed: make(chan struct{}),
			}
			if asked {
				p.cfg.Foreign = func(cluster string) { told = cluster }
			} else {
				c.told = ""
			}
			p.Admitted()
			conn, _ := net.Pipe()
			err := p.sameCluster(conn, c.said)
			require.Equal(t, strings.HasPrefix(c.said, "mine"), err == nil, "%+v: %v", c, err)
			require.Equal(t, c.told, told, "%+v", c)
		}
	}
}

// A node that is taken for another member of its cluster, whose name or address leads to
// it, is not spoken to.
func TestWhoIsTakenForAnotherIsNotSpokenTo(t *testing.T) {
	for _, secure := range []bool{false, true} {
		ca := newCA(t, "govnode")
		port := func(node string) (*Port, *logged) {
			var source *pki.Source
			if secure {
				source = certified(t, ca, pki.Node, node)
			}
			return newSecurePort(t, node, source, func(cfg *Config) { cfg.NameAt = func(string) string { return "c" } })
		}
		a, log := port("a")
		b, _ := port("b")
		conn, err := half{b, b.raft}.Dial(address0(a), 10*time.Second)
		require.NoError(t, err)
		require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
		_, err = conn.Read(make([]byte, 1))
		require.Error(t, err)
		require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
		log.awaits(t, "this is node a, and not c: look at what the name and the address of c lead to")
		require.NoError(t, a.Close())
		require.NoError(t, b.Close())
	}
}

// A port that is closed has closed what it had opened, and opens nothing any more.
func TestAClosedPortOpensNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := newPipes()
		p := Listen(newPipes(), Config{Node: "a", Address: "pipe:1", Dial: l.dial, Logger: slog.New(slog.DiscardHandler), Cluster: func() string { return "mine" }})
		ends := make(chan error)
		go func() {
			for c, err := l.Accept(); err == nil; c, err = l.Accept() {
				_, err := io.Copy(io.Discard, c)
				ends <- err
			}
		}()
		_, err := half{p, p.raft}.Dial("pipe:2", time.Second)
		require.NoError(t, err)
		require.NoError(t, p.Close())
		require.NoError(t, <-ends)
		require.NoError(t, p.Close(), "once is enough")

		_, err = half{p, p.raft}.Dial("pipe:2", time.Second)
		require.ErrorIs(t, err, errPortClosed)
		require.NoError(t, <-ends)
		peers := NewPeers(p)
		_, err = peers.At("pipe:2").Term(t.Context(), &nodev1.TermRequest{})
		require.ErrorIs(t, err, ErrUnreached)
		require.NoError(t, <-ends)
		peers.Close()
		require.NoError(t, l.Close())
	})
}

// Those that are known to be no members lose all of their connections, and nobody
// else loses any.
func TestOnlyStrangersAreDropped(t *testing.T) {
	p := &Port{
		cfg:    Config{Logger: slog.New(slog.DiscardHandler), Strange: func(node string) bool { return !strings.HasPrefix(node, "member") }},
		secure: new(tls.Config), conns: map[net.Conn]bool{},
	}
	others := map[net.Conn]string{}
	take := func(node string) {
		for range 2 {
			here, there := net.Pipe()
			p.track(here, true).(*tracked).node = node
			require.NoError(t, there.SetReadDeadline(time.Now())) // it sends nothing
			others[there] = node
		}
	}
	take("") // not of Raft's
	for i := range 10 {
		take(fmt.Sprintf("member %d", i))
	}
	for i := range 3 {
		take(fmt.Sprintf("stranger %d", i))
	}
	p.DropStrangers()
	for c, node := range others {
		want := os.ErrDeadlineExceeded
		if strings.HasPrefix(node, "stranger") {
			want = io.EOF
		}
		_, err := c.Read(make([]byte, 1))
		require.ErrorIs(t, err, want, node)
	}
	require.Len(t, p.conns, 2*11)
}
