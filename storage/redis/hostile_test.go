package redis

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

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
