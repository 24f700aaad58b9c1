package session_test

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
)

// What is counted by the way is what there is, after any history and in a state that
// was rebuilt from a snapshot.
func TestTallyIsWhatThereIs(t *testing.T) {
	seen, approvals := int64(0), 0
	for seed := range uint64(30) {
		s := session.New()
		s.ApplyAll(0, sessiontest.Setup())
		h := sessiontest.New(seed)
		at := time.Duration(0)
		for range 150 {
			step := h.Step()
			at += step.After
			s.ApplyAll(at, step.Commands)
		}
		var want session.Tally
		rebuilt := session.New()
		for k, r := range s.Snapshot().All() {
			rebuilt.Put(k, r)
			switch r := r.(type) {
			case *session.Session:
				want.Sessions++
			case *session.Client:
				want.Clients++
			case *session.Pool:
				if name := k.Name(); !strings.HasPrefix(name, "policy/") && !strings.HasPrefix(name, "rate/policy/") {
					require.True(t, r.Put, "%s", k)
					want.Pools++
				}
			case *session.Name:
				want.Policies++
			case *session.Approval:
				approvals++
				want.Keys++
			case *session.Counter, *session.List, *session.ListItem, *session.Budget, *session.Hash, *session.Standing:
				want.Keys++
			}
		}
		seen += want.Sessions
		require.Equal(t, want, s.TallyOf(sessiontest.NS), "seed %d", seed)
		require.Equal(t, want, rebuilt.TallyOf(sessiontest.NS), "seed %d", seed)
	}
	require.NotZero(t, seen)
	require.NotZero(t, approvals)
}
