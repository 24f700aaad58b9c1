package storagetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What every store has to keep to: see Run.

// patience bounds everything that is waited for. A store that needs it all has
// failed.
const patience = 20 * time.Second

// Run holds the stores that open returns to what package storage promises. Each
// part of the suite opens one, which is to be empty, and which open is to close
// when its test ends.
func Run(t *testing.T, open func(t *testing.T) storage.Store) {
	for _, part := range []struct {
		name string
		test func(*testing.T, rig)
	}{
		{"callers at once never exceed a limit", atomicity},
		{"a command that is sent again has no second effect", repeats},
		{"the commands of one call keep their order", order},
		{"a latest read sees what was acknowledged", latest},
		{"views list everything, in pages", pages},
		{"a view does not change", immutable},
		{"a saved state comes back without its leases", saved},
		{"a state that comes back twice gives out no token again", savedTwice},
		{"what was judged by a session that is gone changes nothing of the next", reopened},
		{"an id dated in the future is repaired", repaired},
		{"a bad snapshot changes nothing", badSnapshot},
		{"who waits is told, and claims", waiting},
		{"an invalid command is refused alone", invalidAlone},
		{"who goes away is told the truth", cancelled},
		{"time goes on while nothing happens", idleTime},
		{"a call that ran out is told of once, whoever finds it", lapses},
		{"who writes under a condition writes on what he saw", compareAndSet},
		{"a list loses nothing and has no holes", lists},
		{"nothing is admitted that began behind a STOP", stopped},
		{"nothing is admitted behind a revocation that was judged before it", revoked},
		{"a restore changes nothing of who may do what", accessRestored},
		{"budgets are never charged beyond their amounts", charged},
		{"a claim whose budget is gone is refused", unpaid},
		{"a KILL keeps sessions out, and is to be swept until it is", killed},
		{"who is asked decides once, and an approval is used once", asked},
		{"what stands is used as often as it may be", stands},
		{"what nobody decides is over by itself", undecided},
		{"who is asked is counted", counted},
	} {
		t.Run(part.name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			part.test(t, rig{t, open(t)})
		})
	}
	t.Run("the data has a name of its own", func(t *testing.T) {
		t.Parallel()
		names := map[string]bool{}
		for range 2 {
			s := rig{t, open(t)}
			for n := range 3 {
				require.Equal(t, session.Done, s.must(&session.Increment{NS: ns, Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: fmt.Sprint(n)}}).Code)
				names[s.DataID(ns)] = true
				_, err := s.View(t.Context(), ns, storage.Latest)
				require.NoError(t, err)
				names[s.DataID(ns)] = true
			}
		}
		require.Len(t, names, 2)
		require.NotContains(t, names, "")
	})
}

const ns = "storagetest"

// A rig is a store with what the suite often does to it.
type rig struct {
	*testing.T
	storage.Store
}

// must applies a command that must have a result.
func (r rig) must(c session.Command) session.Result {
	r.Helper()
	res, err := r.try(c)
	require.NoError(r, err)
	return res
}

func (r rig) try(c session.Command) (session.Result, error) {
	ctx, cancel := context.WithTimeout(r.Context(), patience)
	defer cancel()
	res, _, err := storage.One(ctx, r.Store, c)
	return res, err
}

// restore brings a saved state back. An outcome that is not known, because a busy machine
// has changed its leader, is asked for once more: the same state may come back twice.
func (r rig) restore(saved []byte) {
	r.Helper()
	var err error
	for range 5 {
		if err = r.Restore(r.Context(), bytes.NewReader(saved)); err == nil || storage.OutcomeOf(err) != storage.Unknown {
			break
		}
	}
	require.NoError(r, err)
}

// each applies one command from each of n callers at once, all of which must
// have results.
func (r rig) each(n int, command func(i int) session.Command) []session.Result {
	r.Helper()
	results, errs := make([]session.Result, n), make([]error, n)
	atOnce(n, func(i int) { results[i], errs[i] = r.try(command(i)) })
	require.NoError(r, errors.Join(errs...))
	return results
}

