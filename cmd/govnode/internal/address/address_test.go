package address

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestIsLoopback(t *testing.T) {
	for host, want := range map[string]bool{
		"127.0.0.1": true, "127.8.9.1": true, "::1": true, "::ffff:127.0.0.1": true, "localhost": true,
		"": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "::ffff:10.0.0.1": false, "192.0.2.1": false,
		"no-such-host.invalid": false,
	} {
		require.Equal(t, want, IsLoopback(host), host)
	}
}

func TestOffsetPort(t *testing.T) {
	for _, c := range []struct {
		address string
		by      int
		want    string
	}{
		{"127.0.0.1:7070", 10, "127.0.0.1:7080"},
		{"[::1]:1", 1, "[::1]:2"},
		{"127.0.0.1:0", 10, "127.0.0.1:0"},
		{"127.0.0.1:65525", 10, "127.0.0.1:65535"},
		{"127.0.0.1:65526", 10, ""},
		{"127.0.0.1", 1, ""},
		{"127.0.0.1:http", 1, ""},
	} {
		got, err := OffsetPort(c.address, c.by)
		require.Equal(t, c.want, got, c.address)
		require.Equal(t, c.want == "", err != nil, c.address)
	}
}
