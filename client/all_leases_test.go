package client_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Of several leases each one has its own part of what is renewed, told and given back:
// its names, its secret, its token, its answer.
func TestEachLeaseHasItsOwnPart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		token := uint64(0)
		n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			token++
			return &govnodev1.AcquireSlotResponse{Outcome: client.Admitted, Token: token, Ttl: durationpb.New(30 * time.Second)}, nil
		}
		n.begin = func(context.Context, *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
			token += 2
			return &govnodev1.BeginCallResponse{Outcome: client.Admitted, Grants: []*govnodev1.Grant{
				{Pool: "a", Token: token - 1, Ttl: durationpb.New(30 * time.Second)}, {Pool: "b", Token: token, Ttl: durationpb.New(31 * time.Second)},
			}}, nil
		}
		var renewed []string
		asked := 0
		n.renew = func(_ context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			res := &govnodev1.RenewSlotsResponse{}
			asked++
			for _, s := range r.GetSlots() {
				renewed = append(renewed, fmt.Sprint(r.GetClient(), " ", r.GetTtl().AsDuration(), " ", s.GetPool(), "/", s.GetSessionId(), "/", s.GetSlotId(), "/", s.GetToken(), "/", s.GetSessionToken()))
				one := &govnodev1.SlotRenewal{Slot: s, Outcome: govnodev1.Outcome_OUTCOME_RENEWED, Ttl: durationpb.New(40 * time.Second)}
				switch s.GetSlotId() {
				case "s2": // its part of the answer is another
					one.Ttl = durationpb.New(20 * time.Second)
				case "c1":
					one.Signal = &govnodev1.Signal{Signal: "STOP"}
				case "c3":
					one.Outcome = client.LeaseLost
				}
				res.Results = append(res.Results, one)
			}
			return res, nil
		}
		var released []string
		n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
			for i, op := range r.GetOperations() {
				if op.GetTag() != uint64(i) {
					t.Errorf("tag %d at %d", op.GetTag(), i)
				}
				e, l := op.GetEnd(), op.GetRelease()
				if e != nil {
					released = append(released, fmt.Sprint(e.GetSessionId(), "/", e.GetCallId(), "/", e.GetSessionToken(), "/", e.GetStatus()))
				} else {
					released = append(released, fmt.Sprint(l.GetClient(), " ", l.GetPool(), "/", l.GetSlotId(), "/", l.GetToken()))
				}
			}
			return allGivenBack(r), nil
		}
		var mu sync.Mutex
		var lost []client.Loss
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"}, func(c *client.Config) {
			c.OnLost = func(l client.Loss) {
				mu.Lock()
				defer mu.Unlock()
				lost = append(lost, l)
			}
		})
		var slots []*client.Slot
		for _, id := range []string{"s1", "s2"} {
			s, err := c.Acquire(t.Context(), "pool-"+id, client.SlotID(id))
			require.NoError(t, err)
			slots = append(slots, s)
		}
		var calls []*client.OpenCall
		for _, id := range []string{"c1", "c2", "c3"} {
			s, err := c.SessionWith("of-"+id, "secret-"+id).Begin(t.Context(), client.Call{ID: id, Tool: "t", CancelOnLost: true})
			require.NoError(t, err)
			calls = append(calls, s)
		}
		shown := calls[2].Lost()
		began := time.Now()
		time.Sleep(10 * time.Second)
		synctest.Wait()
		slices.Sort(renewed)
		require.Equal(t, []string{
			"test 30s /of-c1/c1/3/secret-c1", "test 30s /of-c2/c2/5/secret-c2", "test 30s /of-c3/c3/7/secret-c3",
			"test 30s pool-s1//s1/1/", "test 30s pool-s2//s2/2/",
		}, renewed)
		require.Equal(t, 1, asked)

		for name, l := range map[string]*client.Lease{"s1": slots[0].Lease, "c1": calls[0].Lease, "c2": calls[1].Lease} {
			require.Equal(t, client.Held, l.State(), name)
			require.Equal(t, began.Add(10*time.Second+40*time.Second*99/100), l.Deadline(), name)
		}
		require.Equal(t, began.Add(10*time.Second+20*time.Second*99/100), slots[1].Deadline())
		require.Equal(t, "STOP", calls[0].Signal().GetSignal())
		require.Nil(t, calls[1].Signal())
		require.Nil(t, slots[0].Signal())
		require.Equal(t, client.Lost, calls[2].State())
		<-shown
		<-calls[2].Lost()
		require.ErrorIs(t, context.Cause(calls[2].Context()), client.ErrLeaseLost)
		require.NoError(t, calls[1].Context().Err())
		mu.Lock()
		require.Len(t, lost, 1)
		require.Contains(t, lost[0].Reason, "OUTCOME_LEASE_LOST")
		lost[0].Reason = ""
		require.Equal(t, client.Loss{Session: "of-c3", ID: "c3", Token: 7}, lost[0])
		mu.Unlock()

		require.NoError(t, c.Close())
		slices.Sort(released)
		require.Equal(t, []string{"of-c1/c1/secret-c1/STATUS_CANCELLED", "of-c2/c2/secret-c2/STATUS_CANCELLED", "test pool-s1/s1/1", "test pool-s2/s2/2"}, released)
		require.ErrorIs(t, context.Cause(calls[1].Context()), client.ErrClosed)
	})
}

