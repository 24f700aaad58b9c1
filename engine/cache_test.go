package engine

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/stretchr/testify/require"

	"example.com/govnode/engine/source"
)

func TestCache(t *testing.T) {
	trees := make([]*source.Tree, 4)
	for i := range trees {
		var err error
		trees[i], err = source.SingleFile("name: p" + string(rune('0'+i)) + "\nrules: []")
		require.NoError(t, err)
	}
	var loads atomic.Int64
	c := NewCache(2, WithLogger(discard))
	get := func(i int) *Policy {
		p, err := c.Policy(t.Context(), trees[i].Digest(), func(context.Context) (*source.Tree, error) { loads.Add(1); return trees[i], nil })
		require.NoError(t, err)
		return p
	}
	first := get(0)
	require.Same(t, first, get(0))
	get(1)
	get(0)
	get(2) // pushes 1 out, which was used longest ago
	require.Equal(t, 2, c.Len())
	require.Same(t, first, get(0))
	require.Equal(t, int64(3), loads.Load())
	get(1)
	require.Equal(t, int64(4), loads.Load())

	// What comes back must be what was asked for, and failures are not kept.
	_, err := c.Policy(t.Context(), trees[3].Digest(), func(context.Context) (*source.Tree, error) { return trees[0], nil })
	require.ErrorContains(t, err, "was altered")
	_, err = c.Policy(t.Context(), trees[3].Digest(), func(context.Context) (*source.Tree, error) { return nil, errors.New("not here") })
	require.ErrorContains(t, err, "not here")
	require.Equal(t, "p3", get(3).Name())
}

func TestCacheCompilesOnce(t *testing.T) {
	tree, err := source.SingleFile("rules: []")
	require.NoError(t, err)
	var loads atomic.Int64
	gate := make(chan struct{})
	c := NewCache(1, WithLogger(discard))
	results := make(chan *Policy, 8)
	for range 8 {
		go func() {
			p, _ := c.Policy(t.Context(), tree.Digest(), func(context.Context) (*source.Tree, error) { loads.Add(1); <-gate; return tree, nil })
			results <- p
		}()
	}
	close(gate)
	first := <-results
	for range 7 {
		require.Same(t, first, <-results)
	}
	require.Equal(t, int64(1), loads.Load())
}

// Who waits for another to load a policy waits no longer than it has time, and where the
// other had none any more, or panicked, the next one loads.
func TestCacheWaitsNoLongerThanItMay(t *testing.T) {
	tree, err := source.SingleFile("rules: []")
	require.NoError(t, err)
	synctest.Test(t, func(t *testing.T) {
		c := NewCache(1, WithLogger(discard))
		first, giveUp := context.WithCancel(t.Context())
		var loads atomic.Int64
		slow := func(ctx context.Context) (*source.Tree, error) {
			if loads.Add(1) == 1 {
				<-ctx.Done()
				return nil, ctx.Err()
			}
			return tree, nil
		}
		ask := func(ctx context.Context) chan error {
			answer := make(chan error, 1)
			go func() {
				p, err := c.Policy(ctx, tree.Digest(), slow)
				require.Equal(t, err == nil, p != nil)
				answer <- err
			}()
			synctest.Wait()
			return answer
		}
		loading, waiting := ask(first), ask(t.Context())
		short, leave := context.WithCancel(t.Context())
		gone := ask(short)
		leave()
		require.ErrorIs(t, <-gone, context.Canceled)
		giveUp()
		require.ErrorIs(t, <-loading, context.Canceled)
		require.NoError(t, <-waiting)
		require.EqualValues(t, 2, loads.Load())
	})
	c := NewCache(1, WithLogger(discard))
	require.Panics(t, func() {
		_, _ = c.Policy(t.Context(), tree.Digest(), func(context.Context) (*source.Tree, error) { panic("load") })
	})
	p, err := c.Policy(t.Context(), tree.Digest(), func(context.Context) (*source.Tree, error) { return tree, nil })
	require.NoError(t, err)
	require.NotNil(t, p)
}
