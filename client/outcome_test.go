package client_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// An attempt is what becomes of one request.
type attempt int

const (
	cannotConnect  attempt = iota // untouched
	saysNotApplied                // untouched
	saysOverloaded                // untouched
	lostOnTheWay                  // may have had an effect
	saysUnknown                   // may have had an effect
	saysPlain                     // may have had an effect: unavailable without a reason
	objects                       // says that it is not possible
	saysStale                     // says that it cannot tell whether it knows the id
	admitsLate                    // it was done, and the answer took long
	admits                        // it was done
	attempts
)

// joined is the error that a sequence of attempts comes to, as a type; empty
// for an answer. When the sequence is over nobody can be reached any more.
func joined(sequence []attempt) string {
	touched, late := false, 0
	for _, a := range sequence {
		switch a {
		case lostOnTheWay, saysUnknown, saysPlain:
			touched = true
		case admitsLate: // it is asked for once more, three times at most
			touched = true
			if late++; late > 3 {
				return ""
			}
		case admits:
			return ""
		case objects, saysStale:
			if !touched {
				return "*client.Error"
			}
			return "*client.Unknown"
		}
	}
	if touched {
		return "*client.Unknown"
	}
	return "*client.Unavailable"
}

// The error of an operation is what all of its attempts come to together: that
// something may have been done is taken back by no later one, whatever it says.
func TestTheErrorIsTheJoinOfTheAttempts(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	sequences := [][]attempt{{admitsLate}, {admitsLate, saysNotApplied}, {lostOnTheWay, objects}, {saysUnknown, saysStale}, {admitsLate, objects}}
	for range 300 {
		s := make([]attempt, 1+random.IntN(5))
		for i := range s {
			s[i] = attempt(random.IntN(int(attempts)))
		}
		sequences = append(sequences, s)
	}
	for _, sequence := range sequences {
		synctest.Test(t, func(t *testing.T) {
			n := granting(30 * time.Second)
			at := 0
			next := func() attempt {
				if at >= len(sequence) {
					return cannotConnect
				}
				return sequence[at]
			}
			n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
				now := next()
				at++
				switch now {
				case saysNotApplied:
					return nil, objection(connect.CodeUnavailable, "NOT_APPLIED", nil)
				case saysOverloaded:
					return nil, objection(connect.CodeResourceExhausted, "OVERLOADED", nil)
				case saysUnknown:
					return nil, objection(connect.CodeUnavailable, "OUTCOME_UNKNOWN", nil)
				case saysPlain:
					return nil, connect.NewError(connect.CodeUnavailable, fmt.Errorf("nothing was applied, or so the text says"))
				case objects:
					return nil, objection(connect.CodeNotFound, "NOT_FOUND", nil)
				case saysStale:
					return nil, objection(connect.CodeFailedPrecondition, "STALE_ID", map[string]string{"newerThan": "1"})
				case admitsLate:
					time.Sleep(12 * time.Second)
				}
				return granting(30*time.Second).acquire(t.Context(), nil)
			}
			w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
			w.fault = func(_, method string) fault {
				if method != "AcquireSlot" {
					return none
				}
				switch next() {
				case cannotConnect:
					at++
					return refuseDial
				case lostOnTheWay:
					return dropAnswer
				}
				return none
			}
			c := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Budget.Burst = 1e6 })
			_, err := c.Acquire(t.Context(), "gpu", client.SlotID("mine"), client.Wait(time.Minute))
			got := ""
			if err != nil {
				got = fmt.Sprintf("%T", err)
			}
			require.Equal(t, joined(sequence), got, "%v: %v", sequence, err)
			w.mu.Lock()
			w.fault = nil
			w.mu.Unlock()
			require.NoError(t, c.Close())
		})
	}
}

// What is given back when the client closes is a change like others: where the
// answer is lost it is not said to be undone, and it has a name.
func TestGivingBackMayBeUnknown(t *testing.T) {
	for name, test := range map[string]struct {
		reason string
		want   any
	}{
		"unknown": {"OUTCOME_UNKNOWN", new(*client.Unknown)}, "not applied": {"NOT_APPLIED", new(*client.Unavailable)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := granting(time.Minute)
				n.batch = func(r *govnodev1.BatchCallsRequest) (*govnodev1.BatchCallsResponse, error) {
					res := &govnodev1.BatchCallsResponse{}
					for _, op := range r.GetOperations() {
						e := &govnodev1.OperationError{Code: "unavailable", Reason: test.reason}
						res.Results = append(res.Results, &govnodev1.OperationResult{Tag: op.GetTag(), Result: &govnodev1.OperationResult_Error{Error: e}})
					}
					return res, nil
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
				c := connected(t, w, []string{"a:1"})
				for _, id := range []string{"one", "two"} {
					_, err := c.Acquire(t.Context(), "gpu", client.SlotID(id))
					require.NoError(t, err)
				}
				err := c.Close()
				require.ErrorAs(t, err, test.want)
				if u, ok := test.want.(**client.Unknown); ok {
					require.Regexp(t, "^(one|two) and 1 more$", (*u).ID)
				}
			})
		})
	}
}

// A request is its caller's, who may send it to another client.
func TestARequestStaysAsItIs(t *testing.T) {
	h, stop := service(t)
	defer stop()
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"})
	req := &govnodev1.PutPolicyRequest{Yaml: servicePolicy}
	before := proto.CloneOf(req)
	_, err := c.PutPolicyTree(t.Context(), req)
	require.NoError(t, err)
	require.True(t, proto.Equal(before, req), "%v", req)
}
