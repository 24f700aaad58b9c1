package cluster

import (
	"context"
	"io"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/session/sessiontest"
	"example.com/govnode/storage"
	"example.com/govnode/storage/storagetest"
)

// spread is a cluster as one store: each request goes to another node.
type spread struct {
	*testCluster
	turn   atomic.Uint32
	before func(turn int) // each Apply
}

func (s *spread) next() *testNode { return s.nodes[int(s.turn.Add(1))%len(s.nodes)] }

func (s *spread) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	if s.before != nil {
		s.before(int(s.turn.Load()))
	}
	return s.next().Apply(ctx, cmds...)
}

func (s *spread) Get(ctx context.Context, k session.Key, r storage.Read) (storage.Found, error) {
	if r == storage.Nearby { // of the node whose Changed is listened to
		return s.nodes[0].Get(ctx, k, r)
	}
	return s.next().Get(ctx, k, r)
}

func (s *spread) View(ctx context.Context, ns string, r storage.Read) (storage.View, error) {
	return s.next().View(ctx, ns, r)
}

func (s *spread) OnLapse(tell func([]session.Lapse)) {
	for _, n := range s.nodes {
		n.OnLapse(tell)
	}
}

func (s *spread) OnFold(tell func([]session.Fold)) {
	for _, n := range s.nodes {
		n.OnFold(tell)
	}
}

func (s *spread) Changed() <-chan struct{}                       { return s.nodes[0].Changed() }
func (s *spread) Save(ctx context.Context, w io.Writer) error    { return s.next().Save(ctx, w) }
func (s *spread) Restore(ctx context.Context, r io.Reader) error { return s.next().Restore(ctx, r) }
func (s *spread) DataID(ns string) string                        { return s.next().DataID(ns) }
func (s *spread) Close() error                                   { return nil }
func (s *spread) Count(ctx context.Context, ns string) (session.Tally, error) {
	return s.next().Count(ctx, ns)
}

// Unswept is what the leader says; followers say nothing.
func (s *spread) Unswept(ctx context.Context) (keys []session.Key) {
	for _, n := range s.nodes {
		keys = append(keys, n.Unswept(ctx)...)
	}
	return keys
}

func TestStore(t *testing.T) {
	storagetest.Run(t, func(t *testing.T) storage.Store {
		s := &spread{testCluster: newCluster(t, 3, nil)}
		// The suite looks at records nearby that were acknowledged elsewhere.
		return caughtUp{s}
	})
}

// caughtUp is a store whose nearby reads are behind by no acknowledged change,
// as those of one node that was asked for the change.
type caughtUp struct{ *spread }

func (s caughtUp) Apply(ctx context.Context, cmds ...session.Command) []storage.Answer {
	answers := s.spread.Apply(ctx, cmds...)
	for _, a := range answers {
		<-s.nodes[0].fsm.reached(a.Index)
	}
	return answers
}

// TestHistories gives a cluster of three the histories of the suite, cut by
// snapshots, by changes of the leader and by followers that start again.
func TestHistories(t *testing.T) { onEachStore(t, testHistories) }

func testHistories(t *testing.T, use func(*Config)) {
	var did sessiontest.Tally
	for _, seed := range []uint64{1, 2, 3, 5, 7, 9} {
		storagetest.Histories(t, seed, 150, map[string]storagetest.Timed{
			"cluster": func(t *testing.T, now func() time.Duration) storage.Store {
				s := &spread{testCluster: newCluster(t, 3, func(c *Config) {
					use(c)
					c.LogTime, c.TrailingLogs = now, 2
					// A change that is ordered twice, since a busy machine has lost its leader, is a repeat.
					c.HeartbeatTimeout, c.ElectionTimeout, c.LeaderLeaseTimeout = time.Second, time.Second, time.Second
				})}
				s.before = func(turn int) {
					switch turn % 50 {
					case 10:
						_ = s.nodes[turn%3].raft.Snapshot().Error() // there may be nothing new
					case 20:
						require.NoError(t, s.leader().TransferLeadership(within(t, 10*time.Second), ""))
					case 30:
						f := s.follower()
						require.NoError(t, f.Close())
						s.restart(f)
					}
				}
				return s
			},
		}, &did)
	}
	require.Empty(t, did.Missing(), "no history did that with an approval")
}
