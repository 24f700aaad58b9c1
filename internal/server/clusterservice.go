package server

import (
	"bufio"
	"context"
	"errors"
	"io"

	"connectrpc.com/connect"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/internal/server/access"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/health"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/members"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// clusterService answers govnode.v1.ClusterService.
type clusterService struct{ *Server }

// What the program brings of a cluster.
type (
	Cluster = members.Cluster
	Status  = members.Status
	Peer    = members.Peer
)

// Status tells about this node and its cluster. It answers without a leader as
// well: that is when it is needed most.
func (s clusterService) Status(ctx context.Context, _ *v1.StatusRequest) (*v1.StatusResponse, error) {
	out := &v1.StatusResponse{Node: s.cfg.Node, Backend: s.cfg.Backend, Version: s.cfg.Version, Health: "ok"}
	if s.cfg.Cluster == nil {
		found, err := s.store.Get(ctx, session.NamespaceKey(input.Namespace(ctx)), storage.Nearby)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		out.Leader, out.AppliedIndex = s.cfg.Node, found.Index
		out.SeenBy = s.cfg.Node
		out.Peers = []*v1.Peer{{Node: s.cfg.Node, Role: "leader", Up: true, LastContact: durationpb.New(0), AppliedIndex: &found.Index}}
		if s.cfg.Ready != nil {
			if err := s.cfg.Ready(ctx); err != nil {
				out.Health = err.Error()
			}
		}
	} else {
		status, err := s.cfg.Cluster.Status(ctx)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		out.Node, out.Leader, out.Term, out.AppliedIndex, out.Health = status.Node, status.Leader, status.Term, status.AppliedIndex, status.Health
		out.SeenBy = status.SeenBy
		for _, p := range status.Peers {
			peer := &v1.Peer{Node: p.Node, Address: p.Address, ApiAddress: p.APIAddress, Role: p.Role, Up: p.Up}
			if p.Known {
				peer.LastContact, peer.LastContactAtLeast, peer.AppliedIndex, peer.Lag = durationpb.New(p.Silent), p.AtLeast, &p.Applied, p.Lag
			}
			out.Peers = append(out.Peers, peer)
		}
	}
	if s.draining.Load() {
		out.Health = health.ErrDrain.Error()
	}
	return out, nil
}

// members returns the cluster, or why there is nothing to change.
func (s clusterService) members(ctx context.Context) (members.Cluster, error) {
	if s.cfg.Cluster == nil {
		return nil, fault.New(connect.CodeFailedPrecondition, fault.ReasonNoMembers, "the backend "+s.cfg.Backend+" has no members; run with the backend raft for a cluster")
	}
	if err := s.leader.Admit(); err != nil {
		return nil, fault.OfChange(storage.Fail(storage.NotApplied, err))
	}
	return s.cfg.Cluster, s.stillMay(ctx)
}

// stillMay looks the caller up as of now, before what carries no premise: a change of
// members is no command, and of a snapshot nothing can be taken back.
func (s clusterService) stillMay(ctx context.Context) error {
	p := access.From(ctx)
	if p == nil {
		return nil
	}
	_, err := s.auth.AsOfNow(ctx, p)
	return err
}

// changed notes and writes what came of a change of members: what was done is answered so,
// also to who was revoked meanwhile. Before says what was changed for it, if anything was,
// which stays so whatever becomes of it.
func (s clusterService) changed(ctx context.Context, event, node, address, before string, err error) error {
	left := order.TraceOf(ctx)
	prepared := left.Changed
	if outcome := storage.OutcomeOf(err); outcome != storage.NotApplied {
		left.Changed = true
		s.audit.member(ctx, event, node, address, outcome)
	}
	if err == nil {
		return nil
	}
	s.audit.log.push()
	f := *fault.Of(fault.OfChange(err))
	if prepared {
		f.Cause += "; " + before
	}
	return &f
}

// AddNode makes a running node a member.
func (s clusterService) AddNode(ctx context.Context, req *v1.AddNodeRequest) (*v1.AddNodeResponse, error) {
	f := &input.Fields{}
	f.ID("node", req.Node)
	f.Text("address", req.Address, input.Bound{Min: 1, Max: 256})
	if f.Err != nil {
		return nil, f.Err
	}
	c, err := s.members(ctx)
	if err == nil && access.From(ctx).Joins() {
		err = s.newTokens().Use(ctx, req.Node)
	}
	if err != nil {
		switch fault.Of(err).Code {
		case connect.CodeUnauthenticated, connect.CodePermissionDenied:
			s.audit.turned(ctx, "node "+req.Node+": "+fault.ReasonText(err))
		}
		return nil, err
	}
	if err := s.changed(ctx, "node_added", req.Node, req.Address, "the join token is bound to node "+req.Node+" by now", c.AddNode(ctx, req.Node, req.Address, req.Nonvoter)); err != nil {
		return nil, err
	}
	return &v1.AddNodeResponse{Index: s.appliedIndex(ctx)}, nil
}

// appliedIndex is where this node stands; 0 if it cannot say.
func (s clusterService) appliedIndex(ctx context.Context) uint64 {
	status, err := s.cfg.Cluster.Status(ctx)
	if err != nil {
		return 0
	}
	return status.AppliedIndex
}

// RemoveNode ends the membership of a node.
func (s clusterService) RemoveNode(ctx context.Context, req *v1.RemoveNodeRequest) (*v1.RemoveNodeResponse, error) {
	f := &input.Fields{}
	f.ID("node", req.Node)
	if f.Err != nil {
		return nil, f.Err
	}
	c, err := s.members(ctx)
	if err != nil {
		return nil, err
	}
	if err := s.newTokens().EndOf(ctx, req.Node); err != nil {
		return nil, err
	}
	if err := s.changed(ctx, "node_removed", req.Node, "", "the join tokens of "+req.Node+" were revoked before that, so that it needs another to join again", c.RemoveNode(ctx, req.Node, req.Force)); err != nil {
		return nil, err
	}
	return &v1.RemoveNodeResponse{Index: s.appliedIndex(ctx)}, nil
}

// TransferLeadership makes another node lead.
func (s clusterService) TransferLeadership(ctx context.Context, req *v1.TransferLeadershipRequest) (*v1.TransferLeadershipResponse, error) {
	f := &input.Fields{}
	f.OptionalID("node", req.Node)
	if f.Err != nil {
		return nil, f.Err
	}
	c, err := s.members(ctx)
	if err != nil {
		return nil, err
	}
	was := c.LeaderAPI()
	if err := s.changed(ctx, "leadership_transferred", req.Node, "", "", c.TransferLeadership(ctx, req.Node)); err != nil {
		return nil, err
	}
	heard := c.LeaderAPI() != was // else this node may still take the former leader for the present one
	status, err := c.Status(ctx)
	if err != nil || status.Leader != req.Node && (req.Node != "" || !heard) {
		status.Leader = "" // the leadership has moved all the same
	}
	return &v1.TransferLeadershipResponse{Leader: status.Leader}, nil
}

// chunkSize is how much of a snapshot one message carries.
const chunkSize = 64 << 10

// Snapshot streams the whole state.
func (s clusterService) Snapshot(ctx context.Context, _ *v1.SnapshotRequest, stream *connect.ServerStream[v1.SnapshotResponse]) error {
	if err := s.stillMay(ctx); err != nil {
		return err
	}
	s.audit.member(ctx, "snapshot_saved", "", "", storage.Applied)
	s.audit.log.push() // a state can be saved also where the audit cannot be written
	w := bufio.NewWriterSize(chunkWriter{stream}, chunkSize)
	if err := s.store.Save(ctx, w); err != nil {
		return fault.OfRead(err)
	}
	return w.Flush()
}

// A chunkWriter sends what is written as messages.
type chunkWriter struct {
	stream *connect.ServerStream[v1.SnapshotResponse]
}

func (w chunkWriter) Write(b []byte) (n int, err error) {
	for len(b) > 0 {
		chunk := b[:min(len(b), chunkSize)]
		if err := w.stream.Send(&v1.SnapshotResponse{Chunk: chunk}); err != nil {
			return n, err
		}
		n, b = n+len(chunk), b[len(chunk):]
	}
	return n, nil
}

// Restore replaces the whole state by that of a snapshot, of all namespaces.
// One that is not whole changes nothing.
func (s clusterService) Restore(ctx context.Context, stream *connect.ClientStream[v1.RestoreRequest]) (*v1.RestoreResponse, error) {
	next := s.nextGeneration(ctx)
	r := s.memory.Restoring(&chunkReader{stream: stream})
	err := s.store.Restore(ctx, r)
	switch {
	case err == nil:
	case r.Refused != nil:
		return nil, r.Refused
	case fault.Unauthenticated(err): // revoked while it was sent
		return nil, err
	case storage.OutcomeOf(err) == storage.NotApplied && errors.Is(err, storage.ErrInvalid):
		return nil, fault.New(connect.CodeInvalidArgument, fault.ReasonSnapshot, "the snapshot cannot be restored, and nothing was changed: "+fault.ReasonText(err))
	default:
		if storage.OutcomeOf(err) == storage.Unknown {
			s.audit.restored(ctx, storage.Unknown, next)
			s.audit.log.push()
		}
		return nil, fault.OfChange(err)
	}
	out := &v1.RestoreResponse{}
	found, err := s.store.Get(ctx, session.NamespaceKey(input.Namespace(ctx)), storage.Latest)
	if err == nil {
		out.Index = found.Index // else it is not known, and the state is replaced all the same
	}
	s.audit.restored(ctx, storage.Applied, found.Generation)
	if err := s.audit.written(order.TraceOf(ctx)); err != nil {
		return nil, err
	}
	s.log.Warn("the state was replaced by a snapshot; leases and waits have ended")
	return out, nil
}

// nextGeneration is one that the state of a cluster has only if a restore comes into force,
// by which verifying an audit tells that without going by clocks; 0 where it is not known.
// That of a Redis rises as well where it has lost something.
func (s clusterService) nextGeneration(ctx context.Context) uint32 {
	if s.cfg.Cluster == nil {
		return 0
	}
	found, err := s.store.Get(ctx, session.NamespaceKey(input.Namespace(ctx)), storage.Nearby)
	if err != nil {
		return 0
	}
	return found.Generation + 1
}

// A chunkReader reads what comes in messages.
type chunkReader struct {
	stream *connect.ClientStream[v1.RestoreRequest]
	rest   []byte
}

func (r *chunkReader) Read(b []byte) (int, error) {
	for len(r.rest) == 0 {
		if !r.stream.Receive() {
			if err := r.stream.Err(); err != nil {
				return 0, err
			}
			return 0, io.EOF
		}
		r.rest = r.stream.Msg().GetChunk()
	}
	n := copy(b, r.rest)
	r.rest = r.rest[n:]
	return n, nil
}

// RepairIDs lets ids be taken again that are refused because one dated in the
// future was forgotten. Nodes refuse such ids by now; a node whose own clock was
// wrong has taken some.
func (s clusterService) RepairIDs(ctx context.Context, req *v1.RepairIDsRequest) (*v1.RepairIDsResponse, error) {
	f := &input.Fields{}
	now := s.cfg.Now().UnixMilli()
	newerThan := req.NewerThan
	if newerThan == 0 {
		newerThan = now
	}
	if most := now + input.Caps.Ahead.Max.Milliseconds(); newerThan < 0 || newerThan > most {
		f.Refuse("newerThan", "is %d; it must be from 0 to %d, in Unix milliseconds", newerThan, most)
	}
	f.OptionalID("holderClient", req.HolderClient)
	cmd := &session.Repair{
		NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Client: req.HolderClient, NewerThan: uint64(max(newerThan, 0)),
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	if a.Result.Repeat && req.NewerThan == 0 {
		newerThan = 0 // the clock of that time is not remembered
	}
	if a.First() {
		s.audit.repaired(order.TraceOf(ctx), cmd)
	}
	return &v1.RepairIDsResponse{Lowered: a.Result.Value == 1, NewerThan: newerThan, Index: a.Index}, nil
}
