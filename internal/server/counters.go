package server

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

// counterService answers govnode.v1.CounterService, the storage protocol.
type counterService struct{ *Server }

// checkKey checks the key of a value: any text without control characters.
func checkKey(f *input.Fields, field, key string) { f.Text(field, key, input.Caps.CounterKey) }

// Get returns the value of a key, or that it has none.
func (s counterService) Get(ctx context.Context, req *v1.GetRequest) (*v1.GetResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	read := order.ReadOf(f, req.Consistency)
	if f.Err != nil {
		return nil, f.Err
	}
	found, err := s.store.Get(ctx, session.CounterKey(input.Namespace(ctx), req.Key), read)
	if err != nil {
		return nil, fault.OfRead(err)
	}
	out := &v1.GetResponse{AppliedIndex: found.Index, Version: session.Absent}
	if c, ok := found.Record.(*session.Counter); ok && c != nil {
		out.Found, out.Value, out.Version = true, printed(c.Value), c.Value.Version()
	}
	return out, nil
}

// printed is a value as it was set: a number in its canonical form, which is
// the only form that is stored as a number.
func printed(v session.Value) string {
	if v.Number {
		return input.FormatDecimal(v.N)
	}
	return v.Text
}

// stored is the opposite of printed: a text that is a number in its canonical
// form is one, everything else comes back as it was given.
func stored(text string) session.Value {
	if n, err := input.ParseDecimal(text); err == nil && input.FormatDecimal(n) == text {
		return session.Value{Number: true, N: n}
	}
	return session.Value{Text: text}
}

// Set writes a value.
func (s counterService) Set(ctx context.Context, req *v1.SetRequest) (*v1.SetResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	if n := int64(len(req.Value)); n > input.Caps.Text.Max {
		f.Refuse("value", "has %d bytes, the most is %d", n, input.Caps.Text.Max)
	}
	cmd := &session.Set{
		NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Key: req.Key,
		Value: stored(req.Value), TTL: f.Duration("ttl", req.Ttl, input.Caps.KeyTTL), IfVersion: checkVersion(f, req.IfVersion),
	}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.SetResponse{Index: a.Index, Version: cmd.Value.Version()}, nil
}

// checkVersion checks the version that a key must have.
func checkVersion(f *input.Fields, version string) string {
	if version != "" && !session.IsVersion(version) {
		f.Refuse("ifVersion", "is no version; send the one that Get answered, or \"0\" for a key that must be absent")
	}
	return version
}

// stateFailure makes the error of a request for state that had no answer.
func stateFailure(key string, by session.Maker) func(*session.Result) error {
	return func(res *session.Result) error {
		if res.Code != session.VersionConflict {
			return order.RequestFailure(by)(res)
		}
		return fault.Conflict(fmt.Sprintf("key %q", key), "version", res.Version)
	}
}

// Delete removes a value, and says whether there was one.
func (s counterService) Delete(ctx context.Context, req *v1.DeleteRequest) (*v1.DeleteResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	cmd := &session.Delete{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Key: req.Key, IfVersion: checkVersion(f, req.IfVersion)}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.DeleteResponse{Found: a.Result.Value == 1, Index: a.Index}, nil
}

// Increment adds a decimal amount and returns the new value.
func (s counterService) Increment(ctx context.Context, req *v1.IncrementRequest) (*v1.IncrementResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	amount := int64(input.Million)
	if req.Amount != "" {
		var err error
		if amount, err = input.ParseDecimal(req.Amount); err != nil {
			f.Refuse("amount", "%v", err)
		}
	}
	cmd := &session.Increment{NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Key: req.Key, Amount: amount}
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.Change(ctx, cmd, func(res *session.Result) error {
		switch res.Code {
		case session.NotANumber:
			return fault.OfResult(res, fmt.Sprintf("key %q", req.Key))
		case session.Overflow:
			return fault.OfResult(res, "amount")
		}
		return order.RequestFailure(cmd.By)(res)
	})
	if err != nil {
		return nil, err
	}
	return &v1.IncrementResponse{Value: input.FormatDecimal(a.Result.Value), Index: a.Index}, nil
}

// BatchGet returns many values as they stood at one instant; what is absent is
// left out.
func (s counterService) BatchGet(ctx context.Context, req *v1.BatchGetRequest) (*v1.BatchGetResponse, error) {
	f := &input.Fields{}
	read := order.ReadOf(f, req.Consistency)
	f.Count("keys", len(req.Keys), input.Caps.Keys)
	for i, key := range req.Keys {
		checkKey(f, fmt.Sprintf("keys[%d]", i), key)
	}
	if f.Err != nil {
		return nil, f.Err
	}
	keys := make([]session.Key, len(req.Keys))
	for i, key := range req.Keys {
		keys[i] = session.CounterKey(input.Namespace(ctx), key)
	}
	found, index, err := s.store.ReadAll(ctx, keys, read)
	if err != nil {
		return nil, err
	}
	out := &v1.BatchGetResponse{AppliedIndex: index, Values: make(map[string]string, len(keys)), Versions: make(map[string]string, len(keys))}
	for i, r := range found {
		if c, ok := r.(*session.Counter); ok && c != nil {
			out.Values[req.Keys[i]], out.Versions[req.Keys[i]] = printed(c.Value), c.Value.Version()
		}
	}
	return out, nil
}

// Lists, which callers append to and read in pieces.

// maxRange is about how many bytes of items one Range answers.
const maxRange = 1 << 20

// Append puts items at the end of a list. Where its caller names no length, the
// one that the node knows is a premise.
func (s counterService) Append(ctx context.Context, req *v1.AppendRequest) (*v1.AppendResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
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
		NS: input.Namespace(ctx), By: f.Maker(req, s.cfg.Now), Key: req.Key, Items: req.Items,
		TTL: f.Duration("ttl", req.Ttl, input.Caps.ListTTL), Exact: req.IfLength != nil, From: req.GetIfLength(),
	}
	f.Within("ifLength", cmd.From, input.Caps.Length)
	if f.Err != nil {
		return nil, f.Err
	}
	a, err := s.store.ChangeOn(ctx, func(stale *session.Result) (session.Command, error) {
		next := cmd
		if stale != nil {
			next.From = stale.Value
		} else if !cmd.Exact {
			found, err := s.store.Get(ctx, session.ListKey(cmd.NS, cmd.Key), storage.Nearby)
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
func (s counterService) Range(ctx context.Context, req *v1.RangeRequest) (*v1.RangeResponse, error) {
	f := &input.Fields{}
	checkKey(f, "key", req.Key)
	read := order.ReadOf(f, req.Consistency)
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
	found, index, err := s.store.ReadAll(ctx, keys, read)
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
	a, err := s.store.Change(ctx, cmd, order.RequestFailure(cmd.By))
	if err != nil {
		return nil, err
	}
	return &v1.DeleteListResponse{Found: a.Result.Value == 1, Index: a.Index}, nil
}
