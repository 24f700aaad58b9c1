package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"runtime/pprof"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	nodev1 "example.com/govnode/proto/govnode/node/v1"
	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// stuck is a cluster of three whose leader has taken a command that a follower
// forwarded, and cannot store it.
type stuck struct {
	*testCluster
	leader, follower *testNode
	open             func()
	answer           chan storage.Answer
}

func newStuck(t *testing.T, cmd session.Command) *stuck {
	var disks gates
	s := &stuck{testCluster: newCluster(t, 3, disks.use), answer: make(chan storage.Answer, 1)}
	s.leader, s.follower = s.testCluster.leader(), s.testCluster.follower()
	s.open = disks.of(s.leader).shut()
	t.Cleanup(s.open)
	go func() { s.answer <- s.follower.Apply(within(t, 10*time.Second), cmd)[0] }()
	require.Eventually(t, func() bool {
		l := s.leader.leading.Load()
		return l != nil && l.queue.underWay() > 0 && disks.of(s.leader).held.Load() > 0 && s.follower.forwarded() == 1
	}, 5*time.Second, time.Millisecond)
	return s
}

// forwarded returns how many batches have no answer.
func (n *Node) forwarded() int {
	n.mu.Lock()
	f := n.forward
	n.mu.Unlock()
	if f == nil {
		return 0
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	return len(f.sent)
}

func TestWhatMayHaveBeenAppliedIsSentAgainWithItsID(t *testing.T) {
	t.Parallel()
	s := newStuck(t, increment("r"))
	s.net.isolate(s.leader.Address(), true)
	a := <-s.answer
	require.NoError(t, a.Err)
	require.EqualValues(t, 1_000_000, a.Result.Value)
	require.True(t, a.Again)
	s.net.isolate(s.leader.Address(), false)
	s.open()
	s.leader.waitReady(t)
	for _, n := range s.nodes {
		require.EqualValues(t, 1, count(t, n, storage.Latest), "its effect is one")
	}
}

// Where the command cannot be sent again, since its node finds no leader any more,
// nobody is told that it was not applied: the first leader may have it.
func TestWhatMayHaveBeenAppliedIsUnknownWithoutALeader(t *testing.T) {
	t.Parallel()
	s := newStuck(t, increment("r"))
	s.net.isolate(s.follower.Address(), true)
	a := <-s.answer
	require.Equal(t, storage.Unknown, a.Outcome, "%v", a.Err)
}

// Whoever asked for it learns later what became of it, since his node applies it too.
func TestWhatMayHaveBeenAppliedIsLearned(t *testing.T) {
	t.Parallel()
	cmd := increment("r")
	cmd.Authorize(&session.Authority{Behalf: true, Audited: session.Digest{1}})
	s := newStuck(t, cmd)
	s.follower.Settled().Keep()
	s.net.isolate(s.follower.Address(), true)
	a := <-s.answer
	require.Equal(t, storage.Unknown, a.Outcome, "%v", a.Err)
	told := make(chan storage.Answer, 1)
	require.Empty(t, s.follower.Settled().Find(session.Digest{1}, 0, func(a storage.Answer) { told <- a }))
	s.open()
	s.net.isolate(s.follower.Address(), false)
	select {
	case a = <-told:
	case <-time.After(30 * time.Second):
		t.Fatal("it was not told")
	}
	require.EqualValues(t, 1, a.Result.Chain.N)
	require.Equal(t, (*session.Chain)(nil).Next(0, session.Done, session.Digest{1}), a.Result.Chain)
	require.Len(t, s.follower.Settled().Find(session.Digest{1}, 0, nil), 1)
}

func TestWithoutAnIDNothingIsSentTwice(t *testing.T) {
	t.Parallel()
	s := newStuck(t, increment(""))
	s.net.isolate(s.leader.Address(), true)
	a := <-s.answer
	require.Equal(t, storage.Unknown, a.Outcome)
	next := s.testCluster.leader(s.leader)
	require.Zero(t, count(t, next, storage.Latest), "the next leader was not given it")
	s.net.isolate(s.leader.Address(), false)
	s.open()
	s.leader.waitReady(t)
	require.LessOrEqual(t, count(t, next, storage.Latest), int64(1))
}

// Commands without an id are sent to the next leader as well, as long as it is
// certain that the last one did not take them.
func TestWhatWasNotAppliedIsSentElsewhere(t *testing.T) {
	c := newCluster(t, 3, nil)
	follower := c.follower()
	stop := make(chan struct{})
	var changes sync.WaitGroup
	changes.Go(func() {
		for {
			select {
			case <-stop:
				return
			case <-time.After(100 * time.Millisecond):
				// Often there is none, or a transfer is under way.
				_ = follower.TransferLeadership(within(t, time.Second), "")
			}
		}
	})
	const commands = 20
	unknown := 0
	for range commands {
		_, _, err := storage.One(within(t, 10*time.Second), follower, increment(""))
		if err != nil {
			require.Equal(t, storage.Unknown, storage.OutcomeOf(err))
			unknown++
		}
	}
	close(stop)
	changes.Wait()
	n := count(t, c.leader(), storage.Latest)
	require.GreaterOrEqual(t, n, int64(commands-unknown))
	require.LessOrEqual(t, n, int64(commands))
}

// A leader that is cut off answers no read of the latest state, though it may
// still think that it leads.
func TestAnIsolatedLeaderReadsNothing(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	old := c.leader()
	_, _, err := storage.One(t.Context(), old, increment("before"))
	require.NoError(t, err)
	c.net.isolate(old.Address(), true)
	for old.Leader() { // as long as it does
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		_, err := old.Get(ctx, session.CounterKey("default", "k"), storage.Latest)
		cancel()
		require.ErrorAs(t, err, new(*storage.ReadError))
	}
	next := c.leader(old)
	_, _, err = storage.One(t.Context(), next, increment("after"))
	require.NoError(t, err)
	_, err = old.Get(within(t, 300*time.Millisecond), session.CounterKey("default", "k"), storage.Latest)
	require.ErrorAs(t, err, new(*storage.ReadError))
	require.Error(t, old.Ready(t.Context()))
	require.EqualValues(t, 1, count(t, old, storage.Nearby), "nearby reads are what they say")
	_, _, err = storage.One(within(t, 300*time.Millisecond), old, increment("lost"))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorContains(t, err, "no leader is known")

	c.net.isolate(old.Address(), false)
	old.waitReady(t)
	require.EqualValues(t, 2, count(t, old, storage.Latest))
}

// A proof of leadership is only for those who asked before its round began, and
// one round serves all who wait.
func TestRounds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var r rounds
		asked := make(chan chan error)
		ask := func() error {
			answer := make(chan error)
			asked <- answer
			return <-answer
		}
		done := make(chan error, 10)
		confirm := func(ctx context.Context) { done <- r.confirm(ctx, ask) }
		go confirm(t.Context())
		first := <-asked
		for range 5 {
			go confirm(t.Context())
		}
		ctx, cancel := context.WithCancel(t.Context())
		go confirm(ctx)
		synctest.Wait()
		cancel()
		require.ErrorIs(t, <-done, context.Canceled, "nobody has to wait for a round")
		first <- nil
		require.NoError(t, <-done)
		second := <-asked
		require.Empty(t, done, "the first round began before they asked")
		second <- errDeposed
		for range 5 {
			require.ErrorIs(t, <-done, errDeposed)
		}
		synctest.Wait()
		require.False(t, r.running)
	})
}

