package cluster

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/storage"
)

// Members that let in nobody who was not added refuse who asks by itself, also with
// Replace under a name that they do not know; who was added gets its vote as ever.
func TestInvitedAlone(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.Invited = true })
	leader := c.leader()
	for _, replace := range []bool{false, true} {
		cfg := c.config("n2")
		cfg.Replace = replace
		_, err := c.open(cfg)
		require.ErrorIs(t, err, storage.ErrInvalid)
		require.ErrorContains(t, err, "takes nobody who was not added first")
		require.Len(t, roles(t, leader), 1)
	}
	cfg := c.config("n2")
	cfg.Invited = true
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", cfg.Address, true))
	n2, err := c.open(cfg)
	require.NoError(t, err)
	n2.waitReady(t)
	require.Equal(t, "voter", roles(t, leader)["n2"])
	require.NoError(t, n2.Close())
	n2 = c.restart(n2)
	require.False(t, n2.joining.Load(), "it is what it wants to be, and asks for nothing")
	n2.waitReady(t)
}

// A node that enlists is told who is at an address, once, while its folder is empty; what
// becomes of it decides whether the node opens.
func TestEnlist(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.Invited = true })
	leader := c.leader()
	refused := errors.New("refused")
	cfg := c.config("n2")
	cfg.Enlist = func(ctx context.Context, hello func(context.Context, string) (string, string, error)) error {
		return refused
	}
	_, err := c.open(cfg)
	require.ErrorIs(t, err, refused)
	require.ErrorContains(t, err, "cluster: Enlist: ")
	require.Len(t, roles(t, leader), 1)

	cfg = c.config("n2")
	calls := 0
	cfg.Enlist = func(ctx context.Context, hello func(context.Context, string) (string, string, error)) error {
		calls++
		_, _, err := hello(ctx, "127.0.0.1:1")
		require.Error(t, err, "nobody is there")
		node, api, err := hello(ctx, leader.Address())
		require.NoError(t, err)
		require.Equal(t, leader.cfg.ID, node)
		require.Equal(t, "api-of-"+node, api)
		return leader.AddNode(ctx, "n2", cfg.Address, true)
	}
	n2, err := c.open(cfg)
	require.NoError(t, err)
	n2.waitReady(t)
	require.Equal(t, "voter", roles(t, leader)["n2"])
	require.NoError(t, n2.Close())
	n2 = c.restart(n2)
	n2.waitReady(t)
	require.Equal(t, 1, calls, "its folder is a member's by then")

	require.NoError(t, n2.Close())
	c.forget(n2)
	cfg = c.config("n2")
	cfg.Dir, cfg.Replace, cfg.Enlist = t.TempDir(), true, func(context.Context, func(context.Context, string) (string, string, error)) error { return refused }
	again, err := c.open(cfg)
	require.NoError(t, err, "it is known, and needs no token to take its place with an empty folder")
	again.waitReady(t)
}

// Who was removed while it was down asks to come back, is refused by members that let in
// nobody who was not added, and says so; once it is added it takes part again.
func TestInvitedAgain(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, func(cfg *Config) { cfg.Invited = true })
	leader := c.leader()
	cfg := c.config("n2")
	said := newAlarms()
	cfg.Nonvoter, cfg.Logger = true, slog.New(said)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", cfg.Address, true))
	n2, err := c.open(cfg)
	require.NoError(t, err)
	n2.waitReady(t)
	require.NoError(t, n2.Close())
	require.NoError(t, leader.RemoveNode(within(t, 10*time.Second), "n2", false))
	n2 = c.restart(n2)
	require.Eventually(t, n2.Removed, 20*time.Second, 5*time.Millisecond)
	asked := func() (times int) {
		for _, line := range said.text() {
			times += strings.Count(line, "cannot join")
		}
		return times
	}
	require.Eventually(t, func() bool { return asked() > 0 }, 10*time.Second, 5*time.Millisecond)
	for range 3 {
		n2.greetAgain()
	}
	require.Equal(t, 1, asked(), "it asks once")
	require.Eventually(t, func() bool { // the leader may have sent it, late, that it was removed
		return errors.Is(n2.Ready(t.Context()), errRemoved)
	}, 20*time.Second, 5*time.Millisecond)
	require.Len(t, roles(t, leader), 1)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", cfg.Address, true))
	n2.waitReady(t)
	require.False(t, n2.Removed())
}
