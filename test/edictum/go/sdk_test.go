package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	edictum "github.com/edictum-ai/edictum-go"
	"github.com/edictum-ai/edictum-go/approval"
	"github.com/edictum-ai/edictum-go/audit"
	"github.com/edictum-ai/edictum-go/guard"
	"github.com/edictum-ai/edictum-go/pipeline"
	"github.com/edictum-ai/edictum-go/server"
	"github.com/edictum-ai/edictum-go/session"
	"github.com/stretchr/testify/require"
)

const limit = 40

// limited is a ruleset that forbids rm, and another word.
func ruleset(word string) string {
	return "apiVersion: edictum/v1\nkind: Ruleset\nmetadata: {name: shells}\ndefaults: {mode: enforce}\nrules:\n" +
		"  - {id: no-word, type: pre, tool: Bash, when: {args.command: {contains: " + strconv.Quote(word) + "}}, then: {action: block, message: 'no {args.command}'}}\n"
}

// The backend keeps what the one in memory keeps, over three nodes.
func TestBackendIsThatOfTheSDK(t *testing.T) {
	n, ctx := start(t), context.Background()
	memory := session.NewMemoryBackend()
	backends := []session.StorageBackend{server.NewBackend(n.client(0)), server.NewBackend(n.client(1)), server.NewBackend(n.client(2))}
	at := 0
	both := func(what string, do func(session.StorageBackend) (any, error)) {
		t.Helper()
		want, wrong := do(memory)
		got, err := do(backends[at%3])
		at++
		require.Equal(t, wrong == nil, err == nil, "%s: %v, %v", what, wrong, err)
		require.Equal(t, want, got, what)
	}
	key := unique("s:run:attempts")
	both("absent", func(b session.StorageBackend) (any, error) { return b.Get(ctx, key) })
	for range 5 {
		both("increment", func(b session.StorageBackend) (any, error) { return b.Increment(ctx, key, 2) })
		both("get", func(b session.StorageBackend) (any, error) { return b.Get(ctx, key) })
	}
	both("set", func(b session.StorageBackend) (any, error) { return nil, b.Set(ctx, key+"x", "a text: é") })
	both("get", func(b session.StorageBackend) (any, error) { return b.Get(ctx, key+"x") })
	many, err := server.NewBackend(n.client(0)).BatchGet(ctx, []string{key, key + "x", key + "none"})
	require.NoError(t, err)
	require.Equal(t, map[string]string{key: "10", key + "x": "a text: é"}, many)
	both("delete", func(b session.StorageBackend) (any, error) { return nil, b.Delete(ctx, key+"x") })
	both("gone", func(b session.StorageBackend) (any, error) { return b.Get(ctx, key+"x") })
}

// A limit holds over clients of different nodes, up to the calls in flight, also while
// the leader is killed; the counter itself is exact.
func TestLimitsHoldOverNodes(t *testing.T) {
	for _, killing := range []bool{false, true} {
		t.Run(fmt.Sprintf("killing=%v", killing), func(t *testing.T) {
			n, ctx, sess := start(t), context.Background(), unique("run")
			var ran atomic.Int64
			var wg sync.WaitGroup
			for node := range 2 {
				g := guard.New(guard.WithBackend(server.NewBackend(n.client(node))), guard.WithLimits(pipeline.OperationLimits{MaxAttempts: 500, MaxToolCalls: limit}))
				wg.Go(func() {
					for range limit {
						_, err := g.Run(ctx, "look", nil, func(map[string]any) (any, error) {
							if ran.Add(1) == limit/2 && killing {
								_ = syscall.Kill(n.pids[n.leader()], syscall.SIGKILL)
							}
							return "ok", nil
						}, guard.WithSessionID(sess))
						var blocked *edictum.BlockedError
						if errors.As(err, &blocked) {
							return
						}
					}
				})
			}
			wg.Wait()
			got := ran.Load()
			require.GreaterOrEqual(t, got, int64(limit-2))
			require.LessOrEqual(t, got, int64(limit+2), "calls that are on their way")
			var count string
			require.Eventually(t, func() bool {
				var err error
				count, err = server.NewBackend(n.client(2)).Get(ctx, "s:"+sess+":execs")
				return err == nil && count != ""
			}, 20*time.Second, 100*time.Millisecond)
			if !killing { // the SDK asks once: what the dead node had not answered it does not ask again
				require.Equal(t, strconv.FormatInt(got, 10), count)
			}
		})
	}
}

// An approval is decided at another node than it was asked at.
func TestApprovalsAreDecidedElsewhere(t *testing.T) {
	n, ctx := start(t), context.Background()
	for _, yes := range []bool{true, false} {
		b := server.NewApprovalBackend(n.client(0), server.WithPollInterval(50*time.Millisecond))
		asked, err := b.RequestApproval(ctx, "deploy", map[string]any{"to": "prod"}, "may it?", approval.WithTimeout(time.Minute))
		require.NoError(t, err)
		n.operator(1, "PUT", "/v1/approvals/"+asked.ApprovalID(), map[string]any{"approved": yes, "reason": "so be it"})
		decided, err := server.NewApprovalBackend(n.client(2), server.WithPollInterval(50*time.Millisecond)).PollApprovalStatus(ctx, asked.ApprovalID())
		require.NoError(t, err)
		require.Equal(t, yes, decided.Approved)
	}
}

// Events are kept once, whatever node they are sent to.
func TestEventsAreKeptOnce(t *testing.T) {
	n, ctx, sess := start(t), context.Background(), unique("run")
	e := audit.NewEvent()
	e.SessionID, e.CallID, e.ToolName, e.Action, e.Timestamp = sess, "c1", "look", audit.ActionCallAllowed, time.Now()
	for node := range 3 {
		sink := server.NewAuditSink(n.client(node))
		require.NoError(t, sink.Emit(ctx, &e))
		sink.Close(ctx)
	}
	found := n.operator(0, "GET", "/v1/events?session_id="+sess, nil)
	require.Len(t, found["events"], 1)
}

// A ruleset is served, and changed while the SDK runs.
func TestARulesetIsChangedWhileItRuns(t *testing.T) {
	n, ctx := start(t), context.Background()
	n.operator(0, "PUT", "/v1/rulesets/shells?env=production", map[string]any{"yaml": ruleset("rm")})
	g, err := guard.FromServer(n.urls[1], agentKey, "writer", guard.WithBundleName("shells"), guard.WithAllowInsecure(), guard.WithAutoWatch(true))
	require.NoError(t, err)
	defer g.Close(ctx)
	blocks := func(command string) bool {
		_, err := g.Run(ctx, "Bash", map[string]any{"command": command}, func(map[string]any) (any, error) { return "ok", nil })
		var blocked *edictum.BlockedError
		return errors.As(err, &blocked)
	}
	require.True(t, blocks("rm x"))
	require.False(t, blocks("mv x y"))
	n.operator(2, "PUT", "/v1/rulesets/shells?env=production", map[string]any{"yaml": ruleset("mv")})
	require.Eventually(t, func() bool { return blocks("mv x y") }, 20*time.Second, 50*time.Millisecond)
	require.False(t, blocks("rm x"))
}