// get reads a record.
func (r rig) get(k session.Key, how storage.Read) storage.Found {
	r.Helper()
	f, err := r.Get(r.Context(), k, how)
	require.NoError(r, err)
	return f
}

func by(request string) session.Maker {
	return session.Maker{Client: "suite", Request: request}
}

func (r rig) putPool(name string, slots int32) {
	r.Helper()
	require.Equal(r, session.Done, r.must(&session.PutPool{NS: ns, By: by("put-" + name), Pool: name, Slots: slots, Queue: 16}).Code)
}

func (r rig) pool(name string) *session.Pool {
	r.Helper()
	p, _ := r.get(session.PoolKey(ns, name), storage.Latest).Record.(*session.Pool)
	require.NotNil(r, p, "pool %s", name)
	return p
}

func acquire(pool, slot string) *session.Acquire {
	return &session.Acquire{NS: ns, Client: "suite", Slot: slot, Pool: pool, Weight: 1, TTL: time.Minute}
}

func increment(key, request string) *session.Increment {
	return &session.Increment{NS: ns, By: by(request), Key: key, Amount: 1_000_000}
}

// openSession starts a session whose policy admits so many calls at once, and
// so many attempts.
func (r rig) openSession(id string, slots int32, attempts uint32) {
	r.Helper()
	d := session.Digest{1}
	r.must(&session.PutPolicy{NS: ns, By: by("policy-of-" + id), Name: "p", Digest: d, Tree: []byte("tree"),
		Limits: session.Limits{MaxTokens: 1 << 40, MaxToolCalls: 1 << 20, MaxAttempts: attempts, Timeout: time.Hour, MaxConcurrent: slots, Checkpoint: 100}})
	require.Equal(r, session.Done, r.must(&session.Open{NS: ns, Session: id, Agent: "a", Policy: "p", Digest: d, IdleTTL: time.Hour}).Code)
}

func begin(id, call string) *session.Begin {
	return &session.Begin{NS: ns, Session: id, Call: call, Tool: "t", Digest: session.Digest{1}, Verdict: session.Verdict{Allow: true},
		Pools: []session.Want{{Pool: session.PolicyPool("p"), Weight: 1}}, TTL: time.Minute}
}

func (r rig) session(id string) *session.Session {
	r.Helper()
	x, _ := r.get(session.SessionKey(ns, id), storage.Latest).Record.(*session.Session)
	require.NotNil(r, x, "session %s", id)
	return x
}

func atomicity(t *testing.T, r rig) {
	const callers, slots = 64, 5
	r.openSession("s", slots, 1000)
	count := map[session.Code]int{}
	for _, res := range r.each(callers, func(i int) session.Command { return begin("s", fmt.Sprint("c", i)) }) {
		count[res.Code]++
	}
	require.Equal(t, map[session.Code]int{session.Admitted: slots, session.ConcurrencyLimit: callers - slots}, count)
	require.EqualValues(t, callers, r.session("s").Attempts)
	require.Len(t, r.pool(session.PolicyPool("p")).Leases, slots)
}

// atOnce runs f in n goroutines that start together.
func atOnce(n int, f func(i int)) {
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-start
			f(i)
		})
	}
	close(start)
	wg.Wait()
}

func repeats(t *testing.T, r rig) {
	const callers = 16
	r.openSession("s", 5, 1000)
	call := func(i int) session.Command { return begin("s", fmt.Sprint("c", i)) }
	first := r.each(callers, call)
	again := r.each(callers, call)
	for i := range callers {
		require.Equal(t, first[i].Code, again[i].Code)
		require.True(t, again[i].Repeat)
		require.Equal(t, tokens(first[i]), tokens(again[i]))
	}
	require.EqualValues(t, callers, r.session("s").Attempts)
	// The same id by many at once has one effect as well.
	r.each(callers, func(int) session.Command { return increment("k", "the-same") })
	require.EqualValues(t, 1_000_000, r.get(session.CounterKey(ns, "k"), storage.Latest).Record.(*session.Counter).Value.N)
}