func TestLargeCommandsAreForwarded(t *testing.T) {
	c := newCluster(t, 3, nil)
	f := c.follower()
	tree := bytes.Repeat([]byte("x"), session.MaxTree)
	r, _, err := storage.One(within(t, 10*time.Second), f, &session.PutPolicy{NS: "n", By: session.Maker{Client: "c", Request: "r"}, Name: "p", Digest: session.Digest{1}, Tree: tree,
		Limits: session.Limits{MaxAttempts: 1, MaxConcurrent: 1, MaxTokens: 1, MaxToolCalls: 1, Timeout: time.Minute}})
	require.NoError(t, err)
	require.EqualValues(t, 1, r.Value)
	found, err := f.Get(t.Context(), session.PolicyKey("n", session.Digest{1}), storage.Latest)
	require.NoError(t, err)
	require.Equal(t, tree, found.Record.(*session.Policy).Tree)
}

// What cannot be decoded is answered alone, also when a node of another build
// sends it. What was damaged on its way is no fault of its caller.
func TestRubbishInABatch(t *testing.T) {
	c := newCluster(t, 2, nil)
	f, l := c.follower(), c.leader()
	bad := increment("bad")
	damaged := session.EncodeCommand(increment("damaged"))
	damaged[len(damaged)/2] ^= 1
	g := newGroup([]pending{
		{raw: session.EncodeCommand(increment("one")), until: time.Now().Add(time.Minute)},
		{raw: damaged, until: time.Now().Add(time.Minute)},
		{raw: nil, until: time.Now().Add(time.Minute)},
		{raw: session.EncodeCommand(&session.Increment{NS: bad.NS, By: bad.By}), until: time.Now().Add(time.Minute)},
		{raw: session.EncodeCommand(increment("late")), until: time.Now().Add(-time.Minute)},
		{raw: session.EncodeCommand(increment("two")), until: time.Now().Add(time.Minute)},
	})
	require.NoError(t, f.forwardTo(l.Address()).queue.add(g))
	<-g.done
	for i, a := range g.answers {
		applied := i == 0 || i == 5
		require.Equal(t, applied, a.Outcome == storage.Applied, fmt.Sprint(i))
		if !applied {
			require.Equal(t, storage.NotApplied, a.Outcome)
			require.Equal(t, i == 3, errors.Is(a.Err, storage.ErrInvalid), "%d: %v", i, a.Err)
		}
	}
	require.Equal(t, storage.NotApplied, g.answers[4].Outcome, "its caller is gone")
	require.EqualValues(t, 2, count(t, f, storage.Latest))
}

