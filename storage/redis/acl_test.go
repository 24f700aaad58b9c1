package redis

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// documentedUser returns the arguments of the ACL commands for one user that the
// document about Redis shows, the one for a Redis Cluster as well if so asked.
func documentedUser(t testing.TB, cluster bool) (commands [][]any) {
	t.Helper()
	text, err := os.ReadFile("../../docs/redis.md")
	require.NoError(t, err)
	for _, line := range strings.Split(string(text), "\n") {
		rest, ok := strings.CutPrefix(line, "ACL SETUSER govnode ")
		if !ok || strings.Contains(rest, "+cluster|") && !cluster {
			continue
		}
		args := []any{"ACL", "SETUSER", "govnode"}
		for _, word := range strings.Fields(strings.Replace(rest, ">PASSWORD", ">secret", 1)) {
			args = append(args, word)
		}
		commands = append(commands, args)
	}
	want := 1
	if cluster {
		want = 2
	}
	require.Len(t, commands, want, "lines that begin with ACL SETUSER govnode")
	return commands
}

// restrict makes the documented user and returns the URL with which a node is
// that user. By the end of the test nothing may have been forbidden to it.
func (s *server) restrict(cluster bool) string {
	s.t.Helper()
	for _, c := range documentedUser(s.t, cluster) {
		s.do(c...)
	}
	s.do("ACL", "LOG", "RESET")
	s.t.Cleanup(func() {
		log, err := s.client.Do(context.Background(), "ACL", "LOG").Slice()
		require.NoError(s.t, err)
		require.Empty(s.t, log, "the document forbids what the store needs")
	})
	return "redis://govnode:secret@" + s.addr() + "/0"
}

// The documented user can do what the suite does not come to: notice a loss and
// end the quarantine. It can do nothing else.
func TestRedisDocumentedUser(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	url := s.restrict(false)
	r := s.open("one", func(c *Config) { c.URL, c.Quarantine = url, 3*time.Second })
	setup(t, r)
	f := &fleet{t: t, nodes: []*Store{r}}
	require.Equal(t, session.Admitted, f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "1", Pool: "a", Weight: 1, TTL: time.Minute}).Code)
	s.do("DEL", "{gov}:epoch")
	notReady(t, r, "quarantine for another")
	require.Equal(t, session.Admitted, f.must(0, &session.Acquire{NS: testNS, Client: "w", Slot: "2", Pool: "a", Weight: 1, TTL: time.Minute}).Code)

	for _, forbidden := range []string{"FLUSHALL", "CONFIG SET appendonly no", "KEYS *", "SET other x", "GET other", "PUBLISH other x", "SHUTDOWN NOSAVE", "DEBUG SLEEP 0", "ACL LIST"} {
		args := append([]any{"ACL", "DRYRUN", "govnode"}, words(forbidden)...)
		require.NotEqual(t, "OK", s.do(args...), forbidden)
	}
}

func words(text string) (all []any) {
	for _, w := range strings.Fields(text) {
		all = append(all, w)
	}
	return all
}

// A user to whom something is forbidden that a node needs is told so at the
// start, and what to allow.
func TestRedisUserWithoutInfo(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	url := s.restrict(false)
	s.do("ACL", "SETUSER", "govnode", "-info")
	_, err := Open(t.Context(), Config{URL: url, Logger: testLog()})
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "docs/redis.md")
	s.do("ACL", "LOG", "RESET")
}

// A user who may not tell others, or not do all that a swap does, is refused at
// the start with a sentence.
func TestRedisUserWithoutWhatASwapNeeds(t *testing.T) {
	t.Parallel()
	for what, says := range map[string]string{
		"resetchannels": "may not publish to the channel {gov}:hints", "-publish": "may not publish",
		"-append": "append", "-zadd": "zadd", "-zrem": "zrem", "-mset": "mset", "-del": "del", "-lpop": "lpop", "-lrem": "lrem", "-rpush": "rpush", "-rename": "rename", "-scan": "scan",
	} {
		s := startRedis(t)
		url := s.restrict(false)
		s.do("ACL", "SETUSER", "govnode", what)
		_, err := Open(t.Context(), Config{URL: url, Logger: testLog()})
		require.ErrorContains(t, err, says)
		require.ErrorContains(t, err, "docs/redis.md")
		s.do("ACL", "LOG", "RESET")
	}
}

