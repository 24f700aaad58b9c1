package operate

import (
	"bytes"
	"testing"

	"github.com/stretchr/testify/require"

	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/cmd/govnode/internal/config"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// Gaps and nodes that do not answer are said; what only moves the cursor is
// not.
func TestEventLines(t *testing.T) {
	var out, notes bytes.Buffer
	f := &following{config: &config.Config{Output: "text"}, out: &out, notes: &notes}
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
	require.Equal(t, `gap  n1  3 events of the namespace are gone (OVERWRITTEN)
gap  n2  events may be gone (RESTARTED)
T  n1  drift_detected  tool=a\nb  drift=0.500/0.250  repeat
`, out.String())
	require.Equal(t, "govnode: these nodes do not answer, so their events are missing: n3\ngovnode: all nodes answer\n", notes.String())
	require.Equal(t, "n1:a:8", f.cursor)
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
