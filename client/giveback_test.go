package client_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What is being given back is not lost: that it is gone is what was wanted.
func TestGivingBackIsNoLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := granting(3 * time.Second)
		n.renew = func(_ context.Context, r *govnodev1.RenewSlotsRequest) (*govnodev1.RenewSlotsResponse, error) {
			res := &govnodev1.RenewSlotsResponse{}
			for _, s := range r.GetSlots() {
				res.Results = append(res.Results, &govnodev1.SlotRenewal{Slot: s, Outcome: govnodev1.Outcome_OUTCOME_LEASE_EXPIRED})
			}
			return res, nil
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		w.fault = func(_, method string) fault {
			if method == "ReleaseSlot" && w.count(method) == 1 {
				return hang // the node has released it, and its answer does not come
			}
			return none
		}
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.OnLost = func(l client.Loss) { t.Errorf("lost: %+v", l) }
		})
		slot, err := c.Acquire(t.Context(), "gpu", client.TTL(3*time.Second))
		require.NoError(t, err)
		require.NoError(t, slot.Release())
		require.Positive(t, w.count("RenewSlots"), "there must have been a renewal meanwhile")
		require.Equal(t, client.Ended, slot.State())
		require.NoError(t, c.Close())
	})
}

// Release and End count once, whoever calls them again.
func TestGivenBackOnce(t *testing.T) {
	w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
	c := connected(t, w, []string{"a:1"})
	slot, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	for range 3 {
		require.NoError(t, slot.Release())
		require.NoError(t, call.End(t.Context(), client.Failed))
	}
	require.Equal(t, client.Ended, slot.State())
	require.Equal(t, client.Ended, call.State())
	require.Equal(t, 1, w.count("ReleaseSlot"))
	require.Equal(t, 1, w.count("EndCall"))
	require.NoError(t, c.Close())
	require.Zero(t, w.count("BatchCalls"), "nothing was left to give back")
}

// holding is a client with a slot and a call, of a service that says nothing while it is down to
// who gives them back; it is so at first.
func holding(t *testing.T, down *atomic.Bool) (*wire, *client.Client, *client.Slot, *client.OpenCall) {
	w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
	w.fault = func(_, method string) fault {
		if down.Load() && (method == "ReleaseSlot" || method == "EndCall") {
			return hang
		}
		return none
	}
	c := connected(t, w, []string{"a:1"})
	slot, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	down.Store(true)
	return w, c, slot, call
}

// Whoever gives back what another is giving back waits for that no longer than he likes, and
// who asks what came of it is told at once.
func TestGivenBackByTwo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		_, c, slot, call := holding(t, &down)
		first := make(chan error)
		for _, give := range []func(context.Context) error{
			slot.ReleaseContext, func(ctx context.Context) error { return call.End(ctx, client.Succeeded) },
		} {
			go func() { first <- give(t.Context()) }()
		}
		synctest.Wait()
		began := time.Now()
		require.Nil(t, call.Ended())
		shown, _ := call.Shown("x")
		require.Equal(t, "x", shown)
		require.Zero(t, time.Since(began))
		ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
		require.ErrorAs(t, slot.ReleaseContext(ctx), new(*client.Unknown))
		require.Equal(t, 100*time.Millisecond, time.Since(began))
		cancel()
		require.ErrorAs(t, call.End(ctx, client.Succeeded), new(*client.Unknown))
		require.Equal(t, 2100*time.Millisecond, time.Since(began), "it goes on for 2 s")
		down.Store(false)
		require.NoError(t, <-first)
		require.NoError(t, <-first)
		require.NoError(t, call.End(ctx, client.Succeeded), "it is known")
		require.NoError(t, c.Close())
	})
}

