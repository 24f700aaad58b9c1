package waiting

import (
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Who waits for a rate is admitted at the instant at which it comes free, and not
// when housekeeping finds it; so is the next one, who waits behind him.
func TestTurnsAreTakenInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory(nil)
		defer func() { require.NoError(t, store.Close()) }()
		w := New(store, slog.New(slog.DiscardHandler), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewHistogram(prometheus.HistogramOpts{}), nil)
		defer w.Close()
		apply := func(c session.Command) session.Result {
			r, _, err := storage.One(t.Context(), store, c)
			require.NoError(t, err)
			return r
		}
		const per = 3333 * time.Millisecond
		apply(&session.PutRate{NS: "ns", By: session.Maker{Client: "op"}, Rate: "r", Limit: 1, Per: per, Queue: 10})
		start := time.Now()
		took := make([]time.Duration, 4)
		for i := range took {
			c := &session.TakeRate{NS: "ns", Client: "c", ID: fmt.Sprint(i), Rate: "r", Cost: 1, Wait: time.Minute}
			if r := apply(c); r.Code == session.Admitted {
				continue
			}
			x := &Wait{
				NS: "ns", Pool: session.PoolKey("ns", "rate/r"), Holder: "cc " + c.ID, Claim: c, Length: c.Wait, Answer: &storage.Answer{},
				Renew: &session.Renew{NS: "ns", Client: "c", ID: c.ID, Pools: []string{"rate/r"}, TTL: time.Minute},
			}
			w.Join(x)
			go func() {
				if w.Await(t.Context(), x) == nil && x.Answer.Result.Code == session.Admitted {
					took[i] = time.Since(start)
				}
			}()
		}
		time.Sleep(4 * per)
		synctest.Wait()
		for i := range took {
			require.InDelta(t, float64(time.Duration(i)*per), float64(took[i]), float64(10*time.Millisecond), "%v", took)
		}
	})
}

// Where another node has the first in the queue, a Tick is ordered a little later:
// its node may be gone.
func TestOthersOrderATick(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := storage.NewMemory(nil)
		defer func() { require.NoError(t, store.Close()) }()
		w := New(store, slog.New(slog.DiscardHandler), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewGauge(prometheus.GaugeOpts{}), prometheus.NewHistogram(prometheus.HistogramOpts{}), nil)
		defer w.Close()
		for _, c := range []session.Command{
			&session.PutRate{NS: "ns", By: session.Maker{Client: "op"}, Rate: "r", Limit: 1, Per: 3333 * time.Millisecond, Queue: 10},
			&session.TakeRate{NS: "ns", Client: "c", ID: "0", Rate: "r", Cost: 1},
			&session.TakeRate{NS: "ns", Client: "elsewhere", ID: "1", Rate: "r", Cost: 1, Wait: time.Minute},
			&session.TakeRate{NS: "ns", Client: "c", ID: "2", Rate: "r", Cost: 1, Wait: time.Minute},
		} {
			_, _, err := storage.One(t.Context(), store, c)
			require.NoError(t, err)
		}
		w.Join(&Wait{NS: "ns", Pool: session.PoolKey("ns", "rate/r"), Holder: "cc 2", Renew: &session.Renew{NS: "ns", Client: "c", ID: "2", Pools: []string{"rate/r"}, TTL: time.Minute}})
		time.Sleep(3333*time.Millisecond + turnGrace + 5*time.Millisecond)
		synctest.Wait()
		found, err := store.Get(t.Context(), session.PoolKey("ns", "rate/r"), storage.Nearby)
		require.NoError(t, err)
		p := found.Record.(*session.Pool)
		require.Len(t, p.Leases, 1)
		require.True(t, p.Leases[0].Claim)
		require.Equal(t, "celsewhere 1", p.Leases[0].Holder)
	})
}

// An estimate of log time goes on with time, takes over what is seen to be later,
// and steps back to that alone where it was too far ahead.
func TestClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var c clock
		c.see(10 * time.Second)
		time.Sleep(time.Second)
		require.Equal(t, 11*time.Second, c.now())
		c.see(10500 * time.Millisecond)
		require.Equal(t, 11*time.Second, c.now(), "what was seen may be old")
		time.Sleep(time.Second)
		c.see(10500 * time.Millisecond)
		c.early()
		require.Equal(t, 11500*time.Millisecond, c.now())
		c.see(13 * time.Second)
		require.Equal(t, 13*time.Second, c.now())
	})
}
