package values

import (
	"context"
	"fmt"
	"strconv"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	"example.com/govnode/internal/server/order"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Lists, which callers append to and read in pieces.

// maxRange is about how many bytes of items one Range answers.
const maxRange = 1 << 20

// Append puts items at the end of a list. Where its caller names no length, the
// one that the node knows is a premise.
func (s *Service) Append(ctx context.Context, req *v1.AppendRequest) (*v1.AppendResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	f.Count("items", len(req.Items), input.Caps.Items)
	for i, item := range req.Items {
		if n := int64(len(item)); n > input.Caps.Item.Max {
			f.Refuse(fmt.Sprintf("items[%d]", i), "has %d bytes, the most is %d", n, input.Caps.Item.Max)
		}
	}
	if req.Ttl == nil {
		f.Refuse("ttl", "is required; say how long the items are kept, at most 30 days")
	}
	cmd := session.Append{
		NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Key: req.Key, Items: req.Items,
		TTL: f.Duration("ttl", req.Ttl, input.Caps.ListTTL), Exact: req.IfLength != nil, From: req.GetIfLength(),
	}
	f.Within("ifLength", cmd.From, input.Caps.Length)
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.ChangeOn(ctx, func(stale *session.Result) (session.Command, error) {
		next := cmd
		if stale != nil {
			next.From = stale.Value
		} else if !cmd.Exact {
			found, err := s.Store.Get(ctx, session.ListKey(cmd.NS, cmd.Key), storage.Nearby)
			if err != nil {
				return nil, fault.OfRead(err)
			}
			next.From = lengthOf(found.Record)
		}
		return &next, nil
	}, func(res *session.Result) error {
		switch key := fmt.Sprintf("key %q", cmd.Key); res.Code {
		case session.VersionConflict:
			return fault.Conflict(key, "length", strconv.FormatInt(res.Value, 10))
		case session.Overflow:
			return fault.New(connect.CodeResourceExhausted, fault.ReasonListFull, fmt.Sprintf(
				"%s: the list would be larger than it may, which is %d bytes, each item counted as at least %d; go on under another key, or delete it with DeleteList",
				key, session.MaxList, session.MinItemSize))
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	return &v1.AppendResponse{Length: a.Result.Value, Index: a.Index}, nil
}

// Range returns items of a list as they stood at one instant.
func (s *Service) Range(ctx context.Context, req *v1.RangeRequest) (*v1.RangeResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	read := order.ReadOf(f, req.Consistency)
	f.Within("from", req.From, input.Caps.Length)
	limit := f.Number("limit", int64(req.Limit), input.Caps.Page)
	if f.Err != nil {
		return nil, f.Err
	}
	ns := input.Namespace(ctx)
	head, err := s.Store.Get(ctx, session.ListKey(ns, req.Key), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	keys := []session.Key{session.ListKey(ns, req.Key)}
	for i := req.From; i < min(lengthOf(head.Record), req.From+limit); i++ {
		keys = append(keys, session.ListItemKey(ns, req.Key, i))
	}
	found, index, err := s.Store.ReadAll(ctx, keys, read)
	if err != nil {
		return nil, err
	}
	return rangeOf(req.From, found, index), nil
}

// lengthOf is the length of the list that a record is the head of, or of one
// that is absent.
func lengthOf(head session.Record) int64 {
	if l, ok := head.(*session.List); ok && l != nil {
		return l.Length
	}
	return 0
}

// rangeOf is what is told of a list: its head comes first among the records, and
// then items from an index on. The list may have become shorter since it was
// looked at how long it is.
func rangeOf(from int64, found []session.Record, index uint64) *v1.RangeResponse {
	out := &v1.RangeResponse{AppliedIndex: index, Length: lengthOf(found[0])}
	out.Next = min(from, out.Length)
	size := 0
	for _, r := range found[1:] {
		if out.Next == out.Length {
			break
		}
		if item, ok := r.(*session.ListItem); ok && item != nil {
			if size += len(item.Text); size > maxRange && len(out.Items) > 0 {
				break
			}
			out.Items = append(out.Items, &v1.ListItem{Index: out.Next, Value: item.Text})
		}
		out.Next++
	}
	return out
}

// DeleteList removes a list, and says whether there was one.
func (s *Service) DeleteList(ctx context.Context, req *v1.DeleteListRequest) (*v1.DeleteListResponse, error) {
	f := &input.Fields{}
	f.Key("key", req.Key)
	cmd := &session.DeleteList{NS: input.Namespace(ctx), By: f.Maker(req, s.Now), Key: req.Key}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.Store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.DeleteListResponse{Found: a.Result.Value == 1, Index: a.Index}, nil
}
