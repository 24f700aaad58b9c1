package server_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server"
	v1 "example.com/govnode/proto/govnode/v1"
)

// A node whose store takes no changes says so in its health, and why.
func TestStatusOfAStoreThatIsNotReady(t *testing.T) {
	var why error
	n := start(t, func(c *server.Config) { c.Ready = func(context.Context) error { return why } })
	for _, why = range []error{nil, errors.New("in quarantine for 20 s"), nil} {
		res, err := n.cluster.Status(n.ctx(), &v1.StatusRequest{})
		require.NoError(t, err)
		if why == nil {
			require.Equal(t, "ok", res.Health)
		} else {
			require.Equal(t, why.Error(), res.Health)
		}
	}
}
