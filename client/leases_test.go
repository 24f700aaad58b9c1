package client_test

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A cut wire makes a lease first at risk and then, when it has run out, lost;
// nothing is cancelled unless that was asked for.
func TestHeldAtRiskLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = while(&cut, refuseDial)
		losses := make(chan client.Loss, 2)
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.OnLost = func(l client.Loss) { losses <- l } })
		began := time.Now()
		slot, err := c.Acquire(t.Context(), "gpu", client.SlotID("one"))
		require.NoError(t, err)
		careful, err := c.Acquire(t.Context(), "gpu", client.SlotID("two"), client.CancelOnLost())
		require.NoError(t, err)
		const lease = 30 * time.Second * 99 / 100 // the margin is a hundredth
		require.Equal(t, began.Add(lease), slot.Deadline())

		time.Sleep(95 * time.Second) // renewed at 10, 20, ... 90
		require.Equal(t, client.Held, slot.State())
		require.Equal(t, began.Add(90*time.Second+lease), slot.Deadline())

		cut.Store(true)
		time.Sleep(4 * time.Second)
		require.Equal(t, client.Held, slot.State(), "no renewal has failed yet")
		time.Sleep(2 * time.Second)
		require.Equal(t, client.AtRisk, slot.State())
		require.Equal(t, began.Add(90*time.Second+lease), slot.Deadline())

		cut.Store(false) // in time
		time.Sleep(2 * time.Second)
		require.Equal(t, client.Held, slot.State())
		require.Greater(t, slot.Deadline().Sub(began), 100*time.Second)

		cut.Store(true)
		deadline := slot.Deadline()
		time.Sleep(time.Until(deadline) - time.Nanosecond)
		require.Equal(t, client.AtRisk, slot.State())
		require.NoError(t, careful.Context().Err())
		select {
		case <-slot.Lost():
			t.Fatal("lost before the deadline")
		default:
		}
		time.Sleep(time.Nanosecond)
		require.Equal(t, client.Lost, slot.State())
		<-slot.Lost()
		require.Equal(t, deadline, time.Now())
		require.NoError(t, slot.Context().Err(), "nobody asked for that")
		<-careful.Context().Done()
		require.ErrorIs(t, context.Cause(careful.Context()), client.ErrLeaseLost)
		lost := []client.Loss{<-losses, <-losses}
		for i := range lost {
			require.NotEmpty(t, lost[i].Reason)
			lost[i].Reason = ""
		}
		require.ElementsMatch(t, []client.Loss{{Pool: "gpu", ID: "one", Token: 7}, {Pool: "gpu", ID: "two", Token: 7}}, lost)

		cut.Store(false)
		time.Sleep(time.Minute)
		require.Equal(t, client.Lost, slot.State(), "a lease that was lost stays lost")
		require.NoError(t, c.Close())
	})
}

// A renewal that hangs is as good as one that fails: the loss is noticed on
// time.
func TestLostWhileTheNodeHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(3 * time.Second).handler()}}
		w.fault = on(hang, "RenewSlots")
		c := connected(t, w, []string{"a:1"})
		began := time.Now()
		slot, err := c.Acquire(t.Context(), "gpu", client.TTL(3*time.Second))
		require.NoError(t, err)
		<-slot.Lost()
		require.Equal(t, 3*time.Second*99/100, time.Since(began))
		require.Greater(t, w.count("RenewSlots"), 2, "it must have been tried several times")
		require.NoError(t, c.Close())
	})
}

// Whoever was told by the service that another holds the slot has lost it at
// once, and the neighbours in the request have not.
func TestServiceSaysLost(t *testing.T) {
	for _, o := range []govnodev1.Outcome{govnodev1.Outcome_OUTCOME_LEASE_EXPIRED, govnodev1.Outcome_OUTCOME_FENCED} {
		synctest.Test(t, func(t *testing.T) {
			n := granting(30 * time.Second)
			n.renew = func(_ context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
				res := &govnodev1.RenewSlotsResponse{}
				for _, s := range r.GetSlots() {
					got := &govnodev1.SlotRenewal{Slot: s, Outcome: o}
					if s.GetSlotId() == "well" {
						got = &govnodev1.SlotRenewal{Slot: s, Outcome: govnodev1.Outcome_OUTCOME_RENEWED, Ttl: r.GetTtl()}
					}
					res.Results = append(res.Results, got)
				}
				return res, nil
			}
			c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
			ill, err := c.Acquire(t.Context(), "gpu", client.SlotID("ill"))
			require.NoError(t, err)
			well, err := c.Acquire(t.Context(), "gpu", client.SlotID("well"))
			require.NoError(t, err)
			<-ill.Lost()
			require.Equal(t, client.Lost, ill.State())
			require.Equal(t, client.Held, well.State())
			require.NoError(t, c.Close())
		})
	}
}

