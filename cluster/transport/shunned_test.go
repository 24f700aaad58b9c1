package transport

import (
	"io"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/pki"
)

// What speaks for a member and is not the member takes part in nothing: neither
// is it listened to, nor is anything sent to it, with TLS and without. Others are
// not held to it.
func TestWhoIsShunnedTakesNoPart(t *testing.T) {
	ca := newCA(t, "govnode")
	for name, secure := range map[string]bool{"with TLS": true, "without": false} {
		for what, c := range map[string]struct {
			a, b string // whom a, which is called, and b, which calls it, shun
			ok   bool
		}{
			"nobody is shunned":        {"", "", true},
			"others are":               {"c", "c", true},
			"who calls":                {"b", "", false},
			"who is called":            {"", "a", false},
			"both":                     {"b", "a", false},
			"who calls, beside others": {"b", "c", false},
		} {
			t.Run(what+" "+name, func(t *testing.T) {
				port := func(node, shunned string) *Port {
					var source *pki.Source
					if secure {
						source = certified(t, ca, pki.Node, node)
					}
					p, _ := newSecurePort(t, node, source, func(cfg *Config) {
						cfg.NameAt = func(string) string { return "a" }
						cfg.Shuns = func(name string) bool { return name == shunned }
					})
					return p
				}
				a, b := port("a", c.a), port("b", c.b)
				accepted := make(chan error, 1)
				go func() {
					conn, err := half{a, a.raft}.Accept()
					if err == nil {
						_, err = io.WriteString(conn, "vote")
					}
					accepted <- err
				}()
				conn, err := half{b, b.raft}.Dial(address0(a), 10*time.Second)
				if err == nil {
					require.NoError(t, conn.SetReadDeadline(time.Now().Add(10*time.Second)))
					_, err = io.ReadFull(conn, make([]byte, 4))
					require.NotErrorIs(t, err, os.ErrDeadlineExceeded)
				}
				require.Equal(t, c.ok, err == nil, "%v", err)
				require.NoError(t, a.Close())
				require.Equal(t, c.ok, <-accepted == nil)
			})
		}
	}
}
