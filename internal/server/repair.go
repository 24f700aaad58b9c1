package server

import (
	"context"

	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

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
	a, err := s.change(ctx, cmd, requestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.audit.repaired(traceOf(ctx), cmd)
	return &v1.RepairIDsResponse{Lowered: a.Result.Value == 1, NewerThan: newerThan, Index: a.Index}, nil
}
