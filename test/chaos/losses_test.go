package chaos

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"example.com/govnode/test/check"
	"example.com/govnode/test/processes"
	"example.com/govnode/test/report"
	"example.com/govnode/test/sim"
)

// quarantine is longer than any lease that the clients ask for.
const quarantine = 6 * time.Second

// noticedWithin is how long nodes may take to notice that Redis has lost something,
// where they can reach it.
const noticedWithin = 5 * time.Second

// A lossRun is three nodes over one Redis that loses.
type lossRun struct {
	t       *testing.T
	dir     string
	cluster *processes.Cluster
	redis   *losingRedis
	wire    *wire
	clients *clients
	rng     *rand.Rand
	began   time.Time
	faults  map[string]int
	losses  []loss
	broken  []string
}

// A loss is a time from which on Redis had lost what it had acknowledged.
type loss struct {
	kind string
	at   time.Duration // on the clock of the clients
}

// TestProcessesOnRedisThatLoses runs three nodes over a Redis that loses what it
// had acknowledged, in every way that the documents name, for GOVNODE_L2_FOR (40
// seconds) and at least once each. All nodes have to notice every time, admit
// nothing until every lease has ended, and go on with higher tokens.
func TestProcessesOnRedisThatLoses(t *testing.T) {
	seed, length := setting(t, 40*time.Second)
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("GOVNODE_REQUIRE_REDIS") != "" {
			t.Fatal("there is no redis-server")
		}
		t.Skip("there is no redis-server; make needs installs it")
	}
	dir := t.TempDir()
	program, err := processes.Program(dir)
	require.NoError(t, err)
	r := newLossRun(t, dir, program, seed)
	defer r.close()
	h := r.lose(length)
	l := report.Layer{Name: "L2-redis-losses", Seeds: []uint64{seed}, Took: time.Since(r.began), Faults: r.faults, Violations: r.broken,
		Figures: map[string]float64{"losses": float64(len(r.losses))}}
	count(&l, h)
	if len(l.Violations) > 0 {
		kept, err := os.MkdirTemp("", "govnode-l2-*")
		require.NoError(t, err)
		require.NoError(t, os.CopyFS(kept, os.DirFS(dir)))
		l.Replay = fmt.Sprintf("the histories of the clients and the data of Redis are in %s; the same plan again: GOVNODE_L2_SEED=%d make prove-l2", kept, seed)
	}
	tell(t, l)
}

func newLossRun(t *testing.T, dir, program string, seed uint64) *lossRun {
	r := &lossRun{t: t, dir: dir, rng: rand.New(rand.NewPCG(seed, 5)), began: time.Now(), faults: map[string]int{}}
	var err error
	r.redis, err = newLosingRedis(filepath.Join(dir, "redis"))
	require.NoError(t, err)
	r.wire, err = newWire(r.redis.address())
	require.NoError(t, err)
	r.cluster, err = processes.New(program, processes.NewLoopback(), 3, func(node string) string { return filepath.Join(dir, node) },
		"--backend", "redis", "--redis", "redis://"+r.wire.listener.Addr().String()+"/0", "--redis-quarantine", quarantine.String(), "--redis-timeout", "1s", "--log-level", "warn")
	require.NoError(t, err)
	var addresses []string
	for _, n := range r.cluster.Nodes {
		require.NoError(t, n.Start())
		addresses = append(addresses, n.API)
	}
	require.NoError(t, r.serving(20*time.Second))
	work := sim.Workload{Name: "main", Addresses: addresses, Clients: 8, Seed: seed, Think: 20 * time.Millisecond, Start: time.Now()}
	require.NoError(t, work.Prepare(t.Context()))
	r.clients = &clients{dir: dir, work: work, start: monotonic()}
	require.NoError(t, r.clients.begin(2))
	return r
}

func (r *lossRun) close() {
	r.redis.kill()
	require.NoError(r.t, errors.Join(r.cluster.Close(), r.wire.listener.Close()))
}

func (r *lossRun) violated(name string, err error) {
	if err != nil {
		r.broken = append(r.broken, name+": "+err.Error())
	}
}

// fault notes that something goes wrong.
func (r *lossRun) fault(kind string) {
	r.t.Logf("%6.1f s %s", time.Since(r.began).Seconds(), kind)
	r.faults[kind]++
}

// end heals, lets the clients finish, and looks whether anything is left over.
func (r *lossRun) end() check.History {
	r.violated("heal", r.serving(healWithin))
	h, broken, err := r.clients.end()
	r.violated("clients", err)
	for _, v := range broken {
		if v.Check != "lists" && v.Check != "alone" { // of which Redis may have lost something
			r.broken = append(r.broken, v.String())
		}
	}
	time.Sleep(sim.Longest)
	var held error
	held, err = r.clients.work.Final(r.t.Context(), &h)
	r.violated("final", err)
	r.violated("orphans", held)
	for _, n := range r.cluster.Nodes {
		for _, err := range n.Failures() {
			r.violated("node", err)
		}
	}
	return h
}

