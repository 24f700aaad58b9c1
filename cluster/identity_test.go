package cluster

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/storage"
)

// Who is met again is the member if nothing says otherwise, also after what was
// written down was read again.
func TestRoll(t *testing.T) {
	id := func(incarnation string, admitted uint64, run string, last, term uint64) *nodev1.Identity {
		return &nodev1.Identity{Node: "n1", Incarnation: incarnation, Admitted: admitted, Run: run, LastIndex: last, Term: term}
	}
	for name, tt := range map[string]struct {
		again *nodev1.Identity
		want  string // in the refusal; empty: none
	}{
		"the same process":           {id("a", 5, "r1", 10, 2), ""},
		"a later one":                {id("a", 5, "r2", 100, 3), ""},
		"it has more":                {id("a", 5, "r2", 101, 4), ""},
		"its log ends earlier":       {id("a", 5, "r2", 99, 3), "old copy"},
		"its term ends earlier":      {id("a", 5, "r2", 100, 2), "old copy"},
		"a folder from before":       {id("b", 4, "r2", 500, 9), "was given another data folder"},
		"a folder that was replaced": {id("b", 6, "r2", 0, 0), ""},
	} {
		for _, written := range []bool{false, true} {
			t.Run(fmt.Sprint(name, written), func(t *testing.T) {
				r, err := newRoll(nil)
				require.NoError(t, err)
				require.Empty(t, r.meet(id("a", 5, "r1", 10, 2)))
				r.came(id("a", 5, "r1", 10, 2), 100, 3)
				r.came(id("b", 5, "r1", 10, 2), 1000, 30)
				r.came(id("a", 5, "r9", 10, 2), 1000, 30)
				if written {
					b := r.due([]raft.Server{{ID: "n1"}}, true)
					r, err = newRoll(b)
					require.NoError(t, err)
					require.Nil(t, r.due([]raft.Server{{ID: "n1"}}, true), "nothing is new")
				}
				why := r.meet(tt.again)
				require.Equal(t, tt.want != "", r.shuns("n1"))
				if tt.want == "" {
					require.Empty(t, why)
					require.True(t, r.latest(tt.again) || tt.again.Run == "r1")
					return
				}
				require.Contains(t, why, tt.want)
				require.Contains(t, why, "--replace")
				require.Empty(t, r.meet(id("c", 7, "r3", 0, 0)), "it comes back with a folder of its own")
				require.False(t, r.shuns("n1"))
			})
		}
	}
}

// The end of a log that was never committed may go: who is met for the first time is held to
// what it says to have applied, and not to what its log had at its start.
func TestRollForgivesWhatWasNotCommitted(t *testing.T) {
	id := func(run string, last uint64) *nodev1.Identity {
		return &nodev1.Identity{Node: "n1", Incarnation: "a", Admitted: 5, Run: run, LastIndex: last, Term: 3}
	}
	r, err := newRoll(nil)
	require.NoError(t, err)
	require.Empty(t, r.meet(id("r1", 60)))
	r.came(id("r1", 60), 50, 3)
	require.Empty(t, r.meet(id("r2", 52)))
	require.Contains(t, r.meet(id("r3", 49)), "old copy")
}

// How far a member has come is kept as soon as either of the two has risen: one
// that has voted in a term and applied nothing in it must not vote there again.
func TestRollKeepsWhatRoseAlone(t *testing.T) {
	id := func(run string, last, term uint64) *nodev1.Identity {
		return &nodev1.Identity{Node: "n1", Incarnation: "a", Admitted: 5, Run: run, LastIndex: last, Term: term}
	}
	for name, tt := range map[string]struct{ applied, term uint64 }{
		"what it has applied":  {101, 3},
		"its term":             {100, 4},
		"its term, and behind": {99, 4},
	} {
		t.Run(name, func(t *testing.T) {
			r, err := newRoll(nil)
			require.NoError(t, err)
			require.Empty(t, r.meet(id("r1", 100, 3)))
			r.came(id("r1", 100, 3), 100, 3)
			n1 := []raft.Server{{ID: "n1"}}
			require.NotNil(t, r.due(n1, true))
			r.came(id("r1", 100, 3), 100, 3)
			require.Nil(t, r.due(n1, true), "nothing has risen")
			r.came(id("r1", 100, 3), tt.applied, tt.term)
			b := r.due(n1, true)
			require.NotNil(t, b, "it is written down")
			r, err = newRoll(b)
			require.NoError(t, err)
			require.Contains(t, r.meet(id("r2", 100, 3)), "old copy")
			require.Empty(t, r.meet(id("r3", max(tt.applied, 100), tt.term)))
		})
	}
}

