package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/hashicorp/raft"
	"github.com/stretchr/testify/require"

	"example.com/govnode/cluster/durable"
	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Whoever removes a voter keeps a majority of those that are left, or is told
// who does not answer. One more voter that answers never costs a majority.
func TestAMajorityIsLeft(t *testing.T) {
	for voters := 2; voters <= 9; voters++ {
		for alive := voters/2 + 1; alive <= voters; alive++ {
			answers := map[string]bool{}
			for i := range voters {
				answers[fmt.Sprint("n", i)] = i < alive
			}
			for i := range voters {
				id := fmt.Sprint("n", i)
				left := alive
				if answers[id] {
					left--
				}
				err := leavesMajority(id, answers)
				require.Equal(t, left >= (voters-1)/2+1, err == nil, "%s of %v", id, answers)
				if err == nil {
					continue
				}
				require.ErrorIs(t, err, storage.ErrInvalid)
				silent, _, _ := strings.Cut(strings.SplitAfter(err.Error(), "no answer comes from ")[1], ";")
				require.True(t, slices.IsSorted(strings.Split(silent, ", ")), silent)
				for who, answered := range answers {
					if who != id {
						require.Equal(t, !answered, strings.Contains(strings.SplitAfter(err.Error(), "no answer comes from")[1], who))
					}
				}
			}
			require.GreaterOrEqual(t, alive+1, (voters+1)/2+1, "a voter more")
		}
	}
}

func TestRemoveNodeKeepsAMajority(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, dead := c.leader(), c.follower()
	live := c.follower(dead)
	require.NoError(t, dead.Close())
	for _, asked := range []*testNode{leader, live} {
		for _, id := range []string{live.cfg.ID, leader.cfg.ID} {
			err := asked.RemoveNode(within(t, 10*time.Second), id, false)
			require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
			require.ErrorIs(t, err, storage.ErrInvalid)
			require.ErrorContains(t, err, "no answer comes from "+dead.cfg.ID+";")
		}
	}
	require.Len(t, roles(t, leader), 3)
	_, _, err := storage.One(t.Context(), live, increment("1"))
	require.NoError(t, err, "the cluster goes on")
	// Who is dead may go, and then the other.
	require.NoError(t, live.RemoveNode(within(t, 10*time.Second), dead.cfg.ID, false))
	require.NoError(t, leader.RemoveNode(within(t, 10*time.Second), live.cfg.ID, false))
	require.Len(t, roles(t, leader), 1)
}

func TestRemoveNodeByForce(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, dead := c.leader(), c.follower()
	live := c.follower(dead)
	require.NoError(t, dead.Close())
	// Two are left, and one is dead. The change itself is committed by those who
	// are to be there: nobody can say that it was.
	err := leader.RemoveNode(within(t, time.Second), live.cfg.ID, true)
	require.NotEqual(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	require.Len(t, roles(t, leader), 2)
}

// A change of members that may still come is not said to have been refused, and
// asking again tells.
func TestMembersOutcomes(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	leader, other := c.leader(), c.follower()
	c.net.isolate(leader.Address(), true)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	err := leader.RemoveNode(ctx, other.cfg.ID, true)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "%v", err)
	c.net.isolate(leader.Address(), false)
	for range 2 {
		require.NoError(t, leader.RemoveNode(within(t, 20*time.Second), other.cfg.ID, false))
		for _, n := range c.nodes {
			if n != other {
				require.Eventually(t, func() bool { _, known := n.member(other.cfg.ID); return !known }, 10*time.Second, time.Millisecond)
			}
		}
	}
	for range 2 {
		require.NoError(t, leader.AddNode(within(t, 20*time.Second), other.cfg.ID, other.Address(), false))
		require.Equal(t, 3, c.leader().voters())
	}
}

