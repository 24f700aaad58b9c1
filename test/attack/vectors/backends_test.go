//go:build attack

package vectors

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// onEach runs a test on three nodes of each backend: the rules are the same.
func onEach(t *testing.T, test func(t *testing.T, s *secured)) {
	t.Parallel()
	t.Run("raft", func(t *testing.T) {
		t.Parallel()
		test(t, secure(t, 3))
	})
	t.Run("redis", func(t *testing.T) {
		t.Parallel()
		test(t, secure(t, 3, "--backend", "redis", "--redis", redisServer(t)))
	})
}

// redisServer runs a Redis until the test ends, and returns its URL.
func redisServer(t *testing.T) string {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		t.Skip("there is no redis-server; make needs installs it")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	address := l.Addr().String()
	_, port, err := net.SplitHostPort(address)
	require.NoError(t, err)
	require.NoError(t, l.Close())
	cmd := exec.Command("redis-server", "--port", port, "--bind", "127.0.0.1", "--dir", t.TempDir(), "--appendonly", "yes", "--appendfsync", "always", "--save", "")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	require.NoError(t, cmd.Start())
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			_ = c.Close()
			return "redis://" + address
		}
		require.False(t, time.Now().After(end), "%v", err)
	}
}

// looks is what there is, as an auditor sees it: the heads of the chains, in which every
// change has a link, all pools with who holds and waits in them, and all sessions with
// their counters. What passes with time is left out.
func (s *secured) looks() string {
	s.t.Helper()
	all := []any{}
	pages := func(method, list string, more ...any) (items []any) {
		for token := ""; ; {
			o := s.must(0, s.admin, method, with(object{"pageSize": 1000, "pageToken": token}, more...))
			page, _ := o[list].([]any)
			items = append(items, page...)
			if token, _ = o["nextPageToken"].(string); token == "" {
				return items
			}
		}
	}
	all = append(all, pages("AccessService/ListChains", "chains"))
	for _, p := range pages("SlotService/ListPools", "pools") {
		all = append(all, s.must(0, s.admin, "SlotService/ListSlots", object{"pool": p.(object)["pool"]}))
	}
	for _, x := range pages("SessionService/ListSessions", "sessions") {
		all = append(all, s.must(0, s.admin, "SessionService/GetSession", object{"sessionId": x.(object)["sessionId"]}))
	}
	content, err := json.Marshal(timeless(all))
	require.NoError(s.t, err)
	return string(content)
}

// timeless is JSON without what passes with time.
func timeless(v any) any {
	switch v := v.(type) {
	case object:
		for _, name := range []string{"ttl", "age", "idleLeft", "waited", "appliedIndex", "at"} {
			delete(v, name)
		}
		for name := range v {
			v[name] = timeless(v[name])
		}
	case []any:
		for i := range v {
			v[i] = timeless(v[i])
		}
	}
	return v
}

// looksSame wants the state to look the same behind what is done: for what lets leases run
// out, which housekeeping settles in the records at a time of its own.
func (s *secured) looksSame(do func()) {
	s.t.Helper()
	before := s.looks()
	do()
	require.JSONEq(s.t, before, s.looks())
}

// denied wants an error with a code.
func (s *secured) denied(token, method string, body any, code string) answer {
	s.t.Helper()
	a, err := s.ask(0, token, method, body)
	require.NoError(s.t, err)
	require.Equal(s.t, code, a.Code(), "%s %v: %s", method, body, a)
	return a
}

// until waits for something to be so.
func (s *secured) until(what string, so func() bool) {
	s.t.Helper()
	for end := time.Now().Add(30 * time.Second); !so(); time.Sleep(20 * time.Millisecond) {
		require.False(s.t, time.Now().After(end), "never: %s", what)
	}
}

// slots are those that are held in a pool.
func (s *secured) slots(pool string) []any {
	s.t.Helper()
	held, _ := s.must(0, s.admin, "SlotService/ListSlots", object{"pool": pool})["slots"].([]any)
	return held
}

// held is the sum of the weights.
func (s *secured) held(pool string) int {
	s.t.Helper()
	return int(s.must(0, s.admin, "SlotService/GetPool", object{"pool": pool})["pool"].(object)["inUse"].(float64))
}

// askUntil is ask by somebody who goes.
func (s *secured) askUntil(ctx context.Context, i int, token, method string, body any) {
	content, err := json.Marshal(body)
	require.NoError(s.t, err)
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.URL(s.Nodes[i])+"/govnode.v1."+method, bytes.NewReader(content))
	require.NoError(s.t, err)
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Authorization", "Bearer "+token)
	if res, err := s.http.Do(req); err == nil {
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
	}
}
