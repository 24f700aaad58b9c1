package client

import (
	"context"
	"errors"
	"time"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// State that agents keep between calls: values with versions, and lists.

// Absent is the version of a key without a value.
const Absent = "0"

// A Value is what stands under a key.
type Value struct {
	Found   bool
	Text    string
	Version string // of the content; Absent if there is none
}

// Get returns the value of a key, as of now.
func (c *Client) Get(ctx context.Context, key string) (Value, error) {
	res, err := read(ctx, c, "Get", func(ctx context.Context, n *node) (*govnodev1.GetResponse, error) {
		return n.counters.Get(ctx, &govnodev1.GetRequest{Key: key})
	})
	return Value{res.GetFound(), res.GetValue(), res.GetVersion()}, err
}

// GetMany returns the values of keys as they stood at one instant, without those
// that have none.
func (c *Client) GetMany(ctx context.Context, keys ...string) (map[string]Value, error) {
	res, err := read(ctx, c, "BatchGet", func(ctx context.Context, n *node) (*govnodev1.BatchGetResponse, error) {
		return n.counters.BatchGet(ctx, &govnodev1.BatchGetRequest{Keys: keys})
	})
	found := make(map[string]Value, len(res.GetValues()))
	for key, text := range res.GetValues() {
		found[key] = Value{Found: true, Text: text, Version: res.GetVersions()[key]}
	}
	return found, err
}

// Increment adds a decimal with at most 6 fractional digits, 1 if it is empty, to the
// number under a key, and returns the sum. A key without a value is 0; one with a
// text is an *Error (NOT_A_NUMBER).
func (c *Client) Increment(ctx context.Context, key, amount string) (sum string, err error) {
	req := &govnodev1.IncrementRequest{Key: key, Amount: amount, Client: c.cfg.Name}
	res, err := change(ctx, c, "Increment", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.IncrementResponse, error) {
		return n.counters.Increment(ctx, req)
	})
	return res.GetValue(), err
}

// A Write says how a value is set.
type Write struct {
	TTL time.Duration // none if 0
	// IfVersion is the version that the key must have, Absent for none; any if
	// empty. See Conflict.
	IfVersion string
}

// Set writes a value and returns its version.
func (c *Client) Set(ctx context.Context, key, text string, w Write) (version string, err error) {
	req := &govnodev1.SetRequest{Key: key, Value: text, IfVersion: w.IfVersion, Client: c.cfg.Name}
	if w.TTL != 0 {
		req.Ttl = durationpb.New(w.TTL)
	}
	res, err := change(ctx, c, "Set", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.SetResponse, error) {
		return n.counters.Set(ctx, req)
	})
	return res.GetVersion(), err
}

// Delete removes a value, if it has a version or, where that is empty, whatever it
// has, and reports whether there was one.
func (c *Client) Delete(ctx context.Context, key, ifVersion string) (found bool, err error) {
	req := &govnodev1.DeleteRequest{Key: key, IfVersion: ifVersion, Client: c.cfg.Name}
	res, err := change(ctx, c, "Delete", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.DeleteResponse, error) {
		return n.counters.Delete(ctx, req)
	})
	return res.GetFound(), err
}

// An Appending says how items are put at the end of a list.
type Appending struct {
	TTL      time.Duration // how long these items are kept; required
	IfLength *int64        // the length that the list must have; any if nil. See Conflict
}

// Append puts items at the end of a list, all or none, and returns how long it is
// then. A list is for one writer at a time.
func (c *Client) Append(ctx context.Context, key string, items []string, a Appending) (length int64, err error) {
	req := &govnodev1.AppendRequest{Key: key, Items: items, Ttl: durationpb.New(a.TTL), IfLength: a.IfLength, Client: c.cfg.Name}
	res, err := change(ctx, c, "Append", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.AppendResponse, error) {
		return n.counters.Append(ctx, req)
	})
	return res.GetLength(), err
}

// An Item is one of a list.
type Item struct {
	Index int64 // from 0 on
	Text  string
}

// Items are a part of a list as it stood at one instant, without what lapsed.
type Items struct {
	Items  []Item
	Length int64 // of the list
	Next   int64 // where to go on; Length at the end
}

// Range returns items of a list from an index on, at most limit of them, and at
// most about a mebibyte. 0 is a limit of 100.
func (c *Client) Range(ctx context.Context, key string, from int64, limit int) (Items, error) {
	req := &govnodev1.RangeRequest{Key: key, From: from, Limit: int32(min(max(limit, -1), 1<<30))}
	res, err := read(ctx, c, "Range", func(ctx context.Context, n *node) (*govnodev1.RangeResponse, error) {
		return n.counters.Range(ctx, req)
	})
	all := Items{Length: res.GetLength(), Next: res.GetNext()}
	for _, i := range res.GetItems() {
		all.Items = append(all.Items, Item{i.GetIndex(), i.GetValue()})
	}
	return all, err
}

// DeleteList removes a list, and reports whether there was one.
func (c *Client) DeleteList(ctx context.Context, key string) (found bool, err error) {
	req := &govnodev1.DeleteListRequest{Key: key, Client: c.cfg.Name}
	res, err := change(ctx, c, "DeleteList", &req.RequestId, func(ctx context.Context, n *node) (*govnodev1.DeleteListResponse, error) {
		return n.counters.DeleteList(ctx, req)
	})
	return res.GetFound(), err
}

// Conflict reports whether a write was refused since the key has another version,
// or the list another length, than it named, and which that is.
func Conflict(err error) (today string, ok bool) {
	var e *Error
	var ce *connect.Error
	if !errors.As(err, &e) || e.Reason != ReasonVersionConflict || !errors.As(err, &ce) {
		return "", false
	}
	for _, d := range ce.Details() {
		if m, err := d.Value(); err == nil {
			if info, is := m.(*errdetails.ErrorInfo); is {
				return info.GetMetadata()["version"] + info.GetMetadata()["length"], true
			}
		}
	}
	return "", true
}
