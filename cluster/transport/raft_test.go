package transport

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A deaf pipeline is one whose answers nobody takes: a message waits until it
// is closed.
type deaf struct {
	raft.AppendPipeline
	closed chan struct{}
	closes atomic.Int32
}

var errShut = errors.New("pipeline is closed")

func (d *deaf) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	<-d.closed
	return nil, errShut
}

func (d *deaf) Close() error {
	d.closes.Add(1)
	close(d.closed)
	return nil
}

// A prompt pipeline takes each message at once.
type prompt struct{ deaf }

func (*prompt) AppendEntries(*raft.AppendEntriesRequest, *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	return nil, nil
}

// A message that has got under way leaves its pipeline open.
func TestAPipelineStays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := &prompt{deaf{closed: make(chan struct{})}}
		p := newPipeline(t.Context(), d, 6*time.Second)
		for range 2 {
			_, err := p.AppendEntries(nil, nil)
			require.NoError(t, err)
			time.Sleep(time.Minute)
			require.Zero(t, d.closes.Load())
		}
		require.NoError(t, p.Close())
	})
}

// A message that does not get under way ends its pipeline, so that Raft can
// begin anew; so does the end of the node, at once.
func TestAPipelineEnds(t *testing.T) {
	for name, after := range map[string]time.Duration{"by itself": 6 * time.Second, "with its node": time.Second} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx, end := context.WithCancel(t.Context())
				defer end()
				d := &deaf{closed: make(chan struct{})}
				p := newPipeline(ctx, d, 6*time.Second)
				if after < p.limit {
					time.AfterFunc(after, end)
				}
				start := time.Now()
				_, err := p.AppendEntries(nil, nil)
				require.ErrorIs(t, err, errShut)
				require.Equal(t, after, time.Since(start))
				require.NoError(t, p.Close())
				end()
				synctest.Wait()
				require.EqualValues(t, 1, d.closes.Load(), "it is closed once")
			})
		})
	}
}