// What has no answer is not given back yet: whoever asks once more asks the service.
func TestGivenBackAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var down atomic.Bool
		w, c, slot, call := holding(t, &down)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.Error(t, slot.ReleaseContext(ctx))
		require.Error(t, call.End(ctx, client.Succeeded))
		releases, ends := w.count("ReleaseSlot"), w.count("EndCall")
		down.Store(false)
		require.NoError(t, slot.Release())
		require.NoError(t, call.End(t.Context(), client.Succeeded))
		require.Greater(t, w.count("ReleaseSlot"), releases)
		require.Greater(t, w.count("EndCall"), ends)
		require.NoError(t, c.Close())
	})
}

// A late End says that the lease was lost, and says so again.
func TestEndAfterLoss(t *testing.T) {
	n := granting(30 * time.Second)
	n.end = func(*govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
		return &govnodev1.EndCallResponse{Outcome: govnodev1.Outcome_OUTCOME_LEASE_LOST}, nil
	}
	n.release = func(*govnodev1.ReleaseSlotRequest) (*govnodev1.ReleaseSlotResponse, error) {
		return &govnodev1.ReleaseSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_FENCED}, nil
	}
	w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
	c := connected(t, w, []string{"a:1"})
	slot, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	for range 2 {
		require.ErrorIs(t, call.End(t.Context(), client.Succeeded), client.ErrLeaseLost)
		require.ErrorIs(t, slot.Release(), client.ErrLeaseLost)
	}
	require.Equal(t, 1, w.count("EndCall"))
}

// End is sent although its caller's context is done, and gives up 2 s later if
// nobody answers.
func TestEndWithADoneContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = while(&cut, refuseDial)
		c := connected(t, w, []string{"a:1"})
		ctx, cancel := context.WithCancel(t.Context())
		call, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		require.NoError(t, err)
		other, err := c.Session("s").Begin(ctx, client.Call{Tool: "t"})
		require.NoError(t, err)
		cancel()
		require.NoError(t, call.End(ctx, client.Succeeded))
		require.Equal(t, 1, w.count("EndCall"))
		cut.Store(true)
		began := time.Now()
		require.ErrorIs(t, other.End(ctx, client.Succeeded), context.Canceled)
		require.Equal(t, 2*time.Second, time.Since(began))
		cut.Store(false)
		require.NoError(t, other.End(ctx, client.Succeeded), "it can be tried again")
		require.NoError(t, c.Close())
	})
}

// Close gives everything back in one request, and nothing is renewed or begun
// after it.
func TestClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var released, ended []string
		n := granting(30 * time.Second)
		n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
			for _, op := range r.GetOperations() {
				if e := op.GetEnd(); e != nil {
					ended = append(ended, e.GetSessionId()+"/"+e.GetCallId())
				}
				if l := op.GetRelease(); l != nil {
					released = append(released, fmt.Sprint(l.GetPool(), "/", l.GetSlotId(), "/", l.GetToken(), "/", l.GetClient()))
				}
			}
			return allGivenBack(r), nil
		}
		w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
		c := connected(t, w, []string{"a:1"})
		slot, err := c.Acquire(t.Context(), "gpu", client.SlotID("x"), client.CancelOnLost())
		require.NoError(t, err)
		call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t", ID: "y"})
		require.NoError(t, err)
		given, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.NoError(t, given.Release())

		require.NoError(t, c.Close())
		require.Equal(t, []string{"gpu/x/7/test"}, released)
		require.Equal(t, []string{"s/y"}, ended)
		require.Equal(t, 1, w.count("BatchCalls"))
		require.Error(t, slot.Context().Err())
		require.NoError(t, slot.Release(), "it was given back")
		require.ErrorIs(t, call.End(t.Context(), client.Succeeded), client.ErrClosed, "it was ended as cancelled")
		require.NoError(t, call.End(t.Context(), client.Cancelled))
		require.NoError(t, c.Close())
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		for range 20 {
			require.NoError(t, c.Shutdown(gone), "it is over, whatever the context says")
		}
		_, err = c.Acquire(t.Context(), "gpu")
		require.ErrorIs(t, err, client.ErrClosed)
		_, err = c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
		require.ErrorIs(t, err, client.ErrClosed)
		_, err = c.Status(t.Context())
		require.ErrorIs(t, err, client.ErrClosed)
		w.mu.Lock()
		sent := len(w.sent)
		w.mu.Unlock()
		time.Sleep(time.Hour)
		w.mu.Lock()
		defer w.mu.Unlock()
		require.Len(t, w.sent, sent)
	})
}

