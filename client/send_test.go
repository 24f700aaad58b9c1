package client_test

import (
	"context"
	"errors"
	"net/http"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Whatever keeps an answer from arriving, the request is sent again with the
// id it had.
func TestSendsAgainWithTheSameID(t *testing.T) {
	for name, f := range map[string]fault{
		"no connection": refuseDial, "request lost": dropRequest, "answer lost": dropAnswer, "503 on the way": badGateway, "node hangs": hang,
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var ids []string
				n := granting(30 * time.Second)
				grant := n.acquire
				n.acquire = func(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
					ids = append(ids, r.GetSlotId())
					return grant(ctx, r)
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
				w.fault = func(_, method string) fault {
					if method == "AcquireSlot" && w.count(method) <= 2 {
						return f
					}
					return none
				}
				c := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Timeout = 30 * time.Second })
				slot, err := c.Acquire(t.Context(), "gpu")
				require.NoError(t, err)
				require.Equal(t, 3, w.count("AcquireSlot"))
				for _, id := range ids {
					require.Equal(t, slot.ID(), id)
				}
				require.NoError(t, c.Close())
			})
		})
	}
}

// Without an answer in time the outcome is unknown if the request may have
// arrived, and certainly nothing if it cannot have.
func TestUnknownAndUnavailable(t *testing.T) {
	tests := []struct {
		name    string
		fault   fault
		err     error
		unknown bool
	}{
		{"no connection", refuseDial, nil, false},
		{"answer lost", dropAnswer, nil, true},
		{"503 on the way", badGateway, nil, true},
		{"node hangs", hang, nil, true},
		{"not applied", none, objection(connect.CodeUnavailable, "NOT_APPLIED", nil), false},
		{"outcome unknown", none, objection(connect.CodeUnavailable, "OUTCOME_UNKNOWN", nil), true},
		{"unavailable without a reason", none, connect.NewError(connect.CodeUnavailable, errors.New("?")), true},
		{"deadline of the node", none, connect.NewError(connect.CodeDeadlineExceeded, errors.New("?")), true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := granting(30 * time.Second)
				if tt.err != nil {
					n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
						return nil, tt.err
					}
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}, fault: on(tt.fault, "AcquireSlot")}
				c := connected(t, w, []string{"a:1"})
				began := time.Now()
				_, err := c.Acquire(t.Context(), "gpu", client.Wait(client.NoWait), client.SlotID("mine"))
				var unknown *client.Unknown
				var unavailable *client.Unavailable
				require.Equal(t, tt.unknown, errors.As(err, &unknown), "%v", err)
				require.Equal(t, !tt.unknown, errors.As(err, &unavailable), "%v", err)
				if tt.unknown {
					require.Equal(t, "mine", unknown.ID)
				}
				require.ErrorIs(t, err, context.DeadlineExceeded)
				require.Equal(t, 10*time.Second, time.Since(began), "it must use its own deadline")
				require.Greater(t, w.count("AcquireSlot"), 1)
				require.NoError(t, c.Close())
			})
		})
	}
}

// An objection of the service is not sent again.
func TestObjectionIsFinal(t *testing.T) {
	for _, code := range []connect.Code{connect.CodeInvalidArgument, connect.CodeNotFound, connect.CodeResourceExhausted, connect.CodePermissionDenied, connect.CodeInternal} {
		n := granting(time.Second)
		n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			return nil, objection(code, "WHY", nil)
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		_, err := connected(t, w, []string{"a:1"}).Acquire(t.Context(), "gpu")
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, code, e.Code)
		require.Equal(t, client.Reason("WHY"), e.Reason)
		require.Equal(t, 1, w.count("AcquireSlot"))
	}
}

