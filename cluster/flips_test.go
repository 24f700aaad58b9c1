package cluster

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// flips is how many bits are flipped, one at a time, in each test: some, or as
// many as GOVNODE_FLIPS says.
func flips(t *testing.T) int {
	n := 20
	if s := os.Getenv("GOVNODE_FLIPS"); s != "" {
		var err error
		n, err = strconv.Atoi(s)
		require.NoError(t, err)
	}
	return n
}

// flip changes one bit of what is stored in a directory, and returns where.
func flip(t *testing.T, dir string, random *rand.Rand) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "wal", "*.wal"))
	require.NoError(t, err)
	snapshots, err := filepath.Glob(filepath.Join(dir, "snapshots", "*", "*"))
	require.NoError(t, err)
	files = append(append(files, snapshots...), filepath.Join(dir, "raft.db"), filepath.Join(dir, "end"))
	path := files[random.IntN(len(files))]
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	i := random.IntN(len(b))
	for random.IntN(8) > 0 && b[i] == 0 { // most of a file is empty room
		i = random.IntN(len(b))
	}
	bit := random.IntN(8)
	b[i] ^= 1 << bit
	require.NoError(t, os.WriteFile(path, b, 0o600))
	return fmt.Sprintf("%s, byte %d of %d, bit %d", filepath.Base(path), i, len(b), bit)
}

// image copies a directory, without the empty room at the end of its bolt file.
func image(t *testing.T, dir string) string {
	t.Helper()
	to := tempDir(t)
	require.NoError(t, os.CopyFS(to, os.DirFS(dir)))
	path := filepath.Join(to, "raft.db")
	b, err := os.ReadFile(path)
	require.NoError(t, err)
	used := len(bytes.TrimRight(b, "\x00"))
	require.NoError(t, os.Truncate(path, int64(used+4095)/4096*4096))
	return to
}

const flipKeys = 30

// fill writes what can be read back: see filled.
func fill(t *testing.T, n *testNode) {
	for i := range flipKeys {
		_, _, err := storage.One(t.Context(), n, increment(fmt.Sprint("r", i)))
		require.NoError(t, err)
		_, _, err = storage.One(t.Context(), n, &session.Set{NS: "default", By: session.Maker{Client: "c"}, Key: fmt.Sprint("text", i), Value: session.Value{Text: fmt.Sprint("value", i)}})
		require.NoError(t, err)
	}
}

// filled reports what a node answers wrongly.
func filled(t *testing.T, n *testNode) error {
	f, err := n.Get(t.Context(), session.CounterKey("default", "k"), storage.Latest)
	if err != nil {
		return nil // no answer is no wrong answer
	}
	if f.Record == nil || f.Record.(*session.Counter).Value.N != flipKeys*1_000_000 {
		return fmt.Errorf("the counter is %v", f.Record)
	}
	for i := range flipKeys {
		f, err := n.Get(t.Context(), session.CounterKey("default", fmt.Sprint("text", i)), storage.Latest)
		if err != nil {
			return nil
		}
		if f.Record == nil || f.Record.(*session.Counter).Value.Text != fmt.Sprint("value", i) {
			return fmt.Errorf("text %d is %v", i, f.Record)
		}
	}
	return nil
}

// A tally counts what became of flipped bits.
type tally struct{ refused, harmless int }

// reopened judges a node that was opened on a damaged directory: it refuses with
// a sentence that says what to do, or gives all the right answers.
func (c *tally) reopened(t *testing.T, what string, n *testNode, err error) {
	t.Helper()
	if err == nil {
		var fatal error
		require.Eventually(t, func() bool {
			select {
			case fatal = <-n.fatal:
				return true
			default:
				return n.Ready(t.Context()) == nil
			}
		}, 20*time.Second, time.Millisecond, what)
		if fatal == nil {
			require.NoError(t, filled(t, n), what)
			c.harmless++
			return
		}
		err = fatal
	}
	// On a busy machine another member may lead meanwhile, and have written.
	require.Regexp(t, "damaged|is an old copy", err.Error(), what)
	require.ErrorContains(t, err, "--replace", what)
	require.NotContains(t, err.Error(), "goroutine", what)
	c.refused++
}

