package client_test

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// asking returns a client, and a session whose calls people are asked about.
func asking(t *testing.T, h http.Handler) (*client.Client, *client.OpenSession) {
	c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"})
	_, err := c.PutPolicy(t.Context(), "", "name: asks\nrequire_human_approval: true\napproval: {timeout: 60s}\n")
	require.NoError(t, err)
	s, err := c.CreateSession(t.Context(), client.Session{ID: "s", Agent: "anna", Policy: "asks"})
	require.NoError(t, err)
	return c, s
}

// A call waits for people, and goes on after their yes. A vote is for what its
// approver has seen, and for nothing else.
func TestApprovals(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c, s := asking(t, h)
		var err error
		var begun *client.OpenCall
		var waiting sync.WaitGroup
		waiting.Go(func() { begun, err = s.Begin(t.Context(), client.Call{ID: "c", Tool: "mail", Wait: time.Minute}) })
		synctest.Wait()

		list, lerr := c.ListApprovals(t.Context(), client.Approvals{State: client.ApprovalPending, Session: "s", Agent: "anna"}, 0, "")
		require.NoError(t, lerr)
		require.Len(t, list.Approvals, 1)
		for _, of := range []client.Approvals{{State: client.ApprovalUsed}, {Session: "other"}, {Agent: "bert"}} {
			none, err := c.ListApprovals(t.Context(), of, 0, "")
			require.NoError(t, err)
			require.Empty(t, none.Approvals, "%+v", of)
		}
		a := list.Approvals[0]
		_, lerr = c.Approve(t.Context(), a.Id, client.Vote{})
		require.ErrorContains(t, lerr, "approver")
		_, lerr = c.Approve(t.Context(), a.Id, client.Vote{Approver: "carla", RequestDigest: "sha256:" + a.RequestDigest[len(a.RequestDigest)-64:len(a.RequestDigest)-1] + "x"})
		require.Error(t, lerr)
		at, lerr := c.GetApproval(t.Context(), a.Id)
		require.NoError(t, lerr)
		require.Equal(t, client.ApprovalPending, at.State)
		done, lerr := c.Approve(t.Context(), a.Id, client.Vote{Approver: "carla", Reason: "fine", RequestDigest: a.RequestDigest})
		require.NoError(t, lerr)
		require.Equal(t, "carla", done.Ballots[0].Approver)
		require.Equal(t, "fine", done.Ballots[0].Reason)
		waiting.Wait()
		require.NoError(t, err)
		require.NoError(t, begun.End(t.Context(), client.Succeeded))
	})
}

// Who waits for a decision does not take a node that waits with him for one that does not
// answer, however little time an attempt or an operation may take, or he himself has.
func TestAwaitingADecisionTakesItsTime(t *testing.T) {
	for _, short := range []struct {
		name               string
		timeout, ofAttempt time.Duration
		patience           time.Duration // of the caller
	}{
		{"an attempt", 0, time.Second, 10 * time.Second},
		{"an operation", time.Second, 0, 10 * time.Second},
		{"the caller", 0, 0, 3 * time.Second},
	} {
		t.Run(short.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h, stop := service(t)
				defer stop()
				w := &wire{hosts: map[string]http.Handler{"a:1": h}}
				c := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Timeout, c.AttemptTimeout = short.timeout, short.ofAttempt })
				asked, err := c.RequestApproval(t.Context(), client.Question{Agent: "anna", Tool: "mail", Timeout: time.Minute})
				require.NoError(t, err)
				ctx, cancel := context.WithTimeout(t.Context(), short.patience)
				defer cancel()
				var got *govnodev1.Approval
				var waiting sync.WaitGroup
				waiting.Go(func() { got, err = c.AwaitApproval(ctx, asked.Id) })
				time.Sleep(1900 * time.Millisecond) // of virtual time
				_, verr := c.Approve(t.Context(), asked.Id, client.Vote{Approver: "carla"})
				require.NoError(t, verr)
				waiting.Wait()
				require.NoError(t, err)
				require.Equal(t, client.ApprovalApproved, got.State)
				require.Equal(t, 1, w.count("Get"))
			})
		})
	}
}

// What is asked without a call is decided by a vote, or called off.
func TestQuestions(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c, _ := asking(t, h)
		ask := func(text string) *govnodev1.Approval {
			a, err := c.RequestApproval(t.Context(), client.Question{Agent: "anna", Tool: "deploy", Arguments: map[string]any{"to": text}, Timeout: time.Hour})
			require.NoError(t, err)
			require.Equal(t, client.ApprovalPending, a.State)
			return a
		}
		one, two := ask("one"), ask("two")
		var awaited *govnodev1.Approval
		var err error
		var waiting sync.WaitGroup
		waiting.Go(func() { awaited, err = c.AwaitApproval(t.Context(), one.Id) })
		time.Sleep(time.Minute)
		denied, derr := c.Deny(t.Context(), one.Id, client.Vote{Approver: "carla", Reason: "no"})
		require.NoError(t, derr)
		require.Equal(t, client.ApprovalDenied, denied.State)
		waiting.Wait()
		require.NoError(t, err)
		require.Equal(t, client.ApprovalDenied, awaited.State)

		require.NoError(t, c.CancelApproval(t.Context(), two.Id))
		a, err := c.GetApproval(t.Context(), two.Id)
		require.NoError(t, err)
		require.Equal(t, client.ApprovalCancelled, a.State)
	})
}

// What stands lets calls pass, as often as it says, until it is taken back.
func TestStanding(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c, s := asking(t, h)
		begin := func() error {
			call, err := s.Begin(t.Context(), client.Call{Tool: "mail", Arguments: map[string]any{"to": "dora"}, Wait: client.NoWait})
			if err == nil {
				require.NoError(t, call.End(t.Context(), client.Succeeded))
			}
			return err
		}
		of := client.Standing{Scope: client.OfAgent, Name: "anna", Tool: "mail", Arguments: map[string]any{"to": "dora"}, Uses: 1, Expiry: time.Hour}
		_, err := c.PutStanding(t.Context(), of)
		require.NoError(t, err)
		require.NoError(t, begin())
		var refused *client.Refused
		require.ErrorAs(t, begin(), &refused)
		require.Equal(t, client.NeedsApproval, refused.Outcome)

		of.Uses, of.Arguments = 0, nil
		id, err := c.PutStanding(t.Context(), of)
		require.NoError(t, err)
		require.NoError(t, begin())
		require.NoError(t, begin())
		list, err := c.ListStanding(t.Context(), 0, "")
		require.NoError(t, err)
		require.Len(t, list.Standings, 1)
		require.Equal(t, id, list.Standings[0].Id)
		require.NoError(t, c.DeleteStanding(t.Context(), id))
		require.ErrorAs(t, begin(), &refused)
	})
}
