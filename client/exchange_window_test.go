package client_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What was set apart, and has its answer, leaves no room behind: the client never
// has more frames unanswered than the node allows beside those.
func TestTheWindowIsNotWidenedByWhatWasSetApart(t *testing.T) {
	const window = 2
	var apart atomic.Bool
	var most atomic.Int64
	s := &streamer{node: granting(time.Minute)}
	s.exchange = reading(&govnodev1.ExchangeResponse{MaxInFlight: window}, func(_ context.Context, stream *exchangeStream, frames []*govnodev1.Operation) error {
		out := &govnodev1.ExchangeResponse{}
		for _, f := range frames {
			if f.GetBegin() == nil {
				out.Answers = append(out.Answers, released([]*govnodev1.Operation{f})[0])
				continue
			}
			if apart.Load() {
				if err := stream.Send(&govnodev1.ExchangeResponse{Apart: []uint64{f.GetTag()}}); err != nil {
					return err
				}
			}
			out.Answers = append(out.Answers, admitted(f.GetTag()))
		}
		most.Store(max(most.Load(), int64(len(frames))))
		return stream.Send(out)
	})
	c := streaming(t, []string{listen(t, s.handler()).URL})
	session := c.Session("s")
	for _, now := range []bool{true, false} {
		apart.Store(now)
		most.Store(0)
		var all sync.WaitGroup
		for range 100 {
			all.Go(func() {
				_, err := session.Begin(t.Context(), client.Call{Tool: "t"})
				if err != nil {
					t.Error(err)
				}
			})
		}
		all.Wait()
		require.LessOrEqual(t, most.Load(), int64(window))
	}
}
