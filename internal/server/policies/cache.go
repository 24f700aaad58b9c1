package policies

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"connectrpc.com/connect"
	"github.com/prometheus/client_golang/prometheus"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// The compiled policies of a node.

const (
	// maxCompiled bounds the compiled policies that a node keeps. One is made
	// again in milliseconds from the tree in the state.
	maxCompiled = 256
	// loadTimeout bounds the read of a tree, which many requests may wait for.
	loadTimeout = 10 * time.Second
)

// A Cache holds the compiled policies of a node, by digest: as their trees want
// to be judged, and in strict mode for the namespaces that ask for it.
type Cache struct {
	store     order.Reader
	cache     *engine.Cache
	strict    *engine.Cache
	isStrict  map[string]bool // by namespace
	allStrict bool
	made      prometheus.Counter
	options   []engine.Option
}

// NewCache makes a Cache. Made counts the policies that are compiled; those of the
// namespaces named are judged in strict mode.
func NewCache(store order.Reader, made prometheus.Counter, strict []string, opts []engine.Option) *Cache {
	p := &Cache{store: store, made: made, options: opts, isStrict: map[string]bool{}, allStrict: slices.Contains(strict, "*")}
	for _, ns := range strict {
		p.isStrict[ns] = true
	}
	p.cache = engine.NewCache(maxCompiled, opts...)
	p.strict = engine.NewCache(maxCompiled, append(slices.Clip(opts), engine.WithStrict())...)
	return p
}

// cacheOf returns the compiled policies as a namespace wants them judged.
func (p *Cache) cacheOf(ns string) *engine.Cache {
	if p.allStrict || p.isStrict[ns] {
		return p.strict
	}
	return p.cache
}

// compile makes a policy as a namespace wants it judged.
func (p *Cache) compile(ns string, tree *engine.Tree) (*engine.Policy, error) {
	opts := p.options
	if p.allStrict || p.isStrict[ns] {
		opts = append(slices.Clip(opts), engine.WithStrict())
	}
	return engine.Compile(tree, opts...)
}

// Compiled returns the policy of a tree that some session pins. One that is
// not there, or cannot be compiled, is an error: without the rules there is no
// verdict.
func (p *Cache) Compiled(ctx context.Context, ns string, d session.Digest) (*engine.Policy, error) {
	policy, err := p.cacheOf(ns).Policy(ctx, engine.Digest(d), func(ctx context.Context) (*engine.Tree, error) {
		p.made.Inc()
		load, cancel := context.WithTimeout(ctx, loadTimeout)
		defer cancel()
		return p.tree(load, ns, d)
	})
	switch {
	case err == nil:
		return policy, nil
	case errors.Is(err, order.ErrTakesLong) && !order.Quick(ctx): // said to another, who waited for the same
		return p.Compiled(ctx, ns, d)
	case errors.Is(err, order.ErrTakesLong), errors.As(err, new(*fault.Error)):
		return nil, err
	case ctx.Err() != nil: // while another loads the same
		return nil, fault.OfRead(ctx.Err())
	}
	return nil, fault.New(connect.CodeFailedPrecondition, fault.ReasonPolicyUnreadable, fmt.Sprintf("the policy %s cannot be compiled on this node, so nothing is admitted under it: %v", d, err))
}

// tree reads a tree; one that is not there nearby is looked for once more.
func (p *Cache) tree(ctx context.Context, ns string, d session.Digest) (*engine.Tree, error) {
	for _, read := range []storage.Read{storage.Nearby, storage.Latest} {
		if read == storage.Latest && order.Quick(ctx) {
			return nil, order.ErrTakesLong
		}
		found, err := p.store.Get(ctx, session.PolicyKey(ns, d), read)
		if err != nil {
			return nil, fault.OfRead(err)
		}
		if r, ok := found.Record.(*session.Policy); ok && r != nil {
			return engine.DecodeTree(r.Tree)
		}
	}
	return nil, fault.NotFound("policy.digest", "there is no policy with the digest %s; store it with PutPolicy", d)
}

// Evaluated returns the policy of a tree of this namespace. The cache knows no
// namespaces, so the tree is looked for first: a digest is no key to another's
// policy.
func (p *Cache) Evaluated(ctx context.Context, ns string, d session.Digest) (*engine.Policy, error) {
	if _, err := p.tree(ctx, ns, d); err != nil {
		return nil, err
	}
	return p.Compiled(ctx, ns, d)
}
