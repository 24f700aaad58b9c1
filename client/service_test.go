package client_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/storage"
)

// service is a real node on the memory store.
func service(t *testing.T) (handler http.Handler, stop func()) {
	t.Helper()
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "a"})
	require.NoError(t, err)
	return s.Handler(), func() {
		require.NoError(t, s.Close())
		require.NoError(t, store.Close())
	}
}

const servicePolicy = "name: p\nmax_tool_calls: 1000\nmax_concurrent: 100\ntimeout_seconds: 100000\n"

// prepare puts the policy and a pool of slots.
func prepare(t *testing.T, c *client.Client, slots int32) {
	t.Helper()
	_, err := c.PutPolicy(t.Context(), "", servicePolicy)
	require.NoError(t, err)
	_, err = c.PutPool(t.Context(), client.Pool{Name: "gpu", Slots: slots})
	require.NoError(t, err)
}

// However requests and answers are lost, a call counts once, and a slot is
// granted once.
func TestCountsOnceOnABadWire(t *testing.T) {
	for seed := range uint64(8) {
		synctest.Test(t, func(t *testing.T) {
			h, stop := service(t)
			defer stop()
			var mu sync.Mutex
			random := rand.New(rand.NewPCG(seed, 0))
			broken := 0
			w := &wire{hosts: map[string]http.Handler{"a:1": h, "b:1": h}}
			w.fault = func(string, string) fault {
				mu.Lock()
				defer mu.Unlock()
				if random.IntN(10) < 6 {
					return none
				}
				broken++
				return []fault{refuseDial, dropRequest, dropAnswer, dropAnswer, badGateway, hang}[random.IntN(6)]
			}
			c := connected(t, w, []string{"a:1", "b:1"}, func(c *client.Config) {
				c.Timeout = 10 * time.Minute // the wire is that bad
				c.Budget = client.Budget{Burst: 1e6}
			})
			prepare(t, c, 1)
			s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
			require.NoError(t, err)
			const calls = 20
			for i := range calls {
				call, err := s.Begin(t.Context(), client.Call{Tool: "t", TTL: time.Hour, Pools: []client.Want{{Pool: "gpu"}}})
				require.NoError(t, err, "seed %d", seed)
				status := client.Succeeded
				if i%4 == 0 {
					status = client.Failed
				}
				require.NoError(t, call.End(t.Context(), status), "seed %d", seed)
				slot, err := c.Acquire(t.Context(), "gpu", client.TTL(time.Hour))
				require.NoError(t, err)
				require.NoError(t, slot.ReleaseContext(t.Context()))
			}
			mu.Lock()
			require.Greater(t, broken, calls)
			mu.Unlock()
			w.fault = nil
			got, err := s.Read(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, calls, got.GetAttempts(), "seed %d", seed)
			require.EqualValues(t, calls, got.GetCalls())
			require.EqualValues(t, calls, got.GetExecutions())
			require.EqualValues(t, calls/4, got.GetFailures())
			held, err := c.ListSlots(t.Context(), "gpu")
			require.NoError(t, err)
			require.Empty(t, held.GetSlots())
			require.EqualValues(t, 2*calls, held.GetPool().GetLastToken(), "each grant has one token")
			require.NoError(t, c.Close())
		})
	}
}

// Whoever is cut off knows that its slot is lost before anybody else has it.
func TestKnowsOfTheLossFirst(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		var cut atomic.Bool
		far := &wire{hosts: map[string]http.Handler{"a:1": h}, fault: while(&cut, hang)}
		near := &wire{hosts: map[string]http.Handler{"a:1": h}}
		one := connected(t, far, []string{"a:1"}, func(c *client.Config) { c.Name = "one" })
		other := connected(t, near, []string{"a:1"}, func(c *client.Config) { c.Name = "other" })
		prepare(t, other, 1)
		for _, ttl := range []time.Duration{time.Second, 5 * time.Second, 30 * time.Second} {
			cut.Store(false)
			slot, err := one.Acquire(t.Context(), "gpu", client.TTL(ttl))
			require.NoError(t, err)
			time.Sleep(10*ttl + 123*time.Millisecond)
			require.Equal(t, client.Held, slot.State(), "it is renewed")
			cut.Store(true)
			began := time.Now()
			next, err := other.Acquire(t.Context(), "gpu", client.Wait(2*time.Minute))
			require.NoError(t, err)
			require.Equal(t, client.Lost, slot.State())
			<-slot.Lost() // asked for only now
			require.LessOrEqual(t, time.Since(began), ttl+2*time.Second, "the slot is free within its TTL and 2 s")
			require.Greater(t, next.Token(), slot.Token())
			cut.Store(false)
			require.ErrorIs(t, slot.Release(), client.ErrLeaseLost, "a late release moves nothing")
			require.Equal(t, client.Held, next.State())
			require.NoError(t, next.Release())
		}
		require.NoError(t, one.Close())
		require.NoError(t, other.Close())
	})
}

