package bench

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime/debug"
	"strconv"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"example.com/govnode/session"
	"example.com/govnode/storage"
	redisstore "example.com/govnode/storage/redis"
)

// apartNamespaces is in how many namespaces the callers of "apart" are. Each lies
// on one primary of a Redis Cluster, and on one Redis they share it.
const apartNamespaces = 12

// BenchmarkRedisCluster measures begin and end of calls over a Redis Cluster of
// six processes, three primaries with a replica each, beside one Redis without a
// replica: by one node and by three, on one hot pool, which lies on one primary,
// and apart, in namespaces that lie on all three. All take turns in one run, and
// all flush every change. Everything shares this machine: the processes of both,
// the nodes and the callers. It prints a table of the medians.
//
//	go test ./bench -run '^$' -bench RedisCluster -timeout 10m
func BenchmarkRedisCluster(b *testing.B) {
	one := startRedis(b)
	members := startRedisCluster(b)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // that of a node, see govnode serve
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "callers\tnamespaces\tslots\tnodes\tone Redis/s\tcluster/s\tof one\tµs CPU: one\tcluster\tof one\tof that Redis: one\tcluster\t")
	for _, callers := range []int{64, 256} {
		for _, namespaces := range []int{1, apartNamespaces} {
			for _, nodes := range []int{1, 3} {
				c := clusterCell{hotPool: hotPool{callers: callers, slots: 512}, namespaces: namespaces, nodes: nodes}
				b.Run(c.String(), func(b *testing.B) { c.measure(b, one, members, w) })
			}
		}
	}
	require.NoError(b, w.Flush())
	fmt.Printf("\n%s\n", table.String())
}

// A clusterCell is what the callers of one row of the table do. With 512 slots
// none of them is refused.
type clusterCell struct {
	hotPool
	namespaces, nodes int
}

func (c clusterCell) String() string {
	return fmt.Sprintf("callers=%d/namespaces=%d/nodes=%d", c.callers, c.namespaces, c.nodes)
}

// measure lets one Redis and the cluster take turns and writes the medians.
func (c clusterCell) measure(b *testing.B, one string, members []string, w *tabwriter.Writer) {
	o, err := redis.ParseURL(one)
	require.NoError(b, err)
	servers := [2][]*redis.Client{{redis.NewClient(o)}, {}}
	for _, address := range members {
		servers[1] = append(servers[1], redis.NewClient(&redis.Options{Addr: address}))
	}
	var systems [2]*apart
	for i, cfg := range []redisstore.Config{{URL: one}, {Cluster: members}} {
		for _, s := range servers[i] {
			defer func() { _ = s.Close() }()
			if isPrimary(b, s) {
				emptyRedis(b, s)
			}
		}
		systems[i] = newApart(b, cfg, c)
		defer systems[i].close()
	}
	var rate, cpu, theirs [2][]float64
	next := 0
	for range hotRounds {
		for i, s := range systems {
			next = c.run(b, s, next, hotWarm, nil)
			ours, redis := cpuTime(), allCPU(b, servers[i])
			var done int64
			start := time.Now()
			next = c.run(b, s, next, hotTime, &done)
			took := time.Since(start)
			ours, redis = cpuTime()-ours, allCPU(b, servers[i])-redis
			require.Positive(b, done)
			rate[i] = append(rate[i], float64(done)/took.Seconds())
			cpu[i] = append(cpu[i], float64(ours+redis)/1e3/float64(done))
			theirs[i] = append(theirs[i], float64(redis)/1e3/float64(done))
		}
	}
	r, u, t := [2]float64{median(rate[0]), median(rate[1])}, [2]float64{median(cpu[0]), median(cpu[1])}, [2]float64{median(theirs[0]), median(theirs[1])}
	fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%.0f\t%.0f\t%.0f %%\t%.1f\t%.1f\t%.0f %%\t%.1f\t%.1f\t\n",
		c.callers, c.namespaces, c.slots, c.nodes, r[0], r[1], 100*r[1]/r[0], u[0], u[1], 100*u[1]/u[0], t[0], t[1])
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(r[0], "one-ops/s")
	b.ReportMetric(r[1], "cluster-ops/s")
}

func isPrimary(b *testing.B, c *redis.Client) bool {
	info, err := c.Info(context.Background(), "replication").Result()
	require.NoError(b, err)
	return strings.Contains(info, "role:master")
}

// allCPU is what some servers have used so far, in nanoseconds.
func allCPU(b *testing.B, all []*redis.Client) (ns int64) {
	for _, c := range all {
		ns += redisCPU(b, c)
	}
	return ns
}

