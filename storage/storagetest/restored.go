package storagetest

import (
	"bytes"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/ids"
	"example.com/govnode/storage"
)

// What an operator repairs: a state that comes back, and a namespace that an id
// has closed.

func saved(t *testing.T, r rig) {
	r.putPool("p", 2)
	before := r.must(acquire("p", "held-before"))
	r.must(increment("k", "before"))
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	late := r.must(acquire("p", "held-late"))
	r.must(increment("k", "late"))
	was := r.get(session.PoolKey(ns, "p"), storage.Latest)
	now := was.Now

	r.restore(snapshot.Bytes())
	require.Empty(t, r.pool("p").Leases, "leases of the snapshot ended")
	require.GreaterOrEqual(t, r.get(session.PoolKey(ns, "p"), storage.Latest).Now, now, "time went on")
	require.Greater(t, r.get(session.PoolKey(ns, "p"), storage.Nearby).Generation, was.Generation)
	require.Greater(t, r.get(session.PoolKey("nobody", "p"), storage.Latest).Generation, was.Generation, "of a namespace in which nothing was")
	require.EqualValues(t, 1_000_000, r.get(session.CounterKey(ns, "k"), storage.Latest).Record.(*session.Counter).Value.N)
	next := r.must(acquire("p", "next"))
	require.Equal(t, session.Admitted, next.Code)
	require.Greater(t, tokens(next)[0], max(tokens(late)[0], tokens(before)[0]), "tokens go on above all that were given out")
	// Ids of the time before are known, ids of the time after are not.
	require.True(t, r.must(increment("k", "before")).Repeat)
	require.False(t, r.must(increment("k", "late")).Repeat)
}

func savedTwice(t *testing.T, r rig) {
	r.putPool("p", 4)
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	given := map[uint64]bool{}
	for range 3 {
		for i := range 3 {
			token := tokens(r.must(acquire("p", fmt.Sprint("slot", i))))[0]
			require.False(t, given[token], "token %d", token)
			given[token] = true
		}
		r.putPool("q", 1) // made after the snapshot, so it is gone with it
		token := tokens(r.must(acquire("q", "slot")))[0]
		require.False(t, given[1<<63|token], "token %d", token)
		given[1<<63|token] = true
		r.restore(snapshot.Bytes())
	}
}

// reopened has a session go with a state that comes back, and another one opened under its
// id: what was judged by the first changes nothing of the second.
func reopened(t *testing.T, r rig) {
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	r.openSession("s", 2, 100)
	before := r.session("s").Opened
	r.restore(snapshot.Bytes())
	r.openSession("s", 2, 100)
	now := r.session("s").Opened
	require.NotEqual(t, before, now)
	var token uint64
	judged := func(opened time.Duration, call string) []session.Command {
		b, pools := begin("s", call), []string{session.PolicyPool("p")}
		b.Opened = opened
		return []session.Command{
			b,
			&session.Renew{NS: ns, Session: "s", ID: call, Pools: pools, Token: token, TTL: time.Minute, Opened: opened},
			&session.Cancel{NS: ns, Session: "s", Call: call, Pools: pools, Opened: opened},
			&session.End{NS: ns, Session: "s", Call: call, Pools: pools, Status: session.Succeeded, Tokens: -1, Opened: opened},
			&session.Close{NS: ns, Session: "s", Digest: b.Digest, Pools: pools, Opened: opened},
		}
	}
	admitted := r.must(judged(now, "c")[0])
	require.Equal(t, session.Admitted, admitted.Code)
	token = tokens(admitted)[0]
	for _, call := range []string{"c", "of-nobody"} {
		for _, c := range judged(before, call) {
			require.Equal(t, session.StaleSession, r.must(c).Code, "%T", c)
		}
	}
	x := r.session("s")
	require.Equal(t, session.PhaseOpen, x.Phase)
	require.EqualValues(t, 1, x.Attempts)
	require.Len(t, x.Open, 1)
	for i, code := range []session.Code{session.Admitted, session.Renewed, session.NotWaiting, session.Ended, session.Done} {
		require.Equal(t, code, r.must(judged(now, "c")[i]).Code, "%v", code)
	}
}

// repaired has a client finish an id dated in the future, and more than are
// remembered after it.
func repaired(t *testing.T, r rig) {
	const present = "01KDVDA400AAAAAAAAAAAAAAAA" // in the year 2026
	r.must(increment("k", "20260101123456789012345678"))
	var many []session.Command
	for i := range 1100 {
		many = append(many, increment("k", fmt.Sprint("many", i)))
	}
	for _, a := range r.Apply(t.Context(), many...) {
		require.NoError(t, a.Err)
	}
	repair := &session.Repair{NS: ns, By: session.Maker{Client: "operator", Request: "1"}, Client: "suite", NewerThan: ids.Time(present) - 1}
	require.Equal(t, session.Result{Value: 1}, r.must(repair))
	require.Equal(t, session.Result{Value: 1, Repeat: true}, r.must(repair))
	for i := range 64 { // in every part of the ids
		id := fmt.Sprintf("%s%02d", present[:24], i)
		require.Equal(t, session.Done, r.must(increment("k", id)).Code)
		require.True(t, r.must(increment("k", id)).Repeat)
		require.Equal(t, session.StaleID, r.must(increment("k", "01KDVDA3"+id[8:])).Code)
	}
}

func badSnapshot(t *testing.T, r rig) {
	r.must(increment("k", "one"))
	var snapshot bytes.Buffer
	require.NoError(t, r.Save(t.Context(), &snapshot))
	whole := snapshot.Bytes()
	turned := bytes.Clone(whole)
	turned[len(turned)/2] ^= 1
	for name, bad := range map[string][]byte{"empty": nil, "truncated": whole[:len(whole)-1], "turned bit": turned, "text": []byte("this is none")} {
		require.Error(t, r.Restore(t.Context(), bytes.NewReader(bad)), name)
		require.False(t, r.get(session.CounterKey(ns, "k"), storage.Latest).Record == nil, name)
	}
	require.EqualValues(t, 2_000_000, r.must(increment("k", "two")).Value)
}