func copyDir(t *testing.T, dir string) string {
	t.Helper()
	to := tempDir(t)
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	return to
}

// stops returns why a node that is opened on a configuration does not go on.
func (c *testCluster) stops(cfg Config) error {
	c.t.Helper()
	n, err := c.open(cfg)
	if err != nil {
		return err
	}
	select {
	case err = <-n.fatal:
	case <-time.After(15 * time.Second):
		c.t.Fatal("it goes on")
	}
	_ = n.Close() // it has failed
	c.forget(n)
	return err
}

// A copy of the folder of a member that is alive, under its name, is told so and
// stops; the member goes on.
func TestAClone(t *testing.T) {
	for _, size := range []int{1, 3} {
		for _, where := range []string{"elsewhere", "elsewhere and asks to join", "at the same address"} {
			t.Run(fmt.Sprint(where, size), func(t *testing.T) {
				t.Parallel()
				c := newCluster(t, size, nil)
				n := c.nodes[0]
				_, _, err := storage.One(t.Context(), n, increment("1"))
				require.NoError(t, err)
				require.NoError(t, n.Close())
				dir := copyDir(t, n.cfg.Dir)
				n = c.restart(n)
				c.waitReady()
				cfg := c.config(n.cfg.ID)
				cfg.Dir, cfg.Bootstrap = dir, false
				switch where {
				case "elsewhere":
					cfg.Join = nil
				case "at the same address":
					cfg.Address, cfg.Join = n.cfg.Address, nil
				}
				require.ErrorContains(t, c.stops(cfg), fmt.Sprintf("node n1 is alive at %s, and this data folder is a copy", n.cfg.Address))
				n.waitReady(t)
				_, _, err = storage.One(t.Context(), n, increment("2"))
				require.NoError(t, err)
				require.EqualValues(t, 2, count(t, n, storage.Latest))
				require.Empty(t, n.fatal)
			})
		}
	}
}

// A member whose folder is an older copy of itself has forgotten what it had
// acknowledged: it does not take part, whoever is there first.
func TestAnOldCopy(t *testing.T) { onEachStore(t, testAnOldCopy) }

func testAnOldCopy(t *testing.T, use func(*Config)) {
	for _, first := range []string{"others are there", "it is there first"} {
		t.Run(first, func(t *testing.T) {
			c := newCluster(t, 3, use)
			old := c.follower()
			require.NoError(t, old.Close())
			dir := copyDir(t, old.cfg.Dir)
			old = c.restart(old)
			c.waitReady()
			for i := range 5 {
				_, _, err := storage.One(t.Context(), old, increment(fmt.Sprint(i)))
				require.NoError(t, err)
			}
			has := old.fsm.applied()
			var others []*testNode
			for _, n := range c.nodes {
				if n != old {
					others = append(others, n)
					require.Eventually(t, func() bool {
						n.roll.mu.Lock()
						defer n.roll.mu.Unlock()
						return n.roll.members[old.cfg.ID].GetLatest().GetLastIndex() >= has
					}, 10*time.Second, 5*time.Millisecond)
				}
			}
			require.NoError(t, old.Close())
			c.forget(old)
			cfg := old.cfg
			cfg.Dir = dir
			if first == "others are there" {
				cfg.Listener = listen(t, cfg.Address)
				err := c.stops(cfg)
				require.ErrorContains(t, err, "old copy of that of node "+old.cfg.ID)
				require.ErrorContains(t, err, "--replace")
			} else {
				for _, n := range others {
					require.NoError(t, n.Close())
				}
				cfg.Listener = listen(t, cfg.Address)
				back, err := c.open(cfg)
				require.NoError(t, err, "nobody can tell it")
				for _, n := range others {
					c.restart(n)
				}
				select {
				case err = <-back.fatal:
				case <-time.After(15 * time.Second):
					t.Fatal("it goes on")
				}
				require.ErrorContains(t, err, "old copy")
				_ = back.Close() // it has failed
				c.forget(back)
			}
			require.EqualValues(t, 5, count(t, c.leader(), storage.Latest))
			// What it says helps.
			cfg = c.config(old.cfg.ID)
			use(&cfg)
			cfg.Bootstrap, cfg.Replace = false, true
			n, err := c.open(cfg)
			require.NoError(t, err)
			n.waitReady(t)
			require.EqualValues(t, 5, count(t, n, storage.Latest))
			// The folder that was replaced does not come back either.
			require.NoError(t, n.Close())
			c.forget(n)
			again := old.cfg
			again.Listener = listen(t, again.Address)
			require.ErrorContains(t, c.stops(again), "was given another data folder")
		})
	}
}

