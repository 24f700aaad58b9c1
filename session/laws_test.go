package session_test

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/approval"
	"example.com/govnode/session/sessiontest"
)

// The laws of the state machine, each over random histories. A failing history
// prints its seed; GOVNODE_SEED=n runs that one alone.

const ns = sessiontest.NS

// histories runs f over many seeds.
func histories(t *testing.T, n int, f func(t *testing.T, h *sessiontest.History)) {
	t.Helper()
	if s := os.Getenv("GOVNODE_SEED"); s != "" {
		seed, err := strconv.ParseUint(s, 10, 64)
		require.NoError(t, err)
		f(t, sessiontest.New(seed))
		return
	}
	if testing.Short() {
		n /= 4
	}
	for seed := range uint64(n) {
		if !t.Run(fmt.Sprintf("seed%d", seed), func(t *testing.T) { f(t, sessiontest.New(seed)) }) {
			t.Fatalf("repeat with GOVNODE_SEED=%d", seed)
		}
	}
}

// world is a state and the log that led to it.
type world struct {
	state *session.State
	now   time.Duration
}

func newWorld() *world {
	w := &world{state: session.NewPartial()} // one shard: listing it is fast
	w.state.ApplyAll(0, sessiontest.Setup())
	return w
}

// step makes the next step of a history concrete: real tokens, and claims by
// those whose turn has come.
func (w *world) step(h *sessiontest.History) (time.Duration, []session.Command) {
	s := h.Step()
	w.now += s.After
	w.state.ApplyAll(w.now, nil)
	cmds := h.Late(h.Claims(w.state))
	for _, c := range s.Commands {
		cmds = append(cmds, sessiontest.Tokens(w.state, c))
	}
	return w.now, cmds
}

// record plays a history and returns its entries.
func record(h *sessiontest.History, steps int) (at []time.Duration, entries [][]session.Command) {
	w := newWorld()
	for range steps {
		now, cmds := w.step(h)
		w.state.ApplyAll(now, cmds)
		at, entries = append(at, now), append(entries, cmds)
	}
	return at, entries
}

func encode(results []session.Result) string {
	var b []byte
	for i := range results {
		b = session.AppendResult(b, &results[i])
		b = append(b, '\n')
	}
	return string(b)
}

// reopen writes a snapshot of the state and reads it back.
func reopen(t *testing.T, s *session.State) *session.State {
	var b bytes.Buffer
	require.NoError(t, session.WriteSnapshot(&b, s.Snapshot()))
	s, err := session.ReadSnapshot(&b)
	require.NoError(t, err)
	return s
}

func TestLaw1ReplayAndLaw2Cut(t *testing.T) {
	histories(t, 24, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		at, entries := record(h, 250)
		one, two, cut := newWorld().state, newWorld().state, newWorld().state
		for i := range entries {
			if i%17 == 3 {
				cut = reopen(t, cut)
			}
			want := encode(one.ApplyAll(at[i], entries[i]))
			require.Equal(t, want, encode(two.ApplyAll(at[i], entries[i])), "replay, entry %d", i)
			require.Equal(t, want, encode(cut.ApplyAll(at[i], entries[i])), "cut, entry %d: %s", i, show(entries[i]))
		}
		require.Equal(t, sessiontest.Dump(one), sessiontest.Dump(two))
		require.Equal(t, sessiontest.Dump(one), sessiontest.Dump(cut))
		var a, b, c bytes.Buffer
		require.NoError(t, session.WriteSnapshot(&a, one.Snapshot()))
		require.NoError(t, session.WriteSnapshot(&b, two.Snapshot()))
		require.NoError(t, session.WriteSnapshot(&c, cut.Snapshot()))
		require.True(t, bytes.Equal(a.Bytes(), b.Bytes()), "equal histories, equal bytes")
		require.True(t, bytes.Equal(a.Bytes(), c.Bytes()), "equal histories, equal bytes, restored in between or not")
	})
}

