package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	"example.com/govnode/storage/redis/internal/wire"
)

func TestRedisNames(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	names := []string{"plain", "{gov}", "}{", "a:b", "%0A", "../..", "*", "[a]?", "{gov}:epoch", "ü 漢", strings.Repeat("x", session.MaxKey)}
	for i, name := range names {
		res, _, err := storage.One(t.Context(), r, &session.Set{NS: testNS, By: session.Maker{Client: "w"}, Key: name, Value: session.Value{Number: true, N: int64(i)}, TTL: time.Hour})
		require.NoError(t, err, "%q", name)
		require.Equal(t, session.Done, res.Code)
	}
	for i, name := range names {
		f, err := s.open("two").Get(t.Context(), session.CounterKey(testNS, name), storage.Latest)
		require.NoError(t, err)
		require.EqualValues(t, i, f.Record.(*session.Counter).Value.N, "%q", name)
	}
	v, err := r.View(t.Context(), testNS, storage.Latest)
	require.NoError(t, err)
	all, err := v.Find(session.Prefix(session.KindCounter, testNS), "", 100, nil)
	require.NoError(t, err)
	require.Len(t, all, len(names))
	for _, bad := range []string{"line\nbreak", "\r\n$3\r\nDEL\r\n", "\x00\xff"} {
		_, _, err := storage.One(t.Context(), r, &session.Set{NS: testNS, By: session.Maker{Client: "w"}, Key: bad, Value: session.Value{Number: true}})
		require.ErrorIs(t, err, storage.ErrInvalid, "%q", bad)
	}
	for _, long := range []string{strings.Repeat("x", 1<<20), strings.Repeat("{", 10<<20)} {
		_, _, err := storage.One(t.Context(), r, &session.Set{NS: testNS, By: session.Maker{Client: "w"}, Key: long, Value: session.Value{Number: true}})
		require.ErrorIs(t, err, storage.ErrInvalid)
		_, _, err = storage.One(t.Context(), r, &session.Set{NS: long, By: session.Maker{Client: "w"}, Key: "k", Value: session.Value{Number: true}})
		require.ErrorIs(t, err, storage.ErrInvalid)
	}
	for _, key := range s.do("KEYS", "*").([]any) {
		require.Regexp(t, `^\{gov(:test)?\}:`, key, "every key has the tag first")
	}
	require.Equal(t, "{gov:a%7Db%3A%0A}", wire.Prefix("gov").Tag("a}b:\n"))
}

// What somebody has put under a key of ours denies, and harms nobody else.
func TestRedisWrongType(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	acquire := func(r *Store, pool, slot string) error {
		_, _, err := storage.One(t.Context(), r, &session.Acquire{NS: testNS, Client: "w" + pool, Slot: slot, Pool: pool, Weight: 1, TTL: time.Minute})
		return err
	}
	setup(t, s.open("setup"))
	for name, plant := range map[string]func(){
		"a list in place of a record": func() { s.do("DEL", "{gov:test}:r:ptest/a"); s.do("LPUSH", "{gov:test}:r:ptest/a", "x") },
		"nonsense in place of one": func() {
			s.do("DEL", "{gov:test}:r:ptest/a")
			s.do("SET", "{gov:test}:r:ptest/a", strings.Repeat("x", 64))
		},
		"a record of another kind": func() {
			s.do("SET", "{gov:test}:r:ptest/a", s.do("GET", "{gov:test}:r:ctest/setup"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r, cached := s.open("one"), s.open("two")
			plant()
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(acquire(r, "a", "1")))
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(acquire(cached, "a", "1")))
			require.NoError(t, acquire(r, "b", strings.ReplaceAll(name, " ", "-")), "others are served")
			_, err := r.Get(t.Context(), session.PoolKey(testNS, "a"), storage.Latest)
			require.ErrorAs(t, err, new(*storage.ReadError))
			// In one round with those that are well.
			answers := r.Apply(t.Context(), &session.Increment{NS: testNS, By: session.Maker{Client: "w"}, Key: "k", Amount: 1})
			require.NoError(t, answers[0].Err)
		})
	}
	t.Run("a hash in place of a part of ids", func(t *testing.T) {
		r := s.open("one")
		c := &session.Acquire{NS: testNS, Client: "wb", Slot: "new", Pool: "b", Weight: 1, TTL: time.Minute}
		k, part, _ := session.IDOf(c)
		key := r.place(testNS).Part(k, part)
		s.do("DEL", key)
		s.do("HSET", key, "a", "b")
		_, _, err := storage.One(t.Context(), s.open("two"), c)
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	})
}

// The name of a session or a pool that would mean something to Redis is refused,
// or means nothing: it changes no key, and the next command is served.
func TestRedisHostileSessionsAndPools(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one")
	setup(t, r)
	commands := func(name string) map[string]session.Command {
		return map[string]session.Command{
			"session": &session.Open{NS: testNS, Session: name, Agent: "a", Digest: session.Digest{2}, IdleTTL: time.Hour},
			"pool":    &session.PutPool{NS: testNS, Pool: name, Slots: 1, By: session.Maker{Client: "w"}},
			"slot":    &session.Acquire{NS: testNS, Client: "w", Slot: name, Pool: "a", Weight: 1, TTL: time.Minute},
		}
	}
	records := func() int { return len(s.do("KEYS", "*:r:*").([]any)) }
	before := records()
	for _, bad := range []string{"{gov}", "}{", "a\nb", "\r\n$3\r\nDEL\r\n", "x\x00", "*", "[a]", strings.Repeat("{", 10<<20), strings.Repeat("x", 10<<20)} {
		for what, c := range commands(bad) {
			_, _, err := storage.One(t.Context(), r, c)
			require.ErrorIs(t, err, storage.ErrInvalid, "%s %.20q", what, bad)
		}
	}
	require.Equal(t, before, records())
	for i, good := range []string{"a:b", "gov:epoch", ":r:", "x:s/y", "..//..", "a@b"} {
		for what, c := range commands(good) {
			res, _, err := storage.One(t.Context(), r, c)
			require.NoError(t, err, "%s %q", what, good)
			require.Contains(t, []session.Code{session.Done, session.Admitted, session.ConcurrencyLimit}, res.Code, "%s %q", what, good)
		}
		// Not taken for another: each session and pool is found under its own name.
		for _, k := range []session.Key{session.SessionKey(testNS, good), session.PoolKey(testNS, good)} {
			f, err := s.open(fmt.Sprint("two", i)).Get(t.Context(), k, storage.Latest)
			require.NoError(t, err)
			require.NotNil(t, f.Record, "%q", k)
		}
	}
	for _, key := range s.do("KEYS", "*").([]any) {
		require.Regexp(t, `^\{gov(:test)?\}:`, key, "every key has the tag first")
	}
}
