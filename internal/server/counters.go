package server

import (
	"context"
	"fmt"
	"time"

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
