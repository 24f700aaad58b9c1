package session_test

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/oklog/ulid/v2"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// stock stores records as heads and parts, as a backend does.
type stock struct {
	heads map[session.Key][]byte
	parts map[session.Key][session.ForgottenParts][]byte
	now   time.Duration
	// wrote is how many bytes were written by the latest entry.
	wrote int
}

func newStock() *stock {
	return &stock{heads: map[session.Key][]byte{}, parts: map[session.Key][session.ForgottenParts][]byte{}}
}

// apply applies commands to what they touch alone, of ids the parts that they
// look at alone.
func (s *stock) apply(t *testing.T, at time.Duration, cmds []session.Command) []session.Result {
	state := session.NewPartial()
	state.SetClock(s.now, 0)
	before := map[session.Key]session.Record{}
	for _, c := range cmds {
		for _, k := range c.Touches() {
			if _, ok := before[k]; !ok {
				before[k] = s.load(t, k, 0)
			}
		}
	}
	for _, c := range cmds {
		if k, part, ok := session.IDOf(c); ok && before[k] != nil {
			r, err := session.WithPart(k, before[k], part, s.parts[k][part])
			require.NoError(t, err)
			before[k] = r
		}
	}
	for k, r := range before {
		if r != nil {
			state.Put(k, r)
		}
	}
	results := state.ApplyAll(at, cmds)
	s.now, s.wrote = state.Now(), 0
	for k, r := range before {
		if after := state.Stored(k); after != r {
			s.store(t, k, after)
		}
	}
	return results
}

func (s *stock) load(t *testing.T, k session.Key, parts uint16) session.Record {
	head, ok := s.heads[k]
	if !ok {
		return nil
	}
	r, err := session.Unpack(head)
	require.NoError(t, err)
	if session.HasParts(k) {
		for p := range session.ForgottenParts {
			if parts&(1<<p) != 0 {
				r, err = session.WithPart(k, r, p, s.parts[k][p])
				require.NoError(t, err)
			}
		}
	}
	return r
}

func (s *stock) store(t *testing.T, k session.Key, r session.Record) {
	if r == nil {
		delete(s.heads, k)
		delete(s.parts, k)
		return
	}
	packed := session.Pack(k, r)
	s.heads[k] = packed.Head
	s.wrote += len(packed.Head)
	parts := s.parts[k]
	for _, c := range packed.Parts {
		if c.Whole {
			parts[c.Part] = nil
		}
		parts[c.Part] = append(parts[c.Part], c.Bytes...)[c.Drop:]
		s.wrote += len(c.Bytes)
	}
	s.parts[k] = parts
	// What is kept is what would be loaded.
	require.Equal(t, packed.Head, session.Pack(k, packed.Next).Head)
	require.Empty(t, session.Pack(k, packed.Next).Parts)
}

// whole returns the record as a backend has it that stores records whole.
func (s *stock) whole(t *testing.T, k session.Key) string {
	r := s.load(t, k, 1<<session.ForgottenParts-1)
	if r == nil || r.At(s.now) == nil {
		return "absent"
	}
	r, err := session.Join(r)
	require.NoError(t, err)
	return string(session.EncodeRecord(r.At(s.now)))
}

// A state whose records are stored in heads and parts gives the answers of one
// that has them whole, and becomes the same state.
func TestPartsAnswerLikeWholeRecords(t *testing.T) {
	histories(t, 40, func(t *testing.T, h *sessiontest.History) {
		h.Timed = h.Seed%2 == 1
		w, s := newWorld(), newStock()
		s.apply(t, 0, sessiontest.Setup())
		for i := range 250 {
			at, cmds := w.step(h)
			want := w.state.ApplyAll(at, cmds)
			require.Equal(t, encode(want), encode(s.apply(t, at, cmds)), "entry %d: %s", i, show(cmds))
		}
		for k := range w.state.Snapshot().All() {
			require.Equal(t, stored(w.state, k), s.whole(t, k), "%s", k)
		}
	})
}

