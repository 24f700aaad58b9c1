package redis

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
	"example.com/govnode/storage"
)

// A list that is read page by page, as of a large state, is that of the whole state:
// from wherever it goes on, however much is asked for, in whatever namespaces, and
// without what has lapsed and was not dropped yet.
func TestRedisPagesAreOfTheWhole(t *testing.T) {
	t.Parallel()
	var at clock
	r := startRedis(t).timed("one", &at)
	by := session.Maker{Client: "w"}
	var cmds []session.Command
	for i := range 2*pageKeys + 3 {
		c := set(testNS, fmt.Sprintf("k%03d", i), time.Hour)
		if i%5 == 0 {
			c.TTL = time.Second
		}
		cmds = append(cmds, c)
	}
	cmds = append(cmds, sessiontest.Setup()...)
	for _, ns := range []string{"a", testNS, "z"} {
		cmds = append(cmds, set(ns, "other", time.Hour), set(ns, "brief", time.Second),
			&session.PutPool{NS: ns, By: by, Pool: "p", Slots: 1}, &session.PutPool{NS: ns, By: by, Pool: "q", Slots: 2})
	}
	for _, a := range r.Apply(t.Context(), cmds...) {
		require.NoError(t, a.Err)
	}
	at.pass(2 * time.Second)
	_, _, err := storage.One(t.Context(), r, set("a", "now", time.Hour)) // Redis has this time too
	require.NoError(t, err)
	whole, err := r.View(t.Context(), "", storage.Latest)
	require.NoError(t, err)

	counters := session.Prefix(session.KindCounter, testNS)
	seen := 0
	for _, prefix := range []session.Key{
		"", counters, counters + "k1", counters + "k256", counters + "nothing", session.Prefix(session.KindPool, "a"),
		session.Prefix(session.KindPool, "nobody"), session.Key(string(rune(session.KindPool))), session.Key(string(rune(session.KindCounter))),
	} {
		all, err := whole.Find(prefix, "", 1<<20, nil)
		require.NoError(t, err)
		afters := []session.Key{"", prefix, counters + "k0", counters + "k1275", session.Prefix(session.KindPool, testNS) + "p"}
		for i := 0; i < len(all); i += 1 + len(all)/4 {
			afters = append(afters, all[i].Key)
		}
		if len(all) > 0 {
			afters = append(afters, all[len(all)-1].Key)
		}
		odd := func(k session.Key, _ session.Record) bool { return len(k) > 0 && k[len(k)-1]%2 == 1 }
		for _, after := range afters {
			for _, limit := range []int{1, 3, pageKeys, pageKeys + 1, 1 << 20} {
				for _, keep := range []func(session.Key, session.Record) bool{nil, odd} {
					want, err := whole.Find(prefix, after, limit, keep)
					require.NoError(t, err)
					got, err := r.find(t.Context(), prefix, after, limit, keep)
					require.NoError(t, err)
					require.Equal(t, keysOf(want), keysOf(got), "%q after %q, %d", prefix, after, limit)
					seen += len(got)
				}
			}
		}
	}
	require.Greater(t, seen, 5000)
}

// An asking tells when its end is asked for: somebody has begun to wait for something.
type asking struct {
	context.Context
	asked chan<- struct{}
}

// Done implements context.Context.
func (a asking) Done() <-chan struct{} {
	a.asked <- struct{}{}
	return a.Context.Done()
}

// Changes wait for one look at a time, and all who come meanwhile share the next: one that
// has begun may not have seen what was acknowledged before they came.
func TestRedisLooksForWhichChangesWaitAreShared(t *testing.T) {
	t.Parallel()
	r := startRedis(t).open("one")
	one(t, r, set(testNS, "k", time.Hour))
	looks, begun, goOn := 0, make(chan struct{}), make(chan struct{})
	var left atomic.Int32
	left.Store(100)
	r.client.AddHook(intruder{Hook: scriptWatch{r.metrics}, after: r.place(testNS).Index(session.KindCounter), left: &left, do: func() {
		if looks++; looks == 1 {
			close(begun)
			<-goOn
		}
	}})
	s := area{r.domain(testNS), testNS}
	var all sync.WaitGroup
	all.Go(func() { _, _ = r.heldUp(t.Context(), s) })
	<-begun
	asked := make(chan struct{})
	for range 8 {
		all.Go(func() {
			seen, err := r.heldUp(asking{t.Context(), asked}, s)
			if err != nil || len(seen.Find(session.Prefix(session.KindCounter, testNS), "", 9, nil)) != 1 {
				t.Error(seen, err)
			}
		})
		<-asked
	}
	close(goOn)
	all.Wait()
	require.Equal(t, 2, looks)
}

func keysOf(entries []session.Entry) (keys []session.Key) {
	for _, e := range entries {
		keys = append(keys, e.Key)
	}
	return keys
}

// Who is killed in one namespace is swept whatever stands in those before it, and the
// other way round.
func TestRedisSeesToKillsEverywhere(t *testing.T) {
	t.Parallel()
	r := startRedis(t).open("one")
	for _, ns := range []string{"a", "b", "c"} {
		_, _, err := storage.One(t.Context(), r, set(ns, "k", time.Hour))
		require.NoError(t, err)
	}
	require.Empty(t, r.Unswept(t.Context()))
	var want []session.Key
	for _, ns := range []string{"c", "a"} {
		_, _, err := storage.One(t.Context(), r, &session.Signal{NS: ns, By: session.Maker{Client: "w"}, Target: session.Target{Scope: session.OfAgent, Name: "x"}, Signal: session.Kill})
		require.NoError(t, err)
		want = append(want, session.SignalsKey(ns))
		require.ElementsMatch(t, want, r.Unswept(t.Context()))
	}
}
