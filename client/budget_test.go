package client_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
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