// The digest follows from the history alone: the same after every entry on who
// applied all of it, who was restored from a snapshot of its own now and then,
// and who got one of another replica; and whatever was read in between. No record
// that a digest has seen changes: half of them are hashed again each time.
func TestLaw2DigestsOfReplicas(t *testing.T) {
	digest := func(s *session.State, round int) session.Digest {
		d, err := s.Snapshot().Digest(func(shard int) bool { return (shard+round)%2 == 0 }, nil)
		require.NoError(t, err)
		return d
	}
	histories(t, 8, func(t *testing.T, h *sessiontest.History) {
		at, entries := record(h, 250)
		one, cut, late := session.New(), session.New(), session.New()
		for _, s := range []*session.State{one, cut, late} {
			s.ApplyAll(0, sessiontest.Setup())
		}
		seen := map[session.Digest]bool{}
		for i := range entries {
			switch {
			case i%17 == 3:
				cut = reopen(t, cut)
			case i%23 == 5:
				late = reopen(t, one)
			case i%7 == 2:
				for k := range cut.Snapshot().All() {
					_ = cut.Get(k)
				}
			}
			one.ApplyAll(at[i], entries[i])
			cut.ApplyAll(at[i], entries[i])
			late.ApplyAll(at[i], entries[i])
			if i%3 == 0 || i > 200 { // else hashes are kept over several entries
				want := digest(one, i)
				require.Equal(t, want, digest(cut, i), "cut, entry %d: %s", i, show(entries[i]))
				require.Equal(t, want, digest(late, i), "late, entry %d: %s", i, show(entries[i]))
				seen[want] = true
			}
		}
		require.Equal(t, digest(one, 0), digest(reopen(t, one), 0))
		require.Greater(t, len(seen), 50)
	})
}

func TestLaw3Immutability(t *testing.T) {
	histories(t, 30, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		w := newWorld()
		type seen struct {
			k      session.Key
			r      session.Record
			before string
		}
		var all []seen
		for i := range 200 {
			at, cmds := w.step(h)
			for k, r := range w.state.Snapshot().All() {
				if i%5 == 0 {
					all = append(all, seen{k, r, string(session.EncodeRecord(r))})
				}
			}
			w.state.ApplyAll(at, cmds)
		}
		for _, s := range all {
			require.Equal(t, s.before, string(session.EncodeRecord(s.r)), "%s was written into", s.k)
		}
	})
}

func TestLaw4Footprint(t *testing.T) {
	histories(t, 40, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		w := newWorld()
		for i := range 250 {
			at, cmds := w.step(h)
			for _, c := range cmds {
				part := session.NewPartial()
				part.SetClock(w.state.Now(), w.state.Generation())
				for _, k := range c.Touches() {
					if r := w.state.Stored(k); r != nil {
						part.Put(k, clone(t, r))
					}
				}
				want := w.state.ApplyAll(at, []session.Command{c})
				got := part.ApplyAll(at, []session.Command{c})
				require.Equal(t, encode(want), encode(got), "entry %d: %s", i, show([]session.Command{c}))
				for _, k := range c.Touches() {
					require.Equal(t, stored(w.state, k), stored(part, k), "entry %d: %s: %s", i, show([]session.Command{c}), k)
				}
			}
		}
	})
}

func clone(t *testing.T, r session.Record) session.Record {
	c, err := session.DecodeRecord(session.EncodeRecord(r))
	require.NoError(t, err)
	return c
}

func stored(s *session.State, k session.Key) string {
	r := s.Get(k)
	if r == nil {
		return "absent"
	}
	return string(session.EncodeRecord(r))
}

// Ticks let ended sessions go of their pins, which DeletePolicy may see, and
// raise what was forgotten, which ids with a time in them may see; the
// histories have neither.
func TestLaw5TickNeutrality(t *testing.T) {
	histories(t, 60, func(t *testing.T, h *sessiontest.History) {
		at, entries := record(h, 250)
		plain, ticked := newWorld().state, newWorld().state
		for i := range entries {
			if i%2 == 0 && i > 0 {
				for _, now := range []time.Duration{at[i-1] + (at[i]-at[i-1])/3, at[i]} {
					ticked.ApplyAll(now, nil)
					keys, _ := ticked.DueKeys(100)
					ticked.ApplyAll(now, []session.Command{&session.Tick{Keys: keys}})
				}
			}
			for _, c := range entries[i] {
				want, got := plain.ApplyAll(at[i], []session.Command{c}), ticked.ApplyAll(at[i], []session.Command{c})
				want[0].Lapsed, got[0].Lapsed = nil, nil // who finds a lapse is who comes first
				require.Equal(t, encode(want), encode(got), "entry %d: %s", i, show(entries[i]))
			}
		}
		for k := range plain.Snapshot().All() {
			if k.Kind() != session.KindPins && k.Kind() != session.KindNamespace {
				if x, ok := plain.Get(k).(*session.Session); ok && x.Phase != session.PhaseOpen {
					continue // pinned or not
				}
				require.Equal(t, stored(plain, k), stored(ticked, k), "%s", k)
			}
		}
	})
}

