package cluster

import (
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
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
		"a folder of the same place": {id("b", 5, "r2", 500, 9), "was given another data folder"},
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
					require.False(t, r.latest(id(tt.again.Incarnation, 5, "r9", 0, 0)))
					require.False(t, r.latest(&nodev1.Identity{Node: "n2", Run: "r1"}))
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

	r, err = newRoll(nil)
	require.NoError(t, err)
	require.Empty(t, r.meet(id("r1", 60)))
	require.Empty(t, r.meet(id("r2", 0)), "it has applied nothing")
}

// Whom a node meets it writes down at once; how far they have come every 5 s, and at its end. Who is
// no member any more is forgotten.
func TestWhenTheRollIsWrittenDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		id := func(run string) *nodev1.Identity {
			return &nodev1.Identity{Node: "n1", Incarnation: "a", Admitted: 5, Run: run, Term: 1}
		}
		n1 := []raft.Server{{ID: "n1"}}
		r, err := newRoll(nil)
		require.NoError(t, err)
		require.Nil(t, r.due(n1, true), "nobody was met")
		for _, run := range []string{"r1", "r2"} {
			require.Empty(t, r.meet(id(run)))
			require.NotNil(t, r.due(n1, false))
			require.Nil(t, r.due(n1, true))
		}
		r.came(id("r2"), 7, 1)
		time.Sleep(5*time.Second - 1)
		require.Nil(t, r.due(n1, false))
		time.Sleep(time.Nanosecond)
		b := r.due(n1, false)
		require.NotNil(t, b)
		written, err := newRoll(b)
		require.NoError(t, err)
		for _, r := range []*roll{r, written} {
			stood, met := r.stood("n1")
			require.EqualValues(t, 7, stood)
			require.True(t, met)
			_, met = r.stood("n2")
			require.False(t, met)
		}
		r.came(id("r2"), 8, 1)
		require.Nil(t, r.due(n1, false), "it was just written")
		r.due(nil, true)
		_, met := r.stood("n1")
		require.False(t, met)
	})
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
	cfg.Join = []string{cfg.Address, c.nodes[0].Address()}
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
	require.ErrorContains(t, met(own, "other", 1), "copy")
	require.NoError(t, met("another", "other", 1))
}

// What another member says is noted of it if it takes part and speaks for itself. What it says
// against this process ends it.
func TestWhatIsNotedOfAnother(t *testing.T) {
	own := "cluster"
	for name, tt := range map[string]struct {
		change func(*nodev1.HelloResponse)
		noted  bool
	}{
		"a member":                      {func(*nodev1.HelloResponse) {}, true},
		"a node of another cluster":     {func(h *nodev1.HelloResponse) { h.Cluster = "another" }, false},
		"one that takes no part yet":    {func(h *nodev1.HelloResponse) { h.Term = 0 }, false},
		"one that speaks for another":   {func(h *nodev1.HelloResponse) { h.Self.Node = "n3" }, false},
		"one on a folder from before":   {func(h *nodev1.HelloResponse) { h.Self.Incarnation = "b" }, false},
		"one that does not say who":     {func(h *nodev1.HelloResponse) { h.Self = nil }, false},
		"an earlier process of its own": {func(h *nodev1.HelloResponse) { h.Self.Run = "r0" }, true},
	} {
		t.Run(name, func(t *testing.T) {
			n := &Node{cfg: Config{ID: "n1", Dir: "data"}, run: "now"}
			n.cluster.Store(&own)
			var err error
			n.roll, err = newRoll(nil)
			require.NoError(t, err)
			for _, run := range []string{"r0", "r1"} {
				require.Empty(t, n.roll.meet(&nodev1.Identity{Node: "n2", Incarnation: "a", Admitted: 5, Run: run}))
			}
			h := &nodev1.HelloResponse{Cluster: own, Node: "n2", Term: 1, AppliedIndex: 9, Self: &nodev1.Identity{Node: "n2", Incarnation: "a", Admitted: 5, Run: "r1"}}
			tt.change(h)
			require.NoError(t, n.met(h))
			stood, _ := n.roll.stood("n2")
			require.Equal(t, tt.noted, stood == 9, "%d", stood)
			_, met := n.roll.stood("n3")
			require.False(t, met)
			h.Cluster, h.Refusal = own, "go away"
			require.ErrorContains(t, n.met(h), "cluster: Dir: data: go away")
		})
	}
}