// A bit that has changed on the disk of a node that is alone is never answered
// as truth, whether the node was closed or killed before.
func TestFlippedBitsOfOneNode(t *testing.T) { onEachStore(t, testFlippedBitsOfOneNode) }

func testFlippedBitsOfOneNode(t *testing.T, use func(*Config)) {
	c := newCluster(t, 1, func(cfg *Config) {
		use(cfg)
		cfg.TrailingLogs = 3
	})
	n := c.nodes[0]
	fill(t, n)
	require.NoError(t, await(n.raft.Snapshot(), n.dead))
	_, _, err := storage.One(t.Context(), n, &session.PutPool{NS: "n", By: session.Maker{Client: "c"}, Pool: "p", Slots: 1})
	require.NoError(t, err)
	killed := image(t, n.cfg.Dir)
	require.NoError(t, n.Close())
	closed := image(t, n.cfg.Dir)
	c.forget(n)

	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	var all tally
	for i := range flips(t) {
		cfg := n.cfg
		cfg.Dir, cfg.Listener = tempDir(t), listen(t, cfg.Address)
		require.NoError(t, os.CopyFS(cfg.Dir, os.DirFS([]string{killed, closed}[i%2])))
		what := flip(t, cfg.Dir, random)
		again, err := c.open(cfg)
		all.reopened(t, what, again, err)
		if again != nil {
			_ = again.Close() // some have failed
			c.forget(again)
		}
		_ = cfg.Listener.Close() // Open may not have come so far
		require.NoError(t, os.RemoveAll(cfg.Dir))
	}
	t.Logf("%d refused, %d without effect", all.refused, all.harmless)
}

// Nor is it on the disk of a follower, which has the same state as its leader
// then or none.
func TestFlippedBitsOfAFollower(t *testing.T) { onEachStore(t, testFlippedBitsOfAFollower) }

func testFlippedBitsOfAFollower(t *testing.T, use func(*Config)) {
	c := newCluster(t, 3, func(cfg *Config) {
		use(cfg)
		cfg.TrailingLogs = 20
		// Nothing is written to the log meanwhile, however long this takes: a folder
		// without it is refused as an old copy, whatever is wrong with it.
		cfg.LogTime, cfg.CheckInterval = func() time.Duration { return 0 }, time.Hour
		if flips(t) > 20 {
			cfg.HeartbeatTimeout, cfg.ElectionTimeout, cfg.LeaderLeaseTimeout = 4*time.Second, 4*time.Second, 4*time.Second
		}
	})
	fill(t, c.follower())
	n := c.follower()
	n.waitReady(t)
	require.NoError(t, await(n.raft.Snapshot(), n.dead))
	require.NoError(t, n.Close())
	good := image(t, n.cfg.Dir)
	c.forget(n)

	random := rand.New(rand.NewPCG(rand.Uint64(), 0))
	var all tally
	for range flips(t) {
		cfg := n.cfg
		cfg.Dir, cfg.Listener = tempDir(t), listen(t, cfg.Address)
		require.NoError(t, os.CopyFS(cfg.Dir, os.DirFS(good)))
		what := flip(t, cfg.Dir, random)
		again, err := c.open(cfg)
		all.reopened(t, what, again, err)
		if again != nil {
			if again.failed.Load() == nil {
				require.Eventually(t, func() bool { return sameState(t, again, c.leader()) }, 20*time.Second, time.Millisecond, what)
			}
			_ = again.Close() // some have failed
			c.forget(again)
		}
		_ = cfg.Listener.Close() // Open may not have come so far
		require.NoError(t, os.RemoveAll(cfg.Dir))
	}
	t.Logf("%d refused, %d without effect", all.refused, all.harmless)
}

// sameState reports whether two nodes that have applied the same entries have
// the same state; false also where they have not.
func sameState(t *testing.T, a, b *testNode) bool {
	t.Helper()
	one, i := a.fsm.snapshot()
	other, k := b.fsm.snapshot()
	if i != k {
		return false
	}
	var x, y bytes.Buffer
	require.NoError(t, errors.Join(session.WriteSnapshot(&x, one), session.WriteSnapshot(&y, other)))
	require.Equal(t, x.Bytes(), y.Bytes(), "states at index %d", i)
	return true
}

