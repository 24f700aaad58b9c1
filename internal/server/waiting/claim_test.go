package waiting

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/limiter"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// refusing is what a store answers whose leader has no room.
type refusing struct{}

func (refusing) Error() string { return "no room" }

func (refusing) Overloaded() bool { return true }

// still returns a Waiters that does nothing by itself.
func still(t *testing.T) *Waiters {
	t.Helper()
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	w := New(store, slog.New(slog.DiscardHandler), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewHistogram(prometheus.HistogramOpts{}), nil)
	w.Close()
	return w
}

// A claim that the leader has no room for is its caller's to make again: the
// place is gone, so the node would ask in vain. Any other is made again here.
func TestAClaimThatIsNotAdmitted(t *testing.T) {
	w := still(t)
	x := &Wait{Pool: session.PoolKey("default", "q"), Holder: "h"}
	w.Join(x)
	w.answered(x, storage.Refused(errors.New("no leader")))
	require.Empty(t, x.done)
	w.answered(x, storage.Refused(refusing{}))
	require.Len(t, x.done, 1)
	a := <-x.done
	require.Equal(t, fault.ReasonOverloaded, fault.InfoOf(fault.OfAnswer(&a)).GetReason())
	require.Empty(t, w.pools, "it is not claimed again")
}

// old is a store that sees nothing new although time goes on, and keeps what is put in order.
type old struct {
	storage.Store
	looks  atomic.Int64
	pool   *session.Pool
	orders chan session.Command
}

func (o *old) Get(context.Context, session.Key, storage.Read) (storage.Found, error) {
	return storage.Found{Record: o.pool, Now: time.Duration(o.looks.Add(1)) * pollWaits}, nil
}

func (o *old) Apply(_ context.Context, cmds ...session.Command) []storage.Answer {
	for _, c := range cmds {
		o.orders <- c
	}
	return make([]storage.Answer, len(cmds))
}

// Who gives up a place says when it was heard of last, since he may see what was long ago; and
// he gives up none for which somebody waits at this node.
func TestWhoGivesUpAPlaceSaysWhenItWasHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		o := &old{pool: &session.Pool{}, orders: make(chan session.Command, 9)}
		o.pool.Queue = []limiter.Ticket{{Holder: "h", Place: limiter.Place{Seen: 7, Until: time.Hour}}}
		w := &Waiters{
			store: o, log: slog.New(slog.DiscardHandler), waiting: prometheus.NewGauge(prometheus.GaugeOpts{}),
			stop: make(chan struct{}), pools: make(map[session.Key]*queue),
		}
		x := &Wait{Pool: session.PoolKey("default", "q"), Holder: "h", Cancel: &session.Cancel{NS: "default", Client: "c", Call: "l"}}
		w.Abandon(x)
		time.Sleep(abandonGrace - time.Millisecond)
		require.Empty(t, o.orders)
		time.Sleep(pollWaits)
		require.EqualValues(t, 7, (<-o.orders).(*session.Cancel).Heard)
		require.Zero(t, x.Cancel.Heard)

		w.Join(&Wait{Pool: x.Pool, Holder: "h"})
		w.Abandon(x)
		time.Sleep(2 * abandonGrace)
		require.Empty(t, o.orders)
	})
}

// A wait that has its first slot goes on in the queue of the next pool, and in no
// other: one that was left behind would be claimed there every half second for as
// long as the node lives, though its call is long over.
func TestAWaitStandsInOneQueueAtATime(t *testing.T) {
	w := still(t)
	x, other := &Wait{NS: "default", Pool: session.PoolKey("default", "a"), Holder: "h"}, &Wait{NS: "default", Pool: session.PoolKey("default", "a"), Holder: "o"}
	w.Join(x)
	w.Join(other)
	for _, pool := range []string{"a", "b", "c", "c"} {
		w.answered(x, storage.Done(session.Result{Code: session.Queued, Queue: session.Place{Pool: pool, Position: 1}}, 1))
		var stands []session.Key
		for k, q := range w.pools {
			if len(q.holders["h"]) > 0 {
				stands = append(stands, k)
			}
		}
		require.Equal(t, []session.Key{session.PoolKey("default", pool)}, stands)
	}
	require.Empty(t, x.done, "it still waits")
	w.remove(x)
	w.remove(other)
	require.Empty(t, w.pools)
}

// What a store hands out by itself is claimed for those who wait here, in the order in
// which it was handed out, and for nobody whose token has expired while he waited: no
// command of his is looked at again before it takes the slot.
func TestNothingIsClaimedForWhoHasExpired(t *testing.T) {
	w := still(t)
	w.mu.Lock()
	w.done = false
	w.mu.Unlock()
	now := time.Unix(1000, 0)
	k := session.PoolKey("default", "p")
	join := func(holder string, expires time.Time) session.Command {
		who := &access.Principal{Expires: expires}
		x := &Wait{
			NS: "default", Pool: k, Holder: holder, Claim: &session.Acquire{NS: "default", Client: "c", Slot: holder},
			Gone: func() bool { return who.Expired(now) },
		}
		w.Join(x)
		return x.Claim
	}
	ever, soon := join("ever", time.Time{}), join("soon", now.Add(time.Second))
	join("waits", time.Time{}) // nothing is handed to it
	p := &session.Pool{Pool: limiter.Pool{Leases: []limiter.Lease{
		{Holder: "soon", Token: 1, Claim: true}, {Holder: "ever", Token: 2, Claim: true}, {Holder: "elsewhere", Token: 3, Claim: true}, {Holder: "waits", Token: 4},
	}}}
	claimed := func() (cmds []session.Command) {
		for _, c := range w.claims(k, p) {
			cmds = append(cmds, c.Command)
		}
		return cmds
	}
	require.Equal(t, []session.Command{soon, ever}, claimed())
	now = now.Add(time.Second)
	require.Equal(t, []session.Command{ever}, claimed())
}

// unled is a store that nobody leads.
type unled struct {
	storage.Store
	apply func(cmds []session.Command)
}

func (u *unled) Apply(_ context.Context, cmds ...session.Command) []storage.Answer {
	u.apply(cmds)
	return slices.Repeat([]storage.Answer{storage.Refused(errors.New("no leader"))}, len(cmds))
}

// However often somebody is to be asked for while there is no answer, it is done once, and
// not at all for who has left meanwhile.
func TestWhoIsAskedForAgain(t *testing.T) {
	w := still(t)
	var all []*Wait
	for i := range waitBatch + 2 {
		x := &Wait{Pool: session.PoolKey("default", "q"), Holder: fmt.Sprint(i), Claim: &session.Acquire{Slot: fmt.Sprint(i)}}
		w.Join(x)
		all = append(all, x)
	}
	left := all[waitBatch]
	claimed := map[string]int{}
	w.store = &unled{apply: func(cmds []session.Command) {
		for _, c := range cmds {
			claimed[c.(*session.Acquire).Slot]++
		}
		w.remove(left)
	}}
	for range 3 {
		w.ask(all...)
	}
	w.claim(t.Context(), w.expired())
	require.Equal(t, len(all)-1, len(claimed))
	require.Zero(t, claimed[left.Holder])
	require.Equal(t, 1, claimed["0"])
	w.ask(all[0])
	w.claim(t.Context(), w.expired())
	require.Equal(t, 2, claimed["0"])
	require.Empty(t, w.expired())
}
