package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// spend asks at a rate, and spends at once what is granted.
func spend(p *Pool, now time.Duration, weight int32) (token uint64, ok bool) {
	r := ask("x", 0)
	r.Weight, r.Expires = weight, now+sec
	how, token, _ := p.Acquire(now, r)
	if how != Granted {
		return 0, false
	}
	return p.Spend(now, token)
}

func newRate(limit int32, per time.Duration) *Pool {
	p := &Pool{}
	p.SetRate(0, limit, per)
	return p
}

func TestRateReturnsByItself(t *testing.T) {
	p := newRate(2, sec)
	for range 2 {
		_, ok := spend(p, 0, 1)
		require.True(t, ok)
	}
	_, ok := spend(p, sec-1, 1)
	require.False(t, ok)
	require.Equal(t, time.Nanosecond, p.Free(sec-1, 1, 0, 0))
	_, ok = spend(p, sec, 1)
	require.True(t, ok, "a window has one of its ends")
}

// How long it takes until there is room follows from what is spent, from what is held,
// which is spent at the earliest now, and from those who come first.
func TestFree(t *testing.T) {
	p := newRate(10, 10*sec)
	holder := ask("holder", 0)
	holder.Weight = 2
	p.Acquire(0, holder)
	for at, weight := range []int32{3, 1, 2} {
		_, ok := spend(p, time.Duration(at)*sec, weight)
		require.True(t, ok)
	}
	check := func(weight, slots, priority int32, want time.Duration) {
		t.Helper()
		require.Equal(t, want, p.Free(4*sec, weight, slots, priority), "%d of %d", weight, slots)
	}
	check(2, 0, 0, 0)
	check(3, 0, 0, 6*sec)
	check(5, 0, 0, 6*sec)
	check(6, 0, 0, 7*sec)
	check(8, 0, 0, 8*sec)
	check(10, 0, 0, 10*sec)
	check(4, 8, 0, 7*sec)
	check(6, 8, 0, 8*sec)
	for i, weight := range []int32{5, 9} {
		r := ask(fmt.Sprint(i), 60*sec)
		r.Weight, r.Priority = weight, int32(i)
		how, _, _ := p.Acquire(4*sec, r)
		require.Equal(t, Queued, how)
	}
	check(2, 0, 2, 0)
	check(1, 0, 1, 10*sec)
	check(4, 0, 1, 16*sec)
	check(6, 0, 0, 20*sec)
	q := newRate(3, 10*sec)
	require.Zero(t, q.Free(0, 3, 0, 0))
	require.Equal(t, 10*sec, q.Free(0, 4, 0, 0), "the rest comes with the next window")
	require.Equal(t, 20*sec, q.Free(0, 7, 0, 0))
	require.Equal(t, never, newRate(1, 24*time.Hour).Free(0, MaxWeight, 0, 0), "more windows than a duration has")
	require.Equal(t, 106_000*24*time.Hour, newRate(1, 24*time.Hour).Free(0, 106_001, 0, 0), "and nearly as many")
	require.Zero(t, newRate(0, 10*sec).Free(0, 1, 0, 0), "of a rate that never has room")
	require.Zero(t, (&Pool{Slots: 1}).Free(0, 1, 0, 0), "of what is no rate")
}

func TestRateQueue(t *testing.T) {
	p := newRate(1, 10*sec)
	_, ok := spend(p, 0, 1)
	require.True(t, ok)
	_, waits := p.Turn()
	require.False(t, waits, "nobody waits")
	for _, h := range []string{"a", "b"} {
		how, _, _ := p.Acquire(9*sec, ask(h, 60*sec))
		require.Equal(t, Queued, how)
	}
	at, waits := p.Turn()
	require.True(t, waits)
	require.Equal(t, 10*sec, at)
	require.Equal(t, []string{"a"}, p.Turns(at))
	require.Equal(t, 21*sec, p.Free(9*sec, 1, 0, 0), "two come first")
	how, token, _ := p.Claim(12*sec, "a")
	require.Equal(t, Granted, how)
	_, ok = p.Spend(12*sec, token)
	require.True(t, ok)
	at, _ = p.Turn()
	require.Equal(t, 22*sec, at, "a grant counts from its claim")
	require.True(t, p.Waits())
	_, ok = p.Spend(12*sec, token)
	require.False(t, ok, "it is spent")
	p.EndWaits()
	require.Equal(t, int32(1), p.InUse())
	require.Empty(t, p.Queue)
	require.False(t, p.Waits(), "what is spent waits for nothing")
}

