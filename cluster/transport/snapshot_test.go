package transport

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"
)

// A snapshot of what a node has already does not reach Raft, which would
// forget what came since; another one does.
func TestAnOldSnapshotIsNotTaken(t *testing.T) {
	port := newTestPort(newPipes(), "c")
	defer port.Close()
	port.Admitted()
	r := NewRaft(t.Context(), port, 10*time.Second, 10*time.Second, func(index, term uint64) bool { return index == 10 && term == 2 }, hclog.NewNullLogger())
	defer r.Close()
	var got raft.InstallSnapshotResponse
	old := &raft.InstallSnapshotRequest{Term: 3, LastLogIndex: 10, LastLogTerm: 2, Size: 5}
	require.NoError(t, r.InstallSnapshot("n", "pipe:1", old, &got, strings.NewReader("state")))
	require.True(t, got.Success)
	require.Equal(t, uint64(3), got.Term)
	taken := make(chan uint64, 1)
	go func() {
		rpc := <-r.Consumer()
		taken <- rpc.Command.(*raft.InstallSnapshotRequest).LastLogIndex
		rpc.Respond(&raft.InstallSnapshotResponse{Term: 4}, nil)
	}()
	next := &raft.InstallSnapshotRequest{Term: 4, LastLogIndex: 11, LastLogTerm: 2}
	require.NoError(t, r.InstallSnapshot("n", "pipe:1", next, &got, strings.NewReader("")))
	require.Equal(t, uint64(11), <-taken)
	require.Equal(t, uint64(4), got.Term)
}

// A leader that hangs halfway in a snapshot is waited for as long as the limit, also by
// who throws away the rest; and one that others have applied long ago keeps nobody else
// waiting meanwhile.
func TestASnapshotThatStandsStill(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 6 * time.Second
		l := newPipes()
		port := newTestPort(l, "c")
		defer port.Close()
		r := NewRaft(t.Context(), port, time.Minute, limit, func(index, _ uint64) bool { return index <= 10 }, hclog.NewNullLogger())
		defer r.Close()
		hung := make(chan struct{})
		for index := range uint64(2) {
			go func() {
				state := io.MultiReader(strings.NewReader(strings.Repeat("s", 1<<20)), waiting(hung))
				_ = r.InstallSnapshot("n", "pipe:1", &raft.InstallSnapshotRequest{LastLogIndex: 10 + index, Size: 2 << 20}, &raft.InstallSnapshotResponse{}, state)
			}()
			synctest.Wait()
		}
		go func() {
			_ = r.RequestVote("n", "pipe:1", &raft.RequestVoteRequest{Term: 7}, &raft.RequestVoteResponse{})
		}()
		begun, asked := time.Now(), map[string]raft.RPC{}
		for range 2 {
			rpc := <-r.Consumer()
			asked[fmt.Sprintf("%T", rpc.Command)] = rpc
		}
		require.Zero(t, time.Since(begun))
		require.Contains(t, asked, "*raft.RequestVoteRequest")
		rpc := asked["*raft.InstallSnapshotRequest"]
		n, err := io.Copy(io.Discard, rpc.Reader)
		require.ErrorIs(t, err, os.ErrDeadlineExceeded)
		require.Positive(t, n)
		_, err = io.Copy(io.Discard, rpc.Reader)
		require.Error(t, err)
		require.Equal(t, limit, time.Since(begun))
		for _, rpc := range asked {
			rpc.Respond(nil, errors.New("no"))
		}
		close(hung)
	})
}

// waiting is what never has anything to read, until it is closed.
type waiting chan struct{}

func (w waiting) Read([]byte) (int, error) { <-w; return 0, io.EOF }

// What moves slowly is no reason to close a connection, nor that it rests between two
// messages.
func TestAConnectionThatMoves(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const limit = 6 * time.Second
		here, there := net.Pipe()
		m := &moving{Conn: there, limit: limit}
		var sender sync.WaitGroup
		sender.Go(func() {
			for range 3 {
				for range 3 {
					_, _ = io.WriteString(here, "part")
					time.Sleep(limit - time.Millisecond)
				}
				_, _ = io.ReadFull(here, make([]byte, len("answer")))
				time.Sleep(time.Hour)
			}
		})
		for range 3 {
			for range 3 {
				_, err := io.ReadFull(m, make([]byte, len("part")))
				require.NoError(t, err)
			}
			_, err := io.WriteString(m, "answer")
			require.NoError(t, err)
		}
		sender.Wait()
	})
}