// A leader that is cut off does not say that nothing is left to do: another may have
// changed the members since.
func TestWhoIsCutOffConfirmsNoMembers(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	for name, change := range map[string]func(ctx context.Context, leader, other *testNode) error{
		"has its vote": func(ctx context.Context, leader, other *testNode) error {
			return leader.AddNode(ctx, other.cfg.ID, other.Address(), false)
		},
		"is a member": func(ctx context.Context, leader, other *testNode) error {
			return leader.AddNode(ctx, other.cfg.ID, other.Address(), true)
		},
		"is none": func(ctx context.Context, leader, _ *testNode) error { return leader.RemoveNode(ctx, "n9", false) },
		"is what it asks for": func(ctx context.Context, leader, other *testNode) error {
			_, err := leader.admit(ctx, other.joinRequest())
			return err
		},
	} {
		leader, other := c.leader(), c.follower()
		require.NoError(t, change(within(t, 20*time.Second), leader, other), name)
		c.net.isolate(leader.Address(), true)
		ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
		err := change(ctx, leader, other)
		cancel()
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%s: %v", name, err)
		c.net.isolate(leader.Address(), false)
	}
}

// What was never sent was not done; what was sent to a leader that is gone is
// not known.
func TestOutcomesOverTheWire(t *testing.T) {
	t.Parallel()
	var hang atomic.Bool
	c := newCluster(t, 2, func(cfg *Config) {
		dial := cfg.Dial
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if hang.Load() {
				return nil, errors.New("no way")
			}
			return dial(ctx, to)
		}
	})
	leader, f := c.leader(), c.follower()
	cut := leader.Address()
	hang.Store(true)
	c.net.isolate(cut, true) // ends what is open
	if f.raft.State() == raft.Leader {
		leader, f = f, leader // it has come to lead since
	}
	f.peers.Close()
	err := f.RemoveNode(within(t, 300*time.Millisecond), "nobody", false)
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err), "%v", err)
	c.net.isolate(cut, false)
	hang.Store(false)
	c.waitReady()

	gone := listen(t, "127.0.0.1:0") // takes what is sent, and ends
	t.Cleanup(func() { _ = gone.Close() })
	go func() {
		for {
			conn, err := gone.Accept()
			if err != nil {
				return
			}
			_, _ = conn.Read(make([]byte, 1<<10))
			_ = conn.Close()
		}
	}()
	_, err = f.peers.At(gone.Addr().String()).RemoveNode(within(t, 5*time.Second), nil)
	require.Equal(t, storage.Unknown, storage.OutcomeOf(sent(err)), "%v", err)
	other := c.follower().cfg.Address // which does not lead, and says so
	_, err = f.peers.At(other).RemoveNode(within(t, 5*time.Second), nil)
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(sent(err)), "%v", err)
	require.ErrorIs(t, sent(err), errElsewhere)
}

// Whoever waits for another change of members gives up when it has waited long
// enough, and has changed nothing.
func TestChangeOfMembersWaitsItsTurn(t *testing.T) {
	c := newCluster(t, 1, nil)
	n := c.nodes[0]
	n.changing <- struct{}{}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	for _, err := range []error{n.RemoveNode(ctx, "n2", false), n.AddNode(ctx, "n2", "127.0.0.1:1", true)} {
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	}
	<-n.changing
	require.NoError(t, n.RemoveNode(t.Context(), "n2", false))
}

// A node that is removed while it is added stays removed: whoever adds it hears so, and
// does not add it a second time.
func TestRemovedWhileItIsAdded(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	added := make(chan error, 1)
	ctx := within(t, 10*time.Second)
	go func() { added <- leader.AddNode(ctx, "n9", "127.0.0.1:1", false) }()
	isMember := func() bool { _, is := leader.member("n9"); return is }
	require.Eventually(t, isMember, 5*time.Second, 5*time.Millisecond)
	require.NoError(t, leader.RemoveNode(within(t, 5*time.Second), "n9", false))
	err := <-added
	require.ErrorIs(t, err, storage.ErrInvalid)
	require.ErrorContains(t, err, "n9 was removed while it was added")
	require.False(t, isMember())
	require.NoError(t, leader.RemoveNode(within(t, 5*time.Second), "n9", false), "it stands in nobody's way")
}

