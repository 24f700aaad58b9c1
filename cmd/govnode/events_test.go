package main

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/cmd/govnode/internal/address"
	"example.com/govnode/cmd/govnode/internal/remote"
	"example.com/govnode/cmd/govnode/internal/terminal"
	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// caller begins calls in a session that may use no tool but read.
func caller(t *testing.T, api string) func(call, tool string) *govnodev1.BeginCallResponse {
	t.Helper()
	r := remote.NewNode(http.DefaultClient, api)
	_, err := r.PutPolicy(t.Context(), &govnodev1.PutPolicyRequest{Yaml: "name: p\nallowed_tools: [read]\n"})
	require.NoError(t, err)
	_, err = r.CreateSession(t.Context(), &govnodev1.CreateSessionRequest{
		SessionId: "s", AgentId: "a", Policy: &govnodev1.PolicyRef{Ref: &govnodev1.PolicyRef_Name{Name: "p"}},
	})
	require.NoError(t, err)
	calls := govnodev1connect.NewCallServiceClient(http.DefaultClient, "http://"+api)
	return func(call, tool string) *govnodev1.BeginCallResponse {
		t.Helper()
		answer, err := calls.BeginCall(t.Context(), &govnodev1.BeginCallRequest{SessionId: "s", CallId: call, Tool: tool})
		require.NoError(t, err)
		return answer
	}
}

// Events are printed as they occur; what is printed last leads on to what comes
// behind it, with nothing between left out or told twice.
func TestEventsGoOnBehindACursor(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	begin := caller(t, api)
	begin("before", "write")

	live := start(t, "events", "--addr", api, "--types", "tool_call_blocked", "-o", "json")
	live.mustAwait(t, `^\{.*"cursor":"[^"]+".*\}$`, 1) // it follows by now
	begin("c1", "write")
	live.mustAwait(t, `"callId":"c1"`, 1)
	require.NoError(t, live.stop(), "an interrupt is no failure")
	require.NotContains(t, live.printed(), "before")
	cursor := lastCursor(t, live)

	begin("c2", "write")
	begin("c3", "write")
	again := start(t, "events", "--addr", "127.0.0.1:1,"+api, "--types", "tool_call_blocked", "--after", cursor, "--count", "1")
	require.NoError(t, again.wait())
	require.Regexp(t, `(?m)^\d{4}-\S+Z  node1  \S+  agent=a  session=s  call=c2  tool=write .*decision=\S+`, again.printed())
	require.NotContains(t, again.printed(), "call=c1")
	require.NotContains(t, again.printed(), "call=c3")
	last := start(t, "events", "--addr", api, "--types", "tool_call_blocked", "--after", lastCursor(t, again), "--count", "1")
	require.NoError(t, last.wait())
	require.Contains(t, last.printed(), "call=c3")

	// A node that goes away ends them with an error and the cursor.
	lost := start(t, "events", "--addr", api, "--from-oldest", "--session", "s")
	lost.mustAwait(t, `call=before`, 1)
	lost.mustAwait(t, `call=c3`, 1)
	require.NoError(t, node.stop())
	require.ErrorContains(t, lost.wait(), "exit status 1")
	require.NotEmpty(t, lastCursor(t, lost))
	require.Contains(t, lost.printed(), "unavailable")
}

func lastCursor(t *testing.T, p *process) string {
	t.Helper()
	return p.mustAwait(t, `^govnode: go on behind what was printed with --after (\S+)$`, 1)[0][1]
}

// What cannot be followed is refused with a reason and without a cursor.
func TestEventsRefused(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	for _, tt := range []struct {
		text string
		args []string
	}{
		{`types\[0\]: is no type of event`, []string{"--addr", api, "--types", "party"}},
		{`after: is no cursor`, []string{"--addr", api, "--after", "x"}},
		{`fromOldest: is given beside after`, []string{"--addr", api, "--after", "node1:a:1", "--from-oldest"}},
		{`no node listens on 127\.0\.0\.1:1`, []string{"--addr", "127.0.0.1:1"}},
		{`count: -1 \(flag --count\): must be 0 or more`, []string{"--addr", api, "--count", "-1"}},
	} {
		p := start(t, append([]string{"events"}, tt.args...)...)
		require.Error(t, p.wait())
		require.Regexp(t, tt.text, p.printed())
		require.NotContains(t, p.printed(), "--after ")
	}
}

