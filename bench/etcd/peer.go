package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"example.com/govnode/bench"
)

// A peer is etcd as a bench.Target.
//
// What one BeginCall or EndCall of govnode does is one transaction here: it
// compares the revisions of the session and of both pools with those that the
// caller saw last and writes their next values, and it writes the id of the call
// where it must not be yet. The caller keeps what it wrote, so that it need not
// read; a loser of the comparison takes the present values from the answer and
// tries again. An id is deleted when rememberedIDs newer ones are there.
type peer struct {
	plan    bench.Plan
	clients []*clientv3.Client
	callers []caller
	slots   int
}

const (
	connections = 8 // as a fleet would have several, spread over the members
	dialTimeout = 5 * time.Second
	leaseTTL    = 30 * time.Second
)

func open(ctx context.Context, addresses []string, plan bench.Plan) (bench.Target, error) {
	if err := plan.CheckPeer(); err != nil {
		return nil, err
	}
	if len(addresses) == 0 {
		return nil, errors.New("addresses: empty: name the members of etcd")
	}
	p := &peer{plan: plan, slots: plan.Slots}
	for i := range connections {
		c, err := clientv3.New(clientv3.Config{Context: ctx, Endpoints: []string{addresses[i%len(addresses)]}, DialTimeout: dialTimeout})
		if err != nil {
			return nil, errors.Join(fmt.Errorf("etcd at %s: %w", addresses[i%len(addresses)], err), p.Close())
		}
		p.clients = append(p.clients, c)
	}
	p.callers = make([]caller, plan.Callers)
	for i := range p.callers {
		keys := plan.PeerKeys(i)
		p.callers[i] = caller{
			client: p.clients[i%connections], ids: keys.Session + "/id/", slots: p.slots,
			session: record{key: keys.Session}, pools: [2]record{{key: keys.Pools[0]}, {key: keys.Pools[1]}},
		}
	}
	return p, nil
}

func (p *peer) Step(ctx context.Context, i int) error {
	c := &p.callers[i]
	if c.open {
		return c.end(ctx)
	}
	return c.begin(ctx, i)
}

func (p *peer) Verify(ctx context.Context) (bench.Audit, error) {
	var books []bench.Ledger
	var system []bench.Counted
	for i := range p.callers {
		c := &p.callers[i]
		if c.open {
			if err := c.end(ctx); err != nil {
				return bench.Audit{}, err
			}
		}
		res, err := c.client.Get(ctx, c.session.key)
		if err != nil {
			return bench.Audit{}, err
		}
		var found state
		if len(res.Kvs) == 1 {
			if found, err = decode(res.Kvs[0].Value); err != nil {
				return bench.Audit{}, err
			}
		}
		books = append(books, c.book)
		system = append(system, bench.Counted{Attempts: found[attempts], Calls: found[calls], Executions: found[executions]})
	}
	return bench.CompareLedgers(books, system)
}

func (p *peer) Close() error {
	var errs []error
	for _, c := range p.clients {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}