// A node that takes nothing new for want of room or of a leader is asked again
// when it said, and others in between, with the same id: such a refusal passes by
// itself, as that of a cap does not.
func TestRefusalsThatPassByThemselves(t *testing.T) {
	const exhausted, unavailable = connect.CodeResourceExhausted, connect.CodeUnavailable
	in := func(d time.Duration) []proto.Message {
		return []proto.Message{&errdetails.RetryInfo{RetryDelay: durationpb.New(d)}}
	}
	for name, test := range map[string]struct {
		refusal error
		pause   time.Duration
	}{
		"after what the node says":   {objection(exhausted, "OVERLOADED", nil, in(3*time.Second)...), 3 * time.Second},
		"after a second, by default": {objection(exhausted, "OVERLOADED", nil), time.Second},
		"of what comes again":        {objection(exhausted, "QUOTA_EXCEEDED", nil, in(3*time.Second)...), 3 * time.Second},
		"without a leader":           {objection(unavailable, "NOT_APPLIED", nil, in(2*time.Second)...), 2 * time.Second},
		"who asks for nothing":       {objection(unavailable, "NOT_APPLIED", nil), 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				full, free := granting(30*time.Second), granting(30*time.Second)
				var ids []string
				var at []time.Time
				refuse := func(_ context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
					ids, at = append(ids, r.GetSlotId()), append(at, time.Now())
					if len(ids) < 3 {
						return nil, test.refusal
					}
					return &govnodev1.AcquireSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, Token: 1, Ttl: durationpb.New(time.Minute)}, nil
				}
				full.acquire, free.acquire = refuse, refuse
				w := &wire{hosts: map[string]http.Handler{"a:1": full.handler(), "b:1": free.handler()}}
				c := connected(t, w, []string{"a:1", "b:1"})
				slot, err := c.Acquire(t.Context(), "gpu")
				require.NoError(t, err)
				require.Equal(t, []string{slot.ID(), slot.ID(), slot.ID()}, ids)
				for i, jitter := range []time.Duration{25, 50} {
					require.Equal(t, test.pause+jitter*time.Millisecond, at[i+1].Sub(at[i]), "pause %d", i)
				}
				w.mu.Lock()
				require.Contains(t, w.sent, "b:1 AcquireSlot", "the other node may have room")
				w.mu.Unlock()
				require.NoError(t, c.Close())
			})
		})
	}
}

// Where it does not pass in time nothing was done, and the caller learns why; it
// costs the budget what other repetitions do.
func TestOverloadedUntilTheEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			return nil, objection(connect.CodeResourceExhausted, "OVERLOADED", nil)
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.Budget = client.Budget{Burst: 3, PerSecond: 1e-9, Ratio: 1e-9}
		})
		began := time.Now()
		_, err := c.Acquire(t.Context(), "gpu", client.Wait(client.NoWait), client.SlotID("mine"))
		var unavailable *client.Unavailable
		require.ErrorAs(t, err, &unavailable)
		require.Equal(t, connect.CodeResourceExhausted, connect.CodeOf(err), "the last refusal is what the caller can look at: %v", err)
		require.Equal(t, 10*time.Second, time.Since(began))
		require.Equal(t, 1+3, w.count("AcquireSlot"))
		require.NoError(t, c.Close())
	})
}

// An address where something else answers is an error at once, not a wait.
func TestNotGovnode(t *testing.T) {
	w := &wire{hosts: map[string]http.Handler{"a:1": http.NotFoundHandler()}}
	_, err := connected(t, w, []string{"a:1"}).Acquire(t.Context(), "gpu")
	var e *client.Error
	require.ErrorAs(t, err, &e)
	require.Equal(t, connect.CodeUnimplemented, e.Code)
}

// An id that is too old is replaced by one that is new enough, unless the old
// one may have been carried out, or is its user's.
func TestStaleID(t *testing.T) {
	newerThan := uint64(time.Now().Add(30 * time.Minute).UnixMilli())
	stale := objection(connect.CodeFailedPrecondition, "STALE_ID", map[string]string{"newerThan": strconv.FormatUint(newerThan, 10)})
	n := granting(30 * time.Second)
	grant := n.acquire
	var ids []string
	n.acquire = func(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
		ids = append(ids, r.GetSlotId())
		if id, err := ulid.Parse(r.GetSlotId()); err != nil || id.Time() <= newerThan {
			return nil, stale
		}
		return grant(ctx, r)
	}
	lost := false
	w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
	w.fault = func(_, method string) fault {
		if method == "AcquireSlot" && lost {
			lost = false
			return dropAnswer
		}
		return none
	}

	t.Run("a new id", func(t *testing.T) {
		c := connected(t, w, []string{"a:1"})
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.Len(t, ids, 2)
		require.Equal(t, newerThan+1, ulid.MustParse(slot.ID()).Time())
		again, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.Len(t, ids, 3, "the next id is new enough at once")
		require.Greater(t, again.ID(), slot.ID())
	})
	t.Run("sent before", func(t *testing.T) {
		lost = true
		_, err := connected(t, w, []string{"a:1"}).Acquire(t.Context(), "gpu")
		var unknown *client.Unknown
		require.ErrorAs(t, err, &unknown)
	})
	t.Run("chosen by the user", func(t *testing.T) {
		_, err := connected(t, w, []string{"a:1"}).Acquire(t.Context(), "gpu", client.SlotID("mine"))
		var e *client.Error
		require.ErrorAs(t, err, &e)
		require.Equal(t, client.ReasonStaleID, e.Reason)
	})
}

