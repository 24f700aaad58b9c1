package cluster

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// Whatever attempts come to, in whatever order: what one of them may have done no
// later one takes back, and its own error says why nobody knows.
func TestWhatMayHaveBeenAppliedStaysUnknown(t *testing.T) {
	lost, full := errors.New("the stream broke"), errors.New("full")
	attempts := map[string]func() storage.Answer{
		"lost":      func() storage.Answer { return storage.Lost(lost) },
		"elsewhere": func() storage.Answer { return storage.Refused(errElsewhere) },
		"no leader": func() storage.Answer { return storage.Refused(errNoLeader) },
		"refused":   func() storage.Answer { return storage.Refused(full) },
		"applied":   func() storage.Answer { return storage.Done(session.Result{}, 7) },
	}
	// follow makes each kind of attempt after those that were made, as long as the
	// answer is not the last word.
	var follow func(made []string, maybe error, may bool)
	follow = func(made []string, maybe error, may bool) {
		if len(made) == 5 {
			return
		}
		for name, attempt := range attempts {
			made, may := append(made[:len(made):len(made)], name), may || name == "lost"
			a := attempt()
			final, maybe := settle(&pending{cmd: increment("r")}, maybe, &a)
			require.Equal(t, name == "applied" || name == "refused", final, "%v", made)
			switch {
			case name == "applied":
				require.Equal(t, storage.Applied, a.Outcome, "%v", made)
			case may: // the caller may give up here, and is told this
				require.Equal(t, storage.Unknown, a.Outcome, "%v", made)
				require.ErrorIs(t, a.Err, lost, "%v", made)
			default:
				require.Equal(t, storage.NotApplied, a.Outcome, "%v", made)
			}
			if !final {
				follow(made, maybe, may)
			}
		}
	}
	follow(nil, nil, false)

	// Who may do what is looked at before the id is, and the id may be forgotten since: that
	// says nothing about the first time.
	for _, code := range []session.Code{session.StaleAccess, session.StaleID} {
		for name, maybe := range map[string]error{"first": nil, "again": lost} {
			a := storage.Done(session.Result{Code: code}, 7)
			final, _ := settle(&pending{cmd: increment("r")}, maybe, &a)
			require.True(t, final)
			require.Equal(t, maybe != nil, a.Outcome == storage.Unknown, "%s: %v", name, code)
			require.ErrorIs(t, a.Err, maybe)
		}
	}

	a := storage.Lost(lost)
	final, _ := settle(&pending{cmd: increment("")}, nil, &a)
	require.True(t, final, "what nobody would know again is not sent again")
}

// A deaf node sends, and hears nothing any more of those whom it had reached; it reaches
// nobody else.
type deaf struct {
	net.Conn
	now *atomic.Bool
}

func (d deaf) Read(b []byte) (int, error) {
	for {
		n, err := d.Conn.Read(b)
		if err != nil || !d.now.Load() {
			return n, err
		}
	}
}

// Where the answer is lost, and the id is forgotten before the command is sent again, it
// is not said not to have been carried out.
func TestWhatWasAppliedAndForgottenIsUnknown(t *testing.T) {
	t.Parallel()
	var hearsNothing sync.Map // addresses
	c := newCluster(t, 3, func(cfg *Config) {
		cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 4*time.Second
		dial, now := cfg.Dial, new(atomic.Bool)
		hearsNothing.Store(cfg.Address, now)
		cfg.Dial = func(ctx context.Context, to string) (net.Conn, error) {
			if now.Load() {
				return nil, errors.New("deaf")
			}
			conn, err := dial(ctx, to)
			if err != nil {
				return nil, err
			}
			return deaf{conn, now}, nil
		}
	})
	leader, follower := c.leader(), c.follower()
	require.NoError(t, follower.Apply(within(t, 20*time.Second), increment("first"))[0].Err, "the stream to the leader is there")
	flag, _ := hearsNothing.Load(follower.Address())
	flag.(*atomic.Bool).Store(true)
	answer := make(chan storage.Answer, 1)
	go func() {
		answer <- follower.Apply(within(t, time.Minute), increment("01KDVDA300AAAAAAAAAAAAAAAA"))[0]
	}()
	require.Eventually(t, func() bool { return count(t, leader, storage.Nearby) == 2 }, 20*time.Second, time.Millisecond)
	var many []session.Command
	for i := range 1300 {
		many = append(many, increment(fmt.Sprintf("01KDVE%04dAAAAAAAAAAAAAAAA", i)))
	}
	for _, a := range leader.Apply(within(t, 20*time.Second), many...) {
		require.NoError(t, a.Err)
		require.Equal(t, session.Done, a.Result.Code)
	}
	flag.(*atomic.Bool).Store(false)
	c.net.isolate(follower.Address(), true)
	c.net.isolate(follower.Address(), false)
	a := <-answer
	require.Equal(t, storage.Unknown, a.Outcome, "%v", a.Result)
	require.EqualValues(t, 1302, count(t, leader, storage.Latest), "its effect is one")
}

