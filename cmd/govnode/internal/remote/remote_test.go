package remote

import (
	"context"
	"errors"
	"net/http/httptrace"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// nobody is logged in, so that no token of the user's own is shown.
func nobody(t *testing.T) {
	t.Setenv("HOME", t.TempDir())
	t.Setenv("XDG_CONFIG_HOME", t.TempDir())
}

// connected does what a connection does that is had.
func connected(ctx context.Context) *httptrace.ClientTrace {
	trace := httptrace.ContextClientTrace(ctx)
	if trace == nil {
		trace = &httptrace.ClientTrace{GotFirstResponseByte: func() {}}
	}
	if trace.GotConn != nil {
		trace.GotConn(httptrace.GotConnInfo{})
	}
	return trace
}

// Nodes share the time of a request: one that hangs leaves the others theirs, and one
// that is refused leaves it all of its own. The last has all that is left.
func TestAHangingNodeLeavesTheOthersTheirTime(t *testing.T) {
	nobody(t)
	const timeout = 9 * time.Second
	three := &config.Config{Addr: "127.0.0.1:1,127.0.0.1:2,127.0.0.1:3", Timeout: timeout}
	for _, tt := range []struct {
		name  string
		wait  time.Duration   // how long a node may keep the request waiting
		hang  []time.Duration // each node; 0 for one that fails at once
		asked []time.Duration // when each was
		ok    bool
	}{
		{"the first two hang", 0, []time.Duration{time.Hour, time.Hour, time.Millisecond}, []time.Duration{0, 3 * time.Second, 6 * time.Second}, true},
		{"all hang", 0, []time.Duration{time.Hour, time.Hour, time.Hour}, []time.Duration{0, 3 * time.Second, 6 * time.Second}, false},
		{"one fails", 0, []time.Duration{0, time.Hour, time.Millisecond}, []time.Duration{0, 0, 4500 * time.Millisecond}, true},
		{"the last is slow", 0, []time.Duration{0, 0, 8 * time.Second}, []time.Duration{0, 0, 0}, true},
		{"the first lets it wait", time.Minute, []time.Duration{time.Minute}, []time.Duration{0}, true},
		{"the first hangs while it might wait", time.Minute, []time.Duration{time.Hour, 5 * time.Second}, []time.Duration{0, 63 * time.Second}, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				begun := time.Now()
				var asked []time.Duration
				_, err := Call(t.Context(), three, func(_ Node, ctx context.Context, _ *govnodev1.TakeRateRequest) (*govnodev1.TakeRateResponse, error) {
					connected(ctx)
					hang := tt.hang[len(asked)]
					asked = append(asked, time.Since(begun))
					if hang == 0 {
						return nil, context.Canceled // it is not reached
					}
					select {
					case <-ctx.Done():
						return nil, ctx.Err()
					case <-time.After(hang):
						return &govnodev1.TakeRateResponse{}, nil
					}
				}, &govnodev1.TakeRateRequest{Wait: durationpb.New(tt.wait)})
				require.Equal(t, tt.asked, asked)
				require.Equal(t, tt.ok, err == nil, "%v", err)
				require.LessOrEqual(t, time.Since(begun), timeout+tt.wait)
				if !tt.ok {
					require.ErrorContains(t, err, "127.0.0.1:1 did not answer in time")
					require.ErrorContains(t, err, "127.0.0.1:3 did not answer in time")
				}
			})
		})
	}
}

// What nobody was reached with was not done, and what was sent and not answered may be.
func TestWhatIsNotSentLeavesNothingOpen(t *testing.T) {
	nobody(t)
	for _, sent := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			_, err := Ask(t.Context(), &config.Config{Addr: "127.0.0.1:1,127.0.0.1:2", Timeout: time.Second}, func(ctx context.Context, _ Node) (struct{}, error) {
				if sent {
					connected(ctx)
				}
				<-ctx.Done()
				return struct{}{}, ctx.Err()
			})
			says := map[bool]string{false: "cannot reach 127.0.0.1:2 in time", true: "127.0.0.1:2 did not answer in time"}[sent]
			require.ErrorContains(t, err, says)
			var open *Unknown
			require.Equal(t, sent, errors.As(err, &open))
		})
	}
}

// A node whose answer has begun is not given up for another one: a snapshot takes
// longer than its share.
func TestAnAnswerThatHasBegunIsHeardToItsEnd(t *testing.T) {
	nobody(t)
	synctest.Test(t, func(t *testing.T) {
		asked := 0
		_, err := Ask(t.Context(), &config.Config{Addr: "127.0.0.1:1,127.0.0.1:2", Timeout: 10 * time.Second}, func(ctx context.Context, _ Node) (struct{}, error) {
			asked++
			connected(ctx).GotFirstResponseByte()
			select {
			case <-ctx.Done():
				return struct{}{}, ctx.Err()
			case <-time.After(9 * time.Second):
				return struct{}{}, nil
			}
		})
		require.NoError(t, err)
		require.Equal(t, 1, asked)
	})
}
