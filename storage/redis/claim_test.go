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
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

// A desk is where callers of one node wait for slots. It claims for them as a
// server does.
type desk struct {
	r *Store

	mu      sync.Mutex
	waiting map[string]*patient // by client and slot
}

type patient struct {
	acquire *session.Acquire
	answers chan storage.Answer
}

func newDesk(r *Store) *desk {
	d := &desk{r: r, waiting: map[string]*patient{}}
	r.ClaimBy(d.claims)
	return d
}

func (d *desk) wait(a *session.Acquire) *patient {
	d.mu.Lock()
	defer d.mu.Unlock()
	p := &patient{a, make(chan storage.Answer, 100)}
	d.waiting[a.Client+" "+a.Slot] = p
	return p
}

func (d *desk) leave(a *session.Acquire) {
	d.mu.Lock()
	defer d.mu.Unlock()
	delete(d.waiting, a.Client+" "+a.Slot)
}

func (d *desk) claims(_ session.Key, p *session.Pool) (claims []storage.Claim) {
	d.mu.Lock()
	defer d.mu.Unlock()
	for i := range p.Leases {
		if l := &p.Leases[i]; l.Claim {
			_, client, slot := session.SplitHolder(l.Holder)
			if w := d.waiting[client+" "+slot]; w != nil {
				claims = append(claims, storage.Claim{Command: w.acquire, Answered: func(a storage.Answer) { w.answers <- a }})
			}
		}
	}
	return claims
}

func (d *desk) pool(t *testing.T, read storage.Read) *session.Pool {
	f, err := d.r.Get(t.Context(), session.PoolKey(testNS, "one"), read)
	require.NoError(t, err)
	return f.Record.(*session.Pool)
}

func take(client string, wait time.Duration) *session.Acquire {
	return &session.Acquire{NS: testNS, Client: client, Slot: "s", Pool: "one", Weight: 1, TTL: time.Minute, Wait: wait}
}

func give(client string, token uint64) *session.Release {
	return &session.Release{NS: testNS, Client: client, Slot: "s", Pool: "one", Token: token}
}

func one(t *testing.T, r *Store, c session.Command) session.Result {
	result, _, err := storage.One(t.Context(), r, c)
	require.NoError(t, err)
	return result
}

// A slot that is given back is claimed in the same round by who waits for it at
// the same node, and left to be claimed by who waits at another.
func TestRedisClaimInTheRoundThatHandsOver(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	here, there := newDesk(s.open("here")), newDesk(s.open("there"))
	one(t, here.r, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, Queue: 100, By: session.Maker{Client: "t", Request: "put"}})
	first := one(t, here.r, take("first", 0))
	require.Equal(t, session.Admitted, first.Code)
	for _, client := range []string{"second", "third"} {
		require.Equal(t, session.Queued, one(t, here.r, take(client, time.Minute)).Code)
	}
	second, third := here.wait(take("second", time.Minute)), there.wait(take("third", time.Minute))

	before := here.r.Stats().Rounds
	require.Equal(t, session.Released, one(t, here.r, give("first", first.Grants[0].Token)).Code)
	a := <-second.answers
	require.NoError(t, a.Err)
	require.Equal(t, session.Admitted, a.Result.Code)
	require.EqualValues(t, 1, here.r.Stats().Rounds-before, "the claim took a round of its own")
	lease := here.pool(t, storage.Latest).Leases[0]
	require.False(t, lease.Claim)
	require.Equal(t, a.Result.Grants[0].Token, lease.Token)
	require.Equal(t, lease, there.pool(t, storage.Latest).Leases[0], "the other node sees the same")

	require.Equal(t, session.Released, one(t, here.r, give("second", lease.Token)).Code)
	require.True(t, there.pool(t, storage.Latest).Leases[0].Claim, "this node cannot claim for the other")
	require.Empty(t, third.answers)
	require.Equal(t, session.Admitted, one(t, there.r, third.acquire).Code)
}

// A claim of an attempt that another node came before is forgotten with it, and
// made in the next one: once, however often attempts are lost and whatever joins
// the round meanwhile.
func TestRedisClaimOfALostRound(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	here, there := newDesk(s.open("here")), s.open("there")
	put := func(slots int32, request string) *session.PutPool {
		return &session.PutPool{NS: testNS, Pool: "one", Slots: slots, Queue: 100, By: session.Maker{Client: "t", Request: request}}
	}
	one(t, here.r, put(1, "put"))
	first := one(t, here.r, take("first", 0))
	require.Equal(t, session.Queued, one(t, here.r, take("second", time.Minute)).Code)
	second := here.wait(take("second", time.Minute))

	b := until(t, here.r, time.Minute, give("first", first.Grants[0].Token))
	x, a := unsent(t, here.r, b)
	const lost = 5
	for i := range lost {
		require.Len(t, a.batches, 2, "the release, and the claim that it leads to")
		require.Len(t, x.batches, 1, "the claim is the attempt's")
		one(t, there, take(fmt.Sprint("other", i), time.Minute)) // this node has not seen it
		before := here.r.Stats().Lost                            // the housekeeping of a busy machine may lose some too
		_, err := x.carry(a)
		require.NoError(t, err)
		require.Greater(t, here.r.Stats().Lost, before, "it was not lost, so nothing was tested")
		require.Empty(t, second.answers)
		x.l.turns.waits = false
		e, err := x.p.d.serving(t.Context())
		require.NoError(t, err)
		a, err = x.read(e)
		require.NoError(t, err)
		x.decide(a)
	}
	x.ready = a
	require.NoError(t, x.run())
	require.Equal(t, session.Released, b.answers[0].Result.Code)
	require.Len(t, second.answers, 1)
	got := <-second.answers
	require.Equal(t, session.Admitted, got.Result.Code)
	p := here.pool(t, storage.Latest)
	require.Len(t, p.Leases, 1)
	require.Equal(t, got.Result.Grants[0].Token, p.Leases[0].Token)
	require.Len(t, p.Queue, lost)
}

