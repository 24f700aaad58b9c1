package gate

import (
	"errors"
	"log/slog"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
)

// Below the reserve new work is refused, and taken again once there is a quarter more;
// where the room cannot be told it stays as it was.
func TestDisk(t *testing.T) {
	left, failed := uint64(1000), error(nil)
	g, err := NewDisk(prometheus.NewRegistry(), slog.New(slog.DiscardHandler), 400, func() (uint64, error) { return left, failed })
	require.NoError(t, err)
	defer g.Close()
	for _, step := range []struct {
		left  uint64
		err   error
		sheds bool
	}{{400, nil, false}, {399, nil, true}, {450, nil, true}, {9000, errors.New("gone"), true}, {499, nil, true}, {500, nil, false}, {0, errors.New("gone"), false}, {0, nil, true}} {
		left, failed = step.left, step.err
		g.look()
		require.Equal(t, step.sheds, g.Sheds(), "%+v", step)
		require.Equal(t, step.sheds, g.Admit() != nil, "%+v", step)
	}
	require.Equal(t, fault.ReasonOverloaded, fault.Of(g.Admit()).Reason)
}

func TestDiskThatIsNotLookedAt(t *testing.T) {
	g, err := NewDisk(prometheus.NewRegistry(), slog.New(slog.DiscardHandler), 0, nil)
	require.NoError(t, err)
	require.NoError(t, g.Admit())
	g.Close()
}