func tokens(r session.Result) (tokens []uint64) {
	for _, g := range r.Grants {
		tokens = append(tokens, g.Token)
	}
	return tokens
}

// order sends more commands in one call than a store may want to take at once,
// from several callers at once.
func order(t *testing.T, r rig) {
	const callers, commands = 4, 700
	atOnce(callers, func(caller int) {
		key := fmt.Sprint("k", caller)
		cmds := make([]session.Command, commands)
		for i := range cmds {
			c := increment(key, fmt.Sprint("r", caller, "-", i))
			// A client remembers a bounded number of ids: one for all callers would
			// forget some of a call whose answer is lost, and what is sent again
			// would be carried out again.
			c.By.Client = key
			cmds[i] = c
		}
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		last := uint64(0)
		for i, a := range r.Apply(ctx, cmds...) {
			if a.Err != nil || a.Result.Value != int64(i+1)*1_000_000 || a.Index < last {
				t.Errorf("command %d: value %d at index %d after %d: %v", i, a.Result.Value, a.Index, last, a.Err)
				return
			}
			last = a.Index
		}
	})
}

func latest(t *testing.T, r rig) {
	const callers, rounds = 8, 12
	atOnce(callers, func(caller int) {
		key := fmt.Sprint("k", caller)
		for i := range rounds {
			want, err := r.try(increment(key, fmt.Sprint("r", caller, "-", i)))
			f, err2 := r.Get(t.Context(), session.CounterKey(ns, key), storage.Latest)
			if c, ok := f.Record.(*session.Counter); !ok || c.Value.N < want.Value {
				t.Errorf("acknowledged %d, read %+v: %v", want.Value, f.Record, errors.Join(err, err2))
				return
			}
		}
	})
	require.Nil(t, r.get(session.CounterKey(ns, "absent"), storage.Latest).Record)
}

func pages(t *testing.T, r rig) {
	const sessions = 25
	r.openSession("s00", 5, 10)
	for i := 1; i < sessions; i++ {
		r.must(&session.Open{NS: ns, Session: fmt.Sprintf("s%02d", i), Agent: fmt.Sprint("a", i%2), Policy: "p", Digest: session.Digest{1}, IdleTTL: time.Hour})
	}
	v, err := r.View(t.Context(), ns, storage.Latest)
	require.NoError(t, err)
	prefix := session.Prefix(session.KindSession, ns)
	var names []string
	for after := session.Key(""); ; {
		page, err := v.Find(prefix, after, 7, nil)
		require.NoError(t, err)
		for _, e := range page {
			names = append(names, e.Key.Name())
			after = e.Key
		}
		if len(page) < 7 {
			break
		}
	}
	require.Len(t, names, sessions)
	for i, name := range names {
		require.Equal(t, fmt.Sprintf("s%02d", i), name)
	}
	some, err := v.Find(prefix, "", 100, func(_ session.Key, rec session.Record) bool { return rec.(*session.Session).Agent.Value() == "a1" })
	require.NoError(t, err)
	require.Len(t, some, sessions/2)
}

func immutable(t *testing.T, r rig) {
	r.must(increment("k", "one"))
	v, err := r.View(t.Context(), ns, storage.Latest)
	require.NoError(t, err)
	f := r.get(session.CounterKey(ns, "k"), storage.Latest)
	r.must(increment("k", "two"))
	found, err := v.Find(session.CounterKey(ns, "k"), "", 1, nil)
	require.NoError(t, err)
	require.EqualValues(t, 1_000_000, found[0].Record.(*session.Counter).Value.N)
	require.EqualValues(t, 1_000_000, f.Record.(*session.Counter).Value.N)
}