// A claim stays in an attempt whose answer was lost: it is answered if that was
// applied, and made anew if not.
func TestRedisClaimOfALostAnswer(t *testing.T) {
	t.Parallel()
	for _, applied := range []bool{true, false} {
		t.Run(fmt.Sprint("applied ", applied), func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			here := newDesk(s.open("here"))
			one(t, here.r, &session.PutPool{NS: testNS, Pool: "one", Slots: 1, Queue: 100, By: session.Maker{Client: "t", Request: "put"}})
			first := one(t, here.r, take("first", 0))
			require.Equal(t, session.Queued, one(t, here.r, take("second", time.Minute)).Code)
			second := here.wait(take("second", time.Minute))
			b := until(t, here.r, time.Minute, give("first", first.Grants[0].Token))
			x, a := unsent(t, here.r, b)
			arrive := delivery(t, a)
			if applied {
				require.Equal(t, wire.ReplyOK, arrive())
			}
			x.lostSight(a, context.DeadlineExceeded)
			require.NoError(t, x.run())
			require.Equal(t, session.Released, b.answers[0].Result.Code)
			if !applied {
				require.Equal(t, wire.ReplyLost, arrive())
			}
			p := here.pool(t, storage.Latest)
			require.Len(t, p.Leases, 1)
			// Where it was applied nothing is left to claim; where it was sent again
			// the claim is made in the same round if the waiter's record was read.
			if applied || len(second.answers) > 0 {
				require.Len(t, second.answers, 1)
				require.Equal(t, p.Leases[0].Token, (<-second.answers).Result.Grants[0].Token)
				require.False(t, p.Leases[0].Claim)
			} else {
				require.True(t, p.Leases[0].Claim)
			}
		})
	}
}

// Callers of several nodes hand some slots on to each other while connections
// break. Nobody is forgotten, nobody is admitted twice, and there are never more
// than there are slots.
func TestRedisClaimsWhileConnectionsBreak(t *testing.T) {
	t.Parallel()
	const nodes, callers, slots, minimum = 3, 8, 2, 4
	times := rounds(minimum, 100)
	s := startRedis(t)
	f := newFleet(t, s, nodes)
	f.must(0, &session.PutPool{NS: testNS, Pool: "one", Slots: slots, Queue: 100, By: session.Maker{Client: "t", Request: "put"}})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	var steps atomic.Int64 // that callers have got an answer to
	var held, inRounds, work = make(chan struct{}, slots), 0, sync.WaitGroup{}
	var mu sync.Mutex
	for i := range nodes {
		d := newDesk(f.node(i))
		for c := range callers {
			work.Go(func() {
				for n := range times {
					a := &session.Acquire{NS: testNS, Client: fmt.Sprint("c", i, "-", c), Slot: fmt.Sprint(n), Pool: "one", Weight: 1, TTL: time.Minute, Wait: time.Minute}
					p := d.wait(a)
					r := f.must(i, a)
					steps.Add(1)
					for r.Code == session.Queued {
						select {
						case x := <-p.answers:
							r = x.Result
							mu.Lock()
							inRounds++
							mu.Unlock()
						case <-time.After(20 * time.Millisecond): // as who was told by another node
							r = f.must(i, a)
						case <-ctx.Done():
							t.Errorf("%s waits for ever", a.Client)
							return
						}
					}
					d.leave(a)
					if r.Code != session.Admitted {
						t.Errorf("an acquisition was answered %v", r.Code)
						return
					}
					select {
					case held <- struct{}{}:
					default:
						t.Errorf("more than %d slots are held", slots)
						return
					}
					<-held
					steps.Add(1)
					r = f.must(i, &session.Release{NS: testNS, Client: a.Client, Slot: a.Slot, Pool: "one", Token: r.Grants[0].Token})
					if r.Code != session.Released && r.Code != session.AlreadyReleased {
						t.Errorf("a release was answered %v", r.Code)
					}
				}
			})
		}
	}
	done := make(chan struct{})
	go func() {
		work.Wait()
		close(done)
	}()
	broken := 0
	for at := int64(0); ; { // as often as somebody has come on, however slow that is
		select {
		case <-done:
			require.NotZero(t, inRounds, "nothing was claimed in the round that handed it over")
			require.NotZero(t, broken)
			return
		case <-time.After(time.Millisecond):
			if now := steps.Load(); now >= at+5 {
				at = now
				broken++
				s.do("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
			}
		}
	}
}