// A client does not make ids of a time far ahead of its own clock, whatever a
// namespace has forgotten, and says what is wrong; another namespace is not
// concerned.
func TestIDsStayCloseToTheClock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		grant := n.acquire
		var newerThan int64
		n.acquire = func(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			if id, err := ulid.Parse(r.GetSlotId()); err != nil || int64(id.Time()) <= newerThan {
				return nil, objection(connect.CodeFailedPrecondition, "STALE_ID", map[string]string{"newerThan": strconv.FormatInt(newerThan, 10)})
			}
			return grant(ctx, r)
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		c := connected(t, w, []string{"a:1"})
		for _, ahead := range []time.Duration{time.Hour, 1000 * time.Hour} {
			newerThan = time.Now().Add(ahead).UnixMilli()
			_, err := c.Acquire(t.Context(), "gpu")
			var e *client.Error
			require.ErrorAs(t, err, &e)
			require.Equal(t, client.ReasonStaleID, e.Reason)
			require.ErrorContains(t, err, "set this clock right if it is behind")
			require.ErrorContains(t, err, "govnode repair")
		}
		newerThan = time.Now().Add(time.Hour - time.Millisecond).UnixMilli()
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.EqualValues(t, newerThan+1, ulid.MustParse(slot.ID()).Time())
		newerThan = 0
		other := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Namespace = "other" })
		slot, err = other.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.EqualValues(t, time.Now().UnixMilli(), ulid.MustParse(slot.ID()).Time(), "what one namespace has forgotten is nothing to another")
		require.NoError(t, c.Close())
		require.NoError(t, other.Close())
	})
}

// However many operations fail for however long, what is sent again is at most
// the burst, a tenth of the operations, and one a second.
func TestBudgetBoundsTheLoad(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const operations, burst = 200, 20
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(time.Second).handler()}}
		w.fault = on(refuseDial, "AcquireSlot")
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.Timeout = 20 * time.Second
			c.Budget.Burst = burst
		})
		var all sync.WaitGroup
		for range operations {
			all.Go(func() {
				_, err := c.Acquire(t.Context(), "gpu", client.Wait(client.NoWait))
				var unavailable *client.Unavailable
				if !errors.As(err, &unavailable) {
					t.Errorf("want Unavailable, got %v", err)
				}
			})
		}
		all.Wait()
		again := w.count("AcquireSlot") - operations
		require.GreaterOrEqual(t, again, burst, "the budget must be used")
		require.LessOrEqual(t, again, burst+operations/10+20)
		require.NoError(t, c.Close())
	})
}

// Pauses are random up to a bound that doubles from 50 ms to 1 s.
func TestPausesGrow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var at []time.Time
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(time.Second).handler()}}
		w.fault = func(_, method string) fault {
			if method != "AcquireSlot" {
				return none
			}
			at = append(at, time.Now())
			return refuseDial
		}
		c := connected(t, w, []string{"a:1"}) // Random returns a half
		_, err := c.Acquire(t.Context(), "gpu", client.Wait(client.NoWait))
		require.Error(t, err)
		for i, want := range []time.Duration{25, 50, 100, 200, 400, 500, 500} {
			require.Equal(t, want*time.Millisecond, at[i+1].Sub(at[i]), "pause %d", i)
		}
		require.NoError(t, c.Close())
	})
}

// A caller that goes away leaves nothing behind: what its request was granted
// all the same is given back.
func TestAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		released := make(chan *govnodev1.EndCallRequest, 1)
		n := granting(30 * time.Second)
		n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
			for _, op := range r.GetOperations() {
				if e := op.GetEnd(); e != nil {
					released <- e
				}
			}
			return allGivenBack(r), nil
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		w.fault = on(dropAnswer, "BeginCall")
		c := connected(t, w, []string{"a:1"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		var unknown *client.Unknown
		require.ErrorAs(t, err, &unknown)
		ended := <-released
		require.Equal(t, unknown.ID, ended.GetCallId())
		require.Equal(t, client.Cancelled, ended.GetStatus())
		require.NoError(t, c.Close())
	})
}

