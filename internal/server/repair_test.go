package server_test

import (
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

func idAt(t *testing.T, at time.Time) string {
	id := ulid.Make()
	require.NoError(t, id.SetTime(ulid.Timestamp(at)))
	return id.String()
}

// The time of an id that is named only, and remembered under already, is nobody's
// business; one that would be remembered is refused, in BatchCalls and Exchange
// too, and nothing is changed.
func TestIDsAheadOfTheClock(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	n.session("s")
	future := idAt(t, time.Now().Add(2*time.Hour))
	res, err := n.calls.BatchCalls(n.ctx(), &v1.BatchCallsRequest{Operations: []*v1.Operation{beginFrame(1, "s", future)}})
	require.NoError(t, err)
	l := n.exchange()
	l.send(beginFrame(1, "s", future))
	for where, e := range map[string]*v1.OperationError{"operations[0].begin.callId": res.Results[0].GetError(), "begin.callId": l.one().GetError()} {
		require.Equal(t, "INVALID_FIELD", e.GetReason())
		require.Contains(t, e.GetMessage(), where+": carries the time ")
	}
	require.Zero(t, n.getSession("s").Attempts)
	_, err = n.calls.EndCall(n.ctx(), endFrame(1, "s", future).GetEnd())
	require.Equal(t, connect.CodeNotFound, connect.CodeOf(err), "what names something is looked up")

	// A client with a clock that is fast is told so, and one that is a little
	// fast is not.
	for ahead, ok := range map[time.Duration]bool{50 * time.Minute: true, 2 * time.Hour: false} {
		c, err := client.New(client.Config{Addresses: []string{n.url}, Now: func() time.Time { return time.Now().Add(ahead) }})
		require.NoError(t, err)
		_, err = c.PutPool(n.ctx(), client.Pool{Name: "gpu", Slots: 1})
		require.Equal(t, ok, err == nil, "%v", err)
		if err != nil {
			require.ErrorContains(t, err, "requestId: carries the time ")
			require.ErrorContains(t, err, "ahead of the clock of this node")
		}
		require.NoError(t, c.Close())
	}
}

// An operator opens a namespace again that an id of the future has closed.
func TestRepairIDs(t *testing.T) {
	n := start(t)
	n.putPolicy(policy()...)
	future := time.Now().Add(1000 * time.Hour)
	// As a node with a wrong clock has taken it: the client remembers it, forgets
	// it, and refuses what is not newer.
	for i := range 3000 {
		cmd := &session.Set{NS: "default", By: session.Maker{Client: "k", Request: idAt(t, future)}, Key: "k", Value: session.Value{Text: "v"}}
		a := n.store.Apply(n.ctx(), cmd)[0]
		require.NoError(t, a.Failure(), i)
	}
	set := func() error {
		_, err := n.counters.Set(n.ctx(), &v1.SetRequest{Key: "k", Value: "v", Client: "k", RequestId: ulid.Make().String()})
		return err
	}
	requireRefused(t, set(), connect.CodeFailedPrecondition, "STALE_ID", "newerThan")
	req := &v1.RepairIDsRequest{HolderClient: "k", RequestId: "r"}
	res, err := n.cluster.RepairIDs(n.ctx(), req)
	require.NoError(t, err)
	require.True(t, res.Lowered)
	require.WithinDuration(t, time.Now(), time.UnixMilli(res.NewerThan), time.Minute)
	again, err := n.cluster.RepairIDs(n.ctx(), req)
	require.NoError(t, err)
	require.True(t, again.Lowered)
	require.Zero(t, again.NewerThan, "the clock of that time is not remembered")
	require.Equal(t, 1, strings.Count(n.audit.text(), `"event_type":"ids_repaired"`))
	eventually(t, "ids of now are taken", func() bool { return set() == nil })
	_, err = n.cluster.RepairIDs(n.ctx(), &v1.RepairIDsRequest{NewerThan: future.UnixMilli()})
	requireRefused(t, err, connect.CodeInvalidArgument, "INVALID_FIELD", "newerThan")
}
