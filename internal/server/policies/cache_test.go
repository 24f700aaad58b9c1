package policies

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/engine"
	"example.com/govnode/internal/server/order"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// behind is a store that has a tree as of now alone, and says so when it is let go.
type behind struct {
	order.Reader
	tree *engine.Tree
	free chan struct{}
}

func (s *behind) Get(_ context.Context, _ session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Nearby {
		<-s.free
		return storage.Found{}, nil
	}
	return storage.Found{Record: &session.Policy{Tree: s.tree.Encode()}}, nil
}

// Who has no time to look further for a tree says so to himself alone, and not to who
// waits for the same.
func TestWhoHasNoTimeForATree(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		tree, err := engine.NewTree([]engine.File{{Path: "p.yaml", Content: []byte("name: p\nmax_concurrent: 1\n")}})
		require.NoError(t, err)
		store := &behind{tree: tree, free: make(chan struct{})}
		c := NewCache(store, prometheus.NewCounter(prometheus.CounterOpts{}), nil, nil)
		compiled := func(ctx context.Context) <-chan error {
			said := make(chan error, 1)
			go func() {
				_, err := c.Compiled(ctx, "default", session.Digest(tree.Digest()))
				said <- err
			}()
			synctest.Wait()
			return said
		}
		hurried := compiled(context.WithValue(t.Context(), order.QuickKey{}, true))
		patient := compiled(t.Context()) // waits for what the other finds
		close(store.free)
		require.ErrorIs(t, <-hurried, order.ErrTakesLong)
		require.NoError(t, <-patient)
	})
}