// Close is bounded, and ends what is under way.
func TestCloseWithoutAService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cut atomic.Bool
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(time.Hour).handler()}}
		w.fault = while(&cut, hang)
		c := connected(t, w, []string{"a:1"})
		_, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		cut.Store(true)
		waiting := make(chan error)
		go func() {
			_, err := c.Acquire(t.Context(), "gpu")
			waiting <- err
		}()
		synctest.Wait()
		began := time.Now()
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		closed := make(chan error)
		go func() { closed <- c.Shutdown(ctx) }()
		require.ErrorIs(t, <-waiting, client.ErrClosed)
		require.Zero(t, time.Since(began))
		require.ErrorIs(t, <-closed, context.DeadlineExceeded)
		require.Equal(t, time.Second, time.Since(began))
		time.Sleep(time.Minute) // what cleans up has ended, or synctest says so
	})
}

// A node that hangs does not take all the time that there is for giving back.
func TestReleaseTriesAnotherNode(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := granting(30 * time.Second).handler()
		w := &wire{hosts: map[string]http.Handler{"a:1": h, "b:1": h}}
		w.fault = func(host, method string) fault {
			if host == "a:1" && method == "ReleaseSlot" {
				return hang
			}
			return none
		}
		c := connected(t, w, []string{"a:1", "b:1"})
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		began := time.Now()
		require.NoError(t, slot.Release())
		require.Less(t, time.Since(began), 3*time.Second)
		require.NoError(t, c.Close())
	})
}

// Do ends the call as what happened says.
func TestDo(t *testing.T) {
	var ended []govnodev1.Status
	n := granting(30 * time.Second)
	end := n.end
	n.end = func(r *govnodev1.EndCallRequest) (*govnodev1.EndCallResponse, error) {
		ended = append(ended, r.GetStatus())
		return end(r)
	}
	s := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"}).Session("s")
	failure := errors.New("no")
	require.NoError(t, s.Do(t.Context(), client.Call{Tool: "t"}, func(context.Context, *client.OpenCall) error { return nil }))
	require.ErrorIs(t, s.Do(t.Context(), client.Call{Tool: "t"}, func(context.Context, *client.OpenCall) error { return failure }), failure)
	require.Panics(t, func() {
		_ = s.Do(t.Context(), client.Call{Tool: "t"}, func(context.Context, *client.OpenCall) error { panic("ouch") })
	})
	require.Equal(t, []govnodev1.Status{client.Succeeded, client.Failed, client.Failed}, ended)
}

// A refusal says everything that the service said.
func TestRefused(t *testing.T) {
	n := granting(30 * time.Second)
	n.begin = func(context.Context, *govnodev1.BeginCallRequest) (*govnodev1.BeginCallResponse, error) {
		return &govnodev1.BeginCallResponse{
			Outcome: govnodev1.Outcome_OUTCOME_DENIED_BY_POLICY, Reason: "not this tool", DecisionId: "d",
			Decision: &govnodev1.Decision{MatchedRule: "r"}, RetryAfter: durationpb.New(time.Second),
			Counters: &govnodev1.Counters{Attempts: 4},
		}, nil
	}
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
	_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	var refused *client.Refused
	require.ErrorAs(t, err, &refused)
	require.Equal(t, "client: refused: denied_by_policy: not this tool", refused.Error())
	require.Equal(t, "d", refused.DecisionID)
	require.Equal(t, "r", refused.MatchedRule)
	require.Equal(t, time.Second, refused.RetryAfter)
	require.EqualValues(t, 4, refused.Counters.GetAttempts())
	require.NotErrorIs(t, err, client.ErrLeaseLost)
}

