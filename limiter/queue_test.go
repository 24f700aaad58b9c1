package limiter

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What was handed over and not claimed is taken back when the limit is lowered,
// the latest first, and stands again where it stood.
func TestLoweringTakesBackClaims(t *testing.T) {
	p := &Pool{Slots: 4}
	var held []uint64
	for _, h := range []string{"a", "b", "x", "y"} {
		_, token, _ := p.Acquire(0, ask(h, 0))
		held = append(held, token)
	}
	for _, h := range []string{"c", "d", "e"} {
		p.Acquire(0, ask(h, 60*sec))
	}
	p.Release(sec, held[2])
	p.Release(sec, held[3])
	require.Equal(t, "a#1(16m39s) b#2(16m39s) c?#5(5s) d?#6(5s) | e", picture(p, sec))

	p.SetSlots(2*sec, 3)
	require.Equal(t, "a#1(16m38s) b#2(16m38s) c?#5(4s) | d e", picture(p, 2*sec))
	p.SetSlots(2*sec, 1)
	require.Equal(t, "a#1(16m38s) b#2(16m38s) | c d e", picture(p, 2*sec), "what is held is not revoked")
	how, _, place := p.Claim(2*sec, "d")
	require.Equal(t, Queued, how)
	require.Equal(t, 2, place)
	p.Release(3*sec, held[0])
	require.Equal(t, "b#2(16m37s) | c d e", picture(p, 3*sec))
	p.Release(3*sec, held[1])
	require.Equal(t, "c?#7(5s) | d e", picture(p, 3*sec))
}

func TestTakenBackTickets(t *testing.T) {
	// handed returns a pool of two slots, one of them handed to w, who was last
	// heard of at 1 s.
	handed := func(at time.Duration, w Request) *Pool {
		p := &Pool{Slots: 2}
		p.Acquire(0, ask("a", 0))
		_, token, _ := p.Acquire(0, ask("b", 0))
		p.Acquire(sec, w)
		p.Acquire(sec, ask("later", 600*sec))
		high := ask("high", 600*sec)
		high.Priority = 1
		p.Release(at, token)
		p.Acquire(at, high)
		return p
	}
	heavy := ask("w", 60*sec)
	heavy.Weight = 2
	for _, tt := range []struct {
		name  string
		hand  time.Duration
		back  time.Duration
		w     Request
		after string
	}{
		{"before its priority, behind higher ones", 2 * sec, 3 * sec, ask("w", 60*sec), "a#1(16m37s) | high w later"},
		{"nobody has heard of it for long", 10 * sec, 12 * sec, ask("w", 60*sec), "a#1(16m28s) | high"},
		{"its wait is over", 2 * sec, 4 * sec, ask("w", 4*sec), "a#1(16m36s) | high later"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := handed(tt.hand, tt.w)
			p.SetSlots(tt.back, 1)
			require.Equal(t, tt.after, picture(p, tt.back))
		})
	}

	t.Run("more than there will ever be", func(t *testing.T) {
		p := &Pool{Slots: 2}
		_, token, _ := p.Acquire(0, ask("a", 0))
		p.Acquire(0, heavy)
		p.Release(sec, token)
		require.Equal(t, "w?#2(5s) |", picture(p, sec))
		p.SetSlots(sec, 1)
		require.Equal(t, "|", picture(p, sec))
		how, _, _ := p.Claim(sec, "w")
		require.Equal(t, Gone, how)
	})
}

