package transport

import (
	"context"
	"io"
	"net"
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
// got long ago, as a leader sends it who wakes up from waiting for a member
// that has been replaced meanwhile: it forgets what it applied since and who is a
// member since, and cannot go on where its log does not reach back so far. Here
// such a snapshot is answered as taken.
//
// And a follower does nothing else while it takes a snapshot, so that it neither
// votes nor hears another leader if the one that sends it hangs halfway. Here the
// connection of such a leader is closed.
type Raft struct {
	*raft.NetworkTransport
	ctx   context.Context // of the node
	limit time.Duration   // for one message to get under way
	has   func(index, term uint64) bool
	asked chan raft.RPC
}

// NewRaft returns the transport of a node that ends with the context. An answer
// may take as long as the timeout; as long as the limit may a message take to get
// under way, and one that is being read stand still. Whether the node has an entry,
// or a state behind it, is asked for with has.
func NewRaft(ctx context.Context, p *Port, timeout, limit time.Duration, has func(index, term uint64) bool, logger hclog.Logger) *Raft {
	t := &Raft{
		NetworkTransport: raft.NewNetworkTransportWithConfig(&raft.NetworkTransportConfig{
			Stream: stream{half{p, p.raft}, limit}, MaxPool: 4, Timeout: timeout, Logger: logger,
		}),
		ctx: ctx, limit: limit, has: has, asked: make(chan raft.RPC),
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
			if r, ok := rpc.Command.(*raft.InstallSnapshotRequest); ok && t.has(r.LastLogIndex, r.LastLogTerm) {
				go func() { // its connection alone waits for that
					_, _ = io.Copy(io.Discard, rpc.Reader) // else it is taken for the next request
					rpc.Respond(&raft.InstallSnapshotResponse{Term: r.Term, Success: true}, nil)
				}()
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

// A stream is Raft's half of a port.
type stream struct {
	half
	limit time.Duration
}

func (s stream) Accept() (net.Conn, error) {
	conn, err := s.half.Accept()
	if err != nil {
		return nil, err
	}
	return &moving{Conn: conn, limit: s.limit}, nil
}

// A moving connection is closed when a message stands still on it: each part of
// one, however small, may take as long as the limit. Between messages it may rest,
// since others keep connections for later. All messages are answered, so what is
// read first after an answer begins the next one; only entries may be sent before
// the answer to those before, and nobody waits for them but the connection itself.
type moving struct {
	net.Conn
	limit  time.Duration
	within bool // a message, since a part of one was read and nothing answered
}

func (m *moving) Read(b []byte) (int, error) {
	var until time.Time
	if m.within {
		until = time.Now().Add(m.limit)
	}
	if err := m.SetReadDeadline(until); err != nil {
		return 0, err
	}
	n, err := m.Conn.Read(b)
	if err != nil {
		_ = m.Close() // Raft reads on, to throw away what it did not take
	}
	m.within = true
	return n, err
}

func (m *moving) Write(b []byte) (int, error) {
	m.within = false
	return m.Conn.Write(b)
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
