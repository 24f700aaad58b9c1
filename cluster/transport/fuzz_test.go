package transport

import (
	"log/slog"
	"net"
	"testing"

	"github.com/stretchr/testify/require"
)

// Whoever connects says first what he wants: nobody knows him yet, and whatever he
// says he is handed on, or refused.
func FuzzPrologue(f *testing.F) {
	f.Add([]byte{httpByte})
	f.Add([]byte{raftByte, 11, 'c', ' ', 'f', 'r', 'o', 'm', ' ', 't', 'o', ' ', 'x'})
	f.Fuzz(func(t *testing.T, b []byte) {
		p := &Port{
			cfg:     Config{Node: "to", Cluster: func() string { return "c" }, Logger: slog.New(slog.DiscardHandler)},
			belongs: make(chan struct{}), closed: make(chan struct{}),
		}
		close(p.belongs)
		here, there := net.Pipe()
		go func() {
			_, _ = there.Write(b)
			_ = there.Close()
		}()
		defer here.Close()
		first, name, err := p.prologue(here)
		if err != nil {
			return
		}
		require.Equal(t, b[0], first)
		require.LessOrEqual(t, len(name), 255)
		if first == raftByte {
			_ = p.sameCluster(here, name)
		}
	})
}