// What nobody has spent yet can be ended, and there is room where it was.
func TestWhatIsNotSpentIsEnded(t *testing.T) {
	p := newRate(3, 10*sec)
	require.False(t, p.Waits())
	_, ok := spend(p, 0, 1)
	require.True(t, ok)
	var tokens []uint64
	for _, h := range []string{"a", "b"} {
		_, token, _ := p.Acquire(0, ask(h, 0))
		tokens = append(tokens, token)
	}
	require.True(t, p.Waits(), "somebody holds")
	p.Acquire(0, ask("c", 60*sec))
	p.Release(0, tokens[0])
	require.True(t, p.Claimable("c"))
	p.Acquire(0, ask("d", 60*sec))
	p.EndWaits()
	require.False(t, p.Waits())
	require.Equal(t, "#2(10s) |", picture(p, 0))
	require.EqualValues(t, 1, p.InUse())
	_, ok = spend(p, 0, 2)
	require.True(t, ok)
}

// Nobody waits for what returns by itself where there is room, and a claim is waited for.
func TestATurnThatAClaimIsWaitedFor(t *testing.T) {
	p := newRate(5, 10*sec)
	_, token, _ := p.Acquire(0, under(1, "a", 0))
	p.Acquire(0, under(1, "low", 60*sec))
	p.Release(0, token)
	require.True(t, p.Claimable("low"))
	how, _, _ := p.Acquire(0, under(3, "b", 60*sec))
	require.Equal(t, Queued, how)
	_, waits := p.Turn()
	require.False(t, waits)
}

// What has returned at a window's end went to who waited then, whatever is done later.
func TestWhatReturnedWentToWhoWaited(t *testing.T) {
	for name, do := range map[string]func(p *Pool, now time.Duration, spent uint64){
		"a longer window":              func(p *Pool, now time.Duration, _ uint64) { p.SetRate(now, 1, 20*sec) },
		"a longer window is asked for": func(p *Pool, now time.Duration, _ uint64) { p.Under(now, 20*sec) },
		"a higher limit":               func(p *Pool, now time.Duration, _ uint64) { p.SetSlots(now, 2) },
		"a charge":                     func(p *Pool, now time.Duration, _ uint64) { p.Charge(now, 1) },
		"it is given back":             func(p *Pool, now time.Duration, spent uint64) { p.Return(now, 0, spent, 1) },
	} {
		p := newRate(1, 10*sec)
		spent, ok := spend(p, 0, 1)
		require.True(t, ok)
		how, _, _ := p.Acquire(5*sec, ask("waiter", 60*sec))
		require.Equal(t, Queued, how)
		do(p, 12*sec, spent)
		p.Settle(12 * sec)
		require.Contains(t, picture(p, 12*sec), "waiter?#3(3s)", name)
	}
}