// apart is some nodes over one Redis or one Redis Cluster. A caller keeps to its
// node, its session and its namespace.
type apart struct {
	clusterCell
	stores []*redisstore.Store
}

func newApart(b *testing.B, cfg redisstore.Config, c clusterCell) *apart {
	ctx := context.Background()
	s := &apart{clusterCell: c}
	for i := range c.nodes {
		cfg.Node = fmt.Sprint("n", i)
		r, err := redisstore.Open(ctx, cfg)
		require.NoError(b, err)
		s.stores = append(s.stores, r)
	}
	for n := range c.namespaces {
		_, _, err := storage.One(ctx, s.stores[0], &session.PutPolicy{NS: apartName(n), By: session.Maker{Client: "bench", Request: "put"}, Name: "p", Digest: hotDigest, Tree: []byte("tree"),
			Limits: session.Limits{MaxTokens: 1 << 40, MaxToolCalls: 1 << 30, MaxAttempts: 1 << 30, Timeout: 24 * time.Hour, MaxConcurrent: int32(c.slots)}})
		require.NoError(b, err)
	}
	var opens []session.Command
	for i := range c.callers {
		opens = append(opens, &session.Open{NS: s.namespace(i), Session: fmt.Sprint("s", i), Agent: "a", Policy: "p", Digest: hotDigest, IdleTTL: time.Hour})
	}
	for _, a := range s.stores[0].Apply(ctx, opens...) {
		require.NoError(b, a.Err)
	}
	return s
}

func apartName(n int) string { return fmt.Sprint("apart", n) }

// namespace spreads callers so that each node has some of every namespace.
func (s *apart) namespace(caller int) string {
	return apartName(caller / len(s.stores) % s.namespaces)
}

func (s *apart) call(caller, n int) (int, error) {
	ctx, store, ns := context.Background(), s.stores[caller%len(s.stores)], s.namespace(caller)
	begin := &session.Begin{NS: ns, Session: fmt.Sprint("s", caller), Call: fmt.Sprint("c", n), Tool: "ls", Digest: hotDigest,
		Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: hotName, Weight: 1}}, TTL: 30 * time.Second}
	r, _, err := storage.One(ctx, store, begin)
	if err == nil && r.Code != session.Admitted {
		err = fmt.Errorf("a begin was answered %v", r.Code)
	}
	if err != nil {
		return 0, err
	}
	r, _, err = storage.One(ctx, store, &session.End{NS: ns, Session: begin.Session, Call: begin.Call, Pools: []string{hotName}, Status: session.Succeeded})
	if err == nil && r.Code != session.Ended {
		err = fmt.Errorf("an end was answered %v", r.Code)
	}
	return 2, err
}

func (s *apart) lost() (sent, lost uint64) {
	for _, r := range s.stores {
		stats := r.Stats()
		sent, lost = sent+stats.Rounds, lost+stats.Lost
	}
	return sent, lost
}

func (s *apart) close() {
	for _, r := range s.stores {
		_ = r.Close()
	}
}

// startRedisCluster starts six that flush every change before they answer, three
// primaries with a replica each, and returns their addresses.
func startRedisCluster(b *testing.B) (addresses []string) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		b.Skip("no redis-server; install it with: sudo apt-get install -y redis-server")
	}
	args := []string{"--cluster", "create"}
	for range 6 {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		require.NoError(b, err)
		address := l.Addr().String()
		require.NoError(b, l.Close())
		cmd := exec.Command(path, "--port", strconv.Itoa(l.Addr().(*net.TCPAddr).Port), "--bind", "127.0.0.1", "--dir", b.TempDir(), "--save", "",
			"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0", "--cluster-enabled", "yes")
		require.NoError(b, cmd.Start())
		b.Cleanup(func() {
			_ = cmd.Process.Kill()
			_ = cmd.Wait()
		})
		awaitRedis(b, address, func(c *redis.Client) bool { return c.Ping(context.Background()).Err() == nil })
		addresses, args = append(addresses, address), append(args, address)
	}
	out, err := exec.Command("redis-cli", append(args, "--cluster-replicas", "1", "--cluster-yes")...).CombinedOutput()
	require.NoError(b, err, "%s", out)
	for _, address := range addresses {
		awaitRedis(b, address, func(c *redis.Client) bool {
			return strings.Contains(c.ClusterInfo(context.Background()).Val(), "cluster_state:ok")
		})
	}
	return addresses
}

func awaitRedis(b *testing.B, address string, so func(*redis.Client) bool) {
	c := redis.NewClient(&redis.Options{Addr: address})
	defer func() { _ = c.Close() }()
	require.Eventually(b, func() bool { return so(c) }, 20*time.Second, 10*time.Millisecond, "the Redis Cluster does not come up")
}