// Whoever adds a node that does not come gives up when it has waited long enough. The node is a member
// by then, if only without a vote; who was one before has changed nothing.
func TestWhoIsAddedAndDoesNotCome(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	for _, want := range []storage.Outcome{storage.Unknown, storage.NotApplied} {
		ctx, giveUp := context.WithCancel(within(t, 20*time.Second))
		added := make(chan error, 1)
		go func() { added <- leader.AddNode(ctx, "n9", "127.0.0.1:1", false) }()
		require.Eventually(t, func() bool { _, is := leader.member("n9"); return is }, 10*time.Second, time.Millisecond)
		giveUp()
		err := <-added
		require.ErrorIs(t, err, context.Canceled)
		require.Equal(t, want, storage.OutcomeOf(err), "%v", err)
	}
	require.Equal(t, "nonvoter", roles(t, leader)["n9"])
}

// Who was removed while another waited to add it was added by that one.
func TestWhoIsAddedBehindItsRemoval(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n9", "127.0.0.1:1", true))
	leader.changing <- struct{}{}
	timed, giveUp := context.WithCancel(within(t, 20*time.Second))
	ctx := &waiting{timed, make(chan bool, 9)}
	added := make(chan error, 1)
	go func() { added <- leader.addHere(ctx, "n9", "127.0.0.1:1", false) }()
	<-ctx.waits
	require.NoError(t, leader.raft.RemoveServer("n9", 0, time.Second).Error())
	<-leader.changing
	require.Eventually(t, func() bool { _, is := leader.member("n9"); return is }, 10*time.Second, time.Millisecond)
	giveUp()
	err := <-added
	require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "%v", err)
}

// A waiting context tells when somebody waits for it.
type waiting struct {
	context.Context
	waits chan bool
}

func (w *waiting) Done() <-chan struct{} {
	select {
	case w.waits <- true:
	default:
	}
	return w.Context.Done()
}

// A leader that was once sent a snapshot, with changes of members in it of which it has no
// entry, changes members like any other.
func TestMembersAreChangedBehindASnapshot(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, func(cfg *Config) { cfg.SnapshotBytes, cfg.TrailingLogs = 1, 1 })
	late := c.follower()
	c.net.isolate(late.Address(), true)
	leader := c.leader(late)
	require.NoError(t, leader.AddNode(within(t, 20*time.Second), "n9", "127.0.0.1:1", true))
	for i := range 10 {
		_, _, err := storage.One(within(t, 20*time.Second), leader, increment(fmt.Sprint(i)))
		require.NoError(t, err)
	}
	for _, n := range c.nodes {
		if n != late {
			require.Eventually(t, func() bool {
				_ = await(n.raft.Snapshot(), n.dead) // there may be nothing new
				first, err := n.disk.log.FirstIndex()
				return err == nil && first > n.fsm.memberIndex()
			}, 20*time.Second, time.Millisecond)
		}
	}
	c.net.isolate(late.Address(), false)
	require.Eventually(t, func() bool { return counted(late.metrics.restores) > 0 }, 30*time.Second, time.Millisecond)
	late.waitReady(t)
	require.Eventually(t, func() bool {
		return late.Leader() || late.TransferLeadership(within(t, 10*time.Second), late.cfg.ID) == nil && late.Leader()
	}, 30*time.Second, time.Millisecond)
	require.NoError(t, late.RemoveNode(within(t, 5*time.Second), "n9", false))
	require.NotContains(t, roles(t, late), "n9")
}

// A member that says to be where another one is told so, and asks in vain no more.
func TestAMemberAtTheAddressOfAnother(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	n, other := c.follower(), c.leader()
	_, err := c.leader().admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: n.cfg.ID, Address: other.Address(), Self: n.hello().GetSelf()})
	require.ErrorIs(t, err, storage.ErrInvalid)
	require.ErrorContains(t, err, "is that of another member")
	_, err = c.leader().admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: n.cfg.ID, Address: n.Address(), Self: n.hello().GetSelf()})
	require.NoError(t, err, "it may say its own")
}

