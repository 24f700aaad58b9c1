package transport

import (
	"context"
	"io"
	"sync"
	"time"

	"github.com/hashicorp/go-hclog"
	"github.com/hashicorp/raft"
)

// Raft is Raft's own transport, with pipelines that end.
//
// In raft 1.7.3 a leader that has just been answered "no" by a follower may
// send it one more message, and then waits until somebody takes the answer,
// which nobody does any more. That follower is sent heartbeats and no entries
// from then on, until the leader ends, which hangs as well (hashicorp/raft
// issue 612). Here the wait ends, and Raft begins anew with that follower.
//
// And a follower takes whatever snapshot it is sent, also one of what it has
// applied long ago, as a leader sends it who wakes up from waiting for a member
// that has been replaced meanwhile: it forgets what it applied since and who is a
// member since, and cannot go on where its log does not reach back so far. Here
// such a snapshot is answered as taken.
type Raft struct {
	*raft.NetworkTransport
	ctx     context.Context // of the node
	limit   time.Duration   // for one message to get under way
	applied func() uint64
	asked   chan raft.RPC
}

// NewRaft returns the transport of a node that ends with the context. An answer
// may take as long as the timeout, and a message to get under way as long as the
// limit. What the node has applied is asked for with applied.
func NewRaft(ctx context.Context, p *Port, timeout, limit time.Duration, applied func() uint64, logger hclog.Logger) *Raft {
	t := &Raft{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: half{p, p.raft}, MaxPool: 4, Timeout: timeout, Logger: logger,
		}),
		ctx: ctx, limit: limit, applied: applied, asked: make(chan raft.RPC),
	}
	go t.pass()
	return t
}

// Consumer implements raft.Transport.
func (t *Raft) Consumer() <-chan raft.RPC { return t.asked }

// pass hands on what others ask for, until the node ends. The next one waits for
// Raft to take the one before.
func (t *Raft) pass() {
	for {
		select {
		case rpc := <-t.NetworkTransport.Consumer():
			if r, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok && r.LastLogIndex <= t.applied() {
				_, _ = io.Copy(io.Discard, rpc.Reader) // else it is taken for the next request
				rpc.Respond(&raft.InstallSnapshotResponse{Term: r.Term, Success: true}, nil)
				continue
			}
			select {
			case t.asked <- rpc:
			case <-t.ctx.Done():
				return
			}
		case <-t.ctx.Done():
			return
		}
	}
}

// AppendEntriesPipeline implements raft.Transport.
func (t *Raft) AppendEntriesPipeline(id raft.ServerID, target raft.ServerAddress) (raft.AppendPipeline, error) {
	p, err := t.NetworkTransport.AppendEntriesPipeline(id, target)
	if err != nil {
		return nil, err
	}
	return newPipeline(t.ctx, p, t.limit), nil
}

// A pipeline is closed when a message does not get under way in time, and when
// the node ends.
type pipeline struct {
	raft.AppendPipeline
	limit time.Duration
	leave func() bool // the end of the node does not concern it any more
	close func() error
}

func newPipeline(ctx context.Context, p raft.AppendPipeline, limit time.Duration) *pipeline {
	closed := sync.OnceValue(p.Close)
	return &pipeline{
		AppendPipeline: p, limit: limit, close: closed,
		leave: context.AfterFunc(ctx, func() { _ = closed() }), // whoever uses it is told
	}
}

// AppendEntries implements raft.AppendPipeline.
func (p *pipeline) AppendEntries(args *raft.AppendEntriesRequest, resp *raft.AppendEntriesResponse) (raft.AppendFuture, error) {
	t := time.AfterFunc(p.limit, func() { _ = p.close() }) // the call returns an error then
	defer t.Stop()
	return p.AppendPipeline.AppendEntries(args, resp)
}

// Close implements raft.AppendPipeline.
func (p *pipeline) Close() error {
	p.leave()
	return p.close()
}
