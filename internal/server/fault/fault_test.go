package fault

import (
	"testing"

	"connectrpc.com/connect"
	"github.com/stretchr/testify/require"

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
}
