//go:build outside

package outside

import (
	"bytes"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io/fs"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// What tokens promise, on nodes that ask everybody who they are.

// serveAsking runs three nodes of `govnode serve --auth tokens`. The cluster's own
// requests show a token that may do all that tests need.
func serveAsking(t *testing.T, backend string) (c *cluster, socket string) {
	t.Helper()
	c = newCluster(t, backend)
	host, port, err := net.SplitHostPort(freePorts(t))
	require.NoError(t, err)
	var first int
	_, err = fmt.Sscan(port, &first)
	require.NoError(t, err)
	sockets, err := os.MkdirTemp("", "gov") // the path of a socket is short
	require.NoError(t, err)
	t.Cleanup(func() { _ = os.RemoveAll(sockets) })
	for i := range 3 {
		name := fmt.Sprintf("n%d", i+1)
		args := append([]string{"serve", "--node", name, "--listen", fmt.Sprintf("%s:%d", host, first+i), "--auth", "tokens",
			"--data", filepath.Join(c.dir, name), "--socket", filepath.Join(sockets, name)}, c.backend...)
		switch {
		case !c.led():
		case i == 0:
			args = append(args, "--bootstrap")
		default:
			args = append(args, "--join", fmt.Sprintf("%s:%d", host, first+10))
		}
		c.runs = append(c.runs, run{node: name, args: args})
	}
	c.launch()
	socket = filepath.Join(sockets, "n1")
	c.token = c.makeToken(socket, "default", "agent,orchestrator,policy-author,operator,auditor")
	return c, socket
}

// makeToken makes a token over the local socket, as the first one is made.
func (c *cluster) makeToken(socket, ns, roles string, more ...string) string {
	c.t.Helper()
	var token string
	c.await("a token is made", func() bool {
		out, err := exec.Command(program, append([]string{"token", "create", "--socket", socket, "--namespace", ns, "--role", roles}, more...)...).Output()
		token = strings.TrimSpace(string(out))
		return err == nil
	})
	require.True(c.t, strings.HasPrefix(token, "gn_"+ns+"."), token)
	return token
}

func tokenID(token string) string { parts := strings.Split(token, "."); return parts[len(parts)-2] }

// 1,000 calls in flight and 100 that wait, over all nodes, while their token is revoked:
// none of them is admitted at a later place of the order, none that began behind the
// answer is admitted, and who waits is told, though not that nothing was counted.
func TestRevokedInFlight(t *testing.T) {
	for _, backend := range []string{"raft", "redis"} {
		t.Run(backend, func(t *testing.T) {
			c, socket := serveAsking(t, backend)
			const calls, waiters = 1000, 100
			nodes := c.list()
			c.open("calls", "max_concurrent: 4000\nmax_tool_calls: 100000\nmax_attempts: 100000\n")
			c.open("waits", "max_concurrent: 1\nmax_tool_calls: 100000\nmax_attempts: 100000\n")
			var held answer
			c.post(nodes[0], "CallService/BeginCall", object{"sessionId": "waits", "callId": "held", "tool": "t"}, &held)
			require.Equal(t, admitted, held.Outcome)
			worker := c.makeToken(socket, "default", "agent")

			var all sync.WaitGroup
			waited := make([]error, waiters)
			for i := range waiters {
				all.Go(func() {
					_, waited[i] = c.tryAs(worker, nodes[i%3], "CallService/BeginCall", object{"sessionId": "waits", "callId": fmt.Sprintf("w%d", i), "tool": "t", "wait": "60s"}, nil)
				})
			}
			c.await("all wait", func() bool {
				var list struct{ Waiters []object }
				_, err := c.try(nodes[0], "SlotService/ListSlots", object{"pool": "policy/waits"}, &list)
				return err == nil && len(list.Waiters) == waiters
			})

			answers, codes, errs, behind := make([]answer, calls), make([]int, calls), make([]error, calls), make([]bool, calls)
			var over atomic.Bool
			var done atomic.Int64
			quarter := make(chan struct{})
			places := make(chan struct{}, 200)
			var revoked struct {
				Revoked bool
				Index   number
			}
			var revokeErr error
			all.Go(func() {
				<-quarter
				_, revokeErr = c.try(nodes[1], "AccessService/RevokeToken", object{"tokenId": tokenID(worker), "requestId": "revoke"}, &revoked)
				over.Store(true)
			})
			for i := range calls {
				places <- struct{}{}
				all.Go(func() {
					behind[i] = over.Load()
					codes[i], errs[i] = c.tryAs(worker, nodes[i%3], "CallService/BeginCall", object{"sessionId": "calls", "callId": fmt.Sprintf("c%d", i), "tool": "t"}, &answers[i])
					<-places
					if done.Add(1) == calls/4 {
						close(quarter)
					}
				})
			}
			all.Wait()
			require.NoError(t, revokeErr)
			require.True(t, revoked.Revoked)
			took, refused, late := 0, 0, 0
			for i := range answers {
				if behind[i] {
					late++
				}
				switch {
				case errs[i] == nil:
					require.Equal(t, admitted, answers[i].Outcome)
					require.False(t, behind[i], "call %d began behind the answer to the revocation", i)
					if c.led() {
						// One entry of the log carries many commands, so a call may share that of the
						// revocation; their order in it is the law of the model's tests.
						require.LessOrEqual(t, answers[i].Index, revoked.Index, "call %d", i)
					}
					took++
				default:
					require.Equal(t, http.StatusUnauthorized, codes[i], "%v", errs[i])
					refused++
				}
			}
			for i := range waited {
				require.ErrorContains(t, waited[i], "OUTCOME_UNKNOWN")
				require.ErrorContains(t, waited[i], "revoked")
			}
			require.Positive(t, took)
			require.Positive(t, late)
			t.Logf("%d were admitted before the revocation, %d refused, of which %d began behind its answer; all %d who waited were told", took, refused, late, waiters)
			require.Equal(t, took, c.session(nodes[0], "calls").Attempts, "who is refused is not counted")

			// Those who waited keep nobody from the slot.
			c.post(nodes[2], "CallService/EndCall", object{"sessionId": "waits", "callId": "held", "status": "STATUS_SUCCEEDED"}, nil)
			var next answer
			c.post(nodes[1], "CallService/BeginCall", object{"sessionId": "waits", "callId": "next", "tool": "t", "wait": "20s"}, &next)
			require.Equal(t, admitted, next.Outcome)
		})
	}
}

// The leader is paused with requests under way, their token is revoked at another node, and
// the leader goes on: what was put in order before the revocation is there, and nobody is
// told that it is not. Who is told that nobody knows him has changed nothing.
func TestRevokedUnderAPausedLeader(t *testing.T) {
	c, socket := serveAsking(t, "raft")
	nodes := c.list()
	var took, unsure atomic.Int64
	for round := range 4 {
		worker := c.makeToken(socket, "default", "agent")
		leads, others := c.leader()
		var all sync.WaitGroup
		before := took.Load()
		for i := range 30 {
			all.Go(func() {
				for n := range 100_000 {
					code, err := c.tryAs(worker, nodes[i%3], "CounterService/Increment", object{"key": "k", "amount": "1", "requestId": fmt.Sprintf("%d.%d.%d", round, i, n)}, nil)
					switch {
					case err == nil:
						took.Add(1)
					case code == http.StatusUnauthorized:
						return
					default:
						unsure.Add(1)
					}
				}
			})
		}
		c.await("all are at work", func() bool { return took.Load() > before+50 })
		require.NoError(t, syscall.Kill(leads.pid, syscall.SIGSTOP))
		c.await("the others revoke it", func() bool {
			_, err := c.try(others[0], "AccessService/RevokeToken", object{"tokenId": tokenID(worker), "requestId": fmt.Sprint("revoke", round)}, nil)
			return err == nil
		})
		require.NoError(t, syscall.Kill(leads.pid, syscall.SIGCONT))
		all.Wait()
	}
	var got struct{ Value string }
	c.post(nodes[0], "CounterService/Get", object{"key": "k"}, &got)
	var sum int64
	_, err := fmt.Sscan(got.Value, &sum)
	require.NoError(t, err)
	t.Logf("%d were applied; %d were answered so, and of %d nobody knew", sum, took.Load(), unsure.Load())
	require.GreaterOrEqual(t, sum, took.Load())
	require.LessOrEqual(t, sum, took.Load()+unsure.Load())
}

// A session with a secret is created while the leader is killed: sent again it is one
// session and one answer, and neither secret is in anything that the nodes have written.
func TestSessionSecretThroughAKilledLeader(t *testing.T) {
	c, socket := serveAsking(t, "raft")
	nodes := c.list()
	c.open("first", "max_concurrent: 100\nmax_tool_calls: 1000\ndrift_threshold: 0\n")
	const secret = "canary-secret-of-a-session-8f2e"
	sum := sha256.Sum256([]byte(secret))
	create := object{"sessionId": "kept", "agentId": "outside", "policy": object{"name": "first"}, "sessionTokenSha256": base64.StdEncoding.EncodeToString(sum[:])}
	leads, others := c.leader()
	var all sync.WaitGroup
	for i := range 20 {
		all.Go(func() {
			for until := time.Now().Add(20 * time.Second); time.Now().Before(until); {
				var got struct{ Session session }
				if code, err := c.try(others[i%2], "SessionService/CreateSession", create, &got); err == nil {
					require.Equal(t, "kept", got.Session.SessionID)
					return
				} else if code != http.StatusServiceUnavailable && code != 0 {
					t.Errorf("%v", err)
					return
				}
				<-time.After(20 * time.Millisecond)
			}
			t.Error("it was never created")
		})
	}
	c.kill(leads)
	all.Wait()
	c.back(leads)
	create["sessionTokenSha256"] = base64.StdEncoding.EncodeToString(make([]byte, 32))
	code, err := c.try(nodes[0], "SessionService/CreateSession", create, nil)
	require.Equal(t, http.StatusBadRequest, code, "%v", err)
	require.ErrorContains(t, err, "ID_REUSED")
	for i, n := range c.list() {
		var got answer
		body := object{"sessionId": "kept", "callId": fmt.Sprintf("c%d", i), "tool": "t", "argumentsJson": `{"password":"canary-argument-51aa"}`}
		code, err := c.try(n, "CallService/BeginCall", body, nil)
		require.Equal(t, http.StatusNotFound, code, "%v", err)
		body["sessionToken"] = secret
		c.post(n, "CallService/BeginCall", body, &got)
		require.Equal(t, admitted, got.Outcome)
		c.post(n, "CallService/EndCall", object{"sessionId": "kept", "callId": fmt.Sprintf("c%d", i), "status": "STATUS_SUCCEEDED", "sessionToken": secret, "output": "canary-output-77c1"}, nil)
	}
	other := c.makeToken(socket, "default", "agent")
	_, err = c.tryAs(other+"x", nodes[0], "SessionService/GetSession", object{"sessionId": "kept"}, nil)
	require.Error(t, err)
	c.stop()
	tokenSecret := func(token string) string { parts := strings.Split(token, "."); return parts[len(parts)-1] }
	for _, canary := range []string{secret, tokenSecret(c.token), tokenSecret(other), "canary-argument-51aa", "canary-output-77c1"} {
		require.NotContains(t, c.said(), canary)
		require.NoError(t, filepath.WalkDir(c.dir, func(path string, d fs.DirEntry, err error) error {
			if err != nil || !d.Type().IsRegular() {
				return err
			}
			content, err := os.ReadFile(path)
			if bytes.Contains(content, []byte(canary)) {
				t.Errorf("%s holds %s", path, canary)
			}
			return err
		}))
	}
}