// Whoever speaks for a member is a copy of it if another process answers at the member's address
// and takes part; and is asked about once.
func TestWhoSpeaksForAMember(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	run := 0
	speaks := func(there *nodev1.HelloResponse, self string) (copied bool) {
		run++
		id := &nodev1.Identity{Node: "n2", Incarnation: "a", Admitted: 5, Run: fmt.Sprint("r", run), Term: 1}
		if there != nil {
			there.Self = &nodev1.Identity{Node: "n2", Run: self}
			if self == "" {
				there.Self.Run = id.Run
			}
		}
		at.says(there)
		why := leader.judge(t.Context(), id)
		if why == "" { // it is known from now on, whoever is there
			at.says(&nodev1.HelloResponse{Node: "n2", Term: 1, Self: &nodev1.Identity{Node: "n2", Run: "other"}})
			require.Empty(t, leader.judge(t.Context(), id))
		}
		return strings.Contains(why, fmt.Sprintf("n2 is alive at %s, and this data folder is a copy", at.address))
	}
	require.False(t, speaks(nil, ""), "nobody is there")
	require.False(t, speaks(&nodev1.HelloResponse{Node: "n2", Term: 1}, ""), "it is there itself")
	require.False(t, speaks(&nodev1.HelloResponse{Node: "n2"}, "other"), "which has joined nothing")
	require.False(t, speaks(&nodev1.HelloResponse{Node: "n9", Term: 1}, "other"), "somebody else is there")
	require.Eventually(t, func() bool { return speaks(&nodev1.HelloResponse{Node: "n2", Term: 1}, "other") }, 10*time.Second, time.Millisecond)

	own := func(run string) string { return leader.judge(t.Context(), &nodev1.Identity{Node: "n1", Run: run}) }
	require.Empty(t, own(leader.run))
	require.Contains(t, own("other"), "n1 is alive at "+leader.Address())
	require.Empty(t, leader.judge(t.Context(), &nodev1.Identity{Node: "n9", Incarnation: "a", Run: "r"}), "who is no member")
	_, met := leader.roll.stood("n9")
	require.False(t, met, "and is not remembered")
}

// Before it takes part a node asks those that its folder knows, and does not if one of them
// refuses it.
func TestMembersAreAskedBeforeANodeTakesPart(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	at.answers(func(asked *nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
		h := &nodev1.HelloResponse{Cluster: leader.clusterID(), Node: "n2", Term: 1}
		if asked.GetSelf() == nil { // it is not the leader that asks
			h.Refusal = "go away"
		}
		return h, nil
	})
	n := leader.as(t, "n3", "127.0.0.1:1")
	n.disk = &disk{log: leader.disk.log, snapshots: leader.disk.snapshots}
	require.Eventually(t, func() bool {
		err := n.checkIdentity()
		return err != nil && strings.Contains(err.Error(), "go away")
	}, 10*time.Second, time.Millisecond)
	n.disk.empty = true
	require.NoError(t, n.checkIdentity(), "an empty folder knows nobody")
}

// The members that a folder knows are those of the latest change that it has an entry or a snapshot
// of, and its log goes as far as both.
func TestWhatAFolderKnows(t *testing.T) { onEachStore(t, testWhatAFolderKnows) }