// A first node that lost its folder founds a second cluster if nobody tells it
// not to: the members of the first do.
func TestASecondClusterIsNotFounded(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	first := c.nodes[0]
	_, _, err := storage.One(t.Context(), first, increment("1"))
	require.NoError(t, err)
	require.NoError(t, first.Close())
	c.forget(first)
	c.leader()
	cfg := first.cfg
	cfg.Dir, cfg.Listener = tempDir(t), listen(t, cfg.Address)
	require.Empty(t, cfg.Join)
	err = c.stops(cfg)
	require.ErrorContains(t, err, "takes this node for its member n1")
	require.ErrorContains(t, err, "--replace")
	require.EqualValues(t, 1, count(t, c.leader(), storage.Latest))
	require.Empty(t, c.nodes[0].fatal)

	cfg.Dir, cfg.Listener, cfg.BootstrapWait = tempDir(t), listen(t, cfg.Address), time.Minute
	_, err = c.open(cfg)
	require.ErrorContains(t, err, "takes this node for its member n1", "before it has taken part")

	cfg.Dir, cfg.Listener, cfg.BootstrapWait = tempDir(t), listen(t, cfg.Address), 0
	cfg.Join = []string{c.nodes[0].Address()}
	_, err = c.open(cfg)
	require.ErrorContains(t, err, "belongs to a cluster already")
	cfg.Listener = listen(t, cfg.Address)
	cfg.Bootstrap, cfg.Replace = false, true
	n, err := c.open(cfg)
	require.NoError(t, err)
	n.waitReady(t)
	require.EqualValues(t, 1, count(t, n, storage.Latest))
}

// A node that meets its own name is met by itself, or by a copy that has come as far as to
// have a term; another cluster is none of its business.
func TestWhoIsMetUnderOnesOwnName(t *testing.T) {
	own := "cluster"
	n := &Node{cfg: Config{ID: "n1", Dir: "data"}, run: "now"}
	n.cluster.Store(&own)
	met := func(cluster, run string, term uint64) error {
		return n.met(&nodev1.HelloResponse{Cluster: cluster, Node: "n1", Term: term, Address: "there", Self: &nodev1.Identity{Node: "n1", Run: run}})
	}
	require.NoError(t, met(own, "now", 0))
	require.NoError(t, met(own, "now", 5), "itself")
	require.NoError(t, met(own, "other", 0), "which has joined nothing")
	require.ErrorContains(t, met(own, "other", 5), "copy")
	require.NoError(t, met("another", "other", 5))
}

// A word of an earlier process of a member may come late, behind the first of the next one.
func TestRollKnowsEarlierProcesses(t *testing.T) {
	r, err := newRoll(nil)
	require.NoError(t, err)
	id := func(run int, last uint64) *nodev1.Identity {
		return &nodev1.Identity{Node: "n1", Incarnation: "a", Admitted: 5, Run: fmt.Sprint("r", run), LastIndex: last, Term: 2}
	}
	for run := range 10 {
		require.Empty(t, r.meet(id(run, uint64(10*run))))
		r.came(id(run, uint64(10*run)), uint64(10*run+10), 2)
		for earlier := max(0, run-runsKnown+1); earlier <= run; earlier++ {
			require.Empty(t, r.meet(id(earlier, uint64(10*earlier))), "%d of %d", earlier, run)
		}
		require.True(t, r.latest(id(run, 0)))
	}
	require.Contains(t, r.meet(id(0, 0)), "old copy", "it is so long ago that it is not known any more")
	require.Equal(t, "It", capital("it"))
}
