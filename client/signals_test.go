package client_test

import (
	"fmt"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
)

// A call that begins under a STOP is refused, under the same id admitted later, and
// goes on by itself if it waits. Its lease tells of the signal, and of a KILL.
func TestSignals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"})
		prepare(t, c, 1)
		s, err := c.CreateSession(t.Context(), client.Session{ID: "s", Agent: "x", Policy: "p"})
		require.NoError(t, err)
		runs, err := s.Begin(t.Context(), client.Call{Tool: "t", TTL: 30 * time.Second})
		require.NoError(t, err)
		require.Nil(t, runs.Signal())

		agent := client.Target{Agent: "x"}
		res, err := c.Signal(t.Context(), agent, client.Stop, "look")
		require.NoError(t, err)
		require.Equal(t, "STOP", res.GetSignal().GetSignal())
		var refused *client.Refused
		_, err = s.Begin(t.Context(), client.Call{ID: "c", Tool: "t", Wait: client.NoWait})
		require.ErrorAs(t, err, &refused)
		require.Equal(t, client.Stopped, refused.Outcome)
		require.Equal(t, "x", refused.Signal.GetAgentId())
		all, err := c.ListSignals(t.Context())
		require.NoError(t, err)
		require.Len(t, all, 1)
		time.Sleep(15 * time.Second) // it was renewed
		require.Equal(t, client.Held, runs.State())
		require.Equal(t, "look", runs.Signal().GetReason())

		var lifted error
		var lifting sync.WaitGroup
		lifting.Go(func() {
			time.Sleep(20 * time.Second)
			_, lifted = c.Signal(t.Context(), agent, client.Continue, "")
		})
		begun := time.Now()
		call, err := s.Begin(t.Context(), client.Call{ID: "c", Tool: "t", Wait: time.Minute})
		require.NoError(t, err)
		lifting.Wait()
		require.NoError(t, lifted)
		require.InDelta(t, 20, time.Since(begun).Seconds(), 1)
		require.NoError(t, call.End(t.Context(), client.Succeeded))
		require.NoError(t, runs.End(t.Context(), client.Succeeded))

		res, err = c.Signal(t.Context(), client.Target{Session: "s"}, client.Kill, "enough")
		require.NoError(t, err)
		require.EqualValues(t, 1, res.GetClosed())
		_, err = s.Begin(t.Context(), client.Call{Tool: "t"})
		require.ErrorAs(t, err, &refused)
		require.Equal(t, client.SessionClosed, refused.Outcome)
		require.Equal(t, "killed: enough", refused.Reason)
		require.Equal(t, client.Kill, refused.Signal.GetSignal())

		_, err = c.Signal(t.Context(), client.Target{Everything: true}, client.Kill, "all")
		require.NoError(t, err)
		_, err = c.CreateSession(t.Context(), client.Session{Agent: "y", Policy: "p"})
		var said *client.Error
		require.ErrorAs(t, err, &said)
		require.Equal(t, client.ReasonKilled, said.Reason)
		_, err = c.Signal(t.Context(), client.Target{}, client.Stop, "")
		require.ErrorContains(t, err, "client: Target: set one of")
		_, err = c.Signal(t.Context(), client.Target{Agent: "a", Everything: true}, client.Stop, "")
		require.ErrorContains(t, err, "client: Target: set one of")
	})
}

// A list goes on behind its first page.
func TestAllSignalsAreListed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"})
		prepare(t, c, 1)
		const sessions = 1001 // more than one page has
		want := map[string]bool{}
		for i := range sessions {
			id := fmt.Sprintf("s%d", i)
			_, err := c.CreateSession(t.Context(), client.Session{ID: id, Agent: "x", Policy: "p"})
			require.NoError(t, err)
			_, err = c.Signal(t.Context(), client.Target{Session: id}, client.Stop, "")
			require.NoError(t, err)
			want[id] = true
		}
		all, err := c.ListSignals(t.Context())
		require.NoError(t, err)
		got := map[string]bool{}
		for _, s := range all {
			got[s.GetSessionId()] = true
		}
		require.Equal(t, want, got)
		require.Len(t, all, sessions)
	})
}
