package storagetest

import (
	"bytes"
	"context"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// What signals promise on every store.

func signal(what session.SignalKind, target session.Target, request string) *session.Signal {
	return &session.Signal{NS: ns, By: by(request), Target: target, Signal: what}
}

// stopped sends calls from many callers all the time while a STOP is put in order:
// none that began after its answer is admitted, and all are again after CONTINUE.
func stopped(t *testing.T, r rig) {
	const callers = 32
	r.openSession("s", 4000, 1_000_000)
	everything := session.Target{Scope: session.Everything}
	var admitted, kept atomic.Int64
	var stood atomic.Bool
	underWay := make(chan struct{})
	atOnce(callers+1, func(caller int) {
		if caller == callers {
			<-underWay
			if _, err := r.try(signal(session.Stop, everything, "stop")); err != nil {
				t.Error(err)
			}
			stood.Store(true)
			return
		}
		for n, last := 0, false; !last; n++ {
			last = stood.Load()
			res, err := r.try(begin("s", fmt.Sprint("c", caller, "-", n)))
			switch {
			case err != nil, res.Code != session.Admitted && res.Code != session.Stopped, res.Code == session.Admitted && last:
				t.Errorf("%v, after the answer to the STOP: %v: %v", res.Code, last, err)
				return
			case res.Code == session.Stopped:
				kept.Add(1)
			case admitted.Add(1) == callers:
				close(underWay)
			}
		}
	})
	require.GreaterOrEqual(t, kept.Load(), int64(callers), "each was kept out once, at least")
	require.EqualValues(t, admitted.Load(), r.session("s").Attempts, "who is kept out is not counted")
	require.Equal(t, session.Done, r.must(signal(session.Continue, everything, "continue")).Code)
	require.Equal(t, session.Admitted, r.must(begin("s", "after")).Code)
}

// killed has a KILL keep sessions out, of which the store says that it is to be
// swept until it is; it is there after a restore as well.
func killed(t *testing.T, r rig) {
	r.openSession("s", 5, 1000)
	open := &session.Open{NS: ns, Session: "late", Agent: "a", Policy: "p", Digest: session.Digest{1}, IdleTTL: time.Hour}
	agent := session.Target{Scope: session.OfAgent, Name: "a"}
	stands := r.must(signal(session.Kill, agent, "kill")).Signal
	require.NotNil(t, stands)
	require.Equal(t, session.Killed, r.must(open).Code)
	res := r.must(begin("s", "c"))
	require.Equal(t, session.SessionClosed, res.Code)
	require.Equal(t, agent, res.Signal.Target)
	require.Equal(t, session.KillUnderWay, r.must(signal(session.Continue, agent, "early")).Code)
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))

	toSweep := func(so bool) {
		store, ok := r.Store.(storage.Sweeping)
		require.True(t, ok)
		require.Eventually(t, func() bool { return len(store.Unswept(context.Background())) > 0 == so }, patience, time.Millisecond)
	}
	toSweep(true)
	r.must(&session.Swept{NS: ns, Target: agent, Number: stands.Number})
	toSweep(false)
	require.Equal(t, session.Done, r.must(signal(session.Continue, agent, "continue")).Code)
	require.Equal(t, session.Done, r.must(open).Code)

	r.restore(snapshot.Bytes())
	toSweep(true)
	x, _ := r.get(session.SignalsKey(ns), storage.Latest).Record.(*session.Signals)
	require.NotNil(t, x)
	require.Equal(t, []session.Halt{*stands}, x.Halts)
	require.Equal(t, session.SessionClosed, r.must(begin("s", "d")).Code)
}
