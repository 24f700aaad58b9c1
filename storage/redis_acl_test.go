package storage

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// documentedUser returns the arguments of the ACL commands for one user that the
// document about Redis shows, the one for a Redis Cluster as well if so asked.
func documentedUser(t testing.TB, cluster bool) (commands [][]any) {
	t.Helper()
	text, err := os.ReadFile("../docs/redis.md")
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
	r := s.open("one", func(c *RedisConfig) { c.URL, c.Quarantine = url, time.Second })
	setup(t, r)
	f := &fleet{t: t, nodes: []*Redis{r}}
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
	_, err := OpenRedis(t.Context(), RedisConfig{URL: url, Logger: testLog()})
	require.ErrorContains(t, err, "NOPERM")
	require.ErrorContains(t, err, "docs/redis.md")
	s.do("ACL", "LOG", "RESET")
}