// The same with makers that finish many more ids than are remembered, with ids
// that have a time in them, sent again at any age, and calls that lapse by the
// way in parts that were not loaded.
func TestPartsForgetLikeWholeRecords(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 7))
		whole, s := session.NewPartial(), newStock()
		whole.ApplyAll(0, sessiontest.Setup())
		s.apply(t, 0, sessiontest.Setup())
		limits := sessiontest.Limits(1)
		limits.MaxToolCalls, limits.MaxAttempts, limits.Timeout = 100_000, 100_000, 100*time.Hour
		limits.MaxConcurrent = 8
		d := session.Digest{0: 9}
		both := func(at time.Duration, cmds ...session.Command) []session.Result {
			want := whole.ApplyAll(at, cmds)
			require.Equal(t, encode(want), encode(s.apply(t, at, cmds)), "at %v: %s", at, show(cmds))
			return want
		}
		both(0, &session.PutPolicy{NS: ns, Name: "big", Digest: d, Tree: []byte{9}, Limits: limits},
			&session.Open{NS: ns, Session: "s", Agent: "a", Policy: "big", Digest: d, IdleTTL: time.Hour})

		var ids []string
		id := func(i int) string {
			if i < len(ids) {
				return ids[i]
			}
			if r.IntN(4) == 0 {
				ids = append(ids, fmt.Sprintf("plain-%d", i))
			} else {
				ids = append(ids, ulid.MustNew(uint64(1_700_000_000_000+i), entropy{r}).String())
			}
			return ids[len(ids)-1]
		}
		begin := func(i int) session.Command {
			return &session.Begin{NS: ns, Session: "s", Call: id(i), CallKind: session.Model, Digest: d,
				Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: "policy/big", Weight: 1}}, TTL: time.Second}
		}
		end := func(i int) session.Command {
			return &session.End{NS: ns, Session: "s", Call: id(i), Pools: []string{"policy/big"}, Status: session.Succeeded}
		}
		count := func(i int) session.Command {
			return &session.Increment{NS: ns, Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: id(i)}}
		}
		var at time.Duration
		codes := map[session.Code]int{}
		for i := range 2600 {
			at += time.Duration(r.IntN(40)) * time.Millisecond
			cmds := []session.Command{begin(i), count(i)}
			if r.IntN(8) > 0 { // the others lapse
				cmds = append(cmds, end(i))
			}
			if r.IntN(3) == 0 {
				old := r.IntN(i + 1)
				cmds = append(cmds, begin(old), end(old), count(old))
			}
			for _, res := range both(at, cmds...) {
				codes[res.Code]++
			}
			if i > 2000 {
				require.Less(t, s.wrote, 3<<10, "an entry does not rewrite all ids")
			}
		}
		require.NotZero(t, codes[session.StaleID], "some ids were forgotten: %v", codes)
		require.NotZero(t, codes[session.LeaseLost], "some calls lapsed: %v", codes)
		require.NotZero(t, codes[session.AlreadyEnded], "some ids were known: %v", codes)
		for k := range whole.Snapshot().All() {
			require.Equal(t, stored(whole, k), s.whole(t, k), "%s", k)
		}
		for _, parts := range s.parts {
			for _, p := range parts {
				require.Less(t, len(p), 44*150, "what is forgotten is cut off")
			}
		}
		// A client that was dropped takes its ids along, and comes back without them.
		at += 2 * time.Hour
		for _, i := range []int{0, 1300, 2599, 2600} {
			both(at, count(i))
		}
	}
}

// entropy draws the random part of an id from a seeded source.
type entropy struct{ *rand.Rand }

func (e entropy) Read(b []byte) (int, error) {
	for i := range b {
		b[i] = byte(e.IntN(256))
	}
	return len(b), nil
}

// Whoever answers from a part that was not loaded stops.
func TestUnloadedPartIsNeverGuessed(t *testing.T) {
	s := newStock()
	count := &session.Increment{NS: ns, Key: "k", Amount: 1, By: session.Maker{Client: "w", Request: "r"}}
	s.apply(t, 0, []session.Command{count})
	k, part, ok := session.IDOf(count)
	require.True(t, ok)
	state := session.NewPartial()
	r := s.load(t, k, 0)
	require.False(t, session.PartKnown(r, part))
	state.Put(k, r)
	require.Panics(t, func() { state.ApplyAll(0, []session.Command{count}) })
}

func TestUnpackRefusesWhatIsDamaged(t *testing.T) {
	s := newStock()
	for i := range 30 {
		s.apply(t, 0, []session.Command{&session.Increment{NS: ns, Key: "k", Amount: 1,
			By: session.Maker{Client: "w", Request: fmt.Sprint(i)}}})
	}
	k := session.ClientKey(ns, "w")
	head, parts := s.heads[k], s.parts[k]
	for _, bad := range [][]byte{nil, {7}, {0}, {1}, head[:3], append([]byte{0}, head[1:]...), append([]byte{1}, s.heads[session.CounterKey(ns, "k")]...)} {
		_, err := session.Unpack(bad)
		require.Error(t, err, "%x", bad)
	}
	r, err := session.Unpack(head)
	require.NoError(t, err)
	for p := range parts {
		if len(parts[p]) < 88 {
			continue
		}
		b := parts[p]
		for _, bad := range [][]byte{b[1:], append(append([]byte{}, b[44:88]...), b[:44]...), append([]byte{0xff, 0xff}, b[2:]...)} {
			_, err := session.WithPart(k, r, p, bad)
			require.Error(t, err)
		}
		_, err = session.WithPart(k, r, (p+1)%session.ForgottenParts, b)
		require.Error(t, err, "a part under the number of another")
	}
	whole := s.load(t, k, 1<<session.ForgottenParts-1)
	_, err = session.Join(whole)
	require.NoError(t, err)
	for p := range parts {
		if len(parts[p]) > 0 {
			for _, bad := range [][]byte{nil, parts[p][44:], parts[p][:len(parts[p])-44], slices.Concat(parts[p], parts[p][len(parts[p])-44:])} {
				_, err := session.WithPart(k, whole, p, bad)
				require.Error(t, err, "the head has counted them")
			}
			for bit := range 8 * len(parts[p]) {
				bad := slices.Clone(parts[p])
				bad[bit/8] ^= 1 << (bit % 8)
				_, err := session.WithPart(k, whole, p, bad)
				require.ErrorIs(t, err, session.ErrDamaged)
			}
		}
	}
}

