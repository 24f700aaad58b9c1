package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// A filled cluster has all of its sessions, and those that callers use are
// counted on from what they were filled with.
func TestFill(t *testing.T) {
	const callers, sessions, fill = 4, 3, 100
	g := open(t, startNode(t), Plan{Scenario: Apart, Callers: callers, Sessions: sessions, Fill: fill})
	for range 6 * sessions {
		for caller := range callers {
			require.NoError(t, g.Step(t.Context(), caller))
		}
	}
	a, err := g.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, callers*sessions, a.Sessions)
	require.EqualValues(t, callers*sessions*(filledCalls+3), a.Attempts)

	for i := range fill { // each exists, with the calls that it was filled with
		s, err := g.clients[0].Session(g.plan.session(i)).Read(t.Context())
		require.NoError(t, err, i)
		require.Equal(t, g.plan.policyOf(g.plan.ownerOf(i)), s.GetPolicyName())
		require.GreaterOrEqual(t, s.GetCalls(), int32(filledCalls))
		require.Equal(t, s.GetCalls(), s.GetExecutions())
	}
	_, err = g.clients[0].Session(g.plan.session(fill)).Read(t.Context())
	require.Error(t, err)
}

// The sessions of the callers are among those that there are, each once.
func TestSessionsOfCallersAreSpread(t *testing.T) {
	for _, p := range []Plan{
		{Callers: 256, Sessions: 40, Fill: 1_000_000}, {Callers: 256, Sessions: 40, Fill: 1000}, {Callers: 7, Sessions: 2, Fill: 15}, {Callers: 3, Sessions: 5},
	} {
		p.Scenario, p.Name = Apart, "n"
		require.NoError(t, p.check())
		seen, last := map[int]bool{}, 0
		for caller := range p.Callers {
			for k := range p.Sessions {
				i := p.sessionOf(caller, k)
				require.False(t, seen[i])
				require.Equal(t, caller, p.ownerOf(i))
				seen[i], last = true, i
			}
		}
		if p.Fill > 0 {
			require.Less(t, last, p.Fill)
			require.Greater(t, last, p.Fill/2, "they are not all at the beginning")
		}
	}
}

// Pools of any size are full when every caller has a slot, and nobody waits.
func TestScenarioPools(t *testing.T) {
	g := open(t, startNode(t), Plan{Scenario: Pools, Callers: 12, Slots: 4})
	for caller := range 12 {
		require.NoError(t, g.Step(t.Context(), caller))
	}
	for _, caller := range []int{0, 4, 8} {
		slots, err := g.clients[0].ListSlots(t.Context(), g.plan.poolOf(caller))
		require.NoError(t, err)
		require.EqualValues(t, 4, slots.GetPool().GetInUse())
	}
	_, err := g.Verify(t.Context())
	require.NoError(t, err)
}

// Who finds no slot in a queue waits for one, and gets it.
func TestScenarioQueue(t *testing.T) {
	g := open(t, startNode(t), Plan{Scenario: Queue, Callers: 3, Slots: 1})
	require.NoError(t, g.Step(t.Context(), 0))
	done := make(chan error, 2)
	for caller := range 2 {
		go func() {
			err := g.Step(t.Context(), caller+1)
			g.Settle(t.Context(), caller+1)
			done <- err
		}()
	}
	require.Eventually(t, func() bool {
		slots, err := g.clients[0].ListSlots(t.Context(), g.plan.poolOf(0))
		return err == nil && slots.GetPool().GetWaiting() == 2
	}, 10*time.Second, time.Millisecond)
	g.Settle(t.Context(), 0)
	for range 2 {
		require.NoError(t, <-done)
	}
	a, err := g.Verify(t.Context())
	require.NoError(t, err)
	require.EqualValues(t, 3, a.Attempts)
}