// A node that says nothing is given up after --timeout.
func TestEventsOfASilentNode(t *testing.T) {
	t.Parallel()
	l, err := address.Listen("listen", "127.0.0.1:0", 1)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	p := start(t, "events", "--addr", l.Addr().String(), "--timeout", "50ms")
	require.ErrorContains(t, p.wait(), "exit status 1")
	require.Contains(t, p.printed(), "did not answer in time")
}

// Explain prints the record of a decision, and says no when there is none.
func TestExplainPrintsTheRecord(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	begin := caller(t, api)
	denied, allowed := begin("c1", "write"), begin("c2", "read")
	var out, stderr bytes.Buffer
	require.Equal(t, terminal.ExitYes, execute([]string{"explain", denied.DecisionId, "--addr", api}, &out, &stderr), stderr.String())
	for _, row := range []string{
		`DECISION +denied`, `REASON +` + regexp.QuoteMeta(denied.Reason), `OUTCOME +denied by policy`, `POLICY +p`,
		`TOOL +write`, `AGENT +a`, `SESSION +s`, `CALL +c1`, `NODE +node1`, `COUNTERS +attempts=1 calls=0 `, `CONTEXT HASH +sha256:[0-9a-f]{64}$`,
	} {
		require.Regexp(t, `(?m)^`+row, out.String())
	}
	var record struct {
		Record struct {
			CallID   string
			Decision struct{ Allowed bool }
		}
	}
	cli(t, &record, "explain", allowed.DecisionId, "--session", "s", "--addr", api)
	require.Equal(t, "c2", record.Record.CallID)
	require.True(t, record.Record.Decision.Allowed)

	for _, args := range [][]string{
		{"explain", "nothing", "--addr", api},
		{"explain", denied.DecisionId, "--session", "other", "--addr", api},
	} {
		stderr.Reset()
		require.Equal(t, terminal.ExitNo, execute(args, &out, &stderr))
		require.Contains(t, stderr.String(), "NOT_FOUND")
	}
}

// Events of all nodes come from whichever is asked, unless it is to tell of its
// own alone.
func TestEventsOfAllNodes(t *testing.T) {
	t.Parallel()
	dev := start(t, "dev", "--nodes", "2", "--listen", "127.0.0.1:0")
	dev.mustAwait(t, `^ready$`, 1)
	nodes := dev.mustAwait(t, nodeLine, 2)
	one, other := nodes[0][2], nodes[1][2]
	ctx, cancel := context.WithTimeout(t.Context(), longEnough)
	defer cancel()
	begin := caller(t, one)
	all := start(t, "events", "--addr", other)
	local := start(t, "events", "--addr", other, "--local", "-o", "json")
	local.mustAwait(t, `"cursor"`, 1)
	for !strings.Contains(all.printed(), "call=") {
		require.NoError(t, ctx.Err(), "the event of the other node")
		begin(remote.NewRequestID(), "write") // until it follows
	}
	calls := govnodev1connect.NewCallServiceClient(http.DefaultClient, "http://"+other)
	_, err := calls.BeginCall(ctx, &govnodev1.BeginCallRequest{SessionId: "s", CallId: "here", Tool: "write"})
	require.NoError(t, err)
	local.mustAwait(t, `"callId":"here"`, 1)
	require.Len(t, regexp.MustCompile(`"event":\{`).FindAllString(local.printed(), -1), len(regexp.MustCompile(`"callId":"here"`).FindAllString(local.printed(), -1)), "only its own")
	require.NoError(t, dev.stop())
}
