package client

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client/internal/wire"
	"example.com/govnode/internal/window"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A noStream takes everything, and brings nothing.
type noStream struct{ wire.Stream }

func (noStream) Put(*wire.Parcel, uint64, time.Duration) {}

// idleLink is a link whose stream nobody serves.
func idleLink(c *Client) *link {
	ctx, cancel := context.WithCancelCause(context.Background())
	return newLink(ctx, cancel, &line{c: c, node: &node{address: "a:1"}}, noStream{}, &wire.Inbox{MaxInFlight: 1024})
}

func idleClient(t *testing.T) *Client {
	t.Helper()
	c, err := New(Config{Addresses: []string{"a:1"}})
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// onLink asks over a link, as errand.overStream does, and returns why there is no
// answer.
func onLink(k *link, e *errand) error {
	f := &frame{Parcel: wire.Parcel{Kind: wire.KindBegin}, done: make(chan error, 1)} // of this bubble, and of no other
	f.limit = e.limit()
	f.told = f.limit
	if err := k.add(f); err != nil {
		return err
	}
	return k.wait(e, f)
}

func (k *link) packAll(t *testing.T) {
	t.Helper()
	_, err := k.pack(nil)
	require.NoError(t, err)
}

// One timer for all frames tells each at its own limit, to the moment, in
// whatever order they were added; and says which were sent.
func TestEachFrameHasItsLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := idleLink(idleClient(t))
		began := time.Now()
		var all sync.WaitGroup
		ask := func(limit time.Duration, sent bool) {
			all.Go(func() {
				e := &errand{c: k.line.c, caller: t.Context(), end: began.Add(time.Hour), until: began.Add(limit)}
				err := onLink(k, e)
				if at := time.Since(began); at != limit {
					t.Errorf("a frame with %v was told after %v", limit, at)
				}
				if !errors.Is(err, context.DeadlineExceeded) || errors.Is(err, errNotSent) == sent {
					t.Errorf("sent %v: %v", sent, err)
				}
			})
			synctest.Wait()
		}
		for _, ms := range []time.Duration{500, 200, 900, 200, 100, 901} {
			ask(ms*time.Millisecond, true)
		}
		k.packAll(t)
		for _, ms := range []time.Duration{300, 150, 1200} {
			ask(ms*time.Millisecond, false)
		}
		all.Wait()
		over := make(chan error)
		go func() {
			_, err := k.pack(nil)
			over <- err
		}()
		synctest.Wait()
		require.Len(t, k.open, 6, "what nobody waits for any more is not sent")
		k.cancel(errors.New("over"))
		require.Error(t, <-over)
		ask(2*time.Second, false) // the alarm is set again
		all.Wait()
	})
}

// What answers come to frames that nobody waits for is taken and forgotten, and
// makes room.
func TestAnswerAfterTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := idleLink(idleClient(t))
		e := &errand{c: k.line.c, caller: t.Context(), end: time.Now().Add(time.Hour), until: time.Now().Add(time.Second)}
		told := make(chan error, 1)
		go func() { told <- onLink(k, e) }()
		synctest.Wait()
		k.packAll(t)
		require.ErrorIs(t, <-told, context.DeadlineExceeded)
		require.Len(t, k.open, 1, "the node has not answered it")
		k.take(&wire.Inbox{Answers: []wire.Answer{{Tag: 1, Result: wire.Result{Kind: wire.KindBegin}}}})
		require.Empty(t, k.open)
		k.fail(errors.New("over"))
	})
}

// A frame that nobody waits for any more may be told at the same moment that it waits:
// that is for the link alone, since who has given it up still looks at it.
func TestANoticeAtTheLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		k := idleLink(idleClient(t))
		e := &errand{c: k.line.c, caller: t.Context(), end: time.Now().Add(time.Hour), until: time.Now().Add(time.Second)}
		told := make(chan error, 1)
		go func() { told <- onLink(k, e) }()
		synctest.Wait()
		k.packAll(t)
		time.Sleep(time.Second)
		k.take(&wire.Inbox{Answers: []wire.Answer{{Tag: 1, Result: wire.Result{Kind: wire.KindBegin, Outcome: govnodev1.Outcome_OUTCOME_QUEUED}}}})
		require.ErrorIs(t, <-told, context.DeadlineExceeded)
		require.Equal(t, 1, k.window.Count(window.Waiting))
		k.fail(errors.New("over"))
	})
}

