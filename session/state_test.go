package session

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session/ids"
)

// A record's place is the same on every node and in every build, since it decides the
// order of snapshots: one that was written is read for ever.
func TestPlacesNeverChange(t *testing.T) {
	for k, want := range map[Key]int{
		"nn/": 14451, "sn/x": 7406, "pns/a": 16218, "sns/abcd": 11372, "sns/abcde": 14323, "cteam/worker-1": 1740,
		"pdefault/policy/research": 229, "sdefault/01JDABCDEFGHJKMNPQRSTVWXYZ": 7329,
	} {
		require.Equal(t, want, placeOf([]byte(k)), k)
	}
}

// Where a record was found is remembered, and never stands for a shard that was copied since
// or a record that was removed: what is found is what was put last, and what a snapshot has
// stays.
func TestWhereRecordsWereFound(t *testing.T) {
	for seed := range uint64(40) {
		rng := rand.New(rand.NewPCG(seed, 0))
		s := New()
		if seed%2 == 0 {
			s = NewPartial() // of one shard
		}
		is := map[ref]*Counter{}
		type taken struct {
			*Snapshot
			was map[ref]*Counter
		}
		var all []taken
		for range 400 {
			r := ref{KindCounter, "n", fmt.Sprint(rng.IntN(7))}
			switch rng.IntN(12) {
			case 0:
				all = append(all, taken{s.Snapshot(), maps.Clone(is)})
			case 1:
				s.Put(Key(r.append(nil)), nil)
				delete(is, r)
			case 2, 3, 4:
				is[r] = &Counter{Value{N: rng.Int64()}, 0}
				s.put(r, is[r])
			default:
				got, _ := s.lookup(r).(*Counter)
				require.Same(t, is[r], got)
			}
			k := Key(r.append(nil))
			got, _ := s.Stored(k).(*Counter)
			require.Same(t, is[r], got)
		}
		for _, x := range all {
			n := 0
			for k, r := range x.All() {
				require.Same(t, x.was[refOf(k)], r)
				n++
			}
			require.Len(t, x.was, n)
		}
	}
}

// What is found is in the order of keys, behind the one that was named, and no more than
// was asked for, whatever else there is and whoever is asked: a whole state or a part.
func TestFind(t *testing.T) {
	for _, s := range []*State{New(), NewPartial()} {
		s.SetClock(10, 0)
		name := func(i int) string { return fmt.Sprintf("%03d", i) }
		for i := range 100 {
			until := time.Duration(0)
			if i%10 == 7 {
				until = 10 // over by now
			}
			s.Put(CounterKey("n", name(i)), &Counter{Value{Number: true, N: int64(i)}, until})
			s.Put(CounterKey("m", name(i)), &Counter{})
			s.Put(HashKey("n", name(i)), &Hash{"h"})
		}
		v := s.Snapshot()
		numbers := func(found []Entry) (n []int64) {
			for _, e := range found {
				c := e.Record.(*Counter)
				require.Equal(t, CounterKey("n", name(int(c.Value.N))), e.Key)
				n = append(n, c.Value.N)
			}
			return n
		}
		prefix := Prefix(KindCounter, "n")
		for _, tt := range []struct {
			after Key
			limit int
			keep  func(Key, Record) bool
			want  []int64
		}{
			{"", 1, nil, []int64{0}},
			{"", 9, nil, []int64{0, 1, 2, 3, 4, 5, 6, 8, 9}},
			{CounterKey("n", "005"), 3, nil, []int64{6, 8, 9}},
			{CounterKey("n", "0055"), 3, nil, []int64{6, 8, 9}},
			{CounterKey("n", "095"), 9, nil, []int64{96, 98, 99}},
			{CounterKey("n", "099"), 9, nil, nil},
			{"", 3, func(k Key, r Record) bool { return k.Name() > "020" && r.(*Counter).Value.N%2 == 0 }, []int64{22, 24, 26}},
			{"", 1000, func(_ Key, r Record) bool { return r.(*Counter).Value.N%20 == 1 }, []int64{1, 21, 41, 61, 81}},
		} {
			require.Equal(t, tt.want, numbers(v.Find(prefix, tt.after, tt.limit, tt.keep)), "after %q, %d", tt.after, tt.limit)
		}
		require.Len(t, v.Find(prefix, "", 1000, nil), 90)
		require.Empty(t, v.Find(Prefix(KindCounter, "none"), "", 1, nil))
	}
}