// Until a slot is claimed, nobody is admitted who would take it above the limit
// of the one who is to claim it. Those wait for the claim, and nobody passes
// them.
func TestAClaimIsWithinItsLimit(t *testing.T) {
	p := &Pool{}
	_, token, _ := p.Acquire(0, under(1, "a", 0))
	p.Acquire(0, under(1, "low", 60*sec))
	p.Release(sec, token)
	require.Equal(t, "low?#2(5s) |", picture(p, sec))

	how, _, _ := p.Acquire(sec, under(3, "b", 0))
	require.Equal(t, Refused, how)
	two := under(3, "two", 60*sec)
	two.Weight = 2
	how, _, _ = p.Acquire(sec, two)
	require.Equal(t, Queued, how)
	how, _, _ = p.Acquire(sec, under(5, "c", 60*sec))
	require.Equal(t, Queued, how)
	p.Cancel(sec, "nobody")
	require.Equal(t, "low?#2(5s) | two c", picture(p, sec))

	how, token, _ = p.Claim(2*sec, "low")
	require.Equal(t, Granted, how)
	require.EqualValues(t, 3, token)
	require.Equal(t, "low#3(4s) two?#4(5s) | c", picture(p, 2*sec), "c would take two above its limit")
	p.Claim(2*sec, "two")
	require.Equal(t, "low#3(4s) two#5(5s) c?#6(5s) |", picture(p, 2*sec))

	q := &Pool{}
	_, token, _ = q.Acquire(0, under(1, "a", 0))
	q.Acquire(0, under(1, "low", 60*sec))
	q.Release(sec, token)
	q.Acquire(sec, under(3, "b", 60*sec))
	q.Hear(5*sec, "b")
	require.Equal(t, "low?#2(1s) | b", picture(q, 5*sec))
	q.Settle(6 * sec)
	require.Equal(t, "b?#3(5s) |", picture(q, 6*sec), "a claim that lapses holds nobody up")
}

// Who would have room under his own limit, and not under that of a claim, waits for
// the claim alone. Nobody passes him meanwhile, not under a higher limit and not
// for being light enough to fit beside the claim.
func TestNobodyPassesWhoWaitsForAClaim(t *testing.T) {
	weighs := func(r Request, weight int32) Request { r.Weight = weight; return r }
	p := &Pool{}
	_, token, _ := p.Acquire(0, weighs(under(6, "a", 0), 5))
	p.Acquire(0, under(6, "b", 0))
	for _, r := range []Request{under(3, "low", 60*sec), weighs(under(5, "two", 60*sec), 2), under(6, "one", 60*sec)} {
		how, _, _ := p.Acquire(0, r)
		require.Equal(t, Queued, how, r.Holder)
	}
	p.Release(sec, token)
	require.Equal(t, []string{"two", "one"}, []string{p.Queue[0].Holder, p.Queue[len(p.Queue)-1].Holder}, picture(p, sec))
	how, _, _ := p.Acquire(sec, under(6, "later", 0))
	require.Equal(t, Refused, how)
	how, _, _ = p.Claim(2*sec, "low")
	require.Equal(t, Granted, how)
	how, _, _ = p.Claim(2*sec, "two")
	require.Equal(t, Granted, how, picture(p, 2*sec))
}

// Who waits under a lower limit and has no room under it, for his weight, holds up
// nobody under a higher one; once he has room, he does.
func TestAHeavyWaiterUnderALowerLimit(t *testing.T) {
	p := &Pool{Slots: 4}
	p.Acquire(0, ask("a", 0))
	_, token, _ := p.Acquire(0, ask("b", 0))
	heavy := ask("heavy", 600*sec)
	heavy.Slots, heavy.Weight = 3, 2
	how, _, _ := p.Acquire(0, heavy)
	require.Equal(t, Queued, how)
	how, third, _ := p.Acquire(0, ask("c", 600*sec))
	require.Equal(t, Granted, how, "three are in use, and there is one more that heavy cannot have")
	p.Release(sec, token)
	require.Equal(t, "a#1(16m39s) c#3(16m39s) | heavy", picture(p, sec))
	p.Release(sec, third)
	require.Equal(t, "a#1(16m39s) heavy?#4(5s) |", picture(p, sec))
}

