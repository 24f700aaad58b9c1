package serve

import (
	"net"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/config"
)

// Whatever a host is called, the name made of it is one that a node may have.
func TestNameOfANodeThatNobodyNamed(t *testing.T) {
	at := &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 65535}
	for host, want := range map[string]string{
		"alpha": "alpha-65535", "alpha.example.com": "alpha.example.com-65535", "fe80::1": "fe80--1-65535", "": "-65535", "ö b": "--b-65535",
		strings.Repeat("h", 80): strings.Repeat("h", 58) + "-65535",
	} {
		name := nameOf(host, at)
		require.Equal(t, want, name)
		require.True(t, config.ValidNodeName(name), name)
	}
}
