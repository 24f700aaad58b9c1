package quota

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Whoever comes when, turns are no more than the rate and a second's worth, nobody waits
// for longer than he is prepared to, nobody overtakes, and who comes back when he was told
// to has one.
func TestTurns(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 0))
		rate := 1 + float64(r.IntN(300))
		var b bucket
		var turns []time.Time
		now := time.Unix(0, 0)
		for range 2000 {
			now = now.Add(time.Duration(r.ExpFloat64() / rate / 3 * float64(time.Second)))
			if r.IntN(500) == 0 {
				now = now.Add(5 * time.Second)
			}
			prepared := time.Duration(r.IntN(3)) * patience / 2
			wait, taken := b.turn(now, rate, prepared)
			require.Equal(t, wait <= prepared, taken)
			if taken {
				turns = append(turns, now.Add(wait))
				continue
			}
			later := b
			again, taken := later.turn(now.Add(wait).Add(time.Millisecond), rate, 0)
			require.True(t, taken, "%v", again)
		}
		require.True(t, slices.IsSortedFunc(turns, time.Time.Compare))
		for range 200 {
			from := r.IntN(len(turns))
			to := from + r.IntN(len(turns)-from)
			within := turns[to].Sub(turns[from]) + time.Microsecond // times are rounded down
			require.LessOrEqual(t, float64(to-from+1), rate*within.Seconds()+rate+1)
		}
	}
}

// A place has the quotas of one namespace.
type place struct {
	ns     string
	quotas session.Quotas
}

func (p place) Get(_ context.Context, k session.Key, _ storage.Read) (storage.Found, error) {
	if k == session.AccessKey(p.ns) {
		return storage.Found{Record: &session.Access{Quotas: p.quotas}}, nil
	}
	return storage.Found{}, nil
}

func (place) View(context.Context, string, storage.Read) (storage.View, error) {
	return storage.View{}, errors.New("nobody looks")
}

// What becomes of so many who come at once, in a namespace that may begin ten sessions a
// second.
func TestTurnsOfANamespace(t *testing.T) {
	const pace = 10
	for name, test := range map[string]struct {
		quotas        session.Quotas
		pace, come    int
		patient       time.Duration // until when each is there
		begun, before int           // in the end, and of them without a wait
		refused       int
	}{
		"a second's worth at once":            {pace: pace, come: 10, patient: time.Minute, begun: 10, before: 10},
		"and as many wait":                    {pace: pace, come: 20, patient: time.Minute, begun: 20, before: 10},
		"others are refused":                  {pace: pace, come: 100, patient: time.Minute, begun: 20, before: 10, refused: 80},
		"also who has less time":              {pace: pace, come: 100, patient: patience / 2, begun: 15, before: 10, refused: 85},
		"without a pace":                      {pace: 0, come: 100, patient: time.Minute, begun: 100, before: 100},
		"with a quota of operations":          {pace: pace, quotas: session.Quotas{Operations: 7}, come: 100, patient: time.Minute, begun: 100, before: 100},
		"another quota says nothing of turns": {pace: pace, quotas: session.Quotas{Streams: 7}, come: 100, patient: time.Minute, begun: 20, before: 10, refused: 80},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				refusals := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"quota"})
				delayed := prometheus.NewCounter(prometheus.CounterOpts{Name: "o"})
				q := New(place{"flood", test.quotas}, nil, refusals, delayed, test.pace)
				all := make(chan error, test.come)
				for range test.come {
					go func() {
						ctx, cancel := context.WithTimeout(t.Context(), test.patient)
						defer cancel()
						all <- q.Turn(ctx, "flood")
					}()
				}
				begun, refused := 0, 0
				count := func() {
					synctest.Wait()
					for len(all) > 0 {
						if err := <-all; err == nil {
							begun++
							continue
						} else if f := fault.Of(err); f.Reason == fault.ReasonQuotaExceeded {
							require.Contains(t, f.Error(), "nothing was applied")
							refused++
						}
					}
				}
				count()
				require.Equal(t, test.before, begun)
				require.Equal(t, test.refused, refused, "at once")
				require.NoError(t, q.Turn(t.Context(), "another"))
				time.Sleep(patience)
				count()
				require.Equal(t, test.begun, begun)
				require.Equal(t, test.refused, refused)
				registry := prometheus.NewRegistry()
				registry.MustRegister(refusals, delayed)
				refusals.WithLabelValues("sessions a second")
				metrics, err := registry.Gather()
				require.NoError(t, err)
				require.EqualValues(t, test.refused, metrics[0].Metric[0].Counter.GetValue())
				require.EqualValues(t, test.begun-test.before, metrics[1].Metric[0].Counter.GetValue())
			})
		})
	}
}

// Who hangs up before his turn has not had it.
func TestTurnGivenUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		q := New(place{}, nil, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "n"}, []string{"quota"}), prometheus.NewCounter(prometheus.CounterOpts{Name: "o"}), 1)
		require.NoError(t, q.Turn(t.Context(), "x"))
		for range 100 {
			ctx, hangUp := context.WithCancel(t.Context())
			left := make(chan error)
			go func() { left <- q.Turn(ctx, "x") }()
			synctest.Wait()
			hangUp()
			require.ErrorIs(t, <-left, context.Canceled)
		}
		require.NoError(t, q.Turn(t.Context(), "x"))
	})
}