// A member is there if it answers at its address, under its name, for this cluster, and takes part.
func TestWhoIsThere(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	for name, tt := range map[string]struct {
		change func(*nodev1.HelloResponse)
		there  bool
	}{
		"the member":                 {func(*nodev1.HelloResponse) {}, true},
		"a node of another name":     {func(h *nodev1.HelloResponse) { h.Node = "n3" }, false},
		"a node of another cluster":  {func(h *nodev1.HelloResponse) { h.Cluster = "another" }, false},
		"one that takes no part yet": {func(h *nodev1.HelloResponse) { h.Term = 0 }, false},
	} {
		h := &nodev1.HelloResponse{Cluster: leader.clusterID(), Node: "n2", Term: 1}
		tt.change(h)
		at.says(h)
		require.Equal(t, tt.there, leader.isThere(within(t, 20*time.Second), &raft.Server{ID: "n2", Address: raft.ServerAddress(at.address)}), name)
	}
	at.says(nil)
	require.False(t, leader.isThere(within(t, 20*time.Second), &raft.Server{ID: "n2", Address: raft.ServerAddress(at.address)}), "nobody")
}

// All voters are asked whether they are there, whoever came between them, and nobody else is.
func TestWhoHasAVoteIsAsked(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 1, nil)
	require.NoError(t, c.leader().AddNode(within(t, 10*time.Second), "n9", "127.0.0.1:1", true))
	c.add("n2", nil).waitReady(t)
	require.Eventually(t, func() bool {
		return maps.Equal(map[string]bool{"n1": true, "n2": true}, c.leader().answering(t.Context()))
	}, 10*time.Second, time.Millisecond)
	require.Equal(t, 2, c.leader().voters())
}

// A vote is given to nobody but the member itself, when it has nearly everything.
func TestWhoIsGivenAVote(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	for name, there := range map[string]*nodev1.HelloResponse{
		"nobody is there":            nil,
		"somebody else has all":      {Node: "n3", AppliedIndex: 1 << 40},
		"it knows of no member":      {Node: "n2"},
		"it has not heard of itself": {Node: "n2", AppliedIndex: leader.fsm.memberIndex() - 1},
	} {
		at.says(there)
		done, err := leader.addStep(within(t, 5*time.Second), "n2", at.address, false)
		require.NoError(t, err, name)
		require.False(t, done, name)
		require.Equal(t, "nonvoter", roles(t, leader)["n2"], name)
	}

	n := &Node{fsm: newFSM(noFatal(t), newMetrics())}
	n.fsm.StoreConfiguration(5, raft.Configuration{})
	n.fsm.Apply(logEntry(300, 1, 0, increment("r")))
	require.True(t, n.caughtUp(300))
	require.True(t, n.caughtUp(300-closeEnough))
	require.False(t, n.caughtUp(300-closeEnough-1))
	n.fsm.StoreConfiguration(301, raft.Configuration{})
	require.False(t, n.caughtUp(300), "it does not know yet that it is a member")
	require.True(t, n.caughtUp(301))
}

// Raft looks at a change for as long as its caller waits, within what it may take; and once, where
// its caller waits no longer.
func TestHowLongAChangeIsLookedAt(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		require.Equal(t, enqueueTimeout, left(t.Context()))
		for waits, want := range map[time.Duration]time.Duration{
			-time.Second: time.Millisecond, 3 * time.Second: 3 * time.Second, time.Hour: enqueueTimeout,
		} {
			require.Equal(t, want, left(within(t, waits)))
		}
	})
}

// A change of members is made until it is known what became of it. One that may have been made is
// never said not to have been.
func TestWhatBecomesOfAChangeOfMembers(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	lost, wrong := unknown(errors.New("it was lost")), invalid(errors.New("it is wrong"))
	for name, tt := range map[string]struct {
		attempts []error
		want     storage.Outcome
		says     []string
	}{
		"made":                {[]error{nil}, storage.Applied, nil},
		"refused":             {[]error{wrong}, storage.NotApplied, []string{"it is wrong"}},
		"lost, and made":      {[]error{lost, lost, nil}, storage.Applied, nil},
		"lost, and refused":   {[]error{lost, wrong}, storage.Unknown, []string{"it is wrong", "an earlier attempt: it was lost"}},
		"lost, and given up":  {[]error{lost}, storage.Unknown, []string{"it was lost"}},
		"not here, then made": {[]error{errElsewhere, nil}, storage.Applied, nil},
	} {
		ctx, giveUp := context.WithCancel(within(t, 20*time.Second))
		made := 0
		err := leader.change(ctx, func(context.Context, *leadership) error {
			made++
			if name == "lost, and given up" {
				giveUp()
			}
			return tt.attempts[made-1]
		}, func(context.Context, string) error { return errElsewhere })
		giveUp()
		require.Equal(t, tt.want, storage.OutcomeOf(err), "%s: %v", name, err)
		require.Len(t, tt.attempts, made, name)
		for _, text := range tt.says {
			require.ErrorContains(t, err, text, name)
		}
	}
}

