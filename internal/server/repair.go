package server

import (
	"context"

	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
)

// RepairIDs lets ids be taken again that are refused because one dated in the
// future was forgotten. Nodes refuse such ids by now; a node whose own clock was
// wrong has taken some.
func (s clusterService) RepairIDs(ctx context.Context, req *v1.RepairIDsRequest) (*v1.RepairIDsResponse, error) {
	f := &fields{}
	now := s.cfg.Now().UnixMilli()
	newerThan := req.NewerThan
	if newerThan == 0 {
		newerThan = now
	}
	if most := now + caps.Ahead.Max.Milliseconds(); newerThan < 0 || newerThan > most {
		f.refuse("newerThan", "is %d; it must be from 0 to %d, in Unix milliseconds", newerThan, most)
	}
	f.optionalID("holderClient", req.HolderClient)
	cmd := &session.Repair{
		NS: namespace(ctx), By: f.maker(req, s.cfg.Now), Client: req.HolderClient, NewerThan: uint64(max(newerThan, 0)),
	}
	if f.err != nil {
		return nil, f.err
	}
	a, err := s.change(ctx, cmd, requestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	s.audit.repaired(traceOf(ctx), cmd)
	return &v1.RepairIDsResponse{Lowered: a.Result.Value == 1, NewerThan: newerThan, Index: a.Index}, nil
}