// A caller that gives up while it waits leaves no waiter, and a slot that it
// was granted in that moment is not leaked.
func TestGivesUpWaiting(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"})
		prepare(t, c, 1)
		holder, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		var waiting sync.WaitGroup
		for range 3 {
			waiting.Go(func() {
				_, err := c.Acquire(ctx, "gpu", client.Wait(time.Minute))
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("want a deadline, got %v", err)
				}
				_, err = s.Begin(ctx, client.Call{Tool: "t", Wait: time.Minute, Pools: []client.Want{{Pool: "gpu"}}})
				if !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("want a deadline, got %v", err)
				}
			})
		}
		waiting.Wait()
		require.NoError(t, holder.Release())
		time.Sleep(15 * time.Second)
		held, err := c.ListSlots(t.Context(), "gpu")
		require.NoError(t, err)
		require.Empty(t, held.GetSlots())
		require.Empty(t, held.GetWaiters())
		require.NoError(t, c.Close())
	})
}

// A slot whose grant never reached its caller is free long before its lease has
// run out, if nobody but the client knows its id.
func TestGrantThatNobodyHeardOf(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		var deaf atomic.Bool
		w := &wire{hosts: map[string]http.Handler{"a:1": h}}
		w.fault = func(_, method string) fault {
			if deaf.Load() {
				return dropAnswer
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		prepare(t, c, 2)
		for name, options := range map[string][]client.SlotOption{"drawn": nil, "chosen": {client.SlotID("mine")}} {
			deaf.Store(true)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			_, err := c.Acquire(ctx, "gpu", append(options, client.TTL(time.Hour))...)
			cancel()
			var unknown *client.Unknown
			require.ErrorAs(t, err, &unknown)
			deaf.Store(false)
			time.Sleep(5 * time.Second)
			held, err := c.ListSlots(t.Context(), "gpu")
			require.NoError(t, err)
			if name == "drawn" {
				require.Empty(t, held.GetSlots())
				continue
			}
			require.Len(t, held.GetSlots(), 1, "it is its user's to resolve")
			slot, err := c.Acquire(t.Context(), "gpu", append(options, client.TTL(time.Hour))...)
			require.NoError(t, err)
			require.NoError(t, slot.Release())
		}
		require.NoError(t, c.Close())
	})
}

// A connection that breaks while its caller waits does not end the wait.
func TestWaitOutlivesItsConnection(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		w := &wire{hosts: map[string]http.Handler{"a:1": h}}
		w.fault = func(_, method string) fault {
			if method == "AcquireSlot" && w.count(method) == 2 || method == "BeginCall" && w.count(method) == 1 {
				return breakLater
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		prepare(t, c, 1)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		holder, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		time.AfterFunc(5*time.Second, func() { _ = holder.Release() })
		began := time.Now()
		slot, err := c.Acquire(t.Context(), "gpu")
		require.NoError(t, err)
		require.Less(t, time.Since(began), 6*time.Second)
		time.AfterFunc(5*time.Second, func() { _ = slot.Release() })
		call, err := s.Begin(t.Context(), client.Call{Tool: "t", Pools: []client.Want{{Pool: "gpu"}}})
		require.NoError(t, err)
		require.NoError(t, call.End(t.Context(), client.Succeeded))
		require.NoError(t, c.Close())
	})
}

// Close leaves nothing behind in the service.
func TestCloseLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		w := &wire{hosts: map[string]http.Handler{"a:1": h}}
		c := connected(t, w, []string{"a:1"})
		watcher := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Name = "watcher" })
		prepare(t, c, 300)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		for i := range 280 { // more than one request takes
			_, err := c.Acquire(t.Context(), "gpu", client.SlotID(fmt.Sprint(i)))
			require.NoError(t, err)
		}
		for range 10 {
			_, err := s.Begin(t.Context(), client.Call{Tool: "t", Pools: []client.Want{{Pool: "gpu", Weight: 2}}})
			require.NoError(t, err)
		}
		require.NoError(t, c.Close())
		require.Equal(t, 2, w.count("BatchCalls"))
		held, err := watcher.ListSlots(t.Context(), "gpu")
		require.NoError(t, err)
		require.Empty(t, held.GetSlots())
		got, err := watcher.Session(s.ID()).Read(t.Context())
		require.NoError(t, err)
		require.Empty(t, got.GetOpenCalls())
		require.EqualValues(t, 10, got.GetExecutions())
		require.NoError(t, watcher.Close())
	})
}