// Leases of several TTLs are renewed each at a third of its own, in requests of at most
// 256, and each that is given back is left out of the next.
func TestLeasesAreRenewedByTheirTTL(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(0)
		n.acquire = func(_ context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			return &govnodev1.AcquireSlotResponse{Outcome: client.Admitted, Token: 1, Ttl: r.GetTtl()}, nil
		}
		answer := n.renew
		renewals := map[time.Duration][]int{} // of how many at once
		times := map[time.Duration][]time.Duration{}
		began := time.Now()
		n.renew = func(ctx context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			ttl := r.GetTtl().AsDuration()
			renewals[ttl] = append(renewals[ttl], len(r.GetSlots()))
			times[ttl] = append(times[ttl], time.Since(began))
			return answer(ctx, r)
		}
		var batches []int
		n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
			batches = append(batches, len(r.GetOperations()))
			return allGivenBack(r), nil
		}
		var mu sync.Mutex // the wire answers each request on a goroutine of its own
		guarded := n.renew
		n.renew = func(ctx context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			mu.Lock()
			defer mu.Unlock()
			return guarded(ctx, r)
		}
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"}, func(c *client.Config) { c.Logger = slog.New(slog.DiscardHandler) })
		var given *client.Slot
		for i := range 257 {
			s, err := c.Acquire(t.Context(), "gpu", client.TTL(30*time.Second), client.SlotID(fmt.Sprint("long", i)))
			require.NoError(t, err)
			given = s
		}
		for i := range 2 {
			_, err := c.Acquire(t.Context(), "gpu", client.TTL(12*time.Second), client.SlotID(fmt.Sprint("short", i)))
			require.NoError(t, err)
		}
		time.Sleep(10*time.Second + time.Millisecond)
		synctest.Wait()
		mu.Lock()
		slices.Sort(renewals[30*time.Second])
		require.Equal(t, map[time.Duration][]int{30 * time.Second: {1, 256}, 12 * time.Second: {2, 2}}, renewals)
		require.Equal(t, []time.Duration{4 * time.Second, 8 * time.Second}, times[12*time.Second])
		require.Equal(t, []time.Duration{10 * time.Second, 10 * time.Second}, times[30*time.Second])
		clear(renewals)
		mu.Unlock()
		require.NoError(t, given.Release())
		time.Sleep(10 * time.Second)
		synctest.Wait()
		mu.Lock()
		require.Equal(t, []int{256}, renewals[30*time.Second])
		mu.Unlock()
		require.NoError(t, c.Close())
		require.Equal(t, []int{256, 2}, batches)
	})
}
