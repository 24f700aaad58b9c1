package quota_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A namespace owes what was charged beyond a second's worth of its operations. That is one
// number: it says whether who ends something is refused, and for how long, and who ends
// what he has is not.
func TestDebts(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"quota"})
	turns := prometheus.NewCounter(prometheus.CounterOpts{Name: "turns"})
	q := quota.New(store, store, refused, turns, 0)
	registry := prometheus.NewRegistry()
	registry.MustRegister(refused)
	counted := func() (n float64) {
		families, err := registry.Gather()
		require.NoError(t, err)
		for _, f := range families {
			n += f.GetMetric()[0].GetCounter().GetValue()
		}
		return n
	}
	put := &session.PutQuotas{NS: "owes", By: session.Maker{Client: "op"}, Quotas: session.Quotas{Operations: 1}}
	require.NoError(t, store.Apply(t.Context(), put)[0].Failure())
	open := &session.Acquire{NS: "owes", Client: "c", Slot: "mine", Pool: "p", Weight: 1, TTL: time.Hour}
	var token uint64
	for _, cmd := range []session.Command{&session.PutPool{NS: "owes", By: session.Maker{Client: "op"}, Pool: "p", Slots: 1}, open} {
		a := store.Apply(t.Context(), cmd)[0]
		require.NoError(t, a.Failure())
		if cmd == open {
			token = a.Result.Grants[0].Token
		}
	}

	nothing := func(ns string) session.Command {
		return &session.Release{NS: ns, Client: "c", Slot: "none", Pool: "p"}
	}
	miss := func(ns string, times int) {
		for range times {
			require.NoError(t, q.Admit(context.Background(), nothing(ns)))
			q.Missed(context.Background(), nothing(ns), &session.Result{Code: session.NotFound})
		}
	}
	for _, ns := range []string{"owes", "free"} {
		require.Zero(t, q.Debt(t.Context(), ns))
	}
	miss("free", 100)
	require.Zero(t, q.Debt(t.Context(), "free"), "it has no quota")
	miss("owes", 2)
	require.Zero(t, q.Debt(t.Context(), "owes"), "no more than a second's worth")
	for range 100 {
		q.Missed(context.Background(), nothing("owes"), &session.Result{Code: session.NotFound})
	}
	debt := q.Debt(t.Context(), "owes")
	require.Greater(t, debt.Wait, time.Duration(0))
	require.LessOrEqual(t, debt.Wait, 11*time.Second, "what was lost at once keeps nobody out for longer")
	require.Zero(t, counted(), "nobody was refused")

	for _, err := range []error{debt.Refusal(), q.Admit(t.Context(), nothing("owes")), q.Spend(t.Context(), "owes")} {
		f := fault.Of(err)
		require.Equal(t, connect.CodeResourceExhausted, f.Code)
		require.Equal(t, fault.ReasonQuotaExceeded, f.Reason)
		require.Contains(t, f.Error(), `"owes" has as much as it may of operations a second, which is 1`)
	}
	require.EqualValues(t, 3, counted(), "each of them")
	require.NoError(t, q.Admit(t.Context(), &session.Release{NS: "owes", Client: "c", Slot: "mine", Pool: "p", Token: token}), "it has that")
	require.Error(t, q.Admit(t.Context(), &session.Release{NS: "owes", Client: "c", Slot: "mine", Pool: "p", Token: token + 1}), "it has not")
	require.EqualValues(t, 4, counted())
}

// A namespace that may do less than when it came to owe does not owe that for longer.
func TestDebtsOfALowerQuota(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	refused := prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"quota"})
	q := quota.New(store, store, refused, prometheus.NewCounter(prometheus.CounterOpts{Name: "turns"}), 0)
	may := func(operations int64) {
		put := &session.PutQuotas{NS: "owes", By: session.Maker{Client: "op"}, Quotas: session.Quotas{Operations: operations}}
		require.NoError(t, store.Apply(t.Context(), put)[0].Failure())
	}
	may(1000)
	for range 11_000 {
		q.Missed(t.Context(), &session.Release{NS: "owes", Client: "c", Slot: "none", Pool: "p"}, &session.Result{Code: session.NotFound})
	}
	may(1)
	var debt quota.Debt
	require.Eventually(t, func() bool { // quotas are read a few times a second
		debt = q.Debt(t.Context(), "owes")
		return debt.Wait > 0 && strings.Contains(debt.Refusal().Error(), "which is 1;")
	}, 10*time.Second, 10*time.Millisecond)
	require.LessOrEqual(t, debt.Wait, 11*time.Second)
}
