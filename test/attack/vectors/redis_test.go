//go:build attack

package vectors

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// TestOnRedis does to a Redis what nodes over it must not take for the truth. Each part
// leaves the nodes serving; the last ones lose what they had.
func TestOnRedis(t *testing.T) {
	r := startRedis(t)
	s := secure(t, 3, "--backend", "redis", "--redis", "redis://"+r.address, "--redis-quarantine", "3s", "--redis-timeout", "1s")
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "three", "yaml": "max_tool_calls: 3\n"})
	t.Run("103", func(t *testing.T) { namesForRedis(t, s, r) })
	t.Run("104", func(t *testing.T) { redisThatEvicts(t, s, r) })
	t.Run("108", func(t *testing.T) { scriptsFlushed(t, s, r) })
	t.Run("109", func(t *testing.T) { anotherTypePlanted(t, s, r) })
	t.Run("110", func(t *testing.T) { redisDown(t, s, r) })
	t.Run("105", func(t *testing.T) { lost(t, s, func() { r.do(t, "FLUSHALL") }) })
	t.Run("106", func(t *testing.T) {
		lost(t, s, func() {
			r.kill()
			require.NoError(t, os.RemoveAll(r.dir+"/appendonlydir"))
			r.start(t)
		})
	})
}

// aRedis is a server that flushes every change before it answers.
type aRedis struct {
	dir, address string
	cmd          *exec.Cmd
}

// startRedis runs one until the test ends.
func startRedis(t *testing.T) *aRedis {
	t.Helper()
	_, err := exec.LookPath("redis-server")
	require.NoError(t, err, "there is no redis-server; install it with: sudo apt-get install -y redis-server")
	r := &aRedis{dir: t.TempDir()}
	// Below the ports that the kernel gives to connections, so that it is free when the
	// server comes back.
	for port := 20000 + os.Getpid()%100*50; r.address == "" && port < 30000; port++ {
		address := fmt.Sprint("127.0.0.1:", port)
		if l, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, l.Close())
			r.address = address
		}
	}
	t.Cleanup(r.kill)
	r.start(t)
	return r
}

func (r *aRedis) start(t *testing.T) {
	t.Helper()
	_, port, err := net.SplitHostPort(r.address)
	require.NoError(t, err)
	r.cmd = exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", r.dir, "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	require.NoError(t, r.cmd.Start())
	require.Eventually(t, func() bool {
		answer, err := r.ask("PING")
		return err == nil && answer == "PONG"
	}, 20*time.Second, 10*time.Millisecond, "redis-server does not come up")
}

func (r *aRedis) kill() {
	if r.cmd != nil {
		_ = r.cmd.Process.Kill()
		_ = r.cmd.Wait()
		r.cmd = nil
	}
}

// do runs a command and returns its answer, a list as lines.
func (r *aRedis) do(t *testing.T, args ...string) string {
	t.Helper()
	answer, err := r.ask(args...)
	require.NoError(t, err, args)
	return answer
}

func (r *aRedis) ask(args ...string) (string, error) {
	conn, err := net.DialTimeout("tcp", r.address, time.Second)
	if err != nil {
		return "", err
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(10 * time.Second))
	fmt.Fprintf(conn, "*%d\r\n", len(args))
	for _, a := range args {
		fmt.Fprintf(conn, "$%d\r\n%s\r\n", len(a), a)
	}
	return answerOf(bufio.NewReader(conn))
}

func answerOf(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	rest := strings.TrimSpace(line[1:])
	switch line[0] {
	case '-':
		return "", fmt.Errorf("redis: %s", rest)
	case '$':
		n, err := strconv.Atoi(rest)
		if err != nil || n < 0 {
			return "", err
		}
		b := make([]byte, n+2)
		_, err = io.ReadFull(in, b)
		return string(b[:n]), err
	case '*':
		n, err := strconv.Atoi(rest)
		var all []string
		for ; n > 0 && err == nil; n-- {
			var one string
			one, err = answerOf(in)
			all = append(all, one)
		}
		return strings.Join(all, "\n"), err
	}
	return rest, nil
}