// What is spent within a 256th of a window is one entry, whoever holds something
// beside it, and returns with the last of it; each is given back as it was spent.
func TestEntries(t *testing.T) {
	const part = 10 * time.Millisecond
	p := newRate(100, 256*part)
	spendAt := func(now time.Duration, weight int32) uint64 {
		token, ok := spend(p, now, weight)
		require.True(t, ok)
		return token
	}
	first := spendAt(0, 3)
	p.Acquire(0, ask("holder", 0))
	again := spendAt(part-1, 4)
	require.Len(t, p.Leases, 2, "one entry, and who holds")
	second := spendAt(part, 5)
	require.Len(t, p.Leases, 3)
	p.Return(part, 0, first, 1)
	p.Return(part, part-1, again, 1)
	require.EqualValues(t, 11, p.InUse(), "one is held, and two of twelve have come back")
	p.Return(part, part, second, 5)
	require.Len(t, p.Leases, 2, "nothing is left of what has all come back")
	p.Settle(257*part - 2)
	require.EqualValues(t, 6, p.InUse())
	p.Settle(257*part - 1)
	require.EqualValues(t, 1, p.InUse())
	p.Charge(257*part, 7) // that returns by itself as well
	p.Settle(513*part - 1)
	require.EqualValues(t, 8, p.InUse())
	p.Settle(513 * part)
	require.EqualValues(t, 1, p.InUse())
	for range 2 {
		p.Charge(600*part, MaxWeight)
	}
	p.Release(600*part, 3)
	require.EqualValues(t, 1_000_000_000, p.InUse(), "more than the largest limit makes no difference")
}

// By a longer window what was spent is as few entries as if it had been spent by it.
func TestALongerWindowHasFewerEntries(t *testing.T) {
	const part = 10 * time.Millisecond // a 256th of the longer one
	p := newRate(100, time.Second)
	for i := range 6 {
		if i == 4 {
			p.Acquire(part, ask("holder", 0))
		}
		_, ok := spend(p, time.Duration(i)*part/2, int32(1+i))
		require.True(t, ok)
	}
	require.Len(t, p.Leases, 7)
	p.Under(3*part, 256*part)
	require.EqualValues(t, 22, p.InUse())
	require.Len(t, p.Leases, 4)
	for i, used := range [][2]int32{{22, 19}, {19, 12}, {12, 1}} {
		at := time.Duration(257+i)*part - part/2
		p.Settle(at - 1)
		require.Equal(t, used[0], p.InUse())
		p.Settle(at)
		require.Equal(t, used[1], p.InUse())
	}
}

// A window that is made shorter than what was spent has been there for lets go of it at
// once, also where that is so to the instant, and whoever holds something before it.
func TestAWindowThatHasPassed(t *testing.T) {
	for name, shorten := range map[string]func(p *Pool, now, per time.Duration){
		"by who made it":       func(p *Pool, now, per time.Duration) { p.SetRate(now, 2, per) },
		"by who asks under it": (*Pool).Under,
	} {
		for _, per := range []time.Duration{9 * sec, 10 * sec} {
			p := newRate(2, 3600*sec)
			p.Acquire(0, ask("holder", 0))
			_, ok := spend(p, 0, 1)
			require.True(t, ok)
			how, _, _ := p.Acquire(5*sec, ask("waiter", 60*sec))
			require.Equal(t, Queued, how)
			shorten(p, 10*sec, per)
			require.True(t, p.Claimable("waiter"), name)
		}
	}
}

func TestReturnAndCharge(t *testing.T) {
	p := newRate(100, sec)
	token, _ := spend(p, 0, 60)
	p.Return(sec/2, 0, token, 20)
	require.Equal(t, int32(40), p.InUse())
	p.Return(sec/2, 0, token, 200)
	require.Zero(t, p.InUse(), "no more comes back than was spent")
	p.Charge(sec/2, 500)
	_, ok := spend(p, sec+sec/2-1, 1)
	require.False(t, ok)
	_, ok = spend(p, sec+sec/2, 100)
	require.True(t, ok, "a debt is over after one window")
	p.Return(sec+sec/2, 0, token, 5)
	require.Equal(t, int32(100), p.InUse(), "what has returned by itself does not come back")
	p.Return(sec+sec/2, sec+sec/2+1, token+100, 5)
	require.Equal(t, int32(100), p.InUse(), "what was spent after the last entry is of a rate that is gone")
	for range 5 {
		p.Charge(2*sec, MaxWeight)
	}
	require.Positive(t, p.InUse(), "sums do not run over")
}

