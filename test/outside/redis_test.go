//go:build outside

package outside

import (
	"bytes"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A redisServer is a Redis that flushes every change before it answers.
type redisServer struct {
	t    *testing.T
	dir  string
	addr string
	more []string // arguments
	cmd  *exec.Cmd
}

// needRedis skips a test where there is no Redis to run, or fails it if
// GOVNODE_REQUIRE_REDIS is set.
func needRedis(t *testing.T) {
	t.Helper()
	for _, program := range []string{"redis-server", "redis-cli"} {
		if _, err := exec.LookPath(program); err != nil {
			how := "there is no " + program + "; install it with: sudo apt-get install -y redis-server"
			if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
				t.Fatal(how)
			}
			t.Skip(how)
		}
	}
}

// startRedis runs one until the test ends.
func startRedis(t *testing.T, more ...string) *redisServer {
	t.Helper()
	needRedis(t)
	r := &redisServer{t: t, dir: t.TempDir(), addr: freePort(t), more: more}
	t.Cleanup(r.kill)
	r.start()
	return r
}

// startRedisCluster runs three primaries with a replica each, and returns their
// addresses.
func startRedisCluster(t *testing.T) string {
	t.Helper()
	args := []string{"--cluster", "create"}
	var all []*redisServer
	for range 6 {
		r := startRedis(t, "--cluster-enabled", "yes", "--cluster-node-timeout", "5000")
		all, args = append(all, r), append(args, r.addr)
	}
	addresses := strings.Join(args[2:], ",")
	out, err := exec.Command("redis-cli", append(args, "--cluster-replicas", "1", "--cluster-yes")...).CombinedOutput()
	require.NoError(t, err, "%s", out)
	for _, r := range all {
		require.Eventually(t, func() bool {
			info, err := exec.Command("redis-cli", "-u", r.url(), "cluster", "info").Output()
			return err == nil && strings.Contains(string(info), "cluster_state:ok")
		}, 30*time.Second, 50*time.Millisecond, "the Redis Cluster does not find together")
	}
	return addresses
}

// freePort finds one below those that the kernel gives to connections, so that
// it is still free when a server comes back to it. It is none that somebody else will take.
func freePort(t *testing.T, but ...string) string {
	t.Helper()
	for port := 15000 + os.Getpid()%100*50; port < 20000; port++ {
		address := fmt.Sprintf("127.0.0.1:%d", port)
		if slices.Contains(but, address) {
			continue
		}
		if l, err := net.Listen("tcp", address); err == nil {
			require.NoError(t, l.Close())
			return address
		}
	}
	t.Fatal("no free port")
	return ""
}

func (r *redisServer) url() string { return "redis://" + r.addr + "/0" }

// start runs it on the data that it has, and waits until it serves.
func (r *redisServer) start() {
	r.t.Helper()
	_, port, err := net.SplitHostPort(r.addr)
	require.NoError(r.t, err)
	r.cmd = exec.Command("redis-server", append([]string{"--port", port, "--bind", "127.0.0.1", "--dir", r.dir,
		"--appendonly", "yes", "--appendfsync", "always", "--save", ""}, r.more...)...)
	require.NoError(r.t, r.cmd.Start())
	require.Eventually(r.t, func() bool {
		return r.says("PING\r\n", "+PONG")
	}, 20*time.Second, 10*time.Millisecond, "redis-server does not come up")
}

// says sends a line and reports whether the answer begins with a text.
func (r *redisServer) says(line, begins string) bool {
	conn, err := net.DialTimeout("tcp", r.addr, time.Second)
	if err != nil {
		return false
	}
	defer func() { _ = conn.Close() }()
	_ = conn.SetDeadline(time.Now().Add(5 * time.Second))
	if _, err := conn.Write([]byte(line)); err != nil {
		return false
	}
	answer := make([]byte, 64)
	n, _ := conn.Read(answer)
	return strings.HasPrefix(string(answer[:n]), begins)
}

// kill ends it as a crash does.
func (r *redisServer) kill() {
	_ = r.cmd.Process.Kill()
	_ = r.cmd.Wait()
}

// serveOnRedis runs three `govnode serve --backend redis` over one Redis.
func serveOnRedis(t *testing.T) *cluster {
	t.Helper()
	c := newCluster(t, "redis")
	host, port, err := net.SplitHostPort(freePorts(t))
	require.NoError(t, err)
	var first int
	_, err = fmt.Sscan(port, &first)
	require.NoError(t, err)
	for i := range 3 {
		name := fmt.Sprintf("s%d", i+1)
		args := append([]string{"serve", "--node", name, "--listen", fmt.Sprintf("%s:%d", host, first+i)}, c.backend...)
		c.runs = append(c.runs, run{node: name, args: args})
	}
	c.launch()
	return c
}