// A call that the service does not know yet may be held by a guardrail, and be
// admitted later, for nobody. It is asked for again as long as that can be.
func TestAbandonedWhileItIsHeld(t *testing.T) {
	for name, test := range map[string]struct {
		after time.Duration // the caller has gone
		ended bool
		asked time.Duration // last
	}{
		"admitted late": {6 * time.Second, true, 7 * time.Second},
		"never":         {time.Hour, false, 13 * time.Second}, // its wait, an attempt and a second, from the beginning on
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := granting(30 * time.Second)
				var gone, asked time.Time
				times, ended := 0, false
				n.cancel = func(*govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
					times, asked = times+1, time.Now()
					if asked.Sub(gone) < test.after {
						return nil, objection(connect.CodeNotFound, "NOT_FOUND", nil)
					}
					return &govnodev1.CancelCallResponse{Outcome: client.Admitted}, nil
				}
				n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
					ended = true
					return allGivenBack(r), nil
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
				w.fault = on(hang, "BeginCall")
				c := connected(t, w, []string{"a:1"})
				ctx, cancel := context.WithCancel(t.Context())
				time.AfterFunc(3*time.Second, func() { gone = time.Now(); cancel() })
				_, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
				require.ErrorAs(t, err, new(*client.Unknown))
				time.Sleep(time.Minute)
				synctest.Wait()
				require.Equal(t, test.ended, ended)
				require.Equal(t, test.asked, asked.Sub(gone))
				require.Less(t, times, 6, "ever more rarely: each costs its namespace an operation")
				require.NoError(t, c.Close())
			})
		})
	}
}

// Close waits for what is given back behind a caller that has gone, and says what was
// not, or what it does not know.
func TestCloseWhileACallIsAbandoned(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		n.cancel = func(*govnodev1.CancelCallRequest) (*govnodev1.CancelCallResponse, error) {
			return nil, objection(connect.CodeNotFound, "NOT_FOUND", nil)
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		w.fault = on(hang, "BeginCall")
		c := connected(t, w, []string{"a:1"})
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		require.ErrorAs(t, err, new(*client.Unknown))
		began := time.Now()
		require.Error(t, c.Close())
		require.Equal(t, 5*time.Second, time.Since(began))
	})
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = func(_, method string) fault {
			switch method {
			case "BeginCall":
				return dropAnswer
			case "BatchCalls":
				return hang
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		require.ErrorAs(t, err, new(*client.Unknown))
		require.Error(t, c.Close())
	})
}

// A node that took a broken connection for a caller that gave up has cancelled
// the wait. The caller goes on under another id, and not if the id is its own.
func TestCancelledByTheNode(t *testing.T) {
	n := granting(30 * time.Second)
	grant := n.acquire
	cancelled := ""
	n.acquire = func(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
		if cancelled == "" {
			cancelled = r.GetSlotId()
		}
		if r.GetSlotId() == cancelled {
			return &govnodev1.AcquireSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_CANCELLED}, nil
		}
		return grant(ctx, r)
	}
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
	slot, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	require.NotEqual(t, cancelled, slot.ID())
	cancelled = "mine"
	_, err = c.Acquire(t.Context(), "gpu", client.SlotID("mine"))
	var refused *client.Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, govnodev1.Outcome_OUTCOME_CANCELLED, refused.Outcome)
}

// A grant that was long under way is asked for again, so that the lease counts
// from a request that was sent a moment ago.
func TestGrantAfterAWait(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(30 * time.Second)
		granted := time.Time{}
		var waits []time.Duration
		n.acquire = func(_ context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
			waits = append(waits, r.GetWait().AsDuration())
			if granted.IsZero() {
				time.Sleep(50 * time.Second) // in the queue
				granted = time.Now()
			}
			return &govnodev1.AcquireSlotResponse{
				Outcome: govnodev1.Outcome_OUTCOME_ADMITTED, Token: 1,
				Ttl: durationpb.New(30*time.Second - time.Since(granted)),
			}, nil
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		c := connected(t, w, []string{"a:1"})
		slot, err := c.Acquire(t.Context(), "gpu", client.Wait(time.Minute))
		require.NoError(t, err)
		require.Equal(t, client.Held, slot.State())
		require.Equal(t, []time.Duration{time.Minute, 10 * time.Second}, waits, "the wait is what is left of it")
		require.Equal(t, granted.Add(30*time.Second*99/100), slot.Deadline())
		require.NoError(t, c.Close())
	})
}