// Attempts are given up when there was no leader for as long as is to be borne, counted
// from the first that found none behind one that found one.
func TestHowLongNoLeaderIsBorne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := backoff{patience: 5 * time.Second}
		require.False(t, b.found(errNoLeader))
		time.Sleep(4 * time.Second)
		require.False(t, b.found(errNoLeader))
		require.False(t, b.found(errors.New("another")), "there is one")
		time.Sleep(4 * time.Second)
		require.False(t, b.found(errNoLeader), "which is gone")
		time.Sleep(5*time.Second - 1)
		require.False(t, b.found(errNoLeader))
		time.Sleep(time.Nanosecond)
		require.True(t, b.found(errNoLeader))
		forever := backoff{}
		require.False(t, forever.found(errNoLeader))
		time.Sleep(time.Hour)
		require.False(t, forever.found(errNoLeader))
	})
}

// Attempts follow each other ever more slowly, five a second in the end, and at once when
// the leader may have changed; none follows when nobody waits any more.
func TestAttemptsArePaced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		var b backoff
		pause := func(moved <-chan struct{}) time.Duration {
			start := time.Now()
			require.True(t, b.wait(ctx, moved))
			return time.Since(start)
		}
		for _, ms := range []time.Duration{5, 10, 20, 40, 80, 160, 200, 200} {
			require.Equal(t, ms*time.Millisecond, pause(nil))
		}
		moved := make(chan struct{})
		close(moved)
		require.Zero(t, pause(moved))
		cancel()
		require.False(t, b.wait(ctx, nil))
		require.False(t, b.wait(ctx, moved))
	})
}

// A batch takes as many commands as may go together and as many bytes, to the last one.
// What is larger by itself has one of its own.
func TestWhatFitsInABatch(t *testing.T) {
	most := batchSize
	for name, x := range map[string]struct {
		has  []int // bytes of each command
		next int
		fits bool
	}{
		"the first, however large": {nil, most.Bytes + 1, true},
		"nothing beside that":      {[]int{most.Bytes + 1}, 0, false},
		"the last byte":            {[]int{100, 100}, most.Bytes - 200, true},
		"one byte more":            {[]int{100, 100}, most.Bytes - 199, false},
		"the last command":         {make([]int, most.Count-1), 1, true},
		"one command more":         {make([]int, most.Count), 0, false},
	} {
		b := newBatch(most.Count)
		for i, n := range x.has {
			b.add(pending{raw: make([]byte, n)}, i)
		}
		require.Equal(t, x.fits, b.fits(&pending{raw: make([]byte, x.next)}), name)
	}
}

// Whoever asks for more than goes into the log together gets an answer to each, in their
// order, whichever node is asked; what is wrong among it holds nothing up.
func TestMoreCommandsThanGoTogether(t *testing.T) {
	t.Parallel()
	c := newCluster(t, 2, nil)
	const commands = 2*maxEntryCommands + 10
	applied := int64(0)
	for asked, n := range c.nodes {
		wrong := func(i int) bool { return i == commands-1 || asked > 0 && (i == 0 || i == 3 || i == maxEntryCommands) }
		require.Empty(t, n.Apply(t.Context()))
		var cmds []session.Command
		for i := range commands {
			cmd := increment(fmt.Sprint(n.cfg.ID, "-", i))
			if wrong(i) {
				cmd.Key = ""
			}
			cmds = append(cmds, cmd)
		}
		answers := n.Apply(within(t, 20*time.Second), cmds...)
		require.Len(t, answers, commands)
		for i, a := range answers {
			if wrong(i) {
				require.Equal(t, storage.NotApplied, a.Outcome, i)
				require.ErrorIs(t, a.Err, storage.ErrInvalid, i)
				continue
			}
			applied++
			require.NoError(t, a.Err, i)
			require.Equal(t, applied*1_000_000, a.Result.Value, i)
			require.False(t, a.Result.Repeat && !a.Again, "%d was sent twice", i)
		}
		require.Equal(t, applied, count(t, n, storage.Latest))
	}
}