// lose lets Redis lose what it had acknowledged, in one way after another.
func (r *lossRun) lose(length time.Duration) check.History {
	kinds := []struct {
		name string
		do   func() error
	}{
		{"redis: writes lost", func() error {
			old := filepath.Join(r.dir, "old")
			if err := r.redis.copyOf(old); err != nil {
				return err
			}
			time.Sleep(500*time.Millisecond + time.Duration(r.rng.Int64N(int64(2*time.Second))))
			r.redis.kill()
			if err := r.redis.putBack(old); err != nil {
				return err
			}
			return r.redis.start()
		}},
		{"redis: a late replica promoted", r.promote},
		{"redis: emptied", func() error {
			_, err := r.redis.do("FLUSHALL")
			return err
		}},
		{"redis: records evicted", func() error {
			_, err := r.redis.do("EVAL \"local n=0 for _,k in ipairs(redis.call('KEYS','{gov:default}:*')) do n=n+redis.call('UNLINK',k) end return n\" 0")
			return err
		}},
	}
	order := r.rng.Perm(len(kinds))
	for i := 0; i < len(kinds) || time.Since(r.began) < length; i++ {
		time.Sleep(2 * time.Second)
		k := kinds[order[i%len(order)]]
		r.fault(k.name)
		r.violated(k.name, k.do())
		at := monotonic() - r.clients.start
		r.violated("noticed", r.noticed(k.name))
		r.losses = append(r.losses, loss{k.name, at})
		r.violated("heal", r.serving(quarantine+healWithin))
		r.violated("prepare", within(10*time.Second, func() error { return r.clients.work.Prepare(r.t.Context()) }))
	}
	h := r.end()
	for _, v := range append(check.Holders(h), append(check.Tokens(h), r.admitted(h)...)...) {
		r.broken = append(r.broken, v.String())
	}
	return h
}

// promote lets a replica that has fallen behind take the place of its primary.
func (r *lossRun) promote() error {
	next, err := newLosingRedis(filepath.Join(r.dir, fmt.Sprint("replica-", time.Since(r.began))))
	if err != nil {
		return err
	}
	if _, err := next.do("REPLICAOF 127.0.0.1 " + r.redis.port); err != nil {
		return err
	}
	if err := within(20*time.Second, func() error {
		info, err := next.do("INFO replication")
		if err == nil && !strings.Contains(info, "master_link_status:up") {
			err = errors.New(info)
		}
		return err
	}); err != nil {
		return err
	}
	_ = next.cmd.Process.Signal(syscall.SIGSTOP)
	time.Sleep(500 * time.Millisecond)
	// What the primary has sent and the replica has not read goes with the connection.
	r.redis.kill()
	_ = next.cmd.Process.Signal(syscall.SIGCONT)
	if _, err := next.do("REPLICAOF NO ONE"); err != nil {
		return err
	}
	r.redis = next
	to := next.address()
	r.wire.to.Store(&to)
	r.wire.end()
	return nil
}

// noticed waits until every node says that it is in quarantine.
func (r *lossRun) noticed(kind string) error {
	for _, n := range r.cluster.Nodes {
		if err := within(noticedWithin, func() error {
			text, err := r.metrics(n)
			if err == nil && !strings.Contains(text, "\ngov_redis_quarantine 1\n") {
				err = fmt.Errorf("%s: %s goes on as if nothing were lost", kind, n.Name)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}

func (r *lossRun) metrics(n *processes.Node) (string, error) {
	ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
	defer cancel()
	return get(ctx, r.cluster.HTTP, "http://"+n.API+"/metrics")
}

// serving waits until every node is ready.
func (r *lossRun) serving(d time.Duration) error {
	return within(d, func() error {
		for _, n := range r.cluster.Nodes {
			ctx, cancel := context.WithTimeout(r.t.Context(), time.Second)
			_, err := get(ctx, r.cluster.HTTP, "http://"+n.API+"/readyz")
			cancel()
			if err != nil {
				return fmt.Errorf("%s: %w", n.Name, err)
			}
		}
		return nil
	})
}

// admitted holds that from a loss on nothing was admitted or counted until its
// quarantine was over. What was asked for before it may have been answered by the
// Redis that was.
func (r *lossRun) admitted(h check.History) (broken []check.Violation) {
	for _, x := range r.losses {
		for _, o := range h.Ops {
			changes := o.Kind == check.Increment || (o.Kind == check.Acquire || o.Kind == check.Begin) && o.Granted
			if changes && o.Outcome == check.Applied && o.Call > x.at && o.Return < x.at+quarantine-time.Second {
				broken = append(broken, check.Violation{Check: "quarantine", Text: fmt.Sprintf("%s at %v, and this was admitted after it: %v", x.kind, x.at, o)})
			}
		}
	}
	return broken
}

// get returns what a node shows to those who have no client.
func get(ctx context.Context, by *http.Client, url string) (string, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return "", err
	}
	res, err := by.Do(req)
	if err != nil {
		return "", err
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(res.Body)
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("HTTP %d: %s", res.StatusCode, b)
	}
	return string(b), err
}
