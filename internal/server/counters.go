package server

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"connectrpc.com/connect"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/input"
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
	read := readOf(f, req.Consistency)
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
	a, err := s.change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
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
			return requestFailure(by)(res)
		}
		return fault.Conflict(fmt.Sprintf("key %q", key), "version", res.Version)
	}
}

// requestFailure makes the error of a request that had no answer.
func requestFailure(by session.Maker) func(*session.Result) error {
	return func(res *session.Result) error {
		return fault.OfResult(res, fmt.Sprintf("requestId %q of client %q", by.Request, by.Client))
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
	a, err := s.change(ctx, cmd, stateFailure(cmd.Key, cmd.By))
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
	a, err := s.change(ctx, cmd, func(res *session.Result) error {
		switch res.Code {
		case session.NotANumber:
			return fault.OfResult(res, fmt.Sprintf("key %q", req.Key))
		case session.Overflow:
			return fault.OfResult(res, "amount")
		}
		return requestFailure(cmd.By)(res)
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
	read := readOf(f, req.Consistency)
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
	found, index, err := s.readAll(ctx, keys, read)
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

// readAll returns records of one kind and one namespace as they stood at one
// instant, in the order of their keys; nil for what is absent.
func (s *Server) readAll(ctx context.Context, keys []session.Key, read storage.Read) (found []session.Record, index uint64, err error) {
	if store, ok := s.store.(storage.Gatherer); ok {
		return readAtOnce(ctx, store, keys)
	}
	found, index, ok, err := s.readTogether(ctx, keys, read)
	if ok || err != nil {
		return found, index, err
	}
	return s.readView(ctx, keys, read)
}

// readAtOnce reads the keys from a store that can read them at one instant. It
// reads as of now, whatever consistency was asked for.
func readAtOnce(ctx context.Context, store storage.Gatherer, keys []session.Key) (found []session.Record, index uint64, err error) {
	all, err := store.GetAll(ctx, keys...)
	if err != nil {
		return nil, 0, fault.OfRead(err)
	}
	for _, x := range all {
		found, index = append(found, x.Record), x.Index
	}
	return found, index, nil
}

// readTogether reads the keys one by one. If nothing was ordered between the
// first and the last, and time stood still, they stand as they stood at one
// instant; ok is false where that cannot be said.
func (s *Server) readTogether(ctx context.Context, keys []session.Key, read storage.Read) (found []session.Record, index uint64, ok bool, err error) {
	const tries = 3
	for range tries {
		found, ok = make([]session.Record, 0, len(keys)), true
		var now time.Duration // log time
		for i, key := range keys {
			x, err := s.store.Get(ctx, key, read)
			if err != nil {
				return nil, 0, false, fault.OfRead(err)
			}
			if i == 0 {
				index, now = x.Index, x.Now
			} else if x.Index != index || x.Index == 0 || x.Now != now {
				ok = false
				break
			}
			found = append(found, x.Record)
			read = storage.Nearby // the first read has brought this node up to date
		}
		if ok {
			return found, index, true, nil
		}
	}
	return nil, 0, false, nil
}

// readView reads the keys from a view of the whole state.
func (s *Server) readView(ctx context.Context, keys []session.Key, read storage.Read) (found []session.Record, index uint64, err error) {
	view, err := s.store.View(ctx, read)
	if err != nil {
		return nil, 0, fault.OfRead(err)
	}
	wanted := make(map[session.Key]session.Record, len(keys))
	for _, key := range keys {
		wanted[key] = nil
	}
	prefix := session.Prefix(keys[0].Kind(), keys[0].Namespace())
	entries, err := view.Find(prefix, prefix, len(wanted), func(k session.Key, _ session.Record) bool { _, ok := wanted[k]; return ok })
	if err != nil {
		return nil, 0, fault.OfRead(err)
	}
	for _, e := range entries {
		wanted[e.Key] = e.Record
	}
	found = make([]session.Record, len(keys))
	for i, key := range keys {
		found[i] = wanted[key]
	}
	return found, view.Index, nil
}

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
