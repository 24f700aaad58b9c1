package cluster

import (
	"context"
	"errors"
	"io"
	"strings"

	"connectrpc.com/connect"

	"example.com/govnode/cluster/transport"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/proto/govnode/node/v1/nodev1connect"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// service answers what other nodes ask. It never passes a request on: whoever
// does not lead says so, and the caller looks for the leader anew.
type service struct{ n *Node }

var _ nodev1connect.NodeServiceHandler = (*service)(nil)

// errElsewhere reports that a node does not lead: what was asked for was not
// done, and may be asked of another node.
var errElsewhere = errors.New("this node does not lead")

// fieldHeader names the field that is wrong in a request that is refused.
const fieldHeader = "Govnode-Field"

// wireError makes an error one that another node reads with remote and sent.
// Only an outcome that is said to be unknown is: all else did nothing.
func wireError(err error) error {
	switch {
	case err == nil:
		return nil
	case isUnknown(err):
		return connect.NewError(connect.CodeUnknown, errors.New(bare(err)))
	case errors.Is(err, errElsewhere), errors.Is(err, errNoLeader):
		return transport.Refusal(connect.CodeFailedPrecondition, err)
	case errors.Is(err, storage.ErrInvalid):
		e := transport.Refusal(connect.CodeInvalidArgument, errors.New(bare(err)))
		if bad := (*badField)(nil); errors.As(err, &bad) {
			e.Meta().Set(fieldHeader, bad.name)
		}
		return e
	}
	return transport.Refusal(connect.CodeUnavailable, errors.New(bare(err)))
}

// remote makes the error of a request to another node again, so that callers
// can tell what it means.
func remote(err error) error {
	var e *connect.Error
	if !errors.As(err, &e) {
		return err
	}
	switch e.Code() {
	case connect.CodeFailedPrecondition:
		return errElsewhere
	case connect.CodeInvalidArgument:
		if name := e.Meta().Get(fieldHeader); name != "" {
			return invalidField(name, "%s", strings.TrimPrefix(e.Message(), name+": "))
		}
		return invalid(errors.New(e.Message()))
	}
	return err
}

// sent is remote for a request that changes something: its error has the outcome
// that the other node gave it, or is unknown.
func sent(err error) error {
	var e *connect.Error
	switch {
	case err == nil:
		return nil
	case errors.Is(err, transport.ErrUnreached):
		return notApplied(err)
	case !errors.As(err, &e):
		return unknown(err)
	case !transport.Refused(e):
		return unknown(errors.New(e.Message()))
	}
	return notApplied(remote(err))
}

// lead returns the leadership, if it is this node's.
func (s *service) lead() (*leadership, error) {
	if l := s.n.leading.Load(); l != nil && !s.n.draining.Load() {
		return l, nil
	}
	return nil, wireError(errElsewhere)
}

// ReadIndex implements nodev1connect.NodeServiceHandler.
func (s *service) ReadIndex(ctx context.Context, _ *nodev1.ReadIndexRequest) (*nodev1.ReadIndexResponse, error) {
	l, err := s.lead()
	if err != nil {
		return nil, err
	}
	index, err := s.n.readIndex(ctx, l)
	if err != nil {
		return nil, wireError(err)
	}
	return &nodev1.ReadIndexResponse{Index: index}, nil
}

// Term implements nodev1connect.NodeServiceHandler.
func (s *service) Term(context.Context, *nodev1.TermRequest) (*nodev1.TermResponse, error) {
	return &nodev1.TermResponse{Term: s.n.raft.CurrentTerm()}, nil
}

// CompareState implements nodev1connect.NodeServiceHandler.
func (s *service) CompareState(ctx context.Context, r *nodev1.CompareStateRequest) (*nodev1.CompareStateResponse, error) {
	if err := speaksFor(ctx, r.GetNode()); err != nil {
		return nil, err
	}
	if b := r.GetDigest(); len(b) == len(session.Digest{}) {
		s.n.states.note(r.GetIndex(), r.GetNode(), session.Digest(b))
	}
	answer := new(nodev1.CompareStateResponse)
	if d, ok := s.n.states.of(r.GetIndex())[s.n.cfg.ID]; ok {
		answer.Digest = d[:]
	}
	return answer, nil
}

// Hello implements nodev1connect.NodeServiceHandler.
func (s *service) Hello(ctx context.Context, asked *nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
	n := s.n
	if id := asked.GetSelf(); id != nil {
		if err := speaksFor(ctx, id.GetNode()); err != nil {
			return nil, err
		}
	}
	r := &nodev1.HelloResponse{
		Cluster: n.clusterID(), Node: n.cfg.ID, Address: n.cfg.Address, ApiAddress: n.cfg.APIAddress, Version: n.cfg.version,
	}
	if n.started.Load() {
		address, leader := n.raft.LeaderWithID()
		r.Leader, r.LeaderAddress, r.Term = string(leader), string(address), n.raft.CurrentTerm()
		r.AppliedIndex, r.LogBytes = n.fsm.applied(), uint64(n.fsm.logged.since())
	}
	r.Self = n.hello().GetSelf()
	if id := asked.GetSelf(); id != nil {
		r.Refusal = n.judge(ctx, id)
		if r.Leader == n.cfg.ID { // others may not have heard yet of who came
			_, known := n.member(id.GetNode())
			r.Removed = !known
		}
	}
	return r, nil
}

// Join implements nodev1connect.NodeServiceHandler.
func (s *service) Join(ctx context.Context, r *nodev1.JoinRequest) (*nodev1.JoinResponse, error) {
	if err := speaksFor(ctx, r.GetNode()); err != nil {
		return nil, err
	}
	if _, err := s.lead(); err != nil {
		return nil, err
	}
	done, err := s.n.admit(ctx, r)
	if err != nil {
		return nil, wireError(err)
	}
	return &nodev1.JoinResponse{Done: done, Index: s.n.fsm.applied()}, nil
}

// AddNode implements nodev1connect.NodeServiceHandler.
func (s *service) AddNode(ctx context.Context, r *nodev1.AddNodeRequest) (*nodev1.AddNodeResponse, error) {
	if _, err := s.lead(); err != nil {
		return nil, err
	}
	return &nodev1.AddNodeResponse{}, wireError(s.n.addHere(ctx, r.GetNode(), r.GetAddress(), r.GetNonvoter()))
}

// RemoveNode implements nodev1connect.NodeServiceHandler.
func (s *service) RemoveNode(ctx context.Context, r *nodev1.RemoveNodeRequest) (*nodev1.RemoveNodeResponse, error) {
	if _, err := s.lead(); err != nil {
		return nil, err
	}
	return &nodev1.RemoveNodeResponse{}, wireError(s.n.removeHere(ctx, r.GetNode(), r.GetForce()))
}

// TransferLeadership implements nodev1connect.NodeServiceHandler.
func (s *service) TransferLeadership(ctx context.Context, r *nodev1.TransferLeadershipRequest) (*nodev1.TransferLeadershipResponse, error) {
	if _, err := s.lead(); err != nil {
		return nil, err
	}
	return &nodev1.TransferLeadershipResponse{}, wireError(s.n.transferHere(ctx, r.GetNode()))
}

// Restore implements nodev1connect.NodeServiceHandler.
func (s *service) Restore(ctx context.Context, stream *connect.ClientStream[nodev1.RestoreRequest]) (*nodev1.RestoreResponse, error) {
	l, err := s.lead()
	if err != nil {
		return nil, err
	}
	file, err := s.n.keep(&chunks{stream: stream})
	if err != nil {
		return nil, wireError(err)
	}
	defer drop(file)
	return &nodev1.RestoreResponse{}, wireError(s.n.restoreHere(ctx, l, file))
}

// chunks reads what a client sends in pieces.
type chunks struct {
	stream *connect.ClientStream[nodev1.RestoreRequest]
	rest   []byte
}

func (c *chunks) Read(b []byte) (int, error) {
	for len(c.rest) == 0 {
		if !c.stream.Receive() {
			if err := c.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		c.rest = c.stream.Msg().GetChunk()
	}
	n := copy(b, c.rest)
	c.rest = c.rest[n:]
	return n, nil
}