// Two clients that have sent the same requests have parts that tell the same ids:
// that of one does not hold for the other all the same.
func TestPartOfAnotherRecord(t *testing.T) {
	s := newStock()
	for i := range 30 {
		for _, client := range []string{"w", "v"} {
			s.apply(t, 0, []session.Command{&session.Increment{NS: ns, Key: "k", Amount: 1,
				By: session.Maker{Client: client, Request: fmt.Sprint(i)}}})
		}
	}
	k, other := session.ClientKey(ns, "w"), session.ClientKey(ns, "v")
	r, err := session.Unpack(s.heads[k])
	require.NoError(t, err)
	for p := range session.ForgottenParts {
		if len(s.parts[k][p]) == 0 {
			continue
		}
		_, err := session.WithPart(k, r, p, s.parts[k][p])
		require.NoError(t, err)
		_, err = session.WithPart(k, r, p, s.parts[other][p])
		require.ErrorIs(t, err, session.ErrDamaged)
	}
}

// What was packed is kept by its backend, and put into a state whose entries have
// the same numbers again: it is copied there before it is written.
func TestWhatWasPackedIsNotWrittenInto(t *testing.T) {
	put := &session.PutPool{NS: "n", By: session.Maker{Client: "c", Request: "1"}, Pool: "p", Slots: 2}
	acquire := func(slot string) *session.Acquire {
		return &session.Acquire{NS: "n", Client: "c", Slot: slot, Pool: "p", Weight: 1, TTL: time.Minute}
	}
	first := session.NewPartial()
	first.ApplyAll(time.Second, []session.Command{put, acquire("a")})
	second, kept := session.NewPartial(), map[session.Key]session.Record{}
	var heads [][]byte
	keys := acquire("b").Touches()
	for _, k := range keys {
		if r := first.Stored(k); r != nil {
			kept[k] = session.Pack(k, r).Next
			heads = append(heads, session.Pack(k, kept[k]).Head)
			second.Put(k, kept[k])
		}
	}
	require.Len(t, heads, 2, "of the client and the pool")
	require.Equal(t, session.Admitted, second.ApplyAll(2*time.Second, []session.Command{acquire("b")})[0].Code)
	for _, k := range keys {
		if r := kept[k]; r != nil {
			require.Equal(t, heads[0], session.Pack(k, r).Head, "%s", k)
			heads = heads[1:]
		}
	}
}

// So it is with every record that an entry changes in place.
func TestNoRecordThatWasPackedIsWrittenInto(t *testing.T) {
	begin := func(call string) *session.Begin {
		return &session.Begin{NS: ns, Session: "s", Call: call, CallKind: session.Model, Digest: sessiontest.Digest(1), Verdict: session.Verdict{Allow: true},
			Pools: []session.Want{{Pool: "policy/p1", Weight: 1}}, TTL: time.Minute, Budgets: []session.Charge{{Budget: "hour", Amount: 1}}}
	}
	asks := begin("asks")
	asks.Verdict.Allow = false
	asks.Asking = &session.Asking{Agent: "a", Required: 1, Denials: 1, Timeout: time.Minute, MaxPending: 1, Request: session.Digest{1}}
	slot := func(id string) *session.Acquire {
		return &session.Acquire{NS: ns, Client: "w", Slot: id, Pool: "b", Weight: 1, TTL: time.Minute}
	}
	decide := &session.Decide{NS: ns, By: session.Maker{Client: "op"}, ID: session.ApprovalID(ns, "s", "asks"), Session: "s", Call: "asks", Approver: "amy", Approve: true}

	first, second := session.NewPartial(), session.NewPartial()
	first.ApplyAll(time.Second, append(sessiontest.Setup(),
		&session.Open{NS: ns, Session: "s", Agent: "a", Digest: sessiontest.Digest(1), IdleTTL: time.Hour}, begin("runs"), asks, slot("one")))
	kept, heads := map[session.Key]session.Record{}, map[session.Key][]byte{}
	for k, r := range first.Snapshot().All() {
		kept[k] = session.Pack(k, r).Next
		heads[k] = session.Pack(k, kept[k]).Head
		second.Put(k, kept[k])
	}
	for _, r := range second.ApplyAll(2*time.Second, []session.Command{begin("new"), decide, slot("two")}) {
		require.Contains(t, []session.Code{session.Admitted, session.Done}, r.Code)
	}
	changed := 0
	for k, r := range kept {
		require.Equal(t, heads[k], session.Pack(k, r).Head, "%s", k)
		if second.Stored(k) != r {
			changed++
		}
	}
	require.Equal(t, 6, changed, "a session, its approval, its pool, its budget, a client, its pool")
}
