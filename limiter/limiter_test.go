package limiter

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"
	"unique"

	"github.com/stretchr/testify/require"
)

const sec = time.Second

func ask(holder string, until time.Duration) Request {
	return Request{Holder: holder, Label: unique.Make(""), Weight: 1, Queue: 10, Expires: 1000 * sec, Until: until}
}

// under asks within a limit of its own.
func under(slots int32, holder string, until time.Duration) Request {
	r := ask(holder, until)
	r.Slots = slots
	return r
}

// picture prints a pool: leases by token with what is left, then the queue.
func picture(p *Pool, now time.Duration) string {
	var b strings.Builder
	for _, l := range p.Leases {
		claim := ""
		if l.Claim {
			claim = "?"
		}
		fmt.Fprintf(&b, "%s%s#%d(%v) ", l.Holder, claim, l.Token, l.Expires-now)
	}
	b.WriteString("|")
	for _, t := range p.Queue {
		fmt.Fprintf(&b, " %s", t.Holder)
	}
	return b.String()
}

func TestFirstComeFirstServed(t *testing.T) {
	p := &Pool{Slots: 1}
	how, token, _ := p.Acquire(0, ask("a", 0))
	require.Equal(t, Granted, how)
	for i, h := range []string{"b", "c", "d"} {
		how, _, place := p.Acquire(sec, ask(h, 60*sec))
		require.Equal(t, Queued, how)
		require.Equal(t, i+1, place)
	}
	for _, until := range []time.Duration{0, sec} {
		how, _, _ = p.Acquire(sec, ask("e", until))
		require.Equal(t, Refused, how, "who does not wait is refused")
	}
	how, _, place := p.Claim(sec, "b")
	require.Equal(t, Queued, how, "the head has nothing to claim yet")
	require.Equal(t, 1, place)
	require.True(t, p.Release(2*sec, token))
	require.Equal(t, "b?#2(5s) | c d", picture(p, 2*sec), "freed room goes to the head in the same step")
	how, _, _ = p.Acquire(2*sec, ask("e", 0))
	require.Equal(t, Refused, how, "nobody overtakes")
	how, token, _ = p.Claim(3*sec, "b")
	require.Equal(t, Granted, how)
	require.True(t, p.Extend(3*sec, token, 13*sec, 0))
	require.Equal(t, "b#3(10s) | c d", picture(p, 3*sec), "tokens stand in the order of admission")
	require.False(t, p.Release(4*sec, 1), "an old token frees nothing")
}

// Two versions of a policy share a pool. Who waits under the lower limit holds
// nobody up for whom there is room under a higher one, and is served first under
// its own.
func TestLimitsOfTwoVersions(t *testing.T) {
	p := &Pool{}
	var tokens []uint64
	for _, h := range []string{"a", "b"} {
		how, token, _ := p.Acquire(0, under(2, h, 0))
		require.Equal(t, Granted, how)
		tokens = append(tokens, token)
	}
	how, _, place := p.Acquire(0, under(2, "old", 60*sec))
	require.Equal(t, Queued, how)
	require.Equal(t, 1, place)
	how, third, _ := p.Acquire(0, under(3, "new", 0))
	require.Equal(t, Granted, how, "there is room under the limit of the new version")
	how, _, _ = p.Acquire(0, under(3, "later", 60*sec))
	require.Equal(t, Queued, how)
	how, _, _ = p.Acquire(0, under(1, "lowest", 60*sec))
	require.Equal(t, Queued, how)

	require.True(t, p.Release(sec, tokens[0]))
	require.Equal(t, "b#2(16m39s) new#3(16m39s) later?#4(5s) | old lowest", picture(p, sec), "two are in use, which is all that old may see")
	require.True(t, p.Release(2*sec, third))
	require.Equal(t, "b#2(16m38s) later?#4(4s) | old lowest", picture(p, 2*sec))
	require.True(t, p.Release(2*sec, tokens[1]))
	require.Equal(t, "later?#4(4s) old?#5(5s) | lowest", picture(p, 2*sec))
	how, _, _ = p.Acquire(2*sec, under(1, "other", 0))
	require.Equal(t, Refused, how)
}

func TestPriority(t *testing.T) {
	p := &Pool{Slots: 1}
	p.Acquire(0, ask("holder", 0))
	for i, h := range []string{"low1", "high1", "low2", "high2"} {
		r := ask(h, 60*sec)
		r.Priority = int32(i % 2)
		p.Acquire(0, r)
	}
	require.Equal(t, "holder#1(16m40s) | high1 high2 low1 low2", picture(p, 0))

	// A heavy head blocks its own priority and those below it, not those above.
	q := &Pool{Slots: 2}
	q.Acquire(0, ask("holder", 0))
	heavy := ask("heavy", 60*sec)
	heavy.Weight = 2
	q.Acquire(0, heavy)
	above := ask("above", 0)
	above.Priority = 1
	how, _, _ := q.Acquire(0, above)
	require.Equal(t, Granted, how)
}