// What a member has told of itself stands while it asks for a vote. Who is made a member while
// others are asked how they are counts from before it is one.
func TestWhoIsAdmittedMeanwhile(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	n := leader.as(t, "n1", leader.Address())
	n.disk = leader.disk
	n.members.note("n2", said{api: "api", logged: 7})
	_, err := n.admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: "n2", Address: at.address, Version: firstVersion})
	require.NoError(t, err)
	s, _ := n.members.of("n2")
	require.Equal(t, said{api: "api", logged: 7, version: firstVersion}, s)

	asked, answer := make(chan bool, 9), make(chan bool)
	at.answers(func(r *nodev1.HelloRequest) (*nodev1.HelloResponse, error) {
		if r.GetSelf() == nil {
			asked <- true
			<-answer
		}
		return &nodev1.HelloResponse{Node: "n2", Version: firstVersion}, nil
	})
	done := make(chan bool)
	go func() {
		n.greetAll()
		close(done)
	}()
	<-asked
	_, err = n.admit(within(t, 10*time.Second), &nodev1.JoinRequest{Node: "n3", Address: "127.0.0.1:1", Nonvoter: true, Version: firstVersion - 1})
	require.NoError(t, err)
	id := &nodev1.Identity{Node: "n3", Incarnation: "a", Run: "r"}
	require.Empty(t, n.roll.meet(id))
	close(answer)
	<-done
	require.True(t, n.roll.latest(id), "who was met meanwhile is remembered")
	require.Equal(t, "n3", n.members.low.Load().node)
}

// Whoever takes the place of a member, and does not hear what became of it, asks again and
// takes it, also where nobody is let in who was not added.
func TestWhoAsksAgainForThePlaceOfAnother(t *testing.T) {
	t.Parallel()
	for name, nonvoter := range map[string]bool{"of a voter": false, "of one without a vote": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var first atomic.Pointer[func()] // what happens when the next change of members is written
			invited := func(cfg *Config) {
				cfg.Invited = true
				cfg.disk = func(s durable.Store) durable.Store {
					return &spy{s, changesOfMembers, func(*raft.Log) {
						if f := first.Swap(nil); f != nil {
							(*f)()
						}
					}}
				}
			}
			c := newCluster(t, 1, invited)
			for _, id := range []string{"n2", "n3"} {
				cfg := c.config(id)
				require.NoError(t, c.leader().AddNode(within(t, 10*time.Second), id, cfg.Address, true))
				invited(&cfg)
				cfg.Nonvoter = nonvoter && id == "n3"
				n, err := c.open(cfg)
				require.NoError(t, err)
				n.waitReady(t)
			}
			gone := c.nodes[2]
			require.NoError(t, gone.Close())
			leader := c.leader(gone)
			ctx, giveUp := context.WithCancel(within(t, 20*time.Second))
			gaveUp := make(chan bool)
			first.Store(new(func() { giveUp(); <-gaveUp }))
			r := &nodev1.JoinRequest{Node: "n3", Address: "127.0.0.1:1", Empty: true, Replace: true, Nonvoter: true}
			_, err := leader.admit(ctx, r)
			close(gaveUp)
			require.Equal(t, storage.Unknown, storage.OutcomeOf(err), "%v", err)
			require.Eventually(t, func() bool {
				done, err := c.leader(gone).admit(within(t, 10*time.Second), r)
				require.NotErrorIs(t, err, storage.ErrInvalid)
				return done && err == nil
			}, 20*time.Second, time.Millisecond)
			s, _ := c.leader(gone).member("n3")
			require.Equal(t, raft.Server{Suffrage: raft.Nonvoter, ID: "n3", Address: "127.0.0.1:1"}, s)
		})
	}
}