// Whatever the client asks about a call of a session with a secret has that secret: the
// service knows no such session without.
func TestSecretOfASession(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		var deaf atomic.Bool
		w := &wire{hosts: map[string]http.Handler{"a:1": h}}
		w.fault = while(&deaf, dropAnswer)
		c := connected(t, w, []string{"a:1"}, func(c *client.Config) {
			c.OnLost = func(l client.Loss) { t.Errorf("lost: %+v", l) }
		})
		watcher := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Name = "watcher" })
		prepare(t, c, 2)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p", Secret: true})
		require.NoError(t, err)
		require.NotEmpty(t, s.Secret())
		open := func() []*govnodev1.OpenCall {
			got, err := watcher.Session(s.ID()).Read(t.Context())
			require.NoError(t, err)
			return got.GetOpenCalls()
		}
		gpu := []client.Want{{Pool: "gpu"}}
		_, err = watcher.Session(s.ID()).Begin(t.Context(), client.Call{Tool: "t"})
		var said *client.Error
		require.ErrorAs(t, err, &said)
		require.Equal(t, connect.CodeNotFound, said.Code, "nobody else's are admitted")

		ended, err := s.Begin(t.Context(), client.Call{Tool: "t", Pools: gpu})
		require.NoError(t, err)
		left, err := watcher.SessionWith(s.ID(), s.Secret()).Begin(t.Context(), client.Call{Tool: "t"})
		require.NoError(t, err)
		kept, err := s.Begin(t.Context(), client.Call{Tool: "t", Pools: gpu})
		require.NoError(t, err)
		time.Sleep(5 * time.Minute) // longer than a lease without renewal
		for _, call := range []*client.OpenCall{ended, left, kept} {
			require.Equal(t, client.Held, call.State())
		}

		// One that waits, and whose caller goes.
		ctx, cancel := context.WithCancel(t.Context())
		gone := make(chan error)
		go func() {
			_, err := s.Begin(ctx, client.Call{Tool: "t", Pools: gpu, Wait: 5 * time.Minute})
			gone <- err
		}()
		time.Sleep(time.Second)
		require.Len(t, open(), 4)
		cancel()
		require.Error(t, <-gone)
		time.Sleep(time.Second)
		require.Len(t, open(), 3)

		// One that was admitted, of which nobody has heard.
		require.NoError(t, ended.End(t.Context(), client.Succeeded))
		require.Len(t, open(), 2)
		ctx, cancel = context.WithTimeout(t.Context(), time.Second)
		deaf.Store(true)
		_, err = s.Begin(ctx, client.Call{Tool: "t", Pools: gpu, TTL: time.Hour})
		cancel()
		var unknown *client.Unknown
		require.ErrorAs(t, err, &unknown)
		deaf.Store(false)
		time.Sleep(5 * time.Second)
		require.Len(t, open(), 2, "it was given back")

		require.NoError(t, c.Close())
		require.Len(t, open(), 1, "that of another client")
		require.NoError(t, watcher.Close())
		reader := connected(t, w, []string{"a:1"}, func(c *client.Config) { c.Name = "reader" })
		got, err := reader.Session(s.ID()).Read(t.Context())
		require.NoError(t, err)
		require.Empty(t, got.GetOpenCalls())
		require.NoError(t, reader.Close())
	})
}

// An id of one's own resolves an unknown outcome, whatever it was.
func TestResolvesUnknown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		var f atomic.Int32
		w := &wire{hosts: map[string]http.Handler{"a:1": h}}
		w.fault = func(_, method string) fault {
			if method == "BeginCall" {
				return fault(f.Load())
			}
			return none
		}
		c := connected(t, w, []string{"a:1"})
		prepare(t, c, 1)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		for i, bad := range []fault{dropRequest, dropAnswer} {
			f.Store(int32(bad))
			call := client.Call{ID: fmt.Sprint("c", i), Tool: "t"}
			_, err = s.Begin(t.Context(), call)
			var unknown *client.Unknown
			require.ErrorAs(t, err, &unknown)
			require.Equal(t, call.ID, unknown.ID)
			f.Store(int32(none))
			open, err := s.Begin(t.Context(), call)
			require.NoError(t, err)
			require.NoError(t, open.End(t.Context(), client.Succeeded))
			got, err := s.Read(t.Context())
			require.NoError(t, err)
			require.EqualValues(t, i+1, got.GetAttempts())
			require.EqualValues(t, i+1, got.GetExecutions())
		}
		_, err = s.Begin(t.Context(), client.Call{ID: "c0", Tool: "another"})
		var objection *client.Error
		require.ErrorAs(t, err, &objection)
		require.Equal(t, client.ReasonIDReused, objection.Reason)
		_, err = s.Begin(t.Context(), client.Call{ID: "c0", Tool: "t"})
		var refused *client.Refused
		require.ErrorAs(t, err, &refused)
		require.Equal(t, govnodev1.Outcome_OUTCOME_ALREADY_ENDED, refused.Outcome)
		require.NoError(t, c.Close())
	})
}