func TestClaimInTimeOrGone(t *testing.T) {
	p := &Pool{Slots: 1}
	_, token, _ := p.Acquire(0, ask("a", 0))
	p.Acquire(0, ask("b", 60*sec))
	p.Acquire(0, ask("c", 60*sec))
	p.Hear(8*sec, "b")
	p.Hear(8*sec, "c")
	p.Release(9*sec, token)
	require.Equal(t, "b?#2(5s) | c", picture(p, 9*sec))
	p.Hear(13*sec, "c")
	// b does not claim: at 14 s its slot goes on to c.
	p.Settle(16 * sec)
	require.Equal(t, "c?#3(3s) |", picture(p, 16*sec))
	how, _, _ := p.Claim(16*sec, "b")
	require.Equal(t, Gone, how)
	how, _, _ = p.Claim(16*sec, "c")
	require.Equal(t, Granted, how)
}

func TestTicketsLapse(t *testing.T) {
	p := &Pool{Slots: 1}
	p.Acquire(0, ask("a", 0))
	p.Acquire(0, ask("crashed", 60*sec))
	p.Acquire(0, ask("short", 3*sec))
	p.Acquire(0, ask("alive", 60*sec))
	p.Settle(3*sec - 1)
	require.Len(t, p.Queue, 3)
	p.Settle(3 * sec)
	require.Len(t, p.Queue, 2, "its wait is over")
	p.Hear(9*sec, "alive")
	p.Settle(10*sec - 1)
	require.Equal(t, "a#1(16m30.000000001s) | crashed alive", picture(p, 10*sec-1))
	p.Settle(10 * sec)
	require.Equal(t, "a#1(16m30s) | alive", picture(p, 10*sec), "who was not heard of for 10 s has lost his place")
	require.True(t, p.Hear(18*sec, "alive"))
	p.Settle(28*sec - 1)
	require.Len(t, p.Queue, 1, "the head keeps his place as well")
	require.False(t, p.Hear(28*sec, "alive"), "who has lost it does not get it back")
	require.Empty(t, p.Queue)
}

func TestHeavyHeadBlocks(t *testing.T) {
	p := &Pool{Slots: 3}
	_, t1, _ := p.Acquire(0, ask("a", 0))
	_, t2, _ := p.Acquire(0, ask("b", 0))
	heavy := ask("heavy", 60*sec)
	heavy.Weight = 2
	p.Acquire(0, heavy)
	how, _, _ := p.Acquire(0, ask("light", 60*sec))
	require.Equal(t, Queued, how, "one slot is free, and it is the heavy head's")
	p.Release(0, t1)
	require.Equal(t, "b#2(16m40s) heavy?#3(5s) | light", picture(p, 0))
	p.Release(0, t2)
	require.Equal(t, "heavy?#3(5s) light?#4(5s) |", picture(p, 0))
}

func TestLoweredSlots(t *testing.T) {
	p := &Pool{Slots: 2}
	_, t1, _ := p.Acquire(0, ask("a", 0))
	p.Acquire(0, ask("b", 0))
	heavy := ask("heavy", 60*sec)
	heavy.Weight = 2
	p.Acquire(0, heavy)
	p.Acquire(0, ask("light", 60*sec))
	p.SetSlots(0, 1)
	require.Equal(t, "a#1(16m40s) b#2(16m40s) | light", picture(p, 0), "revokes nothing; what cannot fit any more is gone")
	own := under(4, "own", 60*sec)
	own.Weight = 3
	p.Acquire(0, own)
	p.SetSlots(0, 1)
	require.Equal(t, "a#1(16m40s) b#2(16m40s) | light own", picture(p, 0), "who brought a limit of his own waits under that")
	p.Cancel(0, "own")
	p.Release(0, t1)
	require.Equal(t, "b#2(16m40s) | light", picture(p, 0), "grants nothing until below")
	p.SetSlots(0, 2)
	require.Equal(t, "b#2(16m40s) light?#3(5s) |", picture(p, 0), "raising it hands on at once")
}

func TestRenew(t *testing.T) {
	p := &Pool{Slots: 2}
	r := ask("a", 0)
	r.Expires, r.HoldUntil = 10*sec, 15*sec
	_, token, _ := p.Acquire(0, r)
	end, ok := p.Renew(9*sec, token, 14*sec)
	require.True(t, ok)
	require.Equal(t, 14*sec, end)
	end, ok = p.Renew(13*sec, token, 23*sec)
	require.True(t, ok)
	require.Equal(t, 15*sec, end, "renewals end at HoldUntil")
	_, ok = p.Renew(15*sec, token, 25*sec)
	require.False(t, ok, "a lease that ran out is not resurrected")
	_, ok = p.Renew(15*sec, token+1, 25*sec)
	require.False(t, ok)

	_, token, _ = p.Acquire(15*sec, ask("b", 0))
	end, ok = p.Renew(16*sec, token, 9999*sec)
	require.True(t, ok)
	require.Equal(t, 9999*sec, end, "without HoldUntil they do not end")
}

