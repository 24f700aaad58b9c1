package main

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// A node that is told to end answers those who wait there at once, so that they
// go on elsewhere, and ends long before it would have to.
func TestServeDrains(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	r := newRemote(http.DefaultClient, api)
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	_, err := r.slots.PutPool(ctx, &govnodev1.PutPoolRequest{Pool: "gpu", Slots: 1, RequestId: "1"})
	require.NoError(t, err)
	held, err := r.slots.AcquireSlot(ctx, &govnodev1.AcquireSlotRequest{Pool: "gpu", SlotId: "a"})
	require.NoError(t, err)
	require.Equal(t, govnodev1.Outcome_OUTCOME_ADMITTED, held.Outcome)

	waited := make(chan error, 1)
	go func() {
		_, err := r.slots.AcquireSlot(ctx, &govnodev1.AcquireSlotRequest{Pool: "gpu", SlotId: "b", Wait: durationpb.New(longEnough)})
		waited <- err
	}()
	require.Eventually(t, func() bool {
		slots, err := r.slots.ListSlots(ctx, &govnodev1.ListSlotsRequest{Pool: "gpu"})
		return err == nil && len(slots.Waiters) == 1
	}, longEnough, 5*time.Millisecond)

	told := time.Now()
	require.NoError(t, node.stop())
	require.Less(t, time.Since(told), drainTimeout/2)
	require.Equal(t, connect.CodeUnavailable, connect.CodeOf(<-waited))
	require.Contains(t, node.printed(), "msg=ended")
}

// The second signal does not wait for anything.
func TestSecondSignalEndsAtOnce(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--data", t.TempDir(), "--listen", "127.0.0.1:0", "--raft-listen", "127.0.0.1:0", "--join", "127.0.0.1:1", "--node", "late")
	// It waits for admission by a cluster that is not there.
	require.Eventually(t, func() bool { return node.cmd.Process.Signal(nil) != nil || len(node.printed()) > 0 }, longEnough, 5*time.Millisecond)
	require.Error(t, node.stop())
}

// Whoever listens to the world is told what that means at each start.
func TestInsecureIsSaid(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"serve", "--backend", "memory", "--listen", "0.0.0.0:0", "--insecure"},
		{"dev", "--backend", "memory", "--listen", "0.0.0.0:0", "--insecure"},
	} {
		node := start(t, args...)
		node.mustAwait(t, `insecure: whoever can reach`, 1)
		node.mustAwait(t, nodeLine, 1)
		require.NoError(t, node.stop(), fmt.Sprint(args))
	}
}