// Over random pools of askers with limits of their own, whose own limit rises
// and falls: whoever is admitted, by a claim as well, is admitted within his
// limit; whoever was handed a slot can claim it; nobody who waits is overtaken
// by somebody of his priority and his limit; what is derived is right.
func TestNobodyIsAdmittedAboveHisLimit(t *testing.T) {
	claims, back := 0, 0
	for seed := range uint64(600) {
		r := rand.New(rand.NewPCG(seed, 2))
		p := &Pool{Slots: int32(1 + r.IntN(4))}
		mixed := seed%2 == 0
		limits := map[string]int32{}
		arrived := map[string]int{}
		now := time.Duration(0)
		for i := range 120 {
			now += time.Duration(r.IntN(1200)) * time.Millisecond
			p.Settle(now)
			was := len(p.Queue)
			switch r.IntN(8) {
			case 0, 1, 2:
				q := ask(fmt.Sprint("h", i), 0)
				q.Weight, q.Priority, q.Expires = int32(1+r.IntN(5)/4), int32(r.IntN(2)), now+time.Duration(1+r.IntN(20))*sec
				if mixed {
					q.Slots = int32(1 + r.IntN(4))
				}
				if r.IntN(4) > 0 {
					q.Until = now + time.Duration(1+r.IntN(30))*sec
				}
				limits[q.Holder], arrived[q.Holder] = q.Slots, i
				if how, _, _ := p.Acquire(now, q); how == Granted {
					require.LessOrEqual(t, p.InUse(), p.limit(q.Slots), "seed %d: %s", seed, picture(p, now))
				}
			case 3:
				p.SetSlots(now, int32(1+r.IntN(4)))
				back += max(0, len(p.Queue)-was)
			case 4:
				if len(p.Leases) > 0 {
					p.Release(now, p.Leases[r.IntN(len(p.Leases))].Token)
				}
			default:
				for _, l := range p.Clone().Leases {
					if !l.Claim || r.IntN(2) == 0 {
						continue
					}
					used := p.InUse()
					how, token, _ := p.Claim(now, l.Holder)
					require.Equal(t, Granted, how, "seed %d", seed)
					claims++
					require.LessOrEqual(t, used, p.limit(limits[l.Holder]), "seed %d: %s", seed, picture(p, now))
					p.Extend(now, token, now+time.Duration(1+r.IntN(20))*sec, 0)
				}
			}
			for _, l := range p.Leases {
				require.Equal(t, l.Claim, l.Place != nil)
				if l.Claim {
					require.LessOrEqual(t, p.InUse(), p.limit(l.Place.Slots), "seed %d: %s of %s", seed, l.Holder, picture(p, now))
				}
			}
			for i, q := range p.Queue[min(1, len(p.Queue)):] {
				before := p.Queue[i]
				require.False(t, before.Priority < q.Priority ||
					before.Priority == q.Priority && arrived[before.Holder] > arrived[q.Holder] && before.Slots == q.Slots,
					"seed %d: %s", seed, picture(p, now))
			}
			derived := p.Clone()
			derived.Index()
			require.Equal(t, derived.used, p.used)
			require.Equal(t, derived.claims, p.claims)
			if at, ok := p.Due(); ok {
				require.LessOrEqual(t, at, p.Next(), "seed %d", seed)
			}
		}
	}
	require.Greater(t, claims, 1000)
	require.Greater(t, back, 100)
}

// Who gives up a slot that was handed over and not claimed passes it on.
func TestAClaimThatIsGivenUpIsPassedOn(t *testing.T) {
	p := &Pool{Slots: 1}
	_, token, _ := p.Acquire(0, ask("a", 0))
	p.Acquire(0, ask("b", 60*sec))
	p.Acquire(0, ask("c", 60*sec))
	p.Release(sec, token)
	require.Equal(t, "b?#2(5s) | c", picture(p, sec))
	require.True(t, p.Claimable("b"))
	require.False(t, p.Claimable("c"), "it is another's")
	require.True(t, p.Cancel(sec, "b"))
	require.Equal(t, "c?#3(5s) |", picture(p, sec))
	require.False(t, p.Cancel(sec, "b"), "it has nothing any more")
	require.Equal(t, "c?#3(5s) |", picture(p, sec))
}

