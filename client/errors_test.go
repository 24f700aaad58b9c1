package client

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/client/internal/wire"
	govnodev1 "example.com/govnode/proto/govnode/v1"
)

// What an operation of a stream is refused with means what it means for a
// request of its own.
func TestWhatErrorsOfAStreamMean(t *testing.T) {
	for _, test := range []struct {
		code, reason string
		want         verdict
	}{
		{"resource_exhausted", "OVERLOADED", verdict{fate: notApplied, after: time.Second}},
		{"resource_exhausted", "TOO_MANY_OPEN", verdict{fate: final}},
		{"unavailable", "NOT_APPLIED", verdict{fate: notApplied}},
		{"unavailable", "OUTCOME_UNKNOWN", verdict{fate: unknown}},
		{"failed_precondition", "STALE_ID", verdict{fate: stale, newerThan: 7}},
		{"invalid_argument", "INVALID_FIELD", verdict{fate: final}},
		{"internal", "OUTCOME_UNKNOWN", verdict{fate: unknown}}, // the node failed in the middle of it
		{"internal", "INTERNAL", verdict{fate: final}},
	} {
		err := wire.Error(&govnodev1.OperationError{Code: test.code, Reason: test.reason, NewerThan: int64(test.want.newerThan)})
		test.want.reason = Reason(test.reason)
		require.Equal(t, test.want, judge(err), test.reason)
	}
}
