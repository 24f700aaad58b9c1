package cluster

import (
	"context"
	"log/slog"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// alarms keeps what is logged above info.
type alarms struct {
	mu    *sync.Mutex
	lines *[]string
	slog.Handler
}

func newAlarms() alarms {
	return alarms{&sync.Mutex{}, &[]string{}, slog.DiscardHandler}
}

func (a alarms) Enabled(_ context.Context, l slog.Level) bool { return l > slog.LevelInfo }
func (a alarms) WithAttrs([]slog.Attr) slog.Handler           { return a }
func (a alarms) WithGroup(string) slog.Handler                { return a }

func (a alarms) Handle(_ context.Context, r slog.Record) error {
	line := r.Level.String() + " " + r.Message
	r.Attrs(func(attr slog.Attr) bool {
		line += " " + attr.String()
		return true
	})
	a.mu.Lock()
	defer a.mu.Unlock()
	*a.lines = append(*a.lines, line)
	return nil
}

func (a alarms) text() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return append([]string{}, *a.lines...)
}

// What is normal is no alarm: three fresh nodes that become a cluster, and one of
// them, first a follower and then the leader, that is shut down in order and
// started again.
func TestJoinsAndRestartsAreQuiet(t *testing.T) {
	t.Parallel()
	said := newAlarms()
	c := newCluster(t, 3, func(cfg *Config) { cfg.Logger = slog.New(said) })
	require.Empty(t, said.text(), "three fresh nodes")
	for _, n := range []*testNode{c.follower(), c.leader()} {
		require.NoError(t, n.Drain(within(t, 5*time.Second)))
		require.NoError(t, n.Close())
		c.restart(n)
		c.waitReady()
		require.Empty(t, said.text(), "a restart")
	}
}