// At(a).At(b) is At(b) for a <= b, and Due names the first change.
func TestLaw5Settling(t *testing.T) {
	histories(t, 30, func(t *testing.T, h *sessiontest.History) {
		w := newWorld()
		for range 150 {
			at, cmds := w.step(h)
			w.state.ApplyAll(at, cmds)
			for k, r := range w.state.Snapshot().All() {
				for _, d := range []time.Duration{0, time.Second, 7 * time.Second, 40 * time.Second, 10 * time.Minute, 2 * time.Hour} {
					a, b := at+d/3, at+d
					want := text(r.At(b))
					if mid := r.At(a); mid != nil {
						require.Equal(t, want, text(mid.At(b)), "%s at %v by way of %v", k, b, a)
					} else {
						require.Equal(t, "nil", want)
					}
				}
				if due, ok := r.Due(); ok {
					require.Equal(t, text(r), text(r.At(due-1)), "%s differs before it is due", k)
				} else {
					require.Equal(t, text(r), text(r.At(at+1000*time.Hour)), "%s differs and is never due", k)
				}
			}
		}
	})
}

func text(r session.Record) string {
	if r == nil {
		return "nil"
	}
	return string(session.EncodeRecord(r))
}

func TestLaw6Retry(t *testing.T) {
	histories(t, 60, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		at, entries := record(h, 250)
		once, twice := newWorld().state, newWorld().state
		for i := range entries {
			for _, c := range entries[i] {
				first := once.ApplyAll(at[i], []session.Command{c})[0]
				require.Equal(t, encode([]session.Result{first}), encode(twice.ApplyAll(at[i], []session.Command{c})))
				again := twice.ApplyAll(at[i], []session.Command{c})[0]
				sameAnswer(t, c, first, again)
			}
		}
		require.Equal(t, sessiontest.Dump(once), sessiontest.Dump(twice))
	})
}

// sameAnswer holds a repeat to the first answer. What ended in between by the
// command itself says so instead.
func sameAnswer(t *testing.T, c session.Command, first, again session.Result) {
	t.Helper()
	msg := fmt.Sprintf("%s: first %+v, again %+v", show([]session.Command{c}), first, again)
	switch {
	case first.Code == session.Ended:
		require.Equal(t, session.AlreadyEnded, again.Code, msg)
	case first.Code == session.Released && fmt.Sprintf("%T", c) == "*session.Release":
		require.Equal(t, session.AlreadyReleased, again.Code, msg)
	default:
		require.Equal(t, first.Code, again.Code, msg)
	}
	require.Equal(t, first.Rule, again.Rule, msg)
	require.Equal(t, tokens(first), tokens(again), msg)
	if _, ok := c.(*session.Close); !ok {
		require.Equal(t, first.Value, again.Value, msg)
	}
}

func tokens(r session.Result) (out []uint64) {
	for _, g := range r.Grants {
		out = append(out, g.Token)
	}
	return out
}

// Whoever is admitted, by a claim as well, is admitted within his limit as it
// is at that moment, and whoever was handed a slot can claim it so. Tokens only
// grow, through restore, deletion and re-creation.
func TestLaw7Bound(t *testing.T) {
	histories(t, 60, func(t *testing.T, h *sessiontest.History) {
		w := newWorld()
		last := map[session.Key]uint64{}
		for i := range 300 {
			at, cmds := w.step(h)
			if i%97 == 96 {
				w.state = reopen(t, w.state)
				cmds = []session.Command{&session.Restore{}}
			}
			for _, c := range cmds {
				w.state.ApplyAll(at, []session.Command{c})
				for _, name := range []string{"policy/p1", "policy/p2", "a", "b", "c"} {
					k := session.PoolKey(ns, name)
					if p, ok := w.state.Get(k).(*session.Pool); ok {
						bounded(t, w.state, p, last[k], fmt.Sprintf("%s after %s: %+v", k, show([]session.Command{c}), p.Leases))
						require.GreaterOrEqual(t, p.Last, last[k], "%s", k)
						last[k] = p.Last
					}
				}
			}
		}
	})
}

