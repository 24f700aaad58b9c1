package client_test

import (
	"context"
	"errors"
	"io"
	"math"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A mortal is what one of two nodes has of their common store. One that is dead
// does nothing any more, as after kill -9; one that has no leader yet takes
// nothing.
type mortal struct {
	storage.Store
	dead       atomic.Bool
	leaderless atomic.Int64 // how many commands are refused for want of a leader
	changed    <-chan struct{}
}

func (m *mortal) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	why := errors.New("there is no leader")
	answers := make([]storage.Answer, len(cmds))
	for i := range answers {
		answers[i] = storage.Refused(why)
	}
	if m.dead.Load() || m.leaderless.Add(-int64(len(cmds))) >= 0 {
		return answers
	}
	return m.Store.Apply(ctx, cmds...)
}

func (m *mortal) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if m.dead.Load() {
		return storage.Found{}, storage.Unread(errors.New("dead"))
	}
	return m.Store.Get(ctx, k, r)
}

func (m *mortal) Changed() <-chan struct{} { return m.changed }

// All who wait over one stream keep their places, in their order, when its node
// dies: the budget is charged once for what broke, and who comes back to a place
// in a queue is not held up by it, though the next node takes nothing at first.
func TestWaitersKeepTheirPlacesWhenTheirNodeDies(t *testing.T) {
	const waiters = 600
	began := time.Now()
	memory := storage.NewMemory(func() time.Duration { return time.Since(began) / 10 }) // this machine may be slow
	t.Cleanup(func() { require.NoError(t, memory.Close()) })
	first, second := &mortal{Store: memory}, &mortal{Store: memory, changed: memory.Changed()}
	var hosts []*host
	for i, store := range []storage.Store{first, second} {
		s, err := server.New(server.Config{Store: store, Node: string(rune('a' + i))})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, s.Close()) })
		hosts = append(hosts, listen(t, s.Handler()))
	}
	watch := streaming(t, []string{hosts[1].URL}, func(c *client.Config) { c.Name = "watch" })
	_, err := watch.PutPool(t.Context(), client.Pool{Name: "gpu", Slots: 1, QueueLimit: waiters})
	require.NoError(t, err)
	held, err := watch.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	places := func() (ids []string) {
		list, err := watch.ListSlots(t.Context(), "gpu")
		require.NoError(t, err)
		for _, w := range list.GetWaiters() {
			ids = append(ids, w.GetSlotId())
		}
		return ids
	}

	c := streaming(t, []string{hosts[0].URL, hosts[1].URL}, func(c *client.Config) { c.Random = nil })
	var all sync.WaitGroup
	var mu sync.Mutex
	var order []string
	for range waiters {
		all.Go(func() {
			slot, err := c.Acquire(t.Context(), "gpu", client.Wait(10*time.Minute))
			if err != nil {
				t.Errorf("%v", err)
				return
			}
			mu.Lock()
			order = append(order, slot.ID())
			mu.Unlock()
			_ = slot.Release() // or it lapses
		})
	}
	for deadline := time.Now().Add(time.Minute); len(places()) < waiters; time.Sleep(10 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%d wait", len(places()))
	}
	before := places()
	// Who was asked for longer than answers take, and has none, knows that he has a
	// place; who has just asked does not, and then has to pay for asking again.
	time.Sleep(2 * client.AnswerWithin)

	second.leaderless.Store(2 * waiters)
	first.dead.Store(true)
	_ = hosts[0].Listener.Close()
	hosts[0].CloseClientConnections()
	back := func() bool { return metric(t, hosts[1].URL, "gov_waiting_requests") == "600" }
	for deadline := time.Now().Add(time.Minute); !back(); time.Sleep(50 * time.Millisecond) {
		require.True(t, time.Now().Before(deadline), "%s are back, and %d have their places", metric(t, hosts[1].URL, "gov_waiting_requests"), len(places()))
	}
	require.Equal(t, before, places())
	require.NoError(t, held.Release())
	all.Wait()
	require.Equal(t, before, order)
}

// metric reads one number of a node's metrics.
func metric(t *testing.T, node, name string) string {
	t.Helper()
	res, err := http.Get(node + "/metrics")
	require.NoError(t, err)
	defer func() { _ = res.Body.Close() }()
	all, err := io.ReadAll(res.Body)
	require.NoError(t, err)
	for line := range strings.Lines(string(all)) {
		if value, ok := strings.CutPrefix(line, name+" "); ok {
			return strings.TrimSpace(value)
		}
	}
	return ""
}

// A wait that is longer than any, as of somebody who means for ever, is for the service to
// refuse, which says what it may be.
func TestAWaitForEverIsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"}, func(c *client.Config) {
			c.Timeout, c.AttemptTimeout = math.MaxInt64, math.MaxInt64
		})
		prepare(t, c, 1)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		for _, wait := range []time.Duration{math.MaxInt64, math.MaxInt64 - time.Second, 24 * time.Hour} {
			_, err = c.Acquire(t.Context(), "gpu", client.Wait(wait))
			require.ErrorContains(t, err, "must be from 0s to 600s", "%v", wait)
			_, err = s.Begin(t.Context(), client.Call{Tool: "t", Wait: wait})
			require.ErrorContains(t, err, "must be from 0s to 600s", "%v", wait)
			require.ErrorContains(t, c.TakeRate(t.Context(), client.Take{Rate: "r", Wait: wait}), "must be from 0s to 600s", "%v", wait)
		}
		require.NoError(t, c.Close())
	})
}