// Whatever makes room at a rate, the head of its queue has it in the same step: nobody
// looks at the rate again before the next of its slots returns by itself.
func TestRoomAtARateIsHandedOn(t *testing.T) {
	for name, room := range map[string]func(p *Pool, now time.Duration, spent, held uint64){
		"a part comes back":       func(p *Pool, now time.Duration, spent, _ uint64) { p.Return(now, 0, spent, 3) },
		"all comes back":          func(p *Pool, now time.Duration, spent, _ uint64) { p.Return(now, 0, spent, 7) },
		"what is held comes back": func(p *Pool, now time.Duration, _, held uint64) { p.Release(now, held) },
		"the limit is raised":     func(p *Pool, now time.Duration, _, _ uint64) { p.SetRate(now, 13, 10*sec) },
		"the window is shorter":   func(p *Pool, now time.Duration, _, _ uint64) { p.SetRate(now, 10, sec) },
		"a shorter window counts": func(p *Pool, now time.Duration, _, _ uint64) { p.Under(now, sec) },
		"it returns by itself":    func(p *Pool, _ time.Duration, _, _ uint64) { p.Settle(10 * sec) },
		"who is before goes": func(p *Pool, now time.Duration, spent, _ uint64) {
			heavy := ask("heavy", 60*sec)
			heavy.Weight, heavy.Priority = 9, 1
			how, _, position := p.Acquire(now, heavy)
			require.Equal(t, Queued, how)
			require.Equal(t, 1, position)
			p.Return(now, 0, spent, 3)
			require.False(t, p.Claimable("waiter"), "one who needs more is before him")
			require.True(t, p.Cancel(now, "heavy"))
		},
	} {
		p := newRate(10, 10*sec)
		spent, ok := spend(p, 0, 7)
		require.True(t, ok, name)
		holder := ask("holder", 0)
		holder.Weight = 3
		how, held, _ := p.Acquire(0, holder)
		require.Equal(t, Granted, how, name)
		waiter := ask("waiter", 60*sec)
		waiter.Weight = 3
		how, _, _ = p.Acquire(2*sec, waiter)
		require.Equal(t, Queued, how, name)
		for at := 3 * sec; at < 9*sec; at += 3 * sec { // he keeps his place
			require.True(t, p.Hear(at, "waiter"), name)
		}
		require.False(t, p.Claimable("waiter"), name)
		room(p, 9*sec, spent, held)
		require.True(t, p.Claimable("waiter"), name)
		require.Empty(t, p.Queue, name)
	}
}

// What was spent returns by a window that is made shorter, also where that is still to come.
func TestAShorterWindowIsNotWaitedFor(t *testing.T) {
	for name, shorten := range map[string]func(p *Pool, now time.Duration){
		"by who made it":       func(p *Pool, now time.Duration) { p.SetRate(now, 1, 20*sec) },
		"by who asks under it": func(p *Pool, now time.Duration) { p.Under(now, 20*sec) },
	} {
		p := newRate(1, 3600*sec)
		_, ok := spend(p, 0, 1)
		require.True(t, ok, name)
		p.Settle(10 * sec)
		shorten(p, 10*sec)
		how, _, _ := p.Acquire(19*sec, ask("waiter", 60*sec))
		require.Equal(t, Queued, how, name)
		p.Settle(20 * sec)
		require.True(t, p.Claimable("waiter"), name)
	}
}

// The longest window that somebody asks under counts, while he asks.
func TestWindowsOfTwoVersions(t *testing.T) {
	p := &Pool{}
	p.Under(0, sec)
	p.Under(0, 10*sec)
	require.Equal(t, 10*sec, p.Per)
	p.Under(9*sec, 10*sec)
	p.Under(9*sec, sec)
	require.Equal(t, 10*sec, p.Per)
	require.False(t, p.Suits(19*sec, 10*sec))
	require.False(t, p.Suits(0, 15*sec), "a longer one counts from when it is asked under")
	p.Under(19*sec, 10*sec)
	p.Under(30*sec, sec)
	require.Equal(t, 10*sec, p.Per, "it was asked under within that time")
	p.Under(39*sec, sec)
	require.Equal(t, sec, p.Per)
}