// When a waiter was last heard of is known until his place lapses, or he has claimed his slot,
// or that lapses.
func TestWhenAWaiterWasHeardOf(t *testing.T) {
	p := &Pool{Slots: 1}
	_, token, _ := p.Acquire(0, ask("a", 0))
	p.Acquire(sec, ask("b", 60*sec))
	require.Zero(t, p.Heard(sec, "a"), "he does not wait")
	require.Equal(t, sec, p.Heard(2*sec, "b"))
	require.True(t, p.Hear(3*sec, "b"))
	require.Equal(t, 3*sec, p.Heard(13*sec-1, "b"))
	require.Zero(t, p.Heard(13*sec, "b"), "his place has lapsed, also where nobody has looked")
	p.Release(4*sec, token)
	require.Equal(t, 3*sec, p.Heard(9*sec-1, "b"), "before it was handed to him")
	require.Zero(t, p.Heard(9*sec, "b"), "it has lapsed")
	how, _, _ := p.Claim(5*sec, "b")
	require.Equal(t, Granted, how)
	require.Zero(t, p.Heard(5*sec, "b"))
}

// A lease is found by its token, as long as it is there.
func TestALeaseIsFoundByItsToken(t *testing.T) {
	p := &Pool{Slots: 2}
	_, token, _ := p.Acquire(0, ask("a", 0))
	l, ok := p.Lease(token)
	require.True(t, ok)
	require.Equal(t, token, l.Token)
	_, ok = p.Lease(token + 1)
	require.False(t, ok)
	p.Release(0, token)
	_, ok = p.Lease(token)
	require.False(t, ok)
}

// What has run out is there for nobody, whether or not somebody has looked meanwhile: from
// the instant of its end on nothing can be done with it, and its room went to who waited
// at that instant.
func TestNothingIsDoneWithWhatIsOver(t *testing.T) {
	for name, do := range map[string]func(p *Pool, now time.Duration) bool{
		"extended": func(p *Pool, now time.Duration) bool { return p.Extend(now, 1, now+60*sec, 0) },
		"renewed":  func(p *Pool, now time.Duration) bool { _, ok := p.Renew(now, 1, now+60*sec); return ok },
		"released": func(p *Pool, now time.Duration) bool { return p.Release(now, 1) },
		"spent":    func(p *Pool, now time.Duration) bool { _, ok := p.Spend(now, 1); return ok },
	} {
		for at, want := range map[time.Duration]string{10 * sec: "b?#2(5s) |", 12 * sec: "b?#2(3s) |"} {
			p := &Pool{Slots: 1}
			a := ask("a", 0)
			a.Expires = 10 * sec
			p.Acquire(0, a)
			p.Acquire(5*sec, ask("b", 60*sec))
			require.False(t, p.Claimable("a"), "who holds has nothing to claim")
			require.False(t, do(p, at), name)
			require.Equal(t, want, picture(p, at), name)
		}
	}
	for name, do := range map[string]func(p *Pool, now time.Duration, holder string) bool{
		"heard of": (*Pool).Hear,
		"given up": (*Pool).Cancel,
		"claimed": func(p *Pool, now time.Duration, holder string) bool {
			how, _, _ := p.Claim(now, holder)
			return how != Gone
		},
	} {
		p := &Pool{Slots: 1}
		_, token, _ := p.Acquire(0, ask("a", 0))
		p.Acquire(0, ask("b", 60*sec))
		require.False(t, do(p.Clone(), 10*sec, "b"), "a place, %s", name)
		p.Release(0, token)
		require.False(t, do(p.Clone(), 5*sec, "b"), "a claim, %s", name)
		p.Acquire(0, ask("c", 60*sec))
		require.False(t, do(p, 7*sec, "b"), "a claim that was passed on, %s", name)
		require.Equal(t, "c?#3(3s) |", picture(p, 7*sec), name)
	}
}
