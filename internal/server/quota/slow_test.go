package quota

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A slowStore answers for a namespace when it is let to.
type slowStore struct {
	hold  chan struct{}
	most  atomic.Int64 // operations a second
	reads atomic.Int64 // of that namespace
	fails atomic.Bool
}

func (s *slowStore) Get(ctx context.Context, k session.Key, _ storage.Read) (storage.Found, error) {
	if k.Namespace() == "slow" {
		s.reads.Add(1)
		select {
		case <-s.hold:
		case <-ctx.Done():
			return storage.Found{}, ctx.Err()
		}
	}
	if s.fails.Load() {
		return storage.Found{}, errors.New("as the test wants it")
	}
	return storage.Found{Record: &session.Access{Quotas: session.Quotas{Operations: s.most.Load()}}}, nil
}

func (*slowStore) View(context.Context, string, storage.Read) (storage.View, error) {
	return storage.View{}, nil
}

// A store that is slow about one namespace stalls who first asks for that one, and nobody
// else: one of them reads, and the others have what was read before.
func TestQuotasOfASlowStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{hold: make(chan struct{})}
		s.most.Store(1)
		q := New(s, nil, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"quota"}), prometheus.NewCounter(prometheus.CounterOpts{Name: "turns"}), 0)
		var first sync.WaitGroup
		var let atomic.Int64
		for range 5 {
			first.Go(func() {
				if q.Spend(t.Context(), "slow") == nil {
					let.Add(1)
				}
			})
		}
		synctest.Wait()
		require.NoError(t, q.Spend(t.Context(), "fast"), "it is not held")
		require.Error(t, q.Spend(t.Context(), "fast"))
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		require.Zero(t, q.Of(gone, "slow"), "who has gone waits for nothing")
		s.hold <- struct{}{}
		first.Wait()
		require.EqualValues(t, 1, s.reads.Load(), "one reads")
		require.EqualValues(t, 1, let.Load(), "the others wait for what it reads")

		s.most.Store(7)
		time.Sleep(2 * readEvery)
		read := make(chan session.Quotas)
		go func() { read <- q.Of(t.Context(), "slow") }()
		synctest.Wait()
		time.Sleep(2 * readEvery)
		require.EqualValues(t, 1, q.Of(t.Context(), "slow").Operations, "as it was")
		require.EqualValues(t, 2, s.reads.Load())
		s.hold <- struct{}{}
		require.EqualValues(t, 7, (<-read).Operations)

		s.fails.Store(true)
		time.Sleep(2 * readEvery)
		close(s.hold)
		require.EqualValues(t, 7, q.Of(t.Context(), "slow").Operations, "what cannot be read stays")
	})
}

// Who asks first and goes leaves nobody without quotas: it is read on for the others.
func TestQuotasWhoseFirstReaderGoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &slowStore{hold: make(chan struct{})}
		s.most.Store(1)
		q := New(s, nil, nil, nil, 0)
		ctx, cancel := context.WithCancel(t.Context())
		first := make(chan session.Quotas)
		go func() { first <- q.Of(ctx, "slow") }()
		synctest.Wait()
		second := make(chan session.Quotas)
		go func() { second <- q.Of(t.Context(), "slow") }()
		synctest.Wait()
		cancel()
		require.Zero(t, <-first)
		synctest.Wait()
		close(s.hold)
		require.EqualValues(t, 1, (<-second).Operations)
		require.EqualValues(t, 1, s.reads.Load())
	})
}