// Over random requests, no window of a rate holds more than its limit, whatever
// it is, and its entries are few; settling step by step is settling at once.
func TestNoWindowOverItsRate(t *testing.T) {
	for seed := range uint64(200) {
		r := rand.New(rand.NewPCG(seed, 2))
		per := []time.Duration{100 * time.Millisecond, time.Second, 7777777777, time.Hour}[r.IntN(4)]
		limit := []int32{1, 3, 1000, MaxWeight}[r.IntN(4)]
		p := newRate(limit, per)
		type admission struct {
			at     time.Duration
			weight int64
		}
		var admitted []admission
		now, held := time.Duration(0), map[string]bool{}
		admit := func(l Lease) {
			_, ok := p.Spend(now, l.Token)
			require.True(t, ok)
			admitted = append(admitted, admission{now, int64(l.Weight)})
		}
		for i := range 600 {
			switch r.IntN(4) {
			case 0:
				if at, ok := p.Due(); ok && at > now && at < now+per {
					now = at - time.Duration(r.IntN(2))
				}
			case 1:
				now += time.Duration(r.Int64N(int64(per) / 50))
			}
			q := ask(fmt.Sprint("h", i), 0)
			q.Weight = 1 + r.Int32N(min(limit, 4*(1+limit/700)))
			q.Expires, q.Priority = now+time.Duration(1+r.IntN(15))*sec, r.Int32N(2)
			if r.IntN(2) == 0 {
				q.Until, q.Queue = now+min(per, 9*sec), 5
			}
			if how, token, _ := p.Acquire(now, q); how == Granted && r.IntN(4) > 0 {
				l, _ := p.Lease(token)
				admit(l)
			} else if how == Granted || how == Queued {
				held[q.Holder] = true
			}
			for h := range held {
				if how, token, _ := p.Claim(now, h); how == Granted {
					l, _ := p.Lease(token)
					admit(l)
					delete(held, h)
				}
				break
			}
			entries := 0
			for j := range p.Leases {
				if p.Leases[j].Spent() {
					entries++
				}
			}
			require.LessOrEqual(t, entries, MaxEntries)
			if at, ok := p.Due(); ok {
				require.LessOrEqual(t, at, p.Next(), "seed %d", seed)
			}
		}
		for i, from := 0, 0; i < len(admitted); i++ {
			for admitted[i].at-admitted[from].at >= per {
				from++
			}
			var sum int64
			for _, a := range admitted[from : i+1] {
				sum += a.weight
			}
			require.LessOrEqual(t, sum, int64(limit), "seed %d", seed)
		}
		one, two := p.Clone(), p.Clone()
		one.Settle(now + 2*per)
		for d := time.Duration(0); d < 2*per; d += per / 9 {
			two.Settle(now + d)
		}
		two.Settle(now + 2*per)
		require.Equal(t, picture(one, now), picture(two, now), "seed %d", seed)
	}
}

// Of a rate of any size there are few entries, and what it loses is a 256th.
func TestEntriesAreFew(t *testing.T) {
	for _, per := range []time.Duration{100 * time.Millisecond, 999999937, 24 * time.Hour} {
		p := newRate(MaxWeight, per)
		most := 0
		for i := range 5000 {
			now := time.Duration(int64(i) * int64(per) / 1000)
			_, ok := spend(p, now, 1)
			require.True(t, ok)
			most = max(most, len(p.Leases))
			require.LessOrEqual(t, p.InUse(), int32(1000+1000/spans+2), "per %v", per)
		}
		require.LessOrEqual(t, most, MaxEntries)
	}
	// There can be that many, and not one more.
	const part = 1000
	p, most := newRate(MaxWeight, 256*part+255), 0
	for i := range time.Duration(600) {
		for _, now := range []time.Duration{i * part, (i+1)*part - 1} {
			_, ok := spend(p, now, 1)
			require.True(t, ok)
			most = max(most, len(p.Leases))
		}
	}
	require.Equal(t, MaxEntries, most)
}