// Of a slot of which the node can tell nothing its holder has not lost it: it is at risk, and
// renewed soon. If that goes on its lease runs out, and the neighbours in the request keep
// theirs.
func TestServiceCannotTell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		var asked int
		var tells atomic.Bool
		n.renew = func(_ context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			res := &govnodev1.RenewSlotsResponse{}
			for _, s := range r.GetSlots() {
				got := &govnodev1.SlotRenewal{Slot: s, Outcome: govnodev1.Outcome_OUTCOME_RENEWED, Ttl: r.GetTtl()}
				if s.GetSlotId() == "ill" && !tells.Load() {
					got = &govnodev1.SlotRenewal{Slot: s}
				}
				res.Results = append(res.Results, got)
			}
			asked++
			return res, nil
		}
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
		ill, err := c.Acquire(t.Context(), "gpu", client.SlotID("ill"))
		require.NoError(t, err)
		well, err := c.Acquire(t.Context(), "gpu", client.SlotID("well"))
		require.NoError(t, err)
		time.Sleep(15 * time.Second)
		require.Equal(t, client.AtRisk, ill.State())
		require.Equal(t, client.Held, well.State())
		require.Greater(t, asked, 2, "it is asked again soon")
		tells.Store(true)
		time.Sleep(3 * time.Second)
		require.Equal(t, client.Held, ill.State())
		tells.Store(false)
		<-ill.Lost()
		require.Equal(t, client.Held, well.State())
		require.NoError(t, c.Close())
	})
}

// A lease counts from the sending of its request, however long the answer is
// under way.
func TestLeaseCountsFromSending(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = on(delay, "AcquireSlot", "RenewSlots")
		c := connected(t, w, []string{"a:1"})
		began := time.Now()
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.Equal(t, time.Second, time.Since(began))
		const lease = 30 * time.Second * 99 / 100
		require.Equal(t, began.Add(lease), slot.Deadline())
		time.Sleep(time.Until(began.Add(10*time.Second + 500*time.Millisecond)))
		require.Equal(t, began.Add(lease), slot.Deadline(), "the renewal has not been answered yet")
		time.Sleep(time.Second)
		require.Equal(t, began.Add(10*time.Second+lease), slot.Deadline())
		require.NoError(t, c.Close())
	})
}

// Everything a process holds, slots and calls, is in one request, up to 256;
// leases of another TTL have their own, at a third of theirs.
func TestRenewsEverythingAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		type renewal struct {
			at, ttl     time.Duration
			slots, call int
		}
		var seen []renewal
		var mu sync.Mutex
		began := time.Now()
		n := granting(30 * time.Second)
		renew := n.renew
		n.renew = func(ctx context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			one := renewal{at: time.Since(began), ttl: r.GetTtl().AsDuration()}
			for _, s := range r.GetSlots() {
				if s.GetSessionId() != "" {
					one.call++
				} else {
					one.slots++
				}
			}
			mu.Lock()
			seen = append(seen, one)
			mu.Unlock()
			return renew(ctx, r)
		}
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
		for i := range 200 {
			_, err := c.Acquire(t.Context(), "gpu", client.SlotID(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		for range 100 {
			_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
			require.NoError(t, err)
		}
		_, err := c.Acquire(t.Context(), "gpu", client.TTL(time.Minute))
		require.NoError(t, err)

		time.Sleep(11 * time.Second)
		synctest.Wait()
		mu.Lock()
		// The TTL granted was 30 s whatever was asked for, so that the first
		// renewal of the long lease is due at 10 s as well.
		require.Len(t, seen, 3)
		slots, calls := 0, 0
		for _, r := range seen {
			require.Equal(t, 10*time.Second, r.at)
			require.LessOrEqual(t, r.slots+r.call, 256)
			slots += r.slots
			calls += r.call
		}
		require.Equal(t, 201, slots)
		require.Equal(t, 100, calls)

		seen = nil
		mu.Unlock()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		mu.Lock()
		defer mu.Unlock()
		require.Len(t, seen, 2, "the long lease is due at 30 s")
		require.NoError(t, c.Close())
	})
}
