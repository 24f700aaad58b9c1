package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// A worker of a fleet asks for some pools at once, waits, works, ends.
type worker struct {
	call   *session.Begin
	asked  time.Duration
	place  int // order of arrival among all
	heard  time.Duration
	until  time.Duration // of the work; 0 while it waits
	done   bool
	dead   bool
	result session.Code
}

// TestNoDeadlockNoOvertaking plays fleets whose workers each want several pools
// in any combination, hold them for a while, and sometimes crash while they
// wait or work. Everybody who lives is admitted, however long it takes, and in
// the queue of a pool nobody is admitted before somebody of the same priority
// who came to it first.
func TestNoDeadlockNoOvertaking(t *testing.T) {
	histories(t, 40, func(t *testing.T, h *sessiontest.History) {
		r := rand.New(rand.NewPCG(h.Seed, 7))
		s := session.NewPartial()
		s.ApplyAll(0, sessiontest.Setup())
		limits := sessiontest.Limits(1)
		limits.MaxToolCalls, limits.MaxAttempts, limits.Timeout, limits.MaxTokens, limits.PerTool = 1000, 1000, 100*time.Hour, 1<<40, nil
		s.ApplyAll(0, []session.Command{
			&session.PutPolicy{NS: ns, Name: "fleet", Digest: session.Digest{0: 9}, Tree: []byte("t"), Limits: limits},
			&session.Open{NS: ns, Session: "fleet", Agent: "a", Policy: "fleet", Digest: session.Digest{0: 9}, IdleTTL: 24 * time.Hour},
		})
		apply := func(at time.Duration, c session.Command) session.Result {
			require.NoError(t, session.Validate(c))
			return s.ApplyAll(at, []session.Command{c})[0]
		}

		var fleet []*worker
		now := time.Duration(0)
		queues := map[string][]string{} // arrivals in the queue of each pool
		watch := func() {
			for _, pool := range []string{"policy/fleet", "a", "b", "c"} {
				p, ok := s.Get(session.PoolKey(ns, pool)).(*session.Pool)
				if !ok {
					continue
				}
				var here []string
				for _, q := range p.Queue {
					here = append(here, q.Holder)
				}
				// Who was here and still is keeps the order in which they stood.
				was := slices.DeleteFunc(slices.Clone(queues[pool]), func(w string) bool { return !slices.Contains(here, w) })
				is := slices.DeleteFunc(slices.Clone(here), func(w string) bool { return !slices.Contains(queues[pool], w) })
				require.True(t, slices.Equal(was, is), "the queue of %s changed its order: %v, %v", pool, was, is)
				// Nobody left it by being admitted while somebody stood before him.
				for i, w := range queues[pool] {
					if !slices.Contains(here, w) && holds(p, w) {
						for _, before := range queues[pool][:i] {
							require.NotContains(t, here, before, "%s overtook %s in %s", w, before, pool)
						}
					}
				}
				queues[pool] = here
			}
		}
		for i := range 60 {
			c := &session.Begin{
				NS: ns, Session: "fleet", Call: fmt.Sprint("c", i), Tool: "t", Digest: session.Digest{0: 9}, Verdict: session.Verdict{Allow: true},
				Pools: []session.Want{{Pool: "policy/fleet", Weight: 1}}, TTL: 5 * time.Second, Wait: 10 * time.Minute,
			}
			for j, pool := range []string{"a", "b", "c"} {
				if r.IntN(2) == 0 {
					c.Pools = append(c.Pools, session.Want{Pool: pool, Weight: int32(1 + r.IntN(j+1))})
				}
			}
			fleet = append(fleet, &worker{call: c, asked: time.Duration(r.IntN(20000)) * time.Millisecond, place: i})
		}
		queueLimit := &session.PutPool{NS: ns, Slots: 1, Queue: 1000, By: session.Maker{Client: "x"}}
		for j, pool := range []string{"a", "b", "c"} {
			q := *queueLimit
			q.Pool, q.Slots = pool, int32(1+j)
			apply(0, &q)
		}

		for step := 0; ; step++ {
			require.Less(t, step, 20000, "somebody waits for ever")
			now += 100 * time.Millisecond
			left := 0
			for _, w := range fleet {
				if w.done || w.dead {
					continue
				}
				left++
				if now < w.asked {
					continue
				}
				if r.IntN(3000) == 0 {
					w.dead = true
					continue
				}
				switch {
				case w.until == 0 && (w.heard == 0 || now >= w.heard+time.Second || step%3 == 0):
					res := apply(now, w.call)
					w.heard, w.result = now, res.Code
					require.Contains(t, []session.Code{session.Admitted, session.Queued}, res.Code, "%v", w.call)
					if res.Code == session.Admitted {
						w.until = now + time.Duration(r.IntN(1500))*time.Millisecond
					}
				case w.until != 0 && now >= w.until:
					var pools []string
					for _, p := range w.call.Pools {
						pools = append(pools, p.Pool)
					}
					res := apply(now, &session.End{NS: ns, Session: "fleet", Call: w.call.Call, Pools: pools, Status: session.Succeeded, Tokens: -1})
					require.Equal(t, session.Ended, res.Code)
					w.done = true
				}
				watch()
			}
			if left == 0 {
				break
			}
		}
		s.ApplyAll(now+time.Minute, nil)
		for _, pool := range []string{"policy/fleet", "a", "b", "c"} {
			if p, ok := s.Get(session.PoolKey(ns, pool)).(*session.Pool); ok {
				require.Empty(t, p.Leases, "the dead hold nothing")
				require.Empty(t, p.Queue)
			}
		}
	})
}

func holds(p *session.Pool, holder string) bool {
	for _, l := range p.Leases {
		if l.Holder == holder {
			return true
		}
	}
	return false
}

// FuzzApply: nothing that passes validation can make Apply panic, break the
// agreement of the records, or write what cannot be read back.
func FuzzApply(f *testing.F) {
	for seed := range uint64(6) {
		at, entries := record(sessiontest.New(seed), 6)
		var log []byte
		for i := range entries {
			entry := session.EncodeEntry(at[i], entries[i])
			log = append(log, byte(len(entry)>>8), byte(len(entry)))
			log = append(log, entry...)
		}
		f.Add(log)
	}
	f.Fuzz(func(t *testing.T, log []byte) {
		s := newWorld().state
		for len(log) > 2 {
			n := int(log[0])<<8 | int(log[1])
			log = log[2:]
			if n > len(log) {
				return
			}
			at, cmds, err := session.DecodeEntry(log[:n])
			log = log[n:]
			if err != nil || at < 0 || at > 1<<60 {
				continue
			}
			valid := cmds[:0]
			for _, c := range cmds {
				if session.Validate(c) == nil {
					valid = append(valid, c)
				}
			}
			s.ApplyAll(at, valid)
		}
		for k, r := range s.Snapshot().All() {
			b := session.EncodeRecord(r)
			if _, err := session.DecodeRecord(b); err != nil {
				t.Fatalf("%q cannot be read back: %v", k, err)
			}
		}
		agree(t, s, true, "")
	})
}
