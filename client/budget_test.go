package client_test

import (
	"context"
	"errors"
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A stream that breaks costs the budget one repetition, however many requests were
// on it, also of those that wait for nothing.
func TestABrokenStreamIsChargedOnce(t *testing.T) {
	const calls = 50
	var streams atomic.Int64
	s := &streamer{node: granting(time.Minute)}
	s.exchange = func(_ context.Context, stream *exchangeStream) error {
		first := streams.Add(1) == 1
		if err := stream.Send(&govnodev1.ExchangeResponse{MaxInFlight: 1024}); err != nil {
			return err
		}
		for seen := 0; ; {
			m, err := stream.Receive()
			if err != nil {
				return nil
			}
			out := &govnodev1.ExchangeResponse{}
			for _, f := range m.GetFrames() {
				if seen++; first {
					out.Apart = append(out.Apart, f.GetTag()) // so that more are sent
					continue
				}
				if f.GetBegin() == nil {
					out.Answers = append(out.Answers, released([]*govnodev1.Operation{f})[0])
					continue
				}
				out.Answers = append(out.Answers, admitted(f.GetTag()))
			}
			if first && seen == calls {
				return connect.NewError(connect.CodeInternal, errors.New("as the test wants it"))
			}
			if err := stream.Send(out); err != nil {
				return err
			}
		}
	}
	c := streaming(t, []string{listen(t, s.handler()).URL}, func(c *client.Config) {
		c.Budget = client.Budget{Burst: 1, PerSecond: 1e-9, Ratio: 1e-9}
	})
	var all sync.WaitGroup
	for range calls {
		all.Go(func() {
			_, err := c.Session("s").Begin(t.Context(), client.Call{Tool: "t", Wait: client.NoWait})
			require.NoError(t, err)
		})
	}
	all.Wait()
	require.EqualValues(t, 2, streams.Load())
}

// A node that is slow to say that it takes nothing has given nobody a place in a
// queue: those whom it refuses are charged for each attempt.
func TestBudgetOfThoseWhoAreRefusedSlowly(t *testing.T) {
	for _, took := range []time.Duration{50 * time.Millisecond, 150 * time.Millisecond} {
		t.Run(took.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				n := granting(30 * time.Second)
				tries := 0
				n.acquire = func(context.Context, *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
					tries++
					time.Sleep(took)
					return nil, objection(connect.CodeUnavailable, "NOT_APPLIED", nil)
				}
				w := &wire{hosts: map[string]http.Handler{"a:1": n.handler()}}
				c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
					c.Budget = client.Budget{Burst: 3, PerSecond: 1e-9, Ratio: 1e-9}
				})
				_, err := c.Acquire(t.Context(), "gpu", client.Wait(time.Minute))
				require.Error(t, err)
				require.LessOrEqual(t, tries, 5)
				require.NoError(t, c.Close())
			})
		})
	}
}
