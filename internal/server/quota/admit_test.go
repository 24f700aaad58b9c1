package quota_test

import (
	"context"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"example.com/govnode/internal/server/fault"
	"example.com/govnode/internal/server/quota"
	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/storage"
)

// A late store is that of a node which has seen no keys yet, and of clients what a node
// over Redis has in its cache, or reads together with others: not all that they have asked for.
type lateStore struct{ storage.Store }

func (s lateStore) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	found, err := s.Store.Get(ctx, k, r)
	if r == storage.Latest || err != nil {
		return found, err
	}
	if _, ok := found.Record.(*session.Counter); ok {
		found.Record = nil
	}
	return withoutIDs(found), nil
}

func (s lateStore) GetAll(ctx context.Context, keys ...session.Key) (all []storage.Found, err error) {
	for _, k := range keys {
		found, err := s.Store.Get(ctx, k, storage.Latest)
		if err != nil {
			return nil, err
		}
		all = append(all, withoutIDs(found))
	}
	return all, nil
}

func withoutIDs(found storage.Found) storage.Found {
	if x, ok := found.Record.(*session.Client); ok {
		cut := *x
		cut.IDs.Store("")
		cut.IDs, _, _ = ids.ReadHead(cut.IDs.AppendHead(nil))
		found.Record = &cut
	}
	return found
}

// What adds nothing is let in where there is as much as there may be, however little of it
// this node has seen: what is there, and what was asked for before.
func TestWhatAddsNothing(t *testing.T) {
	store := storage.NewMemory(nil)
	t.Cleanup(func() { require.NoError(t, store.Close()) })
	q := quota.New(lateStore{store}, store, prometheus.NewCounterVec(prometheus.CounterOpts{Name: "refused"}, []string{"quota"}), nil, 0)
	set := func(request, key string) session.Command {
		return &session.Set{NS: "n", By: session.Maker{Client: "c", Request: request}, Key: key, Value: session.Value{Text: "v"}}
	}
	gone, there := set("1", "gone"), set("2", "there")
	for _, cmd := range []session.Command{
		&session.PutQuotas{NS: "n", By: session.Maker{Client: "op"}, Quotas: session.Quotas{Keys: 1}},
		gone, &session.Delete{NS: "n", By: session.Maker{Client: "c", Request: "d"}, Key: "gone"}, there,
	} {
		require.NoError(t, store.Apply(t.Context(), cmd)[0].Failure())
	}
	require.NoError(t, q.Admit(t.Context(), set("3", "there")), "it is there")
	require.NoError(t, q.Admit(t.Context(), gone), "it was done")
	require.Equal(t, fault.ReasonQuotaExceeded, fault.Of(q.Admit(t.Context(), set("4", "more"))).Reason)
}
