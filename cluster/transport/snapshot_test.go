package transport

import (
	"strings"
	"testing"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A snapshot of what a node has applied already does not reach Raft, which would
// forget what came since; another one does.
func TestAnOldSnapshotIsNotTaken(t *testing.T) {
	port := newTestPort(newPipes(), "c")
	defer port.Close()
	port.Admitted()
	r := NewRaft(t.Context(), port, 10*time.Second, 10*time.Second, func() uint64 { return 10 }, hclog.NewNullLogger())
	defer r.Close()
	var got raft.InstallSnapshotResponse
	old := &raft.InstallSnapshotRequest{Term: 3, LastLogIndex: 10, Size: 5}
	require.NoError(t, r.InstallSnapshot("n", "pipe:1", old, &got, strings.NewReader("state")))
	require.True(t, got.Success)
	require.Equal(t, uint64(3), got.Term)
	taken := make(chan uint64, 1)
	go func() {
		rpc := <-r.Consumer()
		taken <- rpc.Command.(*raft.InstallSnapshotRequest).LastLogIndex
		rpc.Respond(&raft.InstallSnapshotResponse{Term: 4}, nil)
	}()
	next := &raft.InstallSnapshotRequest{Term: 4, LastLogIndex: 11}
	require.NoError(t, r.InstallSnapshot("n", "pipe:1", next, &got, strings.NewReader("")))
	require.Equal(t, uint64(11), <-taken)
	require.Equal(t, uint64(4), got.Term)
}
