package redis

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// A session that ran out in a quarantine, or was closed before, and of whose ids a part is
// gone, is left without them as others are: whoever reads it before housekeeping removes it
// would else begin another quarantine.
func TestRedisEvictedIDsOfASessionThatRanOut(t *testing.T) {
	t.Parallel()
	for name, closed := range map[string]bool{"closed": true, "lapsed": false} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRedis(t)
			at := clockAt(time.Minute)
			r := s.timed("one", at)
			d := r.domain("")
			require.Eventually(t, func() bool { return d.settling.CompareAndSwap(false, true) }, 30*time.Second, time.Millisecond)
			setup(t, r)
			digest := session.Digest{2}
			one(t, r, &session.Open{NS: testNS, Session: "s", Agent: "a", Digest: digest, IdleTTL: time.Hour})
			begin := &session.Begin{NS: testNS, Session: "s", Call: "c", Digest: digest, Verdict: session.Verdict{Allow: true},
				Pools: []session.Want{{Pool: "policy/p2", Weight: 1}}, TTL: time.Minute, Tool: "t"}
			require.Equal(t, session.Admitted, one(t, r, begin).Code)
			require.Equal(t, session.Ended, one(t, r, &session.End{NS: testNS, Session: "s", Call: "c", Status: session.Succeeded, Tokens: -1, Pools: []string{"policy/p2"}}).Code)
			if closed {
				require.Equal(t, session.Done, one(t, r, &session.Close{NS: testNS, Session: "s", Digest: digest}).Code)
			}
			k, part, _ := session.IDOf(begin)
			require.EqualValues(t, 1, s.do("DEL", r.place(testNS).Part(k, part)))
			_, err := r.Get(t.Context(), k, storage.Latest)
			require.ErrorContains(t, err, "quarantine")
			at.pass(defaultQuarantine + time.Hour + session.KeptFor)
			require.Eventually(t, func() bool { return d.current().state == epochOpen }, 30*time.Second, time.Millisecond)
			id := d.current().id
			_, err = r.Get(t.Context(), k, storage.Latest)
			require.NoError(t, err)
			require.Equal(t, id, d.current().id, "another quarantine")
			sound(t, s, r)
		})
	}
}

// To end the quarantine of a large state takes as long as it takes: others leave it to the
// node that is at it for as long as that lives.
func TestRedisQuarantineThatTakesLongToEnd(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	const leave = 2 * time.Second
	r := s.open("one", func(c *Config) { c.Quarantine, c.recoverFor = time.Hour, leave })
	setup(t, r)
	d := r.domain("")
	require.NoError(t, d.lost(t.Context(), d.current(), "a test says so"))
	waited := false
	ctx := watched(t, r, func(cmd redis.Cmder) {
		if waited || cmd.Name() != "evalsha" {
			return // it is said beside this that it is still at it
		}
		waited = true
		rest(context.Background(), leave+leave/2)
		require.EqualValues(t, 1, s.do("EXISTS", d.key("recovering")))
	}, nil)
	r.recoverDomain(ctx, d, d.current())
	require.True(t, waited)
	require.Equal(t, epochOpen, d.current().state)
	require.Zero(t, s.do("EXISTS", d.key("recovering")))
	sound(t, s, r)
}

// A node that was silent for so long that others have taken over gives up.
func TestRedisQuarantineIsEndedByOne(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	r := s.open("one", func(c *Config) { c.recoverFor = 40 * time.Millisecond })
	d := r.domain("")
	require.Error(t, r.keepRecovering(t.Context(), d, "mine"), "it has run out")
	s.do("SET", d.key("recovering"), "another")
	require.Error(t, r.keepRecovering(t.Context(), d, "mine"))
}
