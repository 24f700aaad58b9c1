package server

import (
	"context"
	"fmt"
	"strconv"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
	v1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Lists, which callers append to and read in pieces.

// maxRange is about how many bytes of items one Range answers.
const maxRange = 1 << 20

// Append puts items at the end of a list.
func (s counterService) Append(ctx context.Context, req *v1.AppendRequest) (*v1.AppendResponse, error) {
	return unary(ctx, s.Server, &appending{}, req)
}

// An appending is one Append on its way. Where its caller names no length, the
// one that the node knows is a premise.
type appending struct {
	request[v1.AppendRequest, v1.AppendResponse]
	cmd *session.Append
}

func (a *appending) check(ctx context.Context, f *input.Fields) error {
	checkKey(f, "key", a.req.Key)
	f.Count("items", len(a.req.Items), input.Caps.Items)
	for i, item := range a.req.Items {
		if n := int64(len(item)); n > input.Caps.Item.Max {
			f.Refuse(fmt.Sprintf("items[%d]", i), "has %d bytes, the most is %d", n, input.Caps.Item.Max)
		}
	}
	if a.req.Ttl == nil {
		f.Refuse("ttl", "is required; say how long the items are kept, at most 30 days")
	}
	a.cmd = &session.Append{
		NS: a.ns, By: f.Maker(a.req, a.s.cfg.Now), Key: a.req.Key, Items: a.req.Items,
		TTL: f.Duration("ttl", a.req.Ttl, input.Caps.ListTTL), Exact: a.req.IfLength != nil, From: a.req.GetIfLength(),
	}
	a.one[0] = a.cmd
	f.Within("ifLength", a.cmd.From, input.Caps.Length)
	if f.Err != nil || a.cmd.Exact {
		return f.Err
	}
	found, err := a.s.store.Get(ctx, session.ListKey(a.ns, a.req.Key), storage.Nearby)
	if err != nil {
		return fault.OfRead(err)
	}
	if l, ok := found.Record.(*session.List); ok && l != nil {
		a.cmd.From = l.Length
	}
	return nil
}

func (a *appending) take(_ context.Context, answers []storage.Answer) (again bool, err error) {
	if again = a.stale(answers); again {
		// A command is immutable once it was proposed.
		next := *a.cmd
		next.From = a.answer.Result.Value
		a.cmd, a.one[0] = &next, &next
	}
	return again, nil
}

func (a *appending) respond() error {
	key := fmt.Sprintf("key %q", a.req.Key)
	switch res := &a.answer.Result; {
	case res.Code == session.VersionConflict:
		return fault.Conflict(key, "length", strconv.FormatInt(res.Value, 10))
	case res.Code == session.Overflow:
		return fault.New(connect.CodeResourceExhausted, fault.ReasonListFull, fmt.Sprintf(
			"%s: the list would be larger than it may, which is %d bytes, each item counted as at least %d; go on under another key, or delete it with DeleteList",
			key, session.MaxList, session.MinItemSize))
	case res.Code.Failure():
		return requestFailure(a.cmd.By)(res)
	default:
		a.out = &v1.AppendResponse{Length: res.Value, Index: a.answer.Index}
		return nil
	}
}

// Range returns items of a list as they stood at one instant.
func (s counterService) Range(ctx context.Context, req *v1.RangeRequest) (*v1.RangeResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	read := readOf(f, req.Consistency)
	f.Within("from", req.From, input.Caps.Length)
	limit := f.Number("limit", int64(req.Limit), input.Caps.Page)
	if f.Err != nil {
		return nil, f.Err
	}
	ns := input.Namespace(ctx)
	head, err := s.store.Get(ctx, session.ListKey(ns, req.Key), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	keys := []session.Key{session.ListKey(ns, req.Key)}
	for i := req.From; i < min(lengthOf(head.Record), req.From+limit); i++ {
		keys = append(keys, session.ListItemKey(ns, req.Key, i))
	}
	found, index, err := s.readAll(ctx, keys, read)
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
func (s counterService) DeleteList(ctx context.Context, req *v1.DeleteListRequest) (*v1.DeleteListResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	cmd := &session.DeleteList{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Key: req.Key}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.change(ctx, cmd, requestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.DeleteListResponse{Found: a.Result.Value == 1, Index: a.Index}, nil
}