// A lease can be made to end sooner than it would have.
func TestALeaseIsCutShort(t *testing.T) {
	for name, cut := range map[string]func(p *Pool, token uint64) bool{
		"by a renewal": func(p *Pool, token uint64) bool {
			end, ok := p.Renew(sec, token, 3*sec)
			return ok && end == 3*sec
		},
		"by its end": func(p *Pool, token uint64) bool { return p.Extend(sec, token, 3*sec, 0) },
	} {
		p := &Pool{Slots: 1}
		_, token, _ := p.Acquire(0, ask("a", 0))
		require.True(t, cut(p, token), name)
		p.Settle(3*sec - 1)
		require.EqualValues(t, 1, p.InUse(), name)
		p.Settle(3 * sec)
		require.Zero(t, p.InUse(), name)
	}
}

// When something happens next is known of every pool, also of one that was put together
// field by field and that nobody has looked at.
func TestDue(t *testing.T) {
	lease := Lease{Holder: "a", Token: 1, Expires: 7 * sec, Weight: 1}
	ticket := Ticket{Holder: "b", Weight: 1, Place: Place{Until: 5 * sec}}
	_, ok := (&Pool{}).Due()
	require.False(t, ok, "nothing happens in an empty one")
	for _, tt := range []struct {
		of   Pool
		want time.Duration
	}{
		{Pool{Leases: []Lease{lease}}, 7 * sec},
		{Pool{Queue: []Ticket{ticket}}, 5 * sec},
		{Pool{Leases: []Lease{lease}, Queue: []Ticket{ticket}}, 5 * sec},
	} {
		for range 2 {
			at, ok := tt.of.Due()
			require.True(t, ok)
			require.Equal(t, tt.want, at)
			require.Equal(t, tt.want, tt.of.Next())
			tt.of.Index()
		}
	}
}

// A pool that was cleared has room again, and its tokens go on; a floor raises them and
// never lowers them.
func TestClearAndRaiseToken(t *testing.T) {
	p := &Pool{Slots: 2}
	_, token, _ := p.Acquire(0, ask("a", 0))
	p.Acquire(0, ask("b", 0))
	p.Acquire(0, ask("c", 60*sec))
	p.Acquire(0, ask("d", 60*sec))
	p.Release(0, token)
	require.Equal(t, "b#2(16m40s) c?#3(5s) | d", picture(p, 0))
	p.Clear()
	require.Equal(t, "|", picture(p, 0))
	require.Zero(t, p.InUse())
	both := ask("e", 0)
	both.Weight = 2
	how, token, _ := p.Acquire(sec, both)
	require.Equal(t, Granted, how)
	require.EqualValues(t, 4, token)
	for _, floor := range []uint64{10, 5} {
		p.Release(sec, token)
		p.RaiseToken(floor)
		_, token, _ = p.Acquire(sec, ask("f", 0))
	}
	require.EqualValues(t, 12, token)
}

// A pool whose slots are given back may have any number of them held; only a rate is
// bounded in that.
func TestAPoolHoldsAsMuchAsItHas(t *testing.T) {
	p := &Pool{Slots: MaxWeight}
	for i := range MaxHeld + MaxEntries + 1 {
		how, _, _ := p.Acquire(0, ask(fmt.Sprint(i), 0))
		require.Equal(t, Granted, how)
	}
}

func TestQueueFull(t *testing.T) {
	p := &Pool{Slots: 1}
	p.Acquire(0, ask("a", 0))
	for i := range 3 {
		r := ask(fmt.Sprint(i), 60*sec)
		r.Queue = 2
		how, _, _ := p.Acquire(0, r)
		require.Equal(t, i < 2, how == Queued)
		require.Equal(t, i >= 2, how == QueueFull)
	}
}

// Settling step by step is settling at once, and the pool never grants more
// than its limit, over random pools.
func TestSettleComposes(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		p := &Pool{Slots: int32(1 + r.IntN(4))}
		now := time.Duration(0)
		for i := range 60 {
			now += time.Duration(r.IntN(3000)) * time.Millisecond
			q := ask(fmt.Sprint("h", i), 0)
			q.Weight = int32(1 + r.IntN(2))
			q.Expires = now + time.Duration(1+r.IntN(20))*sec
			q.Priority = int32(r.IntN(3))
			if r.IntN(2) == 0 {
				q.Until = now + time.Duration(1+r.IntN(30))*sec
			}
			before := p.Last
			if how, token, _ := p.Acquire(now, q); how == Granted {
				require.Greater(t, token, before)
			}
			if len(p.Leases) > 0 && r.IntN(3) == 0 {
				p.Release(now, p.Leases[r.IntN(len(p.Leases))].Token)
			}
			require.LessOrEqual(t, p.InUse(), p.Slots, "seed %d", seed)
		}
		one, two := p.Clone(), p.Clone()
		two.Index()
		one.Settle(now + 60*sec)
		for d := time.Duration(0); d <= 60*sec; d += 700 * time.Millisecond {
			two.Settle(now + d)
			if due, ok := two.Due(); ok {
				require.Greater(t, due, now+d)
			}
		}
		two.Settle(now + 60*sec)
		require.Equal(t, picture(one, now), picture(two, now), "seed %d", seed)
		require.Equal(t, one.Last, two.Last)
	}
}