func waiting(t *testing.T, r rig) {
	r.putPool("p", 1)
	r.must(acquire("p", "holder"))
	wait := acquire("p", "waiter")
	wait.Wait = time.Minute
	require.Equal(t, session.Queued, r.must(wait).Code)
	release := &session.Release{NS: ns, Client: "suite", Slot: "holder", Pool: "p", Token: r.pool("p").Leases[0].Token}
	released := make(chan error, 1)
	go func() {
		_, err := r.try(release)
		released <- err
	}()
	// A notice may come before its change can be seen, but the latest comes
	// after it.
	end := time.After(patience)
	for handed := false; !handed; {
		select {
		case <-r.Changed():
		case <-end:
			t.Fatal("nobody was told")
		}
		p := r.get(session.PoolKey(ns, "p"), storage.Nearby).Record.(*session.Pool)
		handed = len(p.Leases) == 1 && p.Leases[0].Claim && strings.HasSuffix(p.Leases[0].Holder, " waiter")
	}
	require.NoError(t, <-released)
	require.Equal(t, session.Admitted, r.must(wait).Code)
}

func invalidAlone(t *testing.T, r rig) {
	bad := increment("k", "bad")
	bad.Key = ""
	answers := r.Apply(t.Context(), increment("k", "one"), bad, increment("k", "two"))
	require.NoError(t, answers[0].Err)
	require.ErrorIs(t, answers[1].Err, storage.ErrInvalid)
	require.Contains(t, answers[1].Err.Error(), "Key")
	require.NoError(t, answers[2].Err)
	require.EqualValues(t, 2_000_000, answers[2].Result.Value)
	require.Empty(t, r.Apply(t.Context()), "no commands, no answers")
}

// cancelled sends commands whose callers go away. What is said not to have been
// applied must not be there, ever.
func cancelled(t *testing.T, r rig) {
	const callers = 40
	answers := make([]storage.Answer, callers)
	atOnce(callers, func(i int) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Duration(i)*100*time.Microsecond)
		defer cancel()
		answers[i] = r.Apply(ctx, increment(fmt.Sprint("k", i), fmt.Sprint("r", i)))[0]
	})
	r.must(increment("last", "last"))
	for i, a := range answers {
		there := r.get(session.CounterKey(ns, fmt.Sprint("k", i)), storage.Latest).Record != nil
		switch {
		case a.Outcome == storage.Applied:
			require.True(t, there, "caller %d was given a result", i)
		case a.Outcome == storage.Unknown:
		default:
			require.Equal(t, storage.NotApplied, a.Outcome)
			require.False(t, there, "caller %d was told that it was not applied", i)
		}
	}
}

func idleTime(t *testing.T, r rig) {
	r.putPool("p", 1)
	short := acquire("p", "short")
	short.TTL = session.MinTTL
	r.must(short)
	// Nothing is sent meanwhile: the store itself moves time, and tells.
	end := time.After(patience)
	for len(r.get(session.PoolKey(ns, "p"), storage.Nearby).Record.(*session.Pool).Leases) > 0 {
		select {
		case <-r.Changed():
		case <-end:
			t.Fatal("the lease did not end")
		}
	}
}

func lapses(t *testing.T, r rig) {
	var mu sync.Mutex
	var told []session.Lapse
	all := func() []session.Lapse {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(told)
	}
	r.OnLapse(func(calls []session.Lapse) {
		mu.Lock()
		defer mu.Unlock()
		told = append(told, calls...)
	})
	lapse := func(call string) session.Lapse { return session.Lapse{NS: ns, Session: "s", Call: call, Tool: "t"} }
	r.openSession("s", 5, 1000)
	short := begin("s", "short")
	short.TTL = session.MinTTL
	require.Equal(t, session.Admitted, r.must(short).Code)
	require.Eventually(t, func() bool { return len(all()) > 0 }, patience, 10*time.Millisecond, "the store's own housekeeping finds it")
	require.Equal(t, session.Admitted, r.must(begin("s", "freed")).Code)
	require.Equal(t, session.Released, r.must(&session.ForceRelease{NS: ns, By: by("free"), Session: "s", ID: "freed", Pools: []string{session.PolicyPool("p")}}).Code)
	require.Equal(t, []session.Lapse{lapse("short"), lapse("freed")}, all(), "before the command is answered")
	r.must(&session.Close{NS: ns, Session: "s", Digest: session.Digest{1}})
	require.Len(t, all(), 2)
}