// Answers that are missing are not made up from those of others.
func TestAnswersThatALeaderLeftOut(t *testing.T) {
	n := newTestForwarder()
	groups := []*group{sized(1, 1), sized(1), sized(1)}
	n.underWay(1, groups)
	n.answer(&nodev1.ForwardResponse{Batch: 1, Answers: []*nodev1.ForwardAnswer{writeAnswer(new(storage.Done(session.Result{}, 7)))}})
	var outcomes []storage.Outcome
	for _, g := range groups {
		<-g.done
		for _, a := range g.answers {
			outcomes = append(outcomes, a.Outcome)
		}
	}
	require.Equal(t, []storage.Outcome{storage.Applied, storage.Unknown, storage.Unknown, storage.Unknown}, outcomes)
	require.Zero(t, n.queue.underWay())
	require.Empty(t, n.sent)
}

// A batch that did not leave was not applied, and says nothing of those that are under way.
func TestWhatDidNotLeaveIsThatBatchAlone(t *testing.T) {
	n := newTestForwarder()
	left, stayed := sized(1), sized(1)
	n.underWay(1, []*group{left})
	n.underWay(2, []*group{stayed})
	n.unsent(2, errors.New("the stream broke"))
	<-stayed.done
	require.Equal(t, storage.NotApplied, stayed.answers[0].Outcome)
	select {
	case <-left.done:
		t.Fatalf("the other batch has an answer: %v", left.answers)
	default:
	}
	n.end(errors.New("the stream broke"))
	<-left.done
	require.Equal(t, storage.Unknown, left.answers[0].Outcome)
}

func newTestForwarder() *forwarder {
	return &forwarder{queue: newQueue(10, entrySize), sent: make(map[uint64]*sentBatch)}
}

// underWay lets groups be under way as a batch.
func (f *forwarder) underWay(batch uint64, groups []*group) {
	if len(groups) == 0 {
		groups = []*group{newGroup(nil)}
	}
	for _, g := range groups {
		if err := f.queue.add(g); err != nil {
			panic(err)
		}
	}
	groups = f.queue.take(context.Background())
	f.sent[batch] = &sentBatch{groups: groups, open: groups}
}

// Whoever looked for the leader before there was another one does not end the
// stream to that: what is under way on it would have no answer.
func TestTheStreamToTheNextLeaderIsNotGivenUp(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 3, nil)
	former, follower := c.leader(), c.follower()
	next := c.follower(follower)
	require.NoError(t, former.TransferLeadership(within(t, 10*time.Second), next.cfg.ID))
	require.Eventually(t, func() bool {
		leader, _ := follower.raft.LeaderWithID()
		return string(leader) == next.Address()
	}, 10*time.Second, time.Millisecond)
	stream := follower.forwardTo(next.Address())
	require.Same(t, stream, follower.forwardTo(former.Address()))
	require.NoError(t, stream.ctx.Err())
}

// forwarding returns a node that does not lead, with its stream to the leader.
func forwarding(t *testing.T) (*testNode, *forwarder) {
	f := newCluster(t, 3, nil).follower()
	_, _, err := storage.One(within(t, 10*time.Second), f, increment("first"))
	require.NoError(t, err)
	f.Node.mu.Lock()
	defer f.Node.mu.Unlock()
	require.NotNil(t, f.Node.forward)
	return f, f.Node.forward
}

// streams returns how many streams the leaders of this process serve.
func streams() int {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 2) // into memory
	return strings.Count(b.String(), "cluster.(*service).Forward(")
}

// A stream that is given up ends, on both nodes.
func TestAStreamEndsWithItsForwarder(t *testing.T) {
	_, stream := forwarding(t)
	before := streams()
	stream.cancel()
	require.Eventually(t, func() bool { return errors.Is(stream.queue.add(sized(1)), errElsewhere) && streams() < before },
		10*time.Second, time.Millisecond)
}