// Over real connections: many at once, and never more of them in the pool than
// there are slots.
func TestManyOverHTTP(t *testing.T) {
	h, stop := service(t)
	defer stop()
	listener := httptest.NewServer(h)
	defer listener.Close()
	c, err := client.New(client.Config{Addresses: []string{listener.URL}, Namespace: "many"})
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()
	prepare(t, c, 5)
	s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
	require.NoError(t, err)
	var all sync.WaitGroup
	var in, most atomic.Int32
	full := make(chan struct{}) // the first five hold until all slots are taken
	filled := sync.OnceFunc(func() { close(full) })
	for range 40 {
		all.Go(func() {
			err := s.Do(t.Context(), client.Call{Tool: "t", Pools: []client.Want{{Pool: "gpu"}}}, func(_ context.Context, call *client.OpenCall) error {
				n := in.Add(1)
				for m := most.Load(); n > m && !most.CompareAndSwap(m, n); m = most.Load() {
				}
				defer in.Add(-1)
				if n == 5 {
					filled()
				}
				<-full
				return nil
			})
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	require.EqualValues(t, 5, most.Load(), "all slots, and never more")
	got, err := s.Read(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 40, got.GetAttempts())
	require.EqualValues(t, 40, got.GetExecutions())
	refusal, err := c.Evaluate(t.Context(), &govnodev1.EvaluateRequest{SessionId: s.ID(), Tool: "t"})
	require.NoError(t, err)
	require.True(t, refusal.GetDecision().GetAllowed())
	elsewhere, err := client.New(client.Config{Addresses: []string{listener.URL}})
	require.NoError(t, err)
	defer func() { require.NoError(t, elsewhere.Close()) }()
	_, err = elsewhere.Session(s.ID()).Read(t.Context())
	require.ErrorContains(t, err, "not_found", "in another namespace")
	released, err := s.Close(t.Context())
	require.NoError(t, err)
	require.Zero(t, released)
}

// What a call costs is charged when it begins and put right when it ends, through
// the stream as well.
func TestCostsOfCalls(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h, stop := service(t)
		defer stop()
		c := connected(t, &wire{hosts: map[string]http.Handler{"a:1": h}}, []string{"a:1"}, func(*client.Config) {})
		prepare(t, c, 1)
		used := func(name string) string {
			b, err := c.GetBudget(t.Context(), name)
			require.NoError(t, err)
			return b.GetUsed()
		}
		_, err := c.PutBudget(t.Context(), client.Spending{Budget: "org", Amount: "10", Per: time.Hour})
		require.NoError(t, err)
		_, err = c.PutBudget(t.Context(), client.Spending{Budget: "team", Parent: "org", Amount: "1.5"})
		require.NoError(t, err)
		s, err := c.CreateSession(t.Context(), client.Session{Agent: "x", Policy: "p"})
		require.NoError(t, err)
		call, err := s.Begin(t.Context(), client.Call{Tool: "t", Costs: []client.Cost{{Budget: "team", Amount: "1.25"}}})
		require.NoError(t, err)
		require.Equal(t, "1.25", used("org"))
		_, err = s.Begin(t.Context(), client.Call{Tool: "t", Costs: []client.Cost{{Budget: "team"}}})
		var refused *client.Refused
		require.ErrorAs(t, err, &refused)
		require.Equal(t, client.BudgetExceeded, refused.Outcome)
		require.Error(t, call.End(t.Context(), client.Succeeded, client.Spent(client.Cost{Budget: "team"})), "an amount is missing")
		require.NoError(t, call.End(t.Context(), client.Succeeded, client.Spent(client.Cost{Budget: "team", Amount: "0.5"})))
		require.Equal(t, "0.5", used("org"))
		b, err := c.AdjustBudget(t.Context(), "team", "0.25")
		require.NoError(t, err)
		require.Equal(t, "0.75", b.GetUsed())
		list, err := c.ListBudgets(t.Context(), 0, "")
		require.NoError(t, err)
		require.Len(t, list.GetBudgets(), 2)
		require.NoError(t, c.DeleteBudget(t.Context(), "team"))
		require.Equal(t, "0.75", used("org"))
	})
}
