package storagetest

import (
	"fmt"
	"math/rand/v2"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What budgets promise on every store.

// charged has many callers begin calls that are charged to a tree of budgets: all at
// once, some after a wait, some never ended. As nothing is given back while they
// do, what was admitted tells what is used: never more than any amount, and in the
// end what was reported, and assumed of those that nobody reported.
func charged(t *testing.T, r rig) {
	const callers, calls = 16, 12
	r.openSession("s", 1000, 1_000_000)
	r.putPool("till", 1)
	amounts := map[string]int64{"all": 600, "left": 250, "right": 400}
	for _, name := range []string{"all", "left", "right"} {
		put := &session.PutBudget{NS: ns, By: by("put-" + name), Budget: name, Amount: amounts[name]}
		if name != "all" {
			put.Parent = "all"
		}
		require.Equal(t, session.Done, r.must(put).Code)
	}
	used := map[string]*atomic.Int64{"all": {}, "left": {}, "right": {}}
	var refused atomic.Int64
	atOnce(callers, func(caller int) {
		rng := rand.New(rand.NewPCG(uint64(caller), 0))
		for n := range calls {
			own := "left"
			if rng.IntN(2) == 0 {
				own = "right"
			}
			cost := int64(1 + rng.IntN(12))
			c := begin("s", fmt.Sprintf("c%d-%d", caller, n))
			c.Budgets = []session.Charge{{Budget: "all"}, {Budget: own, Parent: "all", Amount: cost}}
			waits := rng.IntN(2) == 0
			if waits {
				c.Pools, c.Wait = append(c.Pools, session.Want{Pool: "till", Weight: 1}), session.MaxWait
			}
			res, err := r.try(c)
			for end := time.Now().Add(patience); err == nil && res.Code == session.Queued && time.Now().Before(end); {
				res, err = r.try(c) // until it is its turn
			}
			switch {
			case err == nil && res.Code == session.BudgetExceeded:
				refused.Add(1)
				continue
			case err != nil || res.Code != session.Admitted && res.Code != session.QueueFull:
				t.Errorf("%v: %v", res.Code, err)
				return
			case res.Code == session.QueueFull:
				continue
			}
			for _, name := range []string{"all", own} {
				used[name].Add(cost)
			}
			if !waits && rng.IntN(4) == 0 {
				continue // nobody says what it has cost
			}
			end := &session.End{NS: ns, Session: "s", Call: c.Call, Budgets: []string{"all", own}, Status: session.Succeeded}
			for _, w := range c.Pools {
				end.Pools = append(end.Pools, w.Pool)
			}
			if rng.IntN(2) == 0 {
				end.Spent = []session.Bill{{Budget: own, Amount: cost}}
			}
			if res, err := r.try(end); err != nil || res.Code != session.Ended {
				t.Errorf("%v: %v", res.Code, err)
				return
			}
		}
	})
	require.Positive(t, refused.Load(), "there was too little for all")
	for name, sum := range used {
		require.LessOrEqual(t, sum.Load(), amounts[name], name)
		b, _ := r.get(session.BudgetKey(ns, name), storage.Latest).Record.(*session.Budget)
		require.Equal(t, sum.Load(), b.Used, name)
	}
	require.Empty(t, r.pool("till").Leases)
}

// unpaid has a call wait for a slot while another one spends what it is to be
// charged with: its claim is refused, charges nothing, and leaves the slot free.
func unpaid(t *testing.T, r rig) {
	r.openSession("s", 10, 1000)
	r.putPool("till", 1)
	require.Equal(t, session.Done, r.must(&session.PutBudget{NS: ns, By: by("put"), Budget: "b", Amount: 10}).Code)
	costs := func(call string, amount int64) *session.Begin {
		c := begin("s", call)
		c.Budgets = []session.Charge{{Budget: "b", Amount: amount}}
		return c
	}
	holder := acquire("till", "holder")
	require.Equal(t, session.Admitted, r.must(holder).Code)
	waiter := costs("waiter", 6)
	waiter.Pools, waiter.Wait = append(waiter.Pools, session.Want{Pool: "till", Weight: 1}), time.Minute
	require.Equal(t, session.Queued, r.must(waiter).Code)
	require.Equal(t, session.Admitted, r.must(costs("other", 5)).Code, "who waits is charged with nothing")
	token := r.pool("till").Leases[0].Token
	require.Equal(t, session.Released, r.must(&session.Release{NS: ns, Client: "suite", Slot: "holder", Pool: "till", Token: token}).Code)
	claim := r.must(waiter)
	require.Equal(t, session.BudgetExceeded, claim.Code)
	require.Equal(t, "b", claim.Budgets[0].Budget)
	b, _ := r.get(session.BudgetKey(ns, "b"), storage.Latest).Record.(*session.Budget)
	require.EqualValues(t, 5, b.Used)
	require.Equal(t, session.Admitted, r.must(acquire("till", "next")).Code, "the slot is free")
	require.Equal(t, session.BudgetExceeded, r.must(waiter).Code, "sent again it is answered as before")
}