// Close waits for what is being given back, and does not do it once more.
func TestCloseWaitsForEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = on(delay, "EndCall", "ReleaseSlot")
		c := connected(t, w, []string{"a:1"})
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
		require.NoError(t, err)
		ended := make(chan error, 2)
		go func() { ended <- call.End(t.Context(), client.Succeeded) }()
		go func() { ended <- slot.Release() }()
		synctest.Wait()
		began := time.Now()
		require.NoError(t, c.Close())
		require.Equal(t, time.Second, time.Since(began))
		require.NoError(t, <-ended)
		require.NoError(t, <-ended)
		require.Zero(t, w.count("BatchCalls"))
	})
}

// What of a batch got no answer is sent again, and only that.
func TestCloseSendsTheRestAgain(t *testing.T) {
	gone := map[string]*govnodev1.OperationError{
		"c": {Code: "not_found"}, "d": {Code: "failed_precondition", Reason: "SESSION_CLOSED"},
		"e": {Code: "already_exists", Reason: "ID_REUSED"}, "f": {Code: "failed_precondition", Reason: "STALE_ID"},
	}
	var batches [][]string
	n := granting(30 * time.Second)
	n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
		var ids []string
		res := &govnodev1.BatchCallsResponse{}
		for _, op := range r.GetOperations() {
			id := op.GetRelease().GetSlotId()
			ids = append(ids, id)
			result := givenBack(op)
			if id == "b" && len(batches) < 2 {
				result.Result = &govnodev1.OperationResult_Error{Error: &govnodev1.OperationError{Code: "unavailable", Reason: "NOT_APPLIED"}}
			}
			if e := gone[id]; e != nil {
				result.Result = &govnodev1.OperationResult_Error{Error: e}
			}
			res.Results = append(res.Results, result)
		}
		slices.Sort(ids)
		batches = append(batches, ids)
		return res, nil
	}
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
	for _, id := range []string{"a", "b", "c", "d", "e", "f"} {
		_, err := c.Acquire(t.Context(), "gpu", client.SlotID(id))
		require.NoError(t, err)
	}
	require.NoError(t, c.Close())
	require.Equal(t, [][]string{{"a", "b", "c", "d", "e", "f"}, {"b"}, {"b"}}, batches)
}

