package client_test

import (
	"crypto/tls"
	"net/http"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
)

// What is wrong with a configuration is said by the name of its field.
func TestConfig(t *testing.T) {
	good := func() client.Config { return client.Config{Addresses: []string{"127.0.0.1:7070"}} }
	tests := []struct {
		name   string
		change func(*client.Config)
		want   string // empty: accepted
	}{
		{"least", func(*client.Config) {}, ""},
		{"a URL", func(c *client.Config) { c.Addresses = []string{"https://gov.example"} }, ""},
		{"IPv6", func(c *client.Config) { c.Addresses = []string{"[::1]:7070"} }, ""},
		{"longest name", func(c *client.Config) { c.Name = strings.Repeat("n", 128) }, ""},
		{"no address", func(c *client.Config) { c.Addresses = nil }, "Addresses: empty"},
		{"no port", func(c *client.Config) { c.Addresses = []string{"a:1", "b"} }, "Addresses[1]"},
		{"another scheme", func(c *client.Config) { c.Addresses = []string{"ftp://a:1"} }, "Addresses[0]"},
		{"TLS", func(c *client.Config) { c.TLS = &tls.Config{MinVersion: tls.VersionTLS13} }, ""},
		{"TLS for another's client", func(c *client.Config) {
			c.TLS, c.HTTPClient = &tls.Config{MinVersion: tls.VersionTLS13}, http.DefaultClient
		}, "TLS: is not used with HTTPClient"},
		{"a query", func(c *client.Config) { c.Addresses = []string{"http://a:1?x"} }, "Addresses[0]"},
		{"a space", func(c *client.Config) { c.Addresses = []string{"a b:1"} }, "Addresses[0]"},
		{"name too long", func(c *client.Config) { c.Name = strings.Repeat("n", 129) }, "Name: 129 bytes"},
		{"name with a space", func(c *client.Config) { c.Name = "a b" }, "Name: \" \" at byte 1"},
		{"namespace", func(c *client.Config) { c.Namespace = "ä" }, "Namespace"},
		{"longest namespace", func(c *client.Config) { c.Namespace = strings.Repeat("n", 64) }, ""},
		{"namespace too long", func(c *client.Config) { c.Namespace = strings.Repeat("n", 65) }, "Namespace: 65 bytes"},
		{"token", func(c *client.Config) { c.Token = "gn_team.abcd.secret" }, ""},
		{"token and its namespace", func(c *client.Config) { c.Token, c.Namespace = "gn_a.b.abcd.secret", "a.b" }, ""},
		{"token of another namespace", func(c *client.Config) { c.Token, c.Namespace = "gn_team.abcd.secret", "other" }, "Namespace: is \"other\""},
		{"JWT in any namespace", func(c *client.Config) { c.Token, c.Namespace = "e30.e30.c2ln", "other" }, ""},
		{"token with a blank", func(c *client.Config) { c.Token = "Bearer x" }, "Token"},
		{"two tokens", func(c *client.Config) {
			c.Token, c.TokenSource = "x", func() (string, error) { return "y", nil }
		}, "TokenSource"},
		{"timeout", func(c *client.Config) { c.Timeout = -1 }, "Timeout"},
		{"budget", func(c *client.Config) { c.Budget.Burst = -1 }, "Budget"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg := good()
			tt.change(&cfg)
			c, err := client.New(cfg)
			if tt.want == "" {
				require.NoError(t, err)
				require.NotEmpty(t, c.Name())
				require.NoError(t, c.Close())
				return
			}
			require.ErrorContains(t, err, tt.want)
		})
	}
}

// The name of a process is drawn once.
func TestNameOfTheProcess(t *testing.T) {
	one, err := client.New(client.Config{Addresses: []string{"a:1"}})
	require.NoError(t, err)
	other, err := client.New(client.Config{Addresses: []string{"a:1"}})
	require.NoError(t, err)
	require.Equal(t, one.Name(), other.Name())
	require.Greater(t, len(one.Name()), 26)
}