// What waits on a stream, or was taken and numbered and not sent, when the
// stream is given up was not applied, and is sent elsewhere.
func TestWhatWasNotSentIsNotLost(t *testing.T) {
	f, stream := forwarding(t)
	waiting := func(request string) *group {
		return newGroup([]pending{{raw: session.EncodeCommand(increment(request)), until: time.Now().Add(time.Minute)}})
	}
	taken, waits := waiting("taken"), waiting("waits")
	stream.mu.Lock() // the sender stops before it numbers what it took
	require.NoError(t, stream.queue.add(taken))
	require.Eventually(t, func() bool { return taken.state.Load() == groupTaken }, 10*time.Second, time.Millisecond)
	require.NoError(t, stream.queue.add(waits))
	stream.cancel()
	stream.mu.Unlock()
	for _, g := range []*group{taken, waits} {
		select {
		case <-g.done:
		case <-time.After(10 * time.Second):
			t.Fatal("nobody answers it")
		}
		require.Equal(t, storage.NotApplied, g.answers[0].Outcome)
		require.ErrorIs(t, g.answers[0].Err, errElsewhere)
	}
	require.EqualValues(t, 1, count(t, f, storage.Latest))
	_, _, err := storage.One(within(t, 10*time.Second), f, increment("next"))
	require.NoError(t, err, "and the node has another stream")
}

// A follower that asks and never reads the answers keeps nobody else waiting,
// and its stream ends when it gives up.
func TestAFollowerThatDoesNotRead(t *testing.T) {
	f, _ := forwarding(t)
	leader, _ := f.raft.LeaderWithID()
	ctx, cancel := context.WithCancel(t.Context())
	stream, err := f.peers.At(string(leader)).Forward(ctx)
	require.NoError(t, err)
	context.AfterFunc(ctx, func() { _ = stream.CloseRequest() })
	before := streams()
	require.NoError(t, stream.Send(&nodev1.ForwardRequest{}))
	sent := make(chan int)
	go func() {
		// Each has an answer of 500 KB, and the stream has room for 4 MiB.
		bad := make([]*nodev1.ForwardedCommand, 5000)
		for i := range bad {
			bad[i] = &nodev1.ForwardedCommand{Command: []byte("bad")}
		}
		n := 0
		for stream.Send(&nodev1.ForwardRequest{Batch: 1, Commands: bad}) == nil {
			n++
		}
		sent <- n
	}()
	require.Eventually(t, func() bool { return blockedInSend() > 0 && goroutines("writeRequestBody", "awaitFlowControl") > 0 },
		10*time.Second, time.Millisecond, "neither answers nor batches have any room left")
	for i := range 50 {
		_, _, err := storage.One(within(t, 10*time.Second), f, increment(fmt.Sprint("r", i)))
		require.NoError(t, err)
	}
	cancel()
	<-sent
	require.Eventually(t, func() bool { return streams() <= before && blockedInSend() == 0 }, 10*time.Second, time.Millisecond)
}

// blockedInSend returns how many answers of batches wait for somebody to read.
func blockedInSend() int { return goroutines("cluster.(*service).Forward.func", "writeData") }

// goroutines returns how many have all of the calls under way.
func goroutines(calls ...string) int {
	var b strings.Builder
	_ = pprof.Lookup("goroutine").WriteTo(&b, 2) // into memory
	n := 0
next:
	for g := range strings.SplitSeq(b.String(), "\n\n") {
		for _, c := range calls {
			if !strings.Contains(g, c) {
				continue next
			}
		}
		n++
	}
	return n
}

// A stream to where nobody leads is given up for the one to the leader.
func TestAStreamToWhereNobodyLeads(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	leader, f := c.leader(), c.follower()
	hangs := listen(t, "127.0.0.1:0") // which takes connections, and answers nothing
	t.Cleanup(func() { require.NoError(t, hangs.Close()) })
	former := f.forwardTo(hangs.Addr().String())
	require.NoError(t, former.queue.add(sized(1)))
	next := f.forwardTo(leader.Address())
	require.NotSame(t, former, next)
	require.Error(t, former.ctx.Err())
	require.NoError(t, next.ctx.Err())
	require.Eventually(t, func() bool { return errors.Is(former.queue.add(sized(1)), errElsewhere) }, 10*time.Second, time.Millisecond)
	_, _, err := storage.One(within(t, 10*time.Second), f, increment("1"))
	require.NoError(t, err)
}