// due fills a state with counters that end at a time.
func due(s *State, n int, at time.Duration) {
	for i := range n {
		s.Put(CounterKey("n", numbered(i)), &Counter{Until: at})
	}
}

// What is due is told in steps, each of no more keys than was asked for and each once, and
// who goes on as long as there is more has settled all.
func TestWhatIsDueIsToldInSteps(t *testing.T) {
	for _, s := range []*State{New(), NewPartial()} {
		due(s, 3000, 5)
		s.ApplyAll(4, nil)
		keys, more := s.DueKeys(100)
		require.Empty(t, keys)
		require.False(t, more)
		steps := 0
		for more = true; more; steps++ {
			s.ApplyAll(5, nil)
			keys, more = s.DueKeys(100)
			require.NotEmpty(t, keys)
			require.LessOrEqual(t, len(keys), 100)
			require.True(t, slices.IsSorted(keys))
			s.ApplyAll(5, []Command{&Tick{Keys: keys}})
		}
		require.GreaterOrEqual(t, steps, 30)
		require.Zero(t, s.Len())
		keys, more = s.DueKeys(100) // which sees that nothing is left
		require.Empty(t, keys)
		require.False(t, more)
		_, ok := s.Due()
		require.False(t, ok)
	}
}

// However much is due, a look at it comes by so many shards and no more.
func TestALookAtWhatIsDueIsBounded(t *testing.T) {
	s := New()
	due(s, 5000, 5)
	s.ApplyAll(5, nil)
	keys, more := s.DueKeys(10_000)
	require.True(t, more)
	shards := map[int]bool{}
	for _, k := range keys {
		shards[s.shardOf([]byte(k))] = true
	}
	require.Len(t, shards, 1024)
}

// A key that a tick needs beside that of a record counts like any other.
func TestWhatATickNeedsCountsToo(t *testing.T) {
	s := NewPartial()
	for i := range 3 { // each with its pins, its baseline, and the namespace
		s.Put(SessionKey("n", numbered(i)), &Session{Pin: &Pin{Digest: Digest{1}}, IdleTTL: 5})
	}
	s.ApplyAll(5, nil)
	for limit, want := range map[int]int{3: 0, 4: 4, 7: 4, 8: 7} { // the namespace is named once
		keys, more := s.DueKeys(limit)
		require.Len(t, keys, want, limit)
		require.True(t, more, limit)
	}
	keys, more := s.DueKeys(12)
	require.Len(t, keys, 10)
	require.False(t, more)
}

// A look that finds that nothing is due yet notes when something will be.
func TestWhatIsDueLaterIsNotForgotten(t *testing.T) {
	for _, s := range []*State{New(), NewPartial()} {
		k := CounterKey("n", "k")
		s.Put(k, &Counter{Until: 10})
		s.Put(k, &Counter{Until: 30}) // it was set again
		s.Put(CounterKey("n", "other"), &Counter{Until: 40})
		s.Put(CounterKey("n", "for ever"), &Counter{})
		at, ok := s.Due()
		require.True(t, ok)
		require.LessOrEqual(t, at, 30*time.Nanosecond)
		s.ApplyAll(10, nil)
		keys, more := s.DueKeys(10)
		require.Empty(t, keys)
		require.False(t, more)
		at, ok = s.Due()
		require.True(t, ok)
		require.Equal(t, 30*time.Nanosecond, at)
		s.ApplyAll(30, nil)
		keys, _ = s.DueKeys(10)
		require.Equal(t, []Key{k}, keys)
		s.ApplyAll(30, []Command{&Tick{Keys: keys}})
		keys, _ = s.DueKeys(10)
		require.Empty(t, keys)
		at, _ = s.Due()
		require.Equal(t, 40*time.Nanosecond, at)
	}
}

