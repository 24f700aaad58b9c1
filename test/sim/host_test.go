package sim

import (
	"fmt"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster"
)

// A node that ends because it only has to be started again is, and goes on; that is no
// failure, and nothing becomes of it where the host has fallen meanwhile.
func TestANodeThatHasToBeStartedAgain(t *testing.T) {
	inVirtualTime(t, func(t *testing.T) {
		f, err := newFleet(3, rand.New(rand.NewPCG(1, 1)), slog.New(slog.DiscardHandler), func(*cluster.Config) {})
		require.NoError(t, err)
		require.NoError(t, f.found())
		h := f.hosts[1]
		first := h.run
		h.fatal(first, fmt.Errorf("n2: %w", cluster.ErrSuperseded))
		require.NoError(t, eventually(10*time.Second, func() error {
			if n := h.up(); n == nil || n == first.node {
				return fmt.Errorf("it is not up again")
			}
			return nil
		}))
		require.NoError(t, f.ready(10*time.Second))
		second := h.up()
		h.again(first)
		require.Equal(t, second, h.up())
		require.NoError(t, f.end())
	})
}