// bounded looks at the grants of a pool since a token. A claim is a grant: it
// has a new token.
func bounded(t *testing.T, s *session.State, p *session.Pool, since uint64, msg string) {
	t.Helper()
	used := int32(0)
	for j, l := range p.Leases {
		limit := p.Slots
		if kind, maker, _ := session.SplitHolder(l.Holder); kind == session.KindSession && !p.Put {
			limit = pinned(s, maker)
		}
		used += l.Weight
		if l.Token > since { // all that are there with smaller tokens were there then
			require.LessOrEqual(t, used, limit, msg)
		}
		if l.Claim {
			require.LessOrEqual(t, p.InUse(), limit, msg)
		}
		if j > 0 {
			require.Greater(t, l.Token, p.Leases[j-1].Token, msg)
		}
	}
}

// pinned returns how many slots the policy of a session allows.
func pinned(s *session.State, id string) int32 {
	x, ok := s.Stored(session.SessionKey(ns, id)).(*session.Session)
	if !ok {
		return 0
	}
	return x.Pin.Limits.MaxConcurrent
}

func TestLaw8TimeNeverRunsBackwards(t *testing.T) {
	histories(t, 10, func(t *testing.T, h *sessiontest.History) {
		at, entries := record(h, 120)
		plain, jumpy := newWorld().state, newWorld().state
		for i := range entries {
			want := encode(plain.ApplyAll(at[i], entries[i]))
			jumpy.ApplyAll(at[i], nil)
			require.Equal(t, want, encode(jumpy.ApplyAll(at[i]/2, entries[i])), "entry %d", i)
			require.Equal(t, at[i], jumpy.Now())
		}
	})
}

// Whatever a session or a client holds stands in its pools with the same
// deadline, and nothing else does: no slot is leaked, none is lost. Nobody waits
// while there is room for the head. What waits, waits in one queue.
func TestRecordsAgree(t *testing.T) {
	histories(t, 60, func(t *testing.T, h *sessiontest.History) {
		w := newWorld()
		forced := false
		for range 300 {
			at, cmds := w.step(h)
			for _, c := range cmds {
				w.state.ApplyAll(at, []session.Command{c})
				if d, ok := c.(*session.DeletePool); ok && d.Force {
					forced = true
				}
				msg := show([]session.Command{c})
				agree(t, w.state, forced, msg)
			}
		}
	})
}

func limitOf(p *session.Pool, slots int32) int32 {
	if slots > 0 {
		return slots
	}
	return p.Slots
}

func agree(t *testing.T, s *session.State, forced bool, msg string) {
	t.Helper()
	inPools := map[string]time.Duration{} // pool and token
	for k := range s.Snapshot().All() {
		p, ok := s.Get(k).(*session.Pool)
		if !ok {
			continue
		}
		for _, l := range p.Leases {
			if !l.Claim && !l.Spent() {
				inPools[fmt.Sprint(k.Name(), l.Token, l.Holder)] = l.Expires
			}
		}
		if len(p.Queue) > 0 {
			head := p.Queue[0]
			limit := limitOf(p, head.Slots)
			for _, l := range p.Leases {
				if l.Claim { // whoever is to claim a slot finds room for it
					limit = min(limit, limitOf(p, l.Place.Slots))
				}
			}
			require.Greater(t, p.InUse()+head.Weight, limit, "%s waits while %s has room, after %s", head.Holder, k, msg)
		}
	}
	for k := range s.Snapshot().All() {
		var open []session.Held
		switch x := s.Get(k).(type) {
		case *session.Session:
			open = x.Open
		case *session.Client:
			open = x.Open
		}
		for _, held := range open {
			for _, hold := range held.Pools {
				if hold.Token == 0 {
					continue
				}
				id := fmt.Sprint(hold.Pool.Value(), hold.Token, held.Holder)
				expires, ok := inPools[id]
				require.True(t, ok || forced, "%s is held by %s and not in its pool, after %s", id, k, msg)
				require.True(t, !ok || expires == held.Deadline, "%s: %v in the pool, %v in %s, after %s", id, expires, held.Deadline, k, msg)
				delete(inPools, id)
			}
		}
	}
	require.Empty(t, inPools, "leases that nobody holds, after %s", msg)
	approvalsAgree(t, s, msg)
}