// Redis dies in the middle of something and comes back on its file: while it is
// away nodes refuse and say why, then they go on by themselves; all that was
// acknowledged is there, and what was sent again has had its effect once.
func TestRedisDiesAndComesBack(t *testing.T) {
	c := start(t, "redis", "--redis-timeout", "1s")
	const workers, each, rounds = 9, 200, 3
	var all sync.WaitGroup
	var mu sync.Mutex
	done, troubled := 0, map[string]int{}
	for w := range workers {
		all.Go(func() {
			for i := range each {
				body := object{"key": "sum", "amount": "1", "client": fmt.Sprintf("w%d", w), "requestId": fmt.Sprint(i)}
				for try := 0; ; try++ {
					code, err := c.try(c.list()[(w+try)%3], "CounterService/Increment", body, nil)
					mu.Lock()
					if err == nil {
						done++
						mu.Unlock()
						break
					}
					troubled[fmt.Sprint(code)]++
					mu.Unlock()
					if code != http.StatusServiceUnavailable && code != http.StatusGatewayTimeout {
						t.Errorf("worker %d: %v", w, err)
						return
					}
					<-time.After(10 * time.Millisecond) // as a client does that sends again
				}
			}
		})
	}
	for round := range rounds {
		c.await("something is under way", func() bool {
			mu.Lock()
			defer mu.Unlock()
			return done > (round+1)*workers*each/(rounds+2)
		})
		c.redis.kill()
		for _, n := range c.list() {
			c.await(n.name+" says that Redis is away", func() bool {
				err := c.takesWork(n)
				return err != nil && strings.Contains(err.Error(), "HTTP 503: not ready: ") && strings.Contains(err.Error(), "see that it runs")
			})
		}
		c.redis.start()
		for _, n := range c.list() {
			c.await(n.name+" takes work again", func() bool { return c.takesWork(n) == nil })
		}
	}
	all.Wait()
	t.Logf("answers that were none, by HTTP status: %v", troubled)
	require.NotEmpty(t, troubled, "nobody noticed")
	var got struct{ Values map[string]string }
	c.post(c.list()[1], "CounterService/BatchGet", object{"keys": []string{"sum"}}, &got)
	require.Equal(t, fmt.Sprint(workers*each), got.Values["sum"])
}

// Somebody empties Redis: no node starts again from zero. All are in quarantine
// and say so, to those who probe them and in their metrics; then they go on with
// higher tokens, and sessions from before are gone or closed.
func TestRedisIsEmptied(t *testing.T) {
	c := start(t, "redis", "--redis-quarantine", "5s")
	nodes := c.list()
	put := object{"pool": "one", "slots": 1, "requestId": "put"}
	c.post(nodes[0], "SlotService/PutPool", put, nil)
	c.open("before", "max_tool_calls: 100\n")
	var held answer
	c.post(nodes[0], "SlotService/AcquireSlot", object{"pool": "one", "slotId": "held", "ttl": "4s"}, &held)
	require.Equal(t, admitted, held.Outcome)
	began := time.Now()
	require.True(t, c.redis.says("FLUSHALL\r\n", "+OK"))
	for _, n := range nodes {
		c.await(n.name+" is in quarantine", func() bool {
			err := c.takesWork(n)
			return err != nil && strings.Contains(err.Error(), "quarantine for another")
		})
		require.Contains(t, c.metrics(n), "\ngov_redis_quarantine 1\n")
		code, err := c.try(n, "SlotService/AcquireSlot", object{"pool": "one", "slotId": "next"}, nil)
		require.Equal(t, http.StatusServiceUnavailable, code, "%v", err)
	}
	for _, n := range nodes {
		c.await(n.name+" takes work again", func() bool { return c.takesWork(n) == nil })
		require.Contains(t, c.metrics(n), "\ngov_redis_quarantine 0\n")
	}
	require.Greater(t, time.Since(began), 4*time.Second, "the lease might still have been believed in")
	code, err := c.try(nodes[1], "CallService/BeginCall", object{"sessionId": "before", "callId": "c", "tool": "t"}, nil)
	require.Equal(t, http.StatusNotFound, code, "%v", err)
	c.post(nodes[1], "SlotService/PutPool", object{"pool": "one", "slots": 1, "requestId": "put-again"}, nil)
	var next answer
	c.post(nodes[2], "SlotService/AcquireSlot", object{"pool": "one", "slotId": "next"}, &next)
	require.Equal(t, admitted, next.Outcome)
	require.Greater(t, next.Token, held.Token)
}

// metrics returns what a node shows of itself.
func (c *cluster) metrics(n node) string {
	c.t.Helper()
	res, err := c.http.Get("http://" + n.api + "/metrics")
	require.NoError(c.t, err)
	defer func() { _ = res.Body.Close() }()
	var b bytes.Buffer
	_, err = b.ReadFrom(res.Body)
	require.NoError(c.t, err)
	return b.String()
}