func testWhatAFolderKnows(t *testing.T, use func(*Config)) {
	configuration := func(id string) raft.Configuration {
		return raft.Configuration{Servers: []raft.Server{{ID: raft.ServerID(id), Address: "127.0.0.1:1"}}}
	}
	for name, tt := range map[string]struct {
		first, last uint64 // entry; 0: there is none
		changes     map[uint64]string
		snapshot    uint64
		of          string
		want        string
		goes        uint64
	}{
		"nothing":                                {},
		"the first entry":                        {first: 1, last: 3, changes: map[uint64]string{1: "a"}, want: "a", goes: 3},
		"the latest of two changes":              {first: 1, last: 9, changes: map[uint64]string{1: "a", 4: "b"}, want: "b", goes: 9},
		"the last entry":                         {first: 1, last: 4, changes: map[uint64]string{1: "a", 4: "b"}, want: "b", goes: 4},
		"a snapshot alone":                       {snapshot: 7, of: "s", want: "s", goes: 7},
		"a snapshot behind the log":              {first: 1, last: 3, changes: map[uint64]string{1: "a"}, snapshot: 7, of: "s", want: "s", goes: 7},
		"a snapshot behind a change":             {first: 3, last: 9, changes: map[uint64]string{4: "a"}, snapshot: 5, of: "s", want: "s", goes: 9},
		"a snapshot right behind a change":       {first: 3, last: 9, changes: map[uint64]string{5: "a"}, snapshot: 5, of: "s", want: "s", goes: 9},
		"a change behind a snapshot":             {first: 3, last: 9, changes: map[uint64]string{4: "a", 6: "b"}, snapshot: 5, of: "s", want: "b", goes: 9},
		"a change behind a snapshot without log": {first: 6, last: 9, changes: map[uint64]string{7: "b"}, snapshot: 5, of: "s", want: "b", goes: 9},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := Config{ID: "n1", Dir: tempDir(t), BindAddr: "127.0.0.1:0", Logger: testLogger(), Fatal: noFatal(t), segment: 16 << 10}
			use(&cfg)
			cfg, err := cfg.withDefaults()
			require.NoError(t, err)
			d, err := openDisk(&cfg, newMetrics())
			require.NoError(t, err)
			defer func() { require.NoError(t, d.log.Close()) }()
			for i := tt.first; i > 0 && i <= tt.last; i++ {
				l := logEntry(i, 1, 0, increment("r"))
				if id, changes := tt.changes[i]; changes {
					l = &raft.Log{Index: i, Term: 1, Type: raft.LogConfiguration, Data: raft.EncodeConfiguration(configuration(id))}
				}
				require.NoError(t, d.log.StoreLog(l))
			}
			if tt.snapshot > 0 {
				_, transport := raft.NewInmemTransport("127.0.0.1:1")
				sink, err := d.snapshots.Create(raft.SnapshotVersionMax, tt.snapshot, 1, configuration(tt.of), tt.snapshot, transport)
				require.NoError(t, err)
				require.NoError(t, sink.Close())
			}
			servers, err := d.servers()
			require.NoError(t, err)
			want := configuration(tt.want).Servers
			if tt.want == "" {
				want = nil
			}
			require.Equal(t, want, servers)
			last, err := d.last()
			require.NoError(t, err)
			require.Equal(t, tt.goes, last)
		})
	}
}

// A node knows who has to be at the address of a member, unless it is on its way in or was removed:
// then the addresses may be those of others by now. One that has not started knows nobody.
func TestWhoIsMeantByAnAddress(t *testing.T) {
	leader := newCluster(t, 1, nil).leader()
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", "127.0.0.1:1", true))
	n := leader.as(t, "n1", leader.Address())
	for _, lost := range []*atomic.Bool{&n.joining, &n.expelled} {
		require.Equal(t, "n2", n.meant("127.0.0.1:1"))
		require.Equal(t, "n1", n.meant(leader.Address()))
		require.Empty(t, n.meant("127.0.0.1:2"))
		lost.Store(true)
		require.Empty(t, n.meant("127.0.0.1:1"))
		require.Equal(t, "n2", n.nameAt("127.0.0.1:1"))
		lost.Store(false)
	}
	require.Empty(t, new(Node).nameAt("127.0.0.1:1"))
	require.False(t, new(Node).strange("n2"))
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