// The channel is forbidden to a node while it runs. What it writes is applied and
// said to be, and it says what is missing.
func TestRedisChannelForbiddenMeanwhile(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	url := s.restrict(false)
	r := s.open("one", func(c *Config) { c.URL = url })
	setup(t, r)
	acquire := func(slot string, wait time.Duration) session.Result {
		return one(t, r, &session.Acquire{NS: testNS, Client: "w", Slot: slot, Pool: "a", Weight: 1, TTL: time.Minute, Wait: wait})
	}
	first := acquire("1", 0)
	for n := 2; acquire(strings.Repeat("x", n), time.Minute).Code == session.Admitted; n++ {
	}
	s.do("ACL", "SETUSER", "govnode", "resetchannels")
	s.do("RPUSH", r.place(testNS).Turns(), "somebody in line")
	answers := r.Apply(t.Context(), &session.Release{NS: testNS, Client: "w", Slot: "1", Pool: "a", Token: first.Grants[0].Token}, add("k", "w"))
	for _, a := range answers {
		require.Equal(t, storage.Applied, a.Outcome, "%v", a.Err)
	}
	require.Equal(t, session.Released, answers[0].Result.Code)
	require.EqualValues(t, 1, valueOf(t, r, "k"))
	require.ErrorContains(t, r.check(t.Context(), false), "may not publish")
	require.ErrorContains(t, r.Ready(t.Context()), "may not publish")
	s.do("ACL", "SETUSER", "govnode", "&{gov*")
	require.NoError(t, r.check(t.Context(), false))
	s.do("ACL", "LOG", "RESET")
}

// A command is forbidden that a swap comes to when it has begun to write: nobody
// can say then what the data is worth.
func TestRedisSwapStoppedHalfWay(t *testing.T) {
	t.Parallel()
	s := startRedis(t)
	url := s.restrict(false)
	r := s.open("one", func(c *Config) { c.URL, c.Quarantine = url, 3*time.Second })
	setup(t, r)
	one(t, r, count("w", "first"))
	s.do("ACL", "SETUSER", "govnode", "-append")
	a := r.Apply(t.Context(), count("w", "second"))[0]
	require.Equal(t, storage.Unknown, a.Outcome, "%v", a.Err)
	notReady(t, r, "quarantine")
	s.do("ACL", "SETUSER", "govnode", "+append")
	ready(t, r)
	sound(t, s, r)
	s.do("ACL", "LOG", "RESET")
}

// Of a script that was ended, or that Redis does not take while another runs,
// nothing was applied: one that has written cannot be ended.
func TestRedisScriptThatWasKilled(t *testing.T) {
	t.Parallel()
	s := startRedis(t, "--busy-reply-threshold", "20")
	r := s.open("one", func(c *Config) { c.Timeout = 30 * time.Second })
	one(t, r, add("k", "w"))
	ended := make(chan error, 1)
	go func() { ended <- s.client.Eval(context.Background(), "while true do end", nil).Err() }()
	require.Eventually(t, func() bool {
		err := s.client.Ping(context.Background()).Err()
		return err != nil && strings.Contains(err.Error(), "BUSY")
	}, 30*time.Second, time.Millisecond)
	a := r.Apply(t.Context(), add("k", "w"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome, "%v", a.Err)
	require.ErrorContains(t, a.Err, "BUSY")
	s.do("SCRIPT", "KILL")
	require.Error(t, <-ended)
	require.EqualValues(t, 2, one(t, r, add("k", "w")).Value)
}