// Where one slot of a batch may have been given back and others were not, the
// outcome of Close is unknown, whichever was answered first.
func TestWhatCloseDoesNotKnow(t *testing.T) {
	const notApplied, unknown = "NOT_APPLIED", "OUTCOME_UNKNOWN"
	for _, c := range []struct {
		answers []string // in their order
		unknown bool
	}{
		{[]string{notApplied, notApplied}, false},
		{[]string{notApplied, unknown}, true},
		{[]string{unknown, notApplied}, true},
		{[]string{"", notApplied, notApplied}, false},
		{[]string{notApplied, "", unknown}, true},
	} {
		synctest.Test(t, func(t *testing.T) {
			n, left := granting(30*time.Second), slices.Clone(c.answers)
			n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
				res := &govnodev1.BatchCallsResponse{}
				for i, op := range r.GetOperations() {
					result := givenBack(op)
					if left[i] != "" {
						result.Result = &govnodev1.OperationResult_Error{Error: &govnodev1.OperationError{Code: "unavailable", Reason: left[i]}}
					}
					res.Results = append(res.Results, result)
				}
				left = slices.DeleteFunc(left, func(reason string) bool { return reason == "" }) // given back
				return res, nil
			}
			cl := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
			for i := range c.answers {
				_, err := cl.Acquire(t.Context(), "gpu", client.SlotID(fmt.Sprint(i)))
				require.NoError(t, err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			err := cl.Shutdown(ctx)
			require.Error(t, err)
			require.Equal(t, c.unknown, errors.As(err, new(*client.Unknown)), "%q: %v", c.answers, err)
		})
	}
}

// Of what Close could not give back nobody says that it was: neither Close, however
// often it is called, nor who gives it back himself. What was given back is.
func TestACloseThatFailed(t *testing.T) {
	objection := &govnodev1.OperationError{Code: "permission_denied", Reason: "PERMISSION_DENIED"}
	for name, test := range map[string]struct {
		first  fault // of the first request
		answer *govnodev1.OperationError
		want   any
		sent   int // 0: as often as there is time
	}{
		"no answer":                         {none, nil, new(*client.Unknown), 0},
		"an objection":                      {none, objection, new(*client.Error), 1},
		"an objection to what may be done":  {dropAnswer, objection, new(*client.Unknown), 2},
		"an objection to what was not sent": {refuseDial, objection, new(*client.Error), 2},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := granting(30 * time.Second)
				n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
					res := &govnodev1.BatchCallsResponse{}
					for _, op := range r.GetOperations() {
						switch {
						case op.GetRelease() != nil:
							res.Results = append(res.Results, givenBack(op))
						case test.answer != nil:
							res.Results = append(res.Results, &govnodev1.OperationResult{Tag: op.GetTag(), Result: &govnodev1.OperationResult_Error{Error: test.answer}})
						}
					}
					return res, nil
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
				w.fault = func(_, method string) fault {
					if method == "BatchCalls" && w.count(method) == 1 {
						return test.first
					}
					return none
				}
				c := connected(t, w, []string{"a:1"})
				slot, err := c.Acquire(t.Context(), "gpu")
				require.NoError(t, err)
				call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
				require.NoError(t, err)
				why := c.Close()
				require.ErrorAs(t, why, test.want)
				for range 2 {
					require.ErrorAs(t, call.End(t.Context(), client.Succeeded), test.want)
					require.NoError(t, slot.Release())
					require.Equal(t, why, c.Close())
				}
				if test.sent > 0 {
					require.Equal(t, test.sent, w.count("BatchCalls"))
				}
			})
		})
	}
}

// What the service holds no longer need not be given back. Who does so himself
// learns that it was lost.
func TestCloseAfterALoss(t *testing.T) {
	n := granting(30 * time.Second)
	n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
		res := allGivenBack(r)
		for _, one := range res.GetResults() {
			if e := one.GetEnd(); e != nil {
				e.Outcome = client.LeaseLost
			} else {
				one.GetRelease().Outcome = client.Fenced
			}
		}
		return res, nil
	}
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}, []string{"a:1"})
	slot, err := c.Acquire(t.Context(), "gpu")
	require.NoError(t, err)
	call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
	require.NoError(t, err)
	require.NoError(t, c.Close())
	require.ErrorIs(t, slot.Release(), client.ErrLeaseLost)
	require.ErrorIs(t, call.End(t.Context(), client.Succeeded), client.ErrLeaseLost)
}

// Who gives something back that Close is about to learns what comes of that, or, if
// he cannot wait for it, that he does not know.
func TestEndWaitsForClose(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{"a:1": granting(30 * time.Second).handler()}}
		w.fault = func(_, method string) fault {
			if method == "BatchCalls" && w.count(method) == 1 {
				return hang // for half of its time
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		call, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t"})
		require.NoError(t, err)
		closed := make(chan error, 1)
		go func() { closed <- c.Close() }()
		synctest.Wait()
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		var unknown *client.Unknown
		require.ErrorAs(t, slot.ReleaseContext(gone), &unknown)
		require.Equal(t, slot.ID(), unknown.ID)
		require.ErrorIs(t, c.Shutdown(gone), context.Canceled)
		began := time.Now()
		require.ErrorAs(t, call.End(gone, client.Cancelled), &unknown)
		require.Equal(t, 2*time.Second, time.Since(began), "it waits a little")
		require.NoError(t, slot.Release())
		require.NoError(t, call.End(t.Context(), client.Cancelled))
		require.NoError(t, c.Close())
		require.NoError(t, <-closed)
	})
}