// What time does not change is never due.
func TestWhatTimeDoesNotChange(t *testing.T) {
	for k, r := range oneOfEach() {
		switch r.(type) {
		case *Policy, *Name, *Pins, *Namespace, *Baseline, *Hash, *Signals, *Access:
			_, ok := r.Due()
			require.False(t, ok, "%s", k)
			require.Same(t, r, r.At(never-1), "%s", k)
		default:
			_, ok := r.Due()
			require.True(t, ok, "%s", k)
		}
	}
}

// What has an end is there to its last instant, and not longer.
func TestWhatHasAnEnd(t *testing.T) {
	for _, r := range []Record{&Counter{Until: 10}, &Standing{Until: 10}} {
		at, ok := r.Due()
		require.True(t, ok)
		require.Equal(t, 10*time.Nanosecond, at)
		require.Same(t, r, r.At(9))
		require.Nil(t, r.At(10))
	}
	forEver := &Counter{}
	require.Same(t, forEver, forEver.At(never))
}

// Who settles a record for himself, as readers do, changes nothing of what others go on
// with, and they change nothing of his.
func TestReadersSettleForThemselves(t *testing.T) {
	s := NewPartial()
	limits := Limits{MaxConcurrent: 9, MaxToolCalls: 9, MaxAttempts: 9, Timeout: time.Hour}
	begin := func(call string, ttl time.Duration) *Begin {
		return &Begin{NS: "n", Session: "s", Call: call, Tool: "t", Digest: Digest{1}, Verdict: Verdict{Allow: true}, Pools: []Want{{"policy/p", 1}}, TTL: ttl}
	}
	acquire := func(slot string, ttl time.Duration) *Acquire {
		return &Acquire{NS: "n", Client: "w", Slot: slot, Pool: "q", Weight: 1, TTL: ttl}
	}
	for _, c := range []Command{
		&PutPolicy{NS: "n", By: Maker{Client: "op"}, Name: "p", Digest: Digest{1}, Tree: []byte("x"), Limits: limits},
		&PutPool{NS: "n", By: Maker{Client: "op"}, Pool: "q", Slots: 9},
		&Open{NS: "n", Session: "s", Agent: "a", Policy: "p", Digest: Digest{1}, IdleTTL: time.Hour},
		begin("short", time.Second), begin("long", time.Minute), acquire("short", time.Second), acquire("long", time.Minute),
	} {
		require.False(t, s.ApplyAll(0, []Command{c})[0].Code.Failure())
	}
	x, w := SessionKey("n", "s"), ClientKey("n", "w")
	read := s.Stored(x).At(2 * time.Second).(*Session)
	readClient := s.Stored(w).At(2 * time.Second).(*Client)
	require.Equal(t, Ended, s.ApplyAll(0, []Command{&End{NS: "n", Session: "s", Call: "long", Pools: []string{"policy/p"}, Status: Succeeded}})[0].Code)
	require.Equal(t, Released, s.ApplyAll(0, []Command{&Release{NS: "n", Client: "w", Slot: "long", Pool: "q", Token: 2}})[0].Code)
	for what, of := range map[string]struct{ read, written *ids.Set }{
		"session": {&read.IDs, &s.Stored(x).(*Session).IDs}, "client": {&readClient.IDs, &s.Stored(w).(*Client).IDs},
	} {
		require.NotNil(t, of.read.Find("short"), what)
		require.Nil(t, of.read.Find("long"), what)
		require.NotNil(t, of.written.Find("long"), what)
		require.Nil(t, of.written.Find("short"), what)
	}
}

