package bench

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/stretchr/testify/require"

	"example.com/govnode/client"
	"example.com/govnode/internal/server"
	"example.com/govnode/storage"
)

// Runs against govnode itself: they count what they are answered and find what was
// planted.

// startNode runs a node in this process, with the order by mutex.
func startNode(t *testing.T) (address string) {
	t.Helper()
	store := storage.NewMemory(nil)
	s, err := server.New(server.Config{Store: store, Node: "n1", Version: "test"})
	require.NoError(t, err)
	h := httptest.NewUnstartedServer(s.Handler())
	h.Config.Protocols = new(http.Protocols)
	h.Config.Protocols.SetHTTP1(true)
	h.Config.Protocols.SetUnencryptedHTTP2(true)
	h.Start()
	t.Cleanup(func() {
		require.NoError(t, s.Close())
		h.CloseClientConnections()
		h.Close()
		require.NoError(t, store.Close())
	})
	return strings.TrimPrefix(h.URL, "http://")
}

func open(t *testing.T, address string, p Plan) *govnode {
	t.Helper()
	p.Name = strings.ReplaceAll(t.Name(), "/", "-") + p.Scenario
	target, err := NewGovnode(t.Context(), GovnodeConfig{Addresses: []string{address}, Clients: 2}, p)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, target.Close()) })
	return target.(*govnode)
}

// Every scenario runs on a real server, and its ledgers hold.
func TestSmoke(t *testing.T) {
	address := startNode(t)
	for _, scenario := range Scenarios {
		t.Run(scenario, func(t *testing.T) {
			const callers = 100 // one of which crashes in its first call
			g := open(t, address, Plan{Scenario: scenario, Callers: callers, Sessions: 2, Slots: 100})
			for tries := 0; ; tries++ { // the first time may go by with compiling
				run, err := Drive(t.Context(), g, Load{Callers: callers, Duration: 200 * time.Millisecond}, nil)
				require.NoError(t, err)
				require.Zero(t, run.Errors, run.FirstError)
				if run.Ops > 0 {
					break
				}
				require.Less(t, tries, 20, "nothing is answered")
			}
			a, err := g.Verify(t.Context())
			require.NoError(t, err)
			require.Equal(t, 200, a.Sessions)
			require.Equal(t, scenario == Fleet, a.Lapsed > 0, "holders crash in a fleet and only there")
			if scenario != Reads {
				require.Positive(t, a.Attempts)
			}
		})
	}
}

// A call that no caller has in its ledger is found.
func TestPlantedCallIsFound(t *testing.T) {
	g := open(t, startNode(t), Plan{Scenario: Apart, Callers: 3})
	for range 4 {
		for caller := range 3 {
			require.NoError(t, g.Step(t.Context(), caller))
		}
	}
	_, err := g.Verify(t.Context())
	require.NoError(t, err)
	s := g.callers[1].sessions[0]
	call, err := s.Begin(t.Context(), client.Call{Tool: tool})
	require.NoError(t, err)
	require.NoError(t, call.End(t.Context(), client.Succeeded))
	_, err = g.Verify(t.Context())
	require.ErrorContains(t, err, "session of caller 1: attempts: the ledger has 2 (0 more are unknown), the system 3")
}

// The rules of the policy are there: a call that one of them names is refused,
// by each kind of rule.
func TestPolicyHasItsRules(t *testing.T) {
	address := startNode(t)
	for scenario, last := range map[string]string{Apart: "tool_8", PolicyHeavy: "tool_996"} {
		g := open(t, address, Plan{Scenario: scenario, Callers: 1})
		for _, name := range []string{"tool_0", "b_1", "svc_2_read", last} {
			_, err := g.callers[0].sessions[0].Begin(t.Context(), client.Call{Tool: name})
			var refused *client.Refused
			require.ErrorAs(t, err, &refused, scenario+": "+name)
			require.NotEmpty(t, refused.MatchedRule, name)
		}
	}
}

// What a caller takes of two pools is seen in both, and given back.
func TestCallsGoThroughTwoPools(t *testing.T) {
	g := open(t, startNode(t), Plan{Scenario: Apart, Callers: 1})
	require.NoError(t, g.Step(t.Context(), 0))
	require.Len(t, g.callers[0].open.Begun().GetGrants(), 2)
	inUse := func() int32 {
		slots, err := g.clients[0].ListSlots(t.Context(), g.plan.poolOf(0))
		require.NoError(t, err)
		return slots.GetPool().GetInUse()
	}
	require.EqualValues(t, 1, inUse())
	require.NoError(t, g.Step(t.Context(), 0))
	require.Zero(t, inUse())
}

func TestPlanIsChecked(t *testing.T) {
	for field, p := range map[string]Plan{
		"scenario": {Scenario: "x", Name: "n", Callers: 1},
		"name":     {Scenario: Apart, Callers: 1},
		"callers":  {Scenario: Apart, Name: "n"},
		"sessions": {Scenario: Apart, Name: "n", Callers: 16000, Sessions: 1000},
		"slots":    {Scenario: HotPool, Name: "n", Callers: 10, Slots: 9},
		"hold":     {Scenario: Fleet, Name: "n", Callers: 1, Hold: -1},
	} {
		require.ErrorContains(t, p.check(), field+":")
	}
	p := Plan{Scenario: Apart, Name: "n", Callers: 16384}
	require.NoError(t, p.check())
	require.Equal(t, 256, p.Slots, "room for all callers of a policy")
	for _, p := range []Plan{{Scenario: Fleet, Name: "n", Callers: 1}, {Scenario: Apart, Name: "n", Callers: 1, Sessions: 2}} {
		require.Error(t, p.CheckPeer())
	}
}

func TestRedisPeer(t *testing.T) {
	m := miniredis.RunT(t)
	target, err := NewRedis(t.Context(), m.Addr(), Plan{Scenario: HotPool, Name: "n", Callers: 4, Slots: 4})
	require.NoError(t, err)
	r := target.(*redisPeer)
	t.Cleanup(func() { require.NoError(t, r.Close()) })
	run, err := Drive(t.Context(), r, Load{Callers: 4, Duration: 200 * time.Millisecond}, nil)
	require.NoError(t, err)
	require.Positive(t, run.Ops)
	require.Zero(t, run.Errors, run.FirstError)
	a, err := r.Verify(t.Context())
	require.NoError(t, err)
	require.Equal(t, 4, a.Sessions)
	pool := r.callers[0].keys[2]
	require.False(t, m.Exists(pool), "nothing is held any more")

	ask := func(id string) int {
		n, err := redisBegin.EvalSha(context.Background(), r.client, r.callers[0].keys, id, 1, 30000, tool, 1<<40, RememberedIDs).Int()
		require.NoError(t, err)
		return n
	}
	require.Equal(t, 1, ask("x"))
	require.Equal(t, 2, ask("x"), "an id has one effect")
	require.Equal(t, 0, ask("y"), "the limit of the pool holds")
	_, err = r.Verify(t.Context())
	require.ErrorContains(t, err, "session of caller 0: attempts")
}