// With as many leases given out as there may be, who could be admitted waits.
func TestHeldAtARateAreBounded(t *testing.T) {
	p := newRate(MaxWeight, sec)
	var first uint64
	granted := 0
	for i := range MaxHeld + MaxEntries + 2 {
		how, token, _ := p.Acquire(0, ask(fmt.Sprint(i), 0))
		if how != Granted {
			break
		}
		if granted++; granted == 1 {
			first = token
		}
	}
	require.Equal(t, MaxHeld+MaxEntries, granted)
	how, _, _ := p.Acquire(0, ask("late", 60*sec))
	require.Equal(t, Queued, how)
	p.Release(0, first)
	how, _, _ = p.Claim(0, "late")
	require.Equal(t, Granted, how)

	how, _, _ = p.Acquire(0, ask("later", 60*sec))
	require.Equal(t, Queued, how)
	_, ok := p.Spend(0, first+1)
	require.True(t, ok)
	require.False(t, p.Claimable("later"), "what is spent takes the place of what was held")
	_, ok = p.Spend(0, first+2)
	require.True(t, ok)
	require.True(t, p.Claimable("later"), "what is spent at one time is one entry")
}

// Whose turn comes when so much returns by itself follows from what each of those who
// wait asks for, within his own limit; what is held returns to nobody by itself.
func TestTurnsAreWithinLimits(t *testing.T) {
	p := newRate(10, 10*sec)
	how, _, _ := p.Acquire(0, ask("holder", 0))
	require.Equal(t, Granted, how)
	for at, weight := range []int32{3, 4, 1} {
		_, ok := spend(p, time.Duration(at)*sec, weight)
		require.True(t, ok)
	}
	for _, w := range []struct {
		holder        string
		weight, slots int32
	}{{"a", 7, 0}, {"b", 1, 10}, {"c", 1, 9}, {"d", 1, 0}} {
		r := ask(w.holder, 60*sec)
		r.Weight, r.Slots = w.weight, w.slots
		how, _, _ := p.Acquire(2*sec, r)
		require.Equal(t, Queued, how, w.holder)
	}
	at, waits := p.Turn()
	require.True(t, waits)
	require.Equal(t, 11*sec, at, "three and four have to return")
	require.Empty(t, p.Turns(11*sec-1))
	require.Equal(t, []string{"a", "b"}, p.Turns(11*sec))
	require.Equal(t, []string{"a", "b"}, p.Turns(12*sec), "c would be the tenth, and its limit is nine")
}

// The head of a queue gets nothing from what returns by itself where that is too little,
// since others hold what they have not spent.
func TestTurnsThatDoNotCome(t *testing.T) {
	p := newRate(2, sec)
	_, ok := spend(p, 0, 1)
	require.True(t, ok)
	held := ask("holder", 0)
	how, token, _ := p.Acquire(0, held)
	require.Equal(t, Granted, how)
	heavy := ask("heavy", 60*sec)
	heavy.Weight = 2
	p.Acquire(0, heavy)
	_, comes := p.Turn()
	require.False(t, comes)
	require.True(t, p.Release(0, token))
	at, comes := p.Turn()
	require.True(t, comes)
	require.Equal(t, sec, at)
	p.Charge(sec/2, 1)
	p.Cancel(sec/2, "heavy")
	p.Acquire(sec/2, ask("light", 60*sec))
	at, comes = p.Turn()
	require.True(t, comes)
	require.Equal(t, sec, at, "the first that returns is enough, whatever returns after it")
}
