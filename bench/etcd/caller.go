package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/govnode/bench"
)

// What one caller does in etcd: it keeps the records that it saw last, and
// changes them in one transaction that compares them.

// A state is the value of a key: for a session its counts, for a pool the slots
// in use, the newest fencing token and the end of the newest lease.
type state [4]int64

const (
	attempts = iota // of a session
	calls
	executions
	toolCalls
)

const (
	inUse = iota // of a pool
	token
	deadline
)

func (s state) encode() string {
	b := make([]byte, 0, 8*len(s))
	for _, n := range s {
		b = binary.LittleEndian.AppendUint64(b, uint64(n))
	}
	return string(b)
}

func decode(b []byte) (s state, err error) {
	if len(b) != 8*len(s) {
		return s, fmt.Errorf("etcd: a value of %d bytes, not %d", len(b), 8*len(s))
	}
	for i := range s {
		s[i] = int64(binary.LittleEndian.Uint64(b[8*i:]))
	}
	return s, nil
}

// A record is a key as the caller saw it last.
type record struct {
	key      string
	revision int64 // 0: it is not there
	state    state
}

func (r *record) unchanged() clientv3.Cmp {
	return clientv3.Compare(clientv3.ModRevision(r.key), "=", r.revision)
}

// mostTries bounds how often one operation is tried, which only a hot pool
// comes near to.
const mostTries = 10_000

// A caller is used by one goroutine at a time.
type caller struct {
	client  *clientv3.Client
	session record
	pools   [2]record
	ids     string // prefix of its keys of ids
	slots   int
	next    int64
	id      string
	open    bool
	book    bench.Ledger
}

func (c *caller) begin(ctx context.Context, i int) error {
	c.next++
	c.id = bench.CallID(i, c.next)
	idKey := c.ids + c.id
	err := c.change(ctx, clientv3.Compare(clientv3.CreateRevision(idKey), "=", 0),
		func(session *state, pools [2]*state) ([]clientv3.Op, error) {
			session[attempts]++
			session[calls]++
			session[toolCalls]++
			for _, p := range pools {
				if p[inUse] >= int64(c.slots) {
					return nil, fmt.Errorf("etcd: begin of %s: %d slots are in use", c.id, p[inUse])
				}
				p[inUse]++
				p[token]++
				p[deadline] = time.Now().Add(leaseTTL).UnixMilli()
			}
			ops := []clientv3.Op{clientv3.OpPut(idKey, "admitted")}
			if c.next > bench.RememberedIDs {
				ops = append(ops, clientv3.OpDelete(c.ids+bench.CallID(i, c.next-bench.RememberedIDs)))
			}
			return ops, nil
		})
	if err != nil {
		c.book.Unknown++
		return err
	}
	c.open = true
	c.book.Attempts++
	c.book.Calls++
	return nil
}

func (c *caller) end(ctx context.Context) error {
	c.open = false
	err := c.change(ctx, clientv3.Compare(clientv3.CreateRevision(c.ids+c.id), ">", 0),
		func(session *state, pools [2]*state) ([]clientv3.Op, error) {
			session[executions]++
			for _, p := range pools {
				p[inUse]--
			}
			return nil, nil
		})
	if err != nil {
		c.book.Unknown++
		return err
	}
	c.book.Executions++
	return nil
}

// change writes the next values of the session and the pools in one
// transaction, again until nobody else was faster.
func (c *caller) change(ctx context.Context, id clientv3.Cmp, next func(session *state, pools [2]*state) ([]clientv3.Op, error)) error {
	for range mostTries {
		session, first, second := c.session.state, c.pools[0].state, c.pools[1].state
		ops, err := next(&session, [2]*state{&first, &second})
		if err != nil {
			return err
		}
		ops = append(ops, clientv3.OpPut(c.session.key, session.encode()),
			clientv3.OpPut(c.pools[0].key, first.encode()), clientv3.OpPut(c.pools[1].key, second.encode()))
		res, err := c.client.Txn(ctx).
			If(c.session.unchanged(), c.pools[0].unchanged(), c.pools[1].unchanged(), id).
			Then(ops...).
			Else(clientv3.OpGet(c.session.key), clientv3.OpGet(c.pools[0].key), clientv3.OpGet(c.pools[1].key)).
			Commit()
		if err != nil {
			return err
		}
		if res.Succeeded {
			at := res.Header.Revision
			c.session = record{c.session.key, at, session}
			c.pools[0] = record{c.pools[0].key, at, first}
			c.pools[1] = record{c.pools[1].key, at, second}
			return nil
		}
		for k, r := range []*record{&c.session, &c.pools[0], &c.pools[1]} {
			if err := r.take(res.Responses[k].GetResponseRange().Kvs); err != nil {
				return err
			}
		}
	}
	return fmt.Errorf("etcd: %s: others were faster %d times", c.id, mostTries)
}

func (r *record) take(found []*mvccpb.KeyValue) (err error) {
	r.revision, r.state = 0, state{}
	if len(found) == 1 {
		r.revision = found[0].ModRevision
		r.state, err = decode(found[0].Value)
	}
	return err
}