// Whatever is changed of what stands beside a snapshot, nothing is restored in
// another place of the log, or with other members.
func TestADamagedDescriptionOfASnapshot(t *testing.T) {
	c := newCluster(t, 1, func(cfg *Config) { cfg.TrailingLogs = 1 })
	n := c.nodes[0]
	fill(t, n)
	require.NoError(t, await(n.raft.Snapshot(), n.dead))
	require.NoError(t, n.Close())
	c.forget(n)
	whole := image(t, n.cfg.Dir)
	found, err := filepath.Glob(filepath.Join(whole, "snapshots", "*", "meta.json"))
	require.NoError(t, err)
	require.Len(t, found, 1)
	good, err := os.ReadFile(found[0])
	require.NoError(t, err)
	name, err := filepath.Rel(whole, found[0])
	require.NoError(t, err)
	var all tally
	for i := 0; i < len(good); i += 1 + rand.IntN(8) {
		cfg := n.cfg
		cfg.Dir, cfg.Listener = tempDir(t), listen(t, cfg.Address)
		require.NoError(t, os.CopyFS(cfg.Dir, os.DirFS(whole)))
		bad := bytes.Clone(good)
		bad[i] ^= 1 << rand.IntN(8)
		require.NoError(t, os.WriteFile(filepath.Join(cfg.Dir, name), bad, 0o600))
		again, err := c.open(cfg)
		all.reopened(t, fmt.Sprintf("byte %d: %s", i, bad), again, err)
		if again != nil {
			_ = again.Close() // some have failed
			c.forget(again)
		}
		_ = cfg.Listener.Close() // Open may not have come so far
		require.NoError(t, os.RemoveAll(cfg.Dir))
	}
	require.Positive(t, all.refused)
}

// A node whose newest snapshot is damaged, and which has no entry behind it, does not
// begin with the one before: it has forgotten what it had said to hold.
func TestADamagedStateOfASnapshotThatWasSent(t *testing.T) {
	for _, file := range []string{"state.bin", "meta.json"} {
		t.Run(file, func(t *testing.T) {
			t.Parallel()
			c := newCluster(t, 3, func(cfg *Config) {
				cfg.TrailingLogs = 1
				// Nothing is written to the log meanwhile.
				cfg.LogTime, cfg.CheckInterval = func() time.Duration { return 0 }, time.Hour
			})
			n := c.follower()
			_, index, err := storage.One(t.Context(), c.leader(), increment("1"))
			require.NoError(t, err)
			require.NoError(t, n.wait(within(t, 20*time.Second), index))
			require.NoError(t, await(n.raft.Snapshot(), n.dead))
			c.net.isolate(n.Address(), true)
			for i := range 10 {
				_, _, err := storage.One(within(t, 20*time.Second), c.leader(n), increment(fmt.Sprint("more", i)))
				require.NoError(t, err)
			}
			for _, other := range c.nodes {
				if other != n {
					require.NoError(t, await(other.raft.Snapshot(), other.dead))
				}
			}
			c.net.isolate(n.Address(), false)
			require.Eventually(t, func() bool { return counted(n.metrics.restores) > 0 }, 30*time.Second, time.Millisecond)
			n.waitReady(t)
			require.NoError(t, n.Close())
			c.forget(n)
			all, err := filepath.Glob(filepath.Join(n.cfg.Dir, "snapshots", "*"))
			require.NoError(t, err)
			require.Len(t, all, 2)
			newest := slices.MaxFunc(all, func(a, b string) int { return cmp.Compare(indexOf(t, a), indexOf(t, b)) })
			require.NoError(t, os.WriteFile(filepath.Join(newest, file), []byte("{"), 0o600))
			n.cfg.Listener = listen(t, n.cfg.Address)
			err = c.stops(n.cfg)
			require.ErrorContains(t, err, "damaged")
			require.ErrorContains(t, err, "--replace")
		})
	}
}

// indexOf is that of a snapshot, by the name of its folder.
func indexOf(t *testing.T, path string) (index uint64) {
	t.Helper()
	_, err := fmt.Sscanf(filepath.Base(path), "%d-%d-", new(uint64), &index)
	require.NoError(t, err)
	return index
}
