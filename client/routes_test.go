package client_test

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

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