// What lingers goes on over a stream for that long when its caller is done, and
// no longer; what does not ends at once.
func TestLingersOverAStream(t *testing.T) {
	for name, tt := range map[string]struct {
		linger, gone time.Duration // gone: when the caller goes
		want         time.Duration
		err          error
	}{
		"does not linger":       {0, time.Second, time.Second, context.Canceled},
		"lingers":               {2 * time.Second, time.Second, 3 * time.Second, context.DeadlineExceeded},
		"gone from the start":   {2 * time.Second, 0, 2 * time.Second, context.DeadlineExceeded},
		"until the node's time": {2 * time.Second, 4 * time.Second, 5 * time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				k := idleLink(idleClient(t))
				began := time.Now()
				ctx, cancel := context.WithCancel(t.Context())
				defer cancel()
				if tt.gone > 0 {
					time.AfterFunc(tt.gone, cancel)
				} else {
					cancel()
				}
				e := &errand{operation: operation{linger: tt.linger}, c: k.line.c, caller: ctx, end: began.Add(10 * time.Second), until: began.Add(5 * time.Second)}
				require.NoError(t, e.over(began))
				require.ErrorIs(t, onLink(k, e), tt.err)
				require.Equal(t, tt.want, time.Since(began))
				if tt.want < 5*time.Second {
					require.ErrorIs(t, e.over(time.Now()), context.Canceled, "the caller is why it is over")
				} else {
					require.NoError(t, e.over(time.Now()), "another node may be asked")
				}
			})
		})
	}
}

// As a context an errand ends when it would have ended by itself, whatever
// moment that is made in.
func TestErrandAsAContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := idleClient(t)
		lost := errors.New("lost")
		for _, after := range []time.Duration{0, time.Second, 2500 * time.Millisecond} {
			ctx, cancel := context.WithCancelCause(t.Context())
			began := time.Now()
			e := &errand{operation: operation{linger: 2 * time.Second}, c: c, caller: ctx, end: began.Add(10 * time.Second)}
			cancel(lost)
			require.NoError(t, e.over(began))
			time.Sleep(after) // of virtual time
			got := e.context()
			<-got.Done()
			require.Equal(t, max(2*time.Second, after), time.Since(began))
			require.ErrorIs(t, context.Cause(got), lost)
			require.ErrorIs(t, e.over(time.Now()), lost)
			e.stop()
		}
		began := time.Now()
		e := &errand{c: c, caller: t.Context(), end: began.Add(3 * time.Second)}
		<-e.context().Done()
		require.Equal(t, 3*time.Second, time.Since(began))
		require.ErrorIs(t, e.over(time.Now()), context.DeadlineExceeded)
		e.stop()
		open := &errand{c: c, caller: t.Context(), end: time.Now().Add(time.Hour)}
		farewell := &errand{operation: operation{farewell: true}, c: c, caller: t.Context(), end: time.Now().Add(time.Hour)}
		_, _ = open.context(), farewell.context()
		require.NoError(t, c.Close())
		synctest.Wait()
		require.ErrorIs(t, context.Cause(open.context()), ErrClosed)
		require.NoError(t, farewell.over(time.Now()))
		require.ErrorIs(t, (&errand{c: c, caller: t.Context(), end: time.Now().Add(time.Hour)}).over(time.Now()), ErrClosed)
		open.stop()
		farewell.stop()
	})
}

// A stream carries so many waits and no more: the next one goes by itself, and what does
// not wait still goes over the stream.
func TestWaitsOfAStreamHaveABound(t *testing.T) {
	k := idleLink(idleClient(t))
	hold := func(n int) {
		k.mu.Lock()
		defer k.mu.Unlock()
		k.window.Move(window.InFlight, window.Waiting, n)
	}
	add := func(mayWait bool) error {
		return k.add(&frame{mayWait: mayWait, limit: time.Now().Add(time.Hour), done: make(chan error, 1)})
	}
	hold(maxWaits - 1)
	require.NoError(t, add(true))
	hold(1)
	require.ErrorIs(t, add(true), errUnary)
	require.NoError(t, add(false))
	hold(-1)
	require.NoError(t, add(true))
	k.mu.Lock()
	k.retired = true
	k.mu.Unlock()
	require.ErrorIs(t, add(false), errUnary)
}
