package storagetest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Values that are written under a condition, and lists.

// compareAndSet: of all who saw one version one writes, so each write follows on
// the one before it.
func compareAndSet(t *testing.T, r rig) {
	const callers, writes = 8, 5
	k := session.CounterKey(ns, "cas")
	value := func() session.Value {
		c, _ := r.get(k, storage.Latest).Record.(*session.Counter)
		if c == nil {
			return session.Value{}
		}
		return c.Value
	}
	r.must(&session.Set{NS: ns, By: by("cas"), Key: "cas", Value: session.Value{Number: true}, IfVersion: session.Absent})
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	var mu sync.Mutex
	before := map[int64]int{} // values on which somebody wrote
	atOnce(callers, func(i int) {
		for n := 0; n < writes && ctx.Err() == nil; {
			was := value()
			next := session.Value{Number: true, N: was.N + 1}
			res, err := r.try(&session.Set{NS: ns, By: session.Maker{Client: fmt.Sprint("cas", i)}, Key: "cas", Value: next, IfVersion: was.Version()})
			switch {
			case err != nil:
				t.Error(err)
				return
			case res.Code == session.Done:
				mu.Lock()
				before[was.N]++
				mu.Unlock()
				n++
			case res.Code != session.VersionConflict || res.Version == was.Version():
				t.Errorf("%+v", res)
				return
			}
		}
	})
	require.NoError(t, ctx.Err())
	require.Equal(t, callers*writes, int(value().N))
	require.Len(t, before, callers*writes, "two wrote on what one had seen")
	was := value()
	res := r.must(&session.Delete{NS: ns, By: by("cas-old"), Key: "cas", IfVersion: session.Value{Number: true}.Version()})
	require.Equal(t, session.VersionConflict, res.Code)
	require.Equal(t, was.Version(), res.Version)
	require.EqualValues(t, 1, r.must(&session.Delete{NS: ns, By: by("cas-new"), Key: "cas", IfVersion: was.Version()}).Value)
	require.Equal(t, session.Done, r.must(&session.Set{NS: ns, By: by("cas-made"), Key: "cas", Value: was, IfVersion: session.Absent}).Code)
}

// lists: what was acknowledged is there once, in the order of each who wrote, and
// without holes. What was deleted is not there.
func lists(t *testing.T, r rig) {
	const callers, items = 6, 5
	head := session.ListKey(ns, "l")
	length := func() int64 {
		l, _ := r.get(head, storage.Latest).Record.(*session.List)
		if l == nil {
			return 0
		}
		return l.Length
	}
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	ends := make([][]int64, callers) // length behind each append
	atOnce(callers, func(i int) {
		from := length()
		for n := 0; n < items && ctx.Err() == nil; {
			c := &session.Append{NS: ns, By: session.Maker{Client: fmt.Sprint("list", i), Request: fmt.Sprint("a", n)}, Key: "l",
				Items: []string{fmt.Sprint(i, " ", n, " one"), fmt.Sprint(i, " ", n, " two")}, TTL: time.Hour, From: from}
			res, err := r.try(c)
			if err != nil {
				t.Error(err)
				return
			}
			from = res.Value
			if res.Code == session.StalePremise {
				continue
			}
			again, err := r.try(c)
			if res.Code != session.Done || err != nil || !again.Repeat || again.Value != res.Value {
				t.Errorf("%+v, and again %+v, %v", res, again, err)
				return
			}
			ends[i] = append(ends[i], res.Value)
			n++
		}
	})
	require.NoError(t, ctx.Err())
	require.EqualValues(t, 2*callers*items, length())
	for i := range callers {
		require.True(t, slices.IsSorted(ends[i]))
		for n, end := range ends[i] {
			for j, word := range []string{"one", "two"} {
				item, _ := r.get(session.ListItemKey(ns, "l", end-2+int64(j)), storage.Latest).Record.(*session.ListItem)
				require.NotNil(t, item, "a hole at %d", end-2+int64(j))
				require.Equal(t, fmt.Sprint(i, " ", n, " ", word), item.Text)
			}
		}
	}
	exact := r.must(&session.Append{NS: ns, By: by("exact"), Key: "l", Items: []string{"x"}, TTL: time.Hour, From: 1, Exact: true})
	require.Equal(t, session.VersionConflict, exact.Code)
	require.Equal(t, length(), exact.Value)

	require.EqualValues(t, 1, r.must(&session.DeleteList{NS: ns, By: by("drop"), Key: "l"}).Value)
	require.Zero(t, length())
	require.EqualValues(t, 1, r.must(&session.Append{NS: ns, By: by("anew"), Key: "l", Items: []string{"anew"}, TTL: time.Hour}).Value)
	require.Equal(t, "anew", r.get(session.ListItemKey(ns, "l", 0), storage.Latest).Record.(*session.ListItem).Text)

	r.must(&session.Append{NS: ns, By: by("brief"), Key: "brief", Items: []string{"x"}, TTL: 50 * time.Millisecond})
	require.Eventually(t, func() bool {
		return r.get(session.ListKey(ns, "brief"), storage.Latest).Record == nil && r.get(session.ListItemKey(ns, "brief", 0), storage.Latest).Record == nil
	}, patience, 10*time.Millisecond, "it lapses alone")
}
