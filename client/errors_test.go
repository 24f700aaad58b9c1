package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"google.golang.org/protobuf/types/known/durationpb"

	"example.com/govnode/client/internal/wire"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What an operation of a stream is refused with means what it means for a
// request of its own.
func TestWhatErrorsOfAStreamMean(t *testing.T) {
	for _, test := range []struct {
		code, reason string
		after        time.Duration // that the operation is told; 0 for none
		want         verdict
	}{
		{"resource_exhausted", "OVERLOADED", 0, verdict{fate: notApplied, after: time.Second}},
		{"resource_exhausted", "OVERLOADED", 3 * time.Second, verdict{fate: notApplied, after: 3 * time.Second}},
		{"resource_exhausted", "QUOTA_EXCEEDED", 0, verdict{fate: final}}, // so much at all
		{"resource_exhausted", "QUOTA_EXCEEDED", time.Millisecond, verdict{fate: notApplied, after: time.Millisecond}},
		{"resource_exhausted", "TOO_MANY_OPEN", 0, verdict{fate: final}},
		{"unavailable", "NOT_APPLIED", 0, verdict{fate: notApplied}},
		{"unavailable", "NOT_APPLIED", 2 * time.Second, verdict{fate: notApplied, after: 2 * time.Second}}, // without a leader
		{"unavailable", "OUTCOME_UNKNOWN", 0, verdict{fate: unknown}},
		{"failed_precondition", "STALE_ID", 0, verdict{fate: stale, newerThan: 7}},
		{"invalid_argument", "INVALID_FIELD", 0, verdict{fate: final}},
		{"internal", "OUTCOME_UNKNOWN", 0, verdict{fate: unknown}}, // the node failed in the middle of it
		{"internal", "INTERNAL", 0, verdict{fate: final}},
	} {
		e := &govnodev1.OperationError{Code: test.code, Reason: test.reason, NewerThan: int64(test.want.newerThan)}
		if test.after > 0 {
			e.RetryAfter = durationpb.New(test.after)
		}
		err := wire.Error(e)
		test.want.reason = Reason(test.reason)
		require.Equal(t, test.want, judge(err), test.reason)
	}
}
