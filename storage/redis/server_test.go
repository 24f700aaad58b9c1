package redis

import (
	"context"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// TestMain lets more tests run at once than there are processors: most of their
// time they wait for a Redis, or for time to pass.
func TestMain(m *testing.M) {
	flag.Parse()
	if runtime.GOMAXPROCS(0) < 8 && flag.Lookup("test.parallel").Value.String() == strconv.Itoa(runtime.GOMAXPROCS(0)) {
		_ = flag.Set("test.parallel", "8")
	}
	os.Exit(m.Run())
}

// A server is a redis-server process of a test.
type server struct {
	t      testing.TB
	port   int
	dir    string
	args   []string
	cmd    *exec.Cmd
	ended  chan struct{} // the process has
	client *redis.Client
}

// needRedis returns the redis-server binary, or skips the test.
func needRedis(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		const how = "no redis-server; install it with: sudo apt-get install -y redis-server"
		if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
			t.Fatal(how)
		}
		t.Skip(how)
	}
	return path
}

// startRedis starts a Redis that keeps what it acknowledged, on a free port.
func startRedis(t testing.TB, args ...string) *server {
	t.Helper()
	s := &server{t: t, dir: redisFolder(t), args: append([]string{"--appendfsync", "always"}, args...)}
	s.startAnywhere(func() { s.client = redis.NewClient(&redis.Options{Addr: s.addr(), MaxRetries: -1}) })
	return s
}

// redisFolder makes a folder for a redis-server. One that is killed may leave a child behind
// which writes a snapshot there for a moment longer, so that it is removed until it is gone.
func redisFolder(t testing.TB) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "govnode-redis-")
	require.NoError(t, err)
	t.Cleanup(func() {
		require.Eventually(t, func() bool { return os.RemoveAll(dir) == nil }, 30*time.Second, 20*time.Millisecond, "%s cannot be removed", dir)
	})
	return dir
}

// startAnywhere starts the process on a free port. Prepare makes what knows the
// port; somebody may be faster at it, or at that of the cluster bus.
func (s *server) startAnywhere(prepare func()) {
	s.t.Helper()
	s.t.Cleanup(func() {
		s.kill()
		s.client.Close()
	})
	for range 20 {
		s.port = freePort(s.t)
		prepare()
		if s.begin() {
			return
		}
		s.client.Close()
	}
	log, _ := os.ReadFile(filepath.Join(s.dir, "log"))
	require.FailNow(s.t, "redis-server does not come up", string(log))
}

func freePort(t testing.TB) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

func (s *server) addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }
func (s *server) url() string  { return "redis://" + s.addr() + "/0" }

func (s *server) start() {
	s.t.Helper()
	require.Eventually(s.t, s.begin, 30*time.Second, 10*time.Millisecond, "redis-server does not come up")
}

// begin starts the process, and reports whether it is the one that answers.
func (s *server) begin() bool {
	s.t.Helper()
	path := needRedis(s.t)
	args := append([]string{"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--dir", s.dir, "--save", "",
		"--appendonly", "yes", "--repl-diskless-sync-delay", "0"}, s.args...)
	s.cmd = exec.Command(path, args...)
	out, err := os.OpenFile(filepath.Join(s.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	require.NoError(s.t, err)
	defer out.Close()
	s.cmd.Stdout, s.cmd.Stderr = out, out
	require.NoError(s.t, s.cmd.Start())
	ended := make(chan struct{})
	s.ended = ended
	go func(cmd *exec.Cmd) {
		_ = cmd.Wait()
		close(ended)
	}(s.cmd)
	mine := fmt.Sprintf("process_id:%d\r", s.cmd.Process.Pid)
	for {
		// A Redis that asks for a password is up as well.
		info, err := s.client.Info(context.Background(), "server").Result()
		if strings.Contains(info, mine) || redis.HasErrorPrefix(err, "NOAUTH") || redis.HasErrorPrefix(err, "NOPERM") {
			return true
		}
		select {
		case <-ended:
			s.cmd = nil
			return false
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// kill ends the process at once.
func (s *server) kill() {
	if s.cmd != nil && s.cmd.Process != nil {
		_ = s.cmd.Process.Kill()
		<-s.ended
		s.cmd = nil
	}
}

// do sends a command by hand.
func (s *server) do(args ...any) any {
	s.t.Helper()
	v, err := s.client.Do(context.Background(), args...).Result()
	require.NoError(s.t, err, fmt.Sprint(args...))
	return v
}

// open returns a node.
func (s *server) open(name string, change ...func(*Config)) *Store {
	s.t.Helper()
	cfg := Config{URL: s.url(), Node: name, Logger: testLog()}
	for _, f := range change {
		f(&cfg)
	}
	r, err := Open(s.t.Context(), cfg)
	require.NoError(s.t, err)
	s.t.Cleanup(func() { r.Close() })
	return r
}

// A clock tells log time, which stands still until a test moves it.
type clock struct{ at atomic.Int64 }

func clockAt(d time.Duration) *clock {
	c := &clock{}
	c.set(d)
	return c
}

func (c *clock) now() time.Duration   { return time.Duration(c.at.Load()) }
func (c *clock) set(d time.Duration)  { c.at.Store(int64(d)) }
func (c *clock) pass(d time.Duration) { c.at.Add(int64(d)) }

// timed opens a node that does nothing by itself that hangs on log time, which is
// what at says.
func (s *server) timed(name string, at *clock, change ...func(*Config)) *Store {
	return s.open(name, append(change, func(c *Config) { c.logTime = at.now })...)
}

func testLog() *slog.Logger {
	if os.Getenv("GOVNODE_TEST_LOG") == "" {
		return slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelDebug}))
}