// Names that mean something to Redis mean themselves, or are refused. Every key of ours
// has our tag first, and keys of others stay as they are.
func namesForRedis(t *testing.T, s *secured, r *aRedis) {
	r.do(t, "SET", "others", "untouched")
	epoch := r.do(t, "GET", "{gov}:epoch")
	names := []string{"{gov}:epoch", "}{", "a:b", "*", "[a]?", "%0A", "../..", "others", "{gov:default}:counts"}
	for i, name := range names {
		s.must(i%3, s.admin, "CounterService/Set", object{"key": name, "value": fmt.Sprint(i), "requestId": fmt.Sprint("name", i)})
	}
	for i, name := range names {
		got := s.must((i+1)%3, s.admin, "CounterService/Get", object{"key": name})
		require.Equal(t, fmt.Sprint(i), got["value"], name)
	}
	for i, name := range []string{"a\nb", "\r\n$3\r\nDEL\r\n", "x\x00", strings.Repeat("{", 100_000)} {
		for method, body := range map[string]object{
			"CounterService/Set":           {"key": name, "value": "1", "requestId": fmt.Sprint("bad", i)},
			"SlotService/PutPool":          {"pool": name, "slots": 1, "requestId": fmt.Sprint("bad", i)},
			"SessionService/CreateSession": {"sessionId": name, "agentId": "a", "policy": object{"name": "three"}},
			"PolicyService/PutPolicy":      {"name": name, "yaml": "max_tokens: 1\n"},
		} {
			a, err := s.ask(i%3, s.admin, method, body)
			require.NoError(t, err)
			require.Equal(t, "invalid_argument", a.Code(), "%s %.20q: %s", method, name, a)
		}
	}
	for _, namespace := range []string{"a}b", "{gov}", "a:b\n"} {
		_, err := s.Secured.Run("token", "create", "--socket", s.Nodes[0].Socket, "--namespace", namespace, "--role", "agent")
		require.Error(t, err, "a token of the namespace %q", namespace)
	}
	ours := regexp.MustCompile(`^\{gov(:[^{}]*)?\}:`)
	for key := range strings.SplitSeq(r.do(t, "KEYS", "*"), "\n") {
		require.True(t, key == "others" || ours.MatchString(key), "%q", key)
	}
	require.Equal(t, "untouched", r.do(t, "GET", "others"))
	require.Equal(t, epoch, r.do(t, "GET", "{gov}:epoch"))
}

// A node does not start over a Redis that may drop counts, and says what to do.
func redisThatEvicts(t *testing.T, s *secured, r *aRedis) {
	n := s.Nodes[2]
	n.Stop(10 * time.Second)
	r.do(t, "CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
	require.NoError(t, n.Start())
	require.Eventually(t, func() bool { return !n.Runs() }, 20*time.Second, 10*time.Millisecond, "it serves")
	require.Contains(t, fmt.Sprint(n.Forgive()), "CONFIG SET maxmemory-policy noeviction")
	r.do(t, "CONFIG", "SET", "maxmemory-policy", "noeviction")
	require.NoError(t, n.Start())
	require.NoError(t, s.Ready(20*time.Second))
}

// used is a session all of whose three calls have been made.
func (s *secured) used(t *testing.T, id string) {
	t.Helper()
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": id, "agentId": "a", "policy": object{"name": "three"}})
	for i := range 3 {
		got := s.must(i, s.admin, "CallService/BeginCall", object{"sessionId": id, "callId": fmt.Sprint("c", i), "tool": "t"})
		require.Equal(t, admitted, got["outcome"])
		s.must(i, s.admin, "CallService/EndCall", object{"sessionId": id, "callId": fmt.Sprint("c", i), "status": "STATUS_SUCCEEDED"})
	}
}

// notAdmitted begins a call in a session that has none left.
func (s *secured) notAdmitted(t *testing.T, i int, token, session string) answer {
	t.Helper()
	a, err := s.ask(i, token, "CallService/BeginCall", object{"sessionId": session, "callId": fmt.Sprintf("more%d.%d", i, time.Now().UnixNano()), "tool": "t"})
	require.NoError(t, err)
	require.NotEqual(t, admitted, a.Object()["outcome"], "%s: beyond its limit", a)
	require.NotEqual(t, "invalid_argument", a.Code(), a)
	return a
}

// Whoever drops the scripts of Redis is not noticed.
func scriptsFlushed(t *testing.T, s *secured, r *aRedis) {
	for i := range 10 {
		r.do(t, "SCRIPT", "FLUSH")
		got := s.must(i%3, s.admin, "CounterService/Increment", object{"key": "sum", "amount": "1", "requestId": fmt.Sprint("flush", i)})
		require.Equal(t, fmt.Sprint(i+1), got["value"])
	}
	s.used(t, "flushed")
	r.do(t, "SCRIPT", "FLUSH")
	for i := range s.Nodes {
		a := s.notAdmitted(t, i, s.admin, "flushed")
		require.Equal(t, http.StatusOK, a.Status, a)
	}
}

// What somebody plants in the place of a session denies its calls, and no others.
func anotherTypePlanted(t *testing.T, s *secured, r *aRedis) {
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "fresh", "agentId": "a", "policy": object{"name": "three"}})
	for what, plant := range map[string]func(key string){
		"a-list":          func(key string) { r.do(t, "LPUSH", key, "x") },
		"a-hash":          func(key string) { r.do(t, "HSET", key, "x", "y") },
		"nonsense":        func(key string) { r.do(t, "SET", key, strings.Repeat("x", 200)) },
		"another-session": func(key string) { r.do(t, "COPY", r.do(t, "KEYS", "*:r:s*/fresh"), key) },
	} {
		s.used(t, what)
		key := r.do(t, "KEYS", "*:r:s*/"+what)
		require.NotEmpty(t, key)
		require.NotContains(t, key, "\n")
		r.do(t, "DEL", key)
		plant(key)
		for i := range s.Nodes {
			a := s.notAdmitted(t, i, s.admin, what)
			require.NotEqual(t, http.StatusOK, a.Status, "%s: %s", what, a)
			s.must(i, s.admin, "CounterService/Increment", object{"key": "others", "amount": "1", "requestId": fmt.Sprint(what, i)})
		}
	}
}