// Who is let in, and as what; and what others are told.
func TestWhoIsAdmitted(t *testing.T) {
	t.Parallel()
	leader := newCluster(t, 1, nil).leader()
	at := newStandIn(t, leader)
	const elsewhere, third = "127.0.0.1:1", "127.0.0.1:2"
	require.NoError(t, leader.AddNode(within(t, 10*time.Second), "n2", at.address, true))
	n := leader.as(t, "n0", "127.0.0.1:3") // so that the voter is another one
	require.Empty(t, n.roll.meet(&nodev1.Identity{Node: "n2", Incarnation: "a", Admitted: 5, Run: "r"}))
	former := &nodev1.Identity{Node: "n2", Incarnation: "b", Admitted: 4, Run: "r"}
	before := leader.servers()
	at.says(&nodev1.HelloResponse{Cluster: leader.clusterID(), Node: "n2", Term: 1, Self: &nodev1.Identity{Node: "n2", Run: "r"}})
	for want, r := range map[string]*nodev1.JoinRequest{
		"node: ":                         {Node: "no name", Address: elsewhere},
		"address: ":                      {Node: "n3", Address: "here"},
		"is the name of the leader":      {Node: "n0", Address: elsewhere},
		"was given another data folder":  {Node: "n2", Address: elsewhere, Self: former},
		"the one that asks is empty":     {Node: "n1", Address: leader.Address(), Empty: true},
		"already, at " + at.address:      {Node: "n2", Address: elsewhere, Empty: true},
		"n2 is alive at " + at.address:   {Node: "n2", Address: elsewhere, Empty: true, Replace: true},
		"is that of another member":      {Node: "n2", Address: leader.Address()},
		leader.Address() + " is that of": {Node: "n2", Address: leader.Address(), Empty: true, Replace: true},
	} {
		done, err := n.admit(within(t, 20*time.Second), r)
		require.ErrorIs(t, err, storage.ErrInvalid, want)
		require.ErrorContains(t, err, want)
		require.False(t, done, want)
		require.Equal(t, before, leader.servers(), want)
	}
	at.says(nil)
	for _, tt := range []struct {
		what    string
		request *nodev1.JoinRequest
		done    bool
		at      string
	}{
		{"a voter is one", &nodev1.JoinRequest{Node: "n1", Address: leader.Address()}, true, leader.Address()},
		{"a new folder at the address that was announced", &nodev1.JoinRequest{Node: "n2", Address: at.address, Nonvoter: true, Empty: true, Self: former}, true, at.address},
		{"one that is far behind waits for its vote", &nodev1.JoinRequest{Node: "n2", Address: at.address}, false, at.address},
		{"one that moves is what it was", &nodev1.JoinRequest{Node: "n2", Address: elsewhere, Nonvoter: true}, true, elsewhere},
		{"one in the place of who is dead", &nodev1.JoinRequest{Node: "n2", Address: third, Nonvoter: true, Empty: true, Replace: true}, true, third},
		{"a new one", &nodev1.JoinRequest{Node: "n3", Address: elsewhere, Nonvoter: true, Empty: true, Version: 18}, true, elsewhere},
	} {
		tt.request.Version = cmp.Or(tt.request.GetVersion(), session.Version)
		done, err := n.admit(within(t, 20*time.Second), tt.request)
		require.NoError(t, err, tt.what)
		require.Equal(t, tt.done, done, tt.what)
		s, known := leader.member(tt.request.GetNode())
		require.True(t, known, tt.what)
		require.Equal(t, tt.at, string(s.Address), tt.what)
		require.Equal(t, tt.request.GetNode() == "n1", isVoter(&s), tt.what)
	}
	// Nothing is written that a member does not know, from its first moment to its last.
	require.Equal(t, &lowest{18, "n3", true}, n.members.low.Load())
	require.NoError(t, n.removeHere(within(t, 20*time.Second), "n3", false))
	require.NotEqual(t, "n3", n.members.low.Load().node)
}
