package client_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// status describes a cluster of nodes a, b and c at a:1, b:1 and c:1.
func status(self, leader string) func() (*govnodev1.StatusResponse, error) {
	return func() (*govnodev1.StatusResponse, error) {
		s := &govnodev1.StatusResponse{Node: self, Leader: leader}
		for _, name := range []string{"a", "b", "c"} {
			s.Peers = append(s.Peers, &govnodev1.Peer{Node: name, ApiAddress: name + ":1"})
		}
		return s, nil
	}
}

// The client goes to the leader, moves on when it is gone, and follows the next
// one, of which it knew nothing at the start.
func TestFollowsTheLeader(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		leader, dead := "b", ""
		w := &wire{hosts: map[string]http.Handler{}}
		for _, name := range []string{"a", "b", "c"} {
			n := granting(30 * time.Second)
			n.status = func() (*govnodev1.StatusResponse, error) { return status(name, leader)() }
			w.hosts[name+":1"] = n.handler()
		}
		w.fault = func(host, _ string) fault {
			if host == dead {
				return refuseDial
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		acquire := func() {
			t.Helper()
			_, err := c.Acquire(t.Context(), "gpu")
			require.NoError(t, err)
		}
		acquire()
		synctest.Wait()
		require.Equal(t, "http://b:1", c.Leader())

		// Its followers name it for a while yet.
		dead = "b:1"
		for range 9 {
			acquire()
			require.NotEqual(t, "http://b:1", c.Leader())
			time.Sleep(100 * time.Millisecond)
		}
		require.Len(t, slices.DeleteFunc(acquisitions(w, 0), func(s string) bool { return s != "b:1 AcquireSlot" }), 1,
			"nobody goes back to a node that is gone because others name it")
		leader = "c"
		for range 3 { // there is traffic, and with it somebody asks
			acquire()
			time.Sleep(500 * time.Millisecond)
		}
		require.Equal(t, "http://c:1", c.Leader())
		w.mu.Lock()
		from := len(w.sent)
		w.mu.Unlock()
		acquire()
		require.Equal(t, []string{"c:1 AcquireSlot"}, acquisitions(w, from))
		require.NoError(t, c.Close())
	})
}

func acquisitions(w *wire, from int) (sent []string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, s := range w.sent[from:] {
		if strings.HasSuffix(s, "AcquireSlot") {
			sent = append(sent, s)
		}
	}
	return sent
}

// A leader that hangs is left by those who can wait for less than a second, as
// by others: reads leave it when the first of them has had no answer, and waits,
// which may take their time, when the leader was looked at.
func TestLeavesALeaderThatHangs(t *testing.T) {
	read := func(ctx context.Context, c *client.Client) error {
		_, err := c.Session("s").Read(ctx)
		return err
	}
	wait := func(ctx context.Context, c *client.Client) error {
		_, err := c.Acquire(ctx, "gpu")
		return err
	}
	for name, test := range map[string]struct {
		ask   func(context.Context, *client.Client) error
		leave func(context.Context) (context.Context, context.CancelFunc)
		gap   time.Duration
	}{
		"reads":                     {read, timeout, 300 * time.Millisecond},
		"reads with a cause":        {read, timeoutCause, 300 * time.Millisecond},
		"reads that are given up":   {read, cancelled, 1500 * time.Millisecond},
		"waits":                     {wait, timeout, 1500 * time.Millisecond},
		"reads that are in a hurry": {read, hurry, 1500 * time.Millisecond},
		"waits that are given up":   {wait, cancelled, 1500 * time.Millisecond},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var leader atomic.Value
				leader.Store("a")
				hung := ""
				w := &wire{hosts: map[string]http.Handler{}}
				for _, name := range []string{"a", "b", "c"} {
					n := granting(30 * time.Second)
					n.status = func() (*govnodev1.StatusResponse, error) { return status(name, leader.Load().(string))() }
					n.session = func(*govnodev1.GetSessionRequest) (*govnodev1.GetSessionResponse, error) {
						return &govnodev1.GetSessionResponse{Session: &govnodev1.Session{SessionId: "s"}}, nil
					}
					w.hosts[name+":1"] = n.handler()
				}
				w.fault = func(host, _ string) fault {
					if host == hung {
						return hang
					}
					return none
				}
				c := connected(t, w, []string{"a:1", "b:1", "c:1"})
				require.NoError(t, test.ask(t.Context(), c))
				synctest.Wait()
				time.Sleep(time.Second) // it was looked for the leader, and will not be for nine seconds

				hung = "a:1"
				time.AfterFunc(2*time.Second, func() { leader.Store("b") }) // until when the others name the one that hangs
				began := time.Now()
				for {
					ctx, cancel := test.leave(t.Context())
					err := test.ask(ctx, c)
					cancel()
					if err == nil {
						break
					}
					require.Less(t, time.Since(began), 9*time.Second)
				}
				require.LessOrEqual(t, time.Since(began), test.gap)
				time.Sleep(3 * time.Second)
				require.NoError(t, test.ask(t.Context(), c))
				synctest.Wait()
				require.Equal(t, "http://b:1", c.Leader(), "the next leader is found")
				require.NoError(t, c.Close())
			})
		})
	}
}

func timeout(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 300*time.Millisecond)
}

func timeoutCause(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeoutCause(ctx, 300*time.Millisecond, errors.New("as the test wants it"))
}

func hurry(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(ctx, 30*time.Millisecond)
}

// cancelled ends without a deadline.
func cancelled(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(ctx)
	time.AfterFunc(300*time.Millisecond, cancel)
	return ctx, cancel
}

// Who gives up before an answer has to come does not drive the others from a
// leader that is well.
func TestStaysWithALeaderThatIsWell(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{hosts: map[string]http.Handler{}}
		for _, name := range []string{"a", "b"} {
			n := granting(30 * time.Second)
			n.status = status(name, "a")
			n.acquire = func(ctx context.Context, r *govnodev1.AcquireSlotRequest) (*govnodev1.AcquireSlotResponse, error) {
				select {
				case <-ctx.Done():
					time.Sleep(time.Millisecond) // the caller's time is over first
					return nil, ctx.Err()
				case <-time.After(r.GetWait().AsDuration()):
					return &govnodev1.AcquireSlotResponse{Outcome: govnodev1.Outcome_OUTCOME_WAIT_TIMEOUT}, nil
				}
			}
			w.hosts[name+":1"] = n.handler()
		}
		c := connected(t, w, []string{"a:1", "b:1"})
		for range 10 {
			for _, leave := range []func(context.Context) (context.Context, context.CancelFunc){timeout, hurry, cancelled} {
				ctx, cancel := leave(t.Context())
				_, err := c.Acquire(ctx, "gpu")
				require.Error(t, err)
				cancel()
				require.Equal(t, "http://a:1", c.Leader())
			}
		}
		require.LessOrEqual(t, w.count("Status"), 1+int(10*630*time.Millisecond/(500*time.Millisecond)))
		require.NoError(t, c.Close())
	})
}
