package main

import (
	"bytes"
	"context"
	"net/http"
	"regexp"
	"testing"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	govnodev1 "example.com/govnode/proto/govnode/v1"
	"example.com/govnode/proto/govnode/v1/govnodev1connect"
)

// caller begins calls in a session that may use no tool but read.
func caller(t *testing.T, api string) func(call, tool string) *govnodev1.BeginCallResponse {
	t.Helper()
	r := newRemote(http.DefaultClient, api)
	_, err := r.policies.PutPolicy(t.Context(), &govnodev1.PutPolicyRequest{Yaml: "name: p\nallowed_tools: [read]\n"})
	require.NoError(t, err)
	_, err = r.sessions.CreateSession(t.Context(), &govnodev1.CreateSessionRequest{
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
	l, err := listen("listen", "127.0.0.1:0", 1)
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	p := start(t, "events", "--addr", l.Addr().String(), "--timeout", "50ms")
	require.ErrorContains(t, p.wait(), "exit status 1")
	require.Contains(t, p.printed(), "did not answer in time")
}

// Gaps and nodes that do not answer are said; what only moves the cursor is
// not.
func TestEventLines(t *testing.T) {
	var out, notes bytes.Buffer
	f := &following{config: &Config{Output: "text"}, out: &out, notes: &notes}
	for _, m := range []*govnodev1.FollowResponse{
		{Cursor: "n1:a:1"},
		{Gap: &govnodev1.Gap{Node: "n1", Reason: "OVERWRITTEN", Missed: 3}},
		{Gap: &govnodev1.Gap{Node: "n2", Reason: "RESTARTED"}, Cursor: "n1:a:5"},
		{Cursor: "n1:a:6", Unreachable: []string{"n3"}},
		{Cursor: "n1:a:7", Unreachable: []string{"n3"}},
		{Event: &govnodev1.Event{Timestamp: "T", Node: "n1", Type: "drift_detected", Tool: "a\nb", Drift: &govnodev1.Drift{Score: 0.5, Threshold: 0.25}, Repeat: true}, Cursor: "n1:a:8"},
	} {
		require.NoError(t, f.take(m))
	}
	require.Equal(t, `gap  n1  3 events of all namespaces are gone (OVERWRITTEN)
gap  n2  events may be gone (RESTARTED)
T  n1  drift_detected  tool=a\nb  drift=0.500/0.250  repeat
`, out.String())
	require.Equal(t, "govnode: these nodes do not answer, so their events are missing: n3\ngovnode: all nodes answer\n", notes.String())
	require.Equal(t, "n1:a:8", f.cursor)
}

// Explain prints the record of a decision, and says no when there is none.
func TestExplainPrintsTheRecord(t *testing.T) {
	t.Parallel()
	node := start(t, "serve", "--backend", "memory", "--listen", "127.0.0.1:0")
	api := node.mustAwait(t, nodeLine, 1)[0][2]
	begin := caller(t, api)
	denied, allowed := begin("c1", "write"), begin("c2", "read")
	var out, stderr bytes.Buffer
	require.Equal(t, exitYes, execute([]string{"explain", denied.DecisionId, "--addr", api}, &out, &stderr), stderr.String())
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
		require.Equal(t, exitNo, execute(args, &out, &stderr))
		require.Contains(t, stderr.String(), "NOT_FOUND")
	}
}

// A record that is no answer to a call says so.
func TestRecordsOfAnotherKind(t *testing.T) {
	for _, tt := range []struct {
		record *govnodev1.DecisionRecord
		want   string
	}{
		{&govnodev1.DecisionRecord{DryRun: true, Decision: &govnodev1.Decision{Allowed: true}}, `DECISION      allowed \(asked for by Evaluate, nothing was spent\)`},
		{&govnodev1.DecisionRecord{Repeat: true}, `DECISION      denied \(the answer to an id that was known\)`},
		{&govnodev1.DecisionRecord{Failure: "unavailable", FailureReason: "NOT_APPLIED"}, `OUTCOME       not applied: unavailable, NOT_APPLIED`},
		{&govnodev1.DecisionRecord{Age: durationpb.New(1500e6)}, `AGE           1.5s`},
	} {
		var out bytes.Buffer
		require.NoError(t, printRecord(&out, tt.record))
		require.Regexp(t, tt.want, out.String())
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
	require.NoError(t, await(ctx, "the event of the other node", func() (bool, error) {
		begin(newRequestID(), "write") // until it follows
		return regexp.MustCompile(`call=`).MatchString(all.printed()), nil
	}))
	calls := govnodev1connect.NewCallServiceClient(http.DefaultClient, "http://"+other)
	_, err := calls.BeginCall(ctx, &govnodev1.BeginCallRequest{SessionId: "s", CallId: "here", Tool: "write"})
	require.NoError(t, err)
	local.mustAwait(t, `"callId":"here"`, 1)
	require.Len(t, regexp.MustCompile(`"event":\{`).FindAllString(local.printed(), -1), len(regexp.MustCompile(`"callId":"here"`).FindAllString(local.printed(), -1)), "only its own")
	require.NoError(t, dev.stop())
}
