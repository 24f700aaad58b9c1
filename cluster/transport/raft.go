package transport

import (
	"context"
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
type Raft struct {
	*raft.NetworkTransport
	ctx   context.Context // of the node
	limit time.Duration   // for one message to get under way
}

// NewRaft returns the transport of a node that ends with the context. An answer
// may take as long as the timeout, and a message to get under way as long as the
// limit.
func NewRaft(ctx context.Context, p *Port, timeout, limit time.Duration, logger hclog.Logger) *Raft {
	return &Raft{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: half{p, p.raft}, MaxPool: 4, Timeout: timeout, Logger: logger,
		}),
		ctx: ctx, limit: limit,
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