// An id is that of the call that has it, and of no other that ends like it; what names
// no holder has no maker.
func TestHolders(t *testing.T) {
	open := []Held{{Holder: holder(KindSession, "s", "bc")}, {Holder: holder(KindSession, "s", "c")}, {Holder: holder(KindSession, "s c", "d")}}
	require.Same(t, &open[1], findHeld(open, "c"))
	require.Same(t, &open[0], findHeld(open, "bc"))
	for _, id := range []string{"b", "", "s c", "xbc", text(MaxID)} {
		require.Nil(t, findHeld(open, id), id)
	}
	kind, maker, id := SplitHolder(holder(KindClient, "w", "id"))
	require.Equal(t, []any{byte(KindClient), "w", "id"}, []any{kind, maker, id})
	for _, none := range []string{"", "s", "sx"} {
		kind, maker, id = SplitHolder(none)
		require.Equal(t, []any{byte(0), "", ""}, []any{kind, maker, id}, none)
	}
	require.Equal(t, []string{"a", "b"}, (&Held{Pools: []Hold{{Pool: New().name("a")}, {Pool: New().name("b")}}}).PoolNames())
}

// A token has the roles of its set and no others.
func TestRoles(t *testing.T) {
	r := Roles(1<<1 | 1<<14)
	for role := range 16 {
		require.Equal(t, role == 1 || role == 14, r.Has(role), role)
	}
}

// A principal is told from one of another name, and from that of another namespace.
func TestPrincipals(t *testing.T) {
	seen := map[Principal]bool{{}: true}
	for _, p := range [][2]string{{"a", "b"}, {"a", "c"}, {"b", "b"}, {"", "ab"}, {"ab", ""}} {
		one := PrincipalOf(p[0], p[1])
		require.False(t, seen[one], p)
		require.Equal(t, one, PrincipalOf(p[0], p[1]))
		seen[one] = true
	}
}

// What a token weighs is no less than what it takes, so that the cap of all holds.
func TestTokensTakeNoMoreThanTheyWeigh(t *testing.T) {
	f := newFiller(12)
	size := func(tokens ...Token) int { return len(appendRecord(nil, &Access{Tokens: tokens})) }
	for range 500 {
		var token Token
		f.fill(reflect.ValueOf(&token).Elem())
		require.LessOrEqual(t, size(token)-size(), token.weight(), "%+v", token)
	}
	for _, token := range []Token{
		{ID: text(MaxID)}, {By: text(MaxSubject)}, {Label: text(MaxReason)}, {Environment: text(MaxID)}, {Node: text(MaxID)},
		{Agents: times(MaxPatterns, func(int) string { return text(MaxID) })}, {Policies: times(MaxPatterns, numbered)},
	} {
		require.LessOrEqual(t, size(token)-size(), token.weight(), "%+v", token)
	}
}

// All tokens of a namespace may weigh what the cap says, and not one byte more.
func TestTokensUpToTheirCap(t *testing.T) {
	for _, over := range []int{0, 1} {
		s := NewPartial()
		long := times(MaxPatterns, func(int) string { return text(MaxID) })
		x := &Access{}
		for i := 0; ; i++ {
			token := Token{ID: numbered(i), Hash: Digest{1}, Roles: 1, Agents: long, Policies: long}
			if x.weight()+2*token.weight() > MaxTokenBytes {
				break
			}
			x.Tokens = append(x.Tokens, token)
		}
		s.Put(AccessKey("n"), x)
		last := Token{ID: "y", Hash: Digest{1}, Roles: 1, Agents: long}
		fill := func(token *Token, n int) { // to that weight
			for token.weight()+4+MaxID <= n-300 {
				token.Policies = append(token.Policies, text(MaxID))
			}
			token.By = text(min(MaxSubject, n-token.weight()))
			token.Label = text(n - token.weight())
		}
		left := MaxTokenBytes - x.weight()
		fill(&last, left/2)
		next := Token{ID: "z", Hash: Digest{1}, Roles: 1, Agents: long}
		fill(&next, left-left/2+over)
		do := func(token Token) Code {
			c := &PutToken{NS: "n", By: Maker{Client: "op"}, Token: token}
			require.NoError(t, Validate(c))
			return s.ApplyAll(0, []Command{c})[0].Code
		}
		require.Equal(t, Done, do(last))
		require.Equal(t, []Code{Done, TooManyTokens}[over], do(next))
	}
}