// approvalsAgree checks that the clock of an approval is the same in its record and
// in the call that waits for it, and that there is none without the other.
func approvalsAgree(t *testing.T, s *session.State, msg string) {
	t.Helper()
	open := map[session.Key]approval.Clock{}
	for k := range s.Snapshot().All() {
		if a, ok := s.Get(k).(*session.Approval); ok && a.ForCall && a.Open() {
			open[session.ApprovalKey(k.Namespace(), session.ApprovalID(k.Namespace(), a.Session, a.Call))] = a.Clock
		}
	}
	for k := range s.Snapshot().All() {
		x, ok := s.Get(k).(*session.Session)
		if !ok {
			continue
		}
		for i := range x.Open {
			h := &x.Open[i]
			if h.Asked() == nil {
				continue
			}
			ak := session.ApprovalKey(k.Namespace(), session.ApprovalID(k.Namespace(), k.Name(), h.ID()))
			clock, there := open[ak]
			require.True(t, there, "%s waits for an approval that is not open, after %s", h.Holder, msg)
			require.Equal(t, clock, *h.Asked(), "%s, after %s", h.Holder, msg)
			if h.Parked() {
				require.Equal(t, clock.Deadline, h.Deadline, "%s, after %s", h.Holder, msg)
				require.Empty(t, h.Pools)
			}
			delete(open, ak)
		}
	}
	require.Empty(t, open, "approvals that no call waits for, after %s", msg)
}

// When everybody has crashed, every slot is free and nobody waits, soon.
func TestCrashedFleetLeavesNothing(t *testing.T) {
	histories(t, 40, func(t *testing.T, h *sessiontest.History) {
		w := newWorld()
		for range 200 {
			at, cmds := w.step(h)
			w.state.ApplyAll(at, cmds)
		}
		w.state.ApplyAll(w.now+15*time.Second, nil) // tickets lapse in 10 s, claims in 5 s
		for k := range w.state.Snapshot().All() {
			if p, ok := w.state.Get(k).(*session.Pool); ok {
				require.Empty(t, p.Queue)
			}
		}
		w.state.ApplyAll(w.now+40*time.Second, nil) // the longest TTL here is 15 s
		for k := range w.state.Snapshot().All() {
			switch x := w.state.Get(k).(type) {
			case *session.Pool:
				require.Empty(t, x.Leases, "%s", k)
			case *session.Session:
				require.False(t, slices.ContainsFunc(x.Open, func(h session.Held) bool { return !h.Parked() }), "%s", k)
			case *session.Client:
				require.Empty(t, x.Open)
			}
		}
		// The longest that there is to decide is 64 s, and as long again to come back;
		// a wait of 30 s before that moves its end.
		w.state.ApplyAll(w.now+4*time.Minute, nil)
		for k := range w.state.Snapshot().All() {
			switch x := w.state.Get(k).(type) {
			case *session.Approval:
				require.False(t, x.Open(), "%s", k)
			case *session.Session:
				require.Empty(t, x.Open)
				require.Zero(t, x.Reserved)
			case *session.Client:
				require.Empty(t, x.Open)
			}
		}
		for range 20 { // everything that nobody uses goes
			w.state.ApplyAll(w.state.Now()+time.Hour, nil)
			for {
				keys, more := w.state.DueKeys(session.MaxTick)
				w.state.ApplyAll(w.state.Now(), []session.Command{&session.Tick{Keys: keys}})
				if !more {
					break
				}
			}
		}
		for k := range w.state.Snapshot().All() {
			require.NotContains(t, []byte{session.KindSession, session.KindClient, session.KindPins, session.KindBaseline}, k.Kind(), "%s", k)
		}
		_, due := w.state.Due()
		require.False(t, due)
	})
}

func show(cmds []session.Command) string {
	s := ""
	for _, c := range cmds {
		s += fmt.Sprintf("%T%+v; ", c, c)
	}
	return s
}
