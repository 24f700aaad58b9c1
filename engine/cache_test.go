package engine

import (
	"errors"
	"sync/atomic"
	"testing"

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
		p, err := c.Policy(trees[i].Digest(), func() (*source.Tree, error) { loads.Add(1); return trees[i], nil })
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
	_, err := c.Policy(trees[3].Digest(), func() (*source.Tree, error) { return trees[0], nil })
	require.ErrorContains(t, err, "was altered")
	_, err = c.Policy(trees[3].Digest(), func() (*source.Tree, error) { return nil, errors.New("not here") })
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
			p, _ := c.Policy(tree.Digest(), func() (*source.Tree, error) { loads.Add(1); <-gate; return tree, nil })
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
