package fault

import (
	"testing"
	"time"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/protobuf/proto"

	"example.com/govnode/session"
)

// An error is the same in a batch as by itself.
func TestAnErrorIsTheSameInABatch(t *testing.T) {
	f := OfResult(&session.Result{Code: session.StaleID, NewerThan: 7}, "id")
	var ce *connect.Error
	require.ErrorAs(t, f, &ce)
	o := OperationError(f)
	require.Equal(t, ce.Code().String(), o.Code)
	require.Equal(t, ce.Message(), o.Message)
	require.Equal(t, InfoOf(f).GetReason(), o.Reason)
	require.Equal(t, "7", InfoOf(f).GetMetadata()["newerThan"])
	require.EqualValues(t, 7, o.NewerThan)
	require.Nil(t, o.RetryAfter)
}

// So is when it may be sent again.
func TestADelayIsTheSameInABatch(t *testing.T) {
	f := New(connect.CodeResourceExhausted, ReasonQuotaExceeded, "as much as it may").Later(1500 * time.Millisecond)
	ce := f.Connect()
	var told *errdetails.RetryInfo
	for _, d := range ce.Details() {
		m, err := d.Value()
		require.NoError(t, err)
		if r, ok := m.(*errdetails.RetryInfo); ok {
			told = r
		}
	}
	require.Equal(t, 1500*time.Millisecond, told.GetRetryDelay().AsDuration())
	require.True(t, proto.Equal(told.GetRetryDelay(), OperationError(f).RetryAfter))
}