// While Redis is away nothing is admitted; afterwards the nodes go on by themselves.
func redisDown(t *testing.T, s *secured, r *aRedis) {
	s.used(t, "down")
	s.must(0, s.admin, "SessionService/CreateSession", object{"sessionId": "unused", "agentId": "a", "policy": object{"name": "three"}})
	r.kill()
	for i := range s.Nodes {
		for _, session := range []string{"down", "unused"} {
			a := s.notAdmitted(t, i, s.admin, session)
			require.NotEqual(t, http.StatusOK, a.Status, a)
		}
	}
	r.start(t)
	require.NoError(t, s.Ready(20*time.Second))
	for i := range s.Nodes {
		a := s.notAdmitted(t, i, s.admin, "down")
		require.Equal(t, http.StatusOK, a.Status, a)
		got := s.must(i, s.admin, "CallService/BeginCall", object{"sessionId": "unused", "callId": fmt.Sprint("c", i), "tool": "t"})
		require.Equal(t, admitted, got["outcome"], "the counterproof")
	}
}

// Where Redis has lost everything, no node begins from zero: a session that had used its
// limit up is never admitted again, in quarantine and behind it, tokens are unknown, and a
// slot whose holder may still be at work has no second one.
func lost(t *testing.T, s *secured, lose func()) {
	s.must(0, s.admin, "PolicyService/PutPolicy", object{"name": "three", "yaml": "max_tool_calls: 3\n"})
	s.used(t, "lost")
	pool := strings.ReplaceAll(t.Name(), "/", ".")
	s.must(0, s.admin, "SlotService/PutPool", object{"pool": pool, "slots": 1, "requestId": "put" + pool})
	take := func(i int, slot string) answer {
		a, err := s.ask(i, s.admin, "SlotService/AcquireSlot", object{"pool": pool, "slotId": slot, "ttl": "2.5s"})
		require.NoError(t, err)
		return a
	}
	held := take(0, "held")
	lapses := time.Now().Add(2500 * time.Millisecond)
	require.Equal(t, admitted, held.Object()["outcome"], held)
	token := func(a answer) (n uint64) {
		_, err := fmt.Sscan(a.Object()["token"].(string), &n)
		require.NoError(t, err, a)
		return n
	}

	old := s.admin
	lose()
	require.Eventually(t, func() bool {
		unknown := 0
		for i := range s.Nodes {
			if s.notAdmitted(t, i, old, "lost").Code() == "unauthenticated" {
				unknown++
			}
		}
		return unknown == len(s.Nodes)
	}, 40*time.Second, 20*time.Millisecond, "the nodes go on as if nothing had happened")
	s.admin = s.token("default", "agent,orchestrator,approver,policy-author,auditor,operator")
	for i := range s.Nodes {
		require.Equal(t, "not_found", s.notAdmitted(t, i, s.admin, "lost").Code())
	}
	for range 4 { // as many tokens as there were make nobody of before known again
		fresh := s.token("default", "agent")
		for i := range s.Nodes {
			require.Eventually(t, func() bool { return s.notAdmitted(t, i, fresh, "lost").Code() == "not_found" }, 20*time.Second, 20*time.Millisecond)
			require.Equal(t, "unauthenticated", s.notAdmitted(t, i, old, "lost").Code())
		}
	}
	s.must(1, s.admin, "SlotService/PutPool", object{"pool": pool, "slots": 1, "requestId": "again" + pool})
	next := take(2, "next")
	require.Equal(t, admitted, next.Object()["outcome"], next)
	require.True(t, time.Now().After(lapses), "the slot has two holders")
	require.Greater(t, token(next), token(held))
}
