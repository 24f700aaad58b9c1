package session_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
)

// However many signals stand against single agents, the one for everything has room: who
// may stop some agents takes it from nobody who has to stop all. It is kept as the others
// are.
func TestEverythingCanAlwaysBeSignalled(t *testing.T) {
	s, do := waiting(t)
	signal := func(target session.Target, kind session.SignalKind) session.Code {
		return do(0, &session.Signal{NS: ns, By: session.Maker{Client: "op"}, Target: target, Signal: kind}).Code
	}
	for i := range session.MaxSignals {
		require.Equal(t, session.Done, signal(session.Target{Scope: session.OfAgent, Name: fmt.Sprint("b", i)}, session.Stop))
	}
	require.Equal(t, session.Admitted, do(0, waiter("before")).Code)
	require.Equal(t, session.Done, signal(session.Target{Scope: session.Everything}, session.Stop))
	require.Equal(t, session.Stopped, do(0, waiter("after")).Code)
	require.Equal(t, session.TooManySignals, signal(session.Target{Scope: session.OfPolicy, Name: "p"}, session.Stop))

	kept := s.Get(session.SignalsKey(ns))
	read, err := session.DecodeRecord(session.EncodeRecord(kept))
	require.NoError(t, err)
	require.Equal(t, kept, read)
	require.Equal(t, session.Done, signal(session.Target{Scope: session.Everything}, session.Continue))
	require.Equal(t, session.Admitted, do(0, waiter("again")).Code)
}