// What an attempt comes to decides whether another one follows, and what is said where
// none may: that nothing was done, and why, in one sentence.
func TestWhatAttemptsAtTheLeaderComeTo(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil).leader()
	busy := errors.New("busy")
	waits := within(t, 10*time.Second)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	for name, x := range map[string]struct {
		ctx  context.Context
		says []error // one after another
		want string  // "": nil
	}{
		"done":                                  {waits, []error{nil}, ""},
		"done in the end":                       {waits, []error{notApplied(busy), elsewhere(busy), busy, nil}, ""},
		"it may have been done":                 {waits, []error{busy, unknown(busy)}, "storage: outcome unknown: busy"},
		"it is wrong":                           {waits, []error{busy, invalid(busy)}, "storage: not applied: storage: invalid command: busy"},
		"this node was removed":                 {waits, []error{busy, errRemoved}, "storage: not applied: " + errRemoved.Error()},
		"nobody waits":                          {gone, []error{busy}, "storage: not applied: busy: context canceled"},
		"nobody waits for what was not done":    {gone, []error{notApplied(busy)}, "storage: not applied: busy: context canceled"},
		"nobody waits, as the attempt has seen": {gone, []error{context.Canceled}, "storage: not applied: context canceled"},
	} {
		attempts := 0
		err := n.atLeader(x.ctx, func(context.Context, *leadership) error {
			attempts++
			return x.says[attempts-1]
		}, nil)
		require.Equal(t, len(x.says), attempts, name)
		if x.want == "" {
			require.NoError(t, err, name)
			continue
		}
		require.EqualError(t, err, x.want, name)
		require.ErrorAs(t, err, new(*storage.Failure), name)
	}
}

// A node that drains or is closed says so, at once, whatever it is asked for.
func TestANodeThatEndsSaysSo(t *testing.T) {
	t.Parallel()
	n := newCluster(t, 1, nil).leader()
	ctx := within(t, 10*time.Second)
	n.draining.Store(true)
	a := n.Apply(ctx, increment("1"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome)
	require.ErrorIs(t, a.Err, errDraining)
	err := n.Restore(ctx, strings.NewReader(""))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, errDraining)

	require.NoError(t, n.Close())
	n.draining.Store(false)
	a = n.Apply(ctx, increment("1"))[0]
	require.Equal(t, storage.NotApplied, a.Outcome)
	require.ErrorIs(t, a.Err, errClosed)
	err = n.Restore(ctx, strings.NewReader(""))
	require.Equal(t, storage.NotApplied, storage.OutcomeOf(err))
	require.ErrorIs(t, err, errClosed)
	_, err = n.View(ctx, "", storage.Latest)
	require.ErrorIs(t, err, errClosed)
	require.NoError(t, ctx.Err(), "nobody waited")
}

// Whose node is closed while his command is under way is not told that it was not
// applied, though it would be sent again.
func TestANodeIsClosedWhileACommandIsUnderWay(t *testing.T) {
	t.Parallel()
	var disks gates
	n := newCluster(t, 1, disks.use).leader()
	l := n.leading.Load()
	require.Eventually(t, func() bool { // the first Tick of the leadership
		return n.fsm.applied() > n.fsm.memberIndex() && l.queue.underWay() == 0
	}, 10*time.Second, time.Millisecond)
	open := disks.of(n).shut()
	t.Cleanup(open)
	answer := make(chan storage.Answer, 1)
	go func() { answer <- n.Apply(within(t, 20*time.Second), increment("1"))[0] }()
	require.Eventually(t, func() bool { return disks.of(n).held.Load() == 1 && l.queue.underWay() == 1 && l.queue.len() == 0 }, 10*time.Second, time.Millisecond)
	closed := make(chan error, 1)
	go func() { closed <- n.Close() }()
	a := <-answer
	require.Equal(t, storage.Unknown, a.Outcome)
	require.ErrorIs(t, a.Err, errClosed)
	open()
	require.NoError(t, <-closed)
}
