package cluster

import (
	"context"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// A leadership that begins, and one that ends, wake whoever waits for a leader. One that was over
// before it began is none, and one that ends takes nothing from the next.
func TestLeadershipsWakeThoseWhoWait(t *testing.T) {
	n := &Node{cfg: Config{Logger: testLogger()}, moved: make(chan struct{}), greet: make(chan struct{}, 1)}
	wakes := func(does func()) bool {
		moved := n.moved
		does()
		select {
		case <-moved:
			return true
		default:
			return false
		}
	}
	begun := func() (*leadership, context.CancelFunc) {
		ctx, end := context.WithCancel(t.Context())
		t.Cleanup(end)
		return &leadership{ctx: ctx, queue: newQueue(1, entrySize)}, end
	}
	over, end := begun()
	end()
	require.False(t, n.take(over))
	require.Nil(t, n.leading.Load())
	require.False(t, n.led.Load())

	first, _ := begun()
	next, _ := begun()
	require.True(t, wakes(func() { require.True(t, n.take(first)) }))
	require.Same(t, first, n.leading.Load())
	require.True(t, n.led.Load())
	require.True(t, n.take(next))
	require.True(t, wakes(func() { n.drop(first) }))
	require.Same(t, next, n.leading.Load())
	require.ErrorIs(t, first.queue.add(sized(1)), errElsewhere)
	require.NoError(t, next.queue.add(sized(1)))
	n.drop(next)
	require.Nil(t, n.leading.Load())
}

// Whoever writes time to the log waits until it is there, or has no place any more.
func TestATickWithoutAPlace(t *testing.T) {
	l := &leadership{queue: newQueue(1, entrySize)}
	ctx, end := context.WithCancel(t.Context())
	end()
	require.ErrorIs(t, l.tick(ctx, &session.Tick{}), context.Canceled)
	l.queue.close(errElsewhere)
	require.ErrorIs(t, l.tick(ctx, &session.Tick{}), errElsewhere)
}

// A stream to who leads no more is given up; what it has not answered is sent to the next one.
func TestTheStreamToAFormerLeaderIsGivenUp(t *testing.T) {
	t.Parallel()
	f, stream := forwarding(t)
	f.announce()
	if leader, _ := f.raft.LeaderWithID(); string(leader) == stream.address {
		require.NoError(t, stream.ctx.Err(), "it leads still")
	}
	f.Node.mu.Lock()
	stream.address = "a former leader"
	f.Node.mu.Unlock()
	f.announce()
	require.Error(t, stream.ctx.Err())
	f.Node.mu.Lock()
	defer f.Node.mu.Unlock()
	require.Nil(t, f.Node.forward)
}
