package bench

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"runtime/debug"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

const (
	// hotRounds is how often each system is measured in a cell; the median
	// counts.
	hotRounds = 3
	hotWarm   = 200 * time.Millisecond
	hotTime   = 1300 * time.Millisecond
)

// A hotPool is what the callers of one cell of the table do: each begins a call
// in a session of its own, ends it once it is admitted, and begins the next.
// With a queue a caller waits for its turn; without one it is refused and begins
// another call at once.
type hotPool struct {
	callers, slots int
	queue          bool
}

func (h hotPool) String() string {
	queue := "no"
	if h.queue {
		queue = "yes"
	}
	return fmt.Sprintf("callers=%d/slots=%d/queue=%s", h.callers, h.slots, queue)
}

// A hotSystem carries out the calls of one cell. Call returns how many
// operations were answered: a begin, whatever it took, is one, and an end is one.
type hotSystem interface {
	call(caller, n int) (operations int, err error)
	// lost returns how many rounds were sent, and of those how many another
	// node had come before.
	lost() (rounds, lost uint64)
	close()
}

// BenchmarkRedisHotPool measures begin and end of calls on one hot pool of a
// Redis that flushes every change: by a script per call, written by hand for
// this one purpose, and by the rounds of one node and of three. All take turns
// in one run, on one Redis. Where callers wait for their turn, the script is
// measured in both ways in which that is done by hand: with a queue of its own,
// and without one, so that its callers ask again at once until they are admitted.
// It prints a table of the medians and of what the nodes hold of the scripts.
//
//	go test ./bench -run '^$' -bench RedisHotPool -timeout 10m
func BenchmarkRedisHotPool(b *testing.B) {
	url := startRedis(b)
	defer debug.SetGCPercent(debug.SetGCPercent(400)) // that of a node, see govnode serve
	var table strings.Builder
	w := tabwriter.NewWriter(&table, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(w, "callers\tslots\tqueue\tscript/s\tasking again/s\t1 node/s\tof script\tof asking again\tgoal\t3 nodes/s\tof script\tof asking again\tgoal\tlost\tµs CPU: script\t1 node\t3 nodes\t")
	for _, callers := range []int{64, 256} {
		for _, slots := range []int{10, 64, 512} {
			for _, queue := range []bool{false, true} {
				h := hotPool{callers, slots, queue}
				b.Run(h.String(), func(b *testing.B) { h.measure(b, url).row(w) })
			}
		}
	}
	require.NoError(b, w.Flush())
	fmt.Printf("\n%s\n", table.String())
}

// The systems of a cell. Asking is there only with a queue.
const (
	byScript = iota
	byNode
	byNodes
	byAsking
)

// hotFigures are the figures of a cell, by system.
type hotFigures struct {
	hotPool
	rate [4]float64 // operations in a second
	cpu  [4]float64 // of this process and of Redis, in microseconds for an operation
	lost float64    // part of the rounds of three nodes
}

func (f hotFigures) row(w *tabwriter.Writer) {
	queue, asking, goals := "no", "-", [2]string{"90 %", "40 %"}
	if f.queue {
		queue, asking = "yes", fmt.Sprintf("%.0f", f.rate[byAsking])
	}
	if f.callers == 256 {
		goals = [2]string{"150 %", "70 %"}
	}
	of := func(system, peer int) string {
		if f.rate[peer] == 0 {
			return "-"
		}
		return fmt.Sprintf("%.0f %%", 100*f.rate[system]/f.rate[peer])
	}
	fmt.Fprintf(w, "%d\t%d\t%s\t%.0f\t%s\t", f.callers, f.slots, queue, f.rate[byScript], asking)
	for i, system := range []int{byNode, byNodes} {
		fmt.Fprintf(w, "%.0f\t%s\t%s\t%s\t", f.rate[system], of(system, byScript), of(system, byAsking), goals[i])
	}
	fmt.Fprintf(w, "%.0f %%\t%.1f\t%.1f\t%.1f\t\n", 100*f.lost, f.cpu[byScript], f.cpu[byNode], f.cpu[byNodes])
}

// measure lets the systems take turns and returns the medians.
func (h hotPool) measure(b *testing.B, url string) hotFigures {
	o, err := redis.ParseURL(url)
	require.NoError(b, err)
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	emptyRedis(b, c)
	systems := []hotSystem{byScript: newScripts(b, url, h, h.queue), byNode: newRounds(b, url, h, 1), byNodes: newRounds(b, url, h, 3)}
	if h.queue {
		systems = append(systems, newScripts(b, url, h, false))
	}
	defer func() {
		for _, s := range systems {
			s.close()
		}
	}()
	f := hotFigures{hotPool: h}
	var rate, cpu [4][]float64
	next := 0 // calls of each caller so far, so that ids are new
	for range hotRounds {
		for i, s := range systems {
			next = h.run(b, s, next, hotWarm, nil)
			spent := cpuTime() + redisCPU(b, c)
			var done int64
			start := time.Now()
			next = h.run(b, s, next, hotTime, &done)
			took := time.Since(start)
			spent = cpuTime() + redisCPU(b, c) - spent
			require.Positive(b, done)
			rate[i] = append(rate[i], float64(done)/took.Seconds())
			cpu[i] = append(cpu[i], float64(spent)/1e3/float64(done))
		}
	}
	for i := range systems {
		f.rate[i], f.cpu[i] = median(rate[i]), median(cpu[i])
	}
	rounds, lost := systems[byNodes].lost()
	f.lost = float64(lost) / float64(rounds)
	b.ReportMetric(0, "ns/op")
	b.ReportMetric(f.rate[byScript], "script-ops/s")
	b.ReportMetric(f.rate[byNode], "1-node-ops/s")
	b.ReportMetric(f.rate[byNodes], "3-node-ops/s")
	return f
}

// run lets all callers call for some time, and returns the number after that of
// their latest call. Those that wait in a queue when the time is over are served
// before it returns.
func (h hotPool) run(b *testing.B, s hotSystem, next int, d time.Duration, done *int64) int {
	var all, most atomic.Int64
	var wg sync.WaitGroup
	end := time.Now().Add(d)
	for caller := range h.callers {
		wg.Go(func() {
			n, mine := next, 0
			for ; time.Now().Before(end); n++ {
				operations, err := s.call(caller, n)
				if err != nil {
					b.Error(err)
					return
				}
				mine += operations
			}
			all.Add(int64(mine))
			for old := most.Load(); int64(n) > old && !most.CompareAndSwap(old, int64(n)); old = most.Load() {
			}
		})
	}
	wg.Wait()
	if b.Failed() {
		b.FailNow()
	}
	if done != nil {
		*done = all.Load()
	}
	return int(most.Load())
}

func median(of []float64) float64 {
	of = slices.Sorted(slices.Values(of))
	return of[len(of)/2]
}

// redisCPU is what Redis has used so far, in nanoseconds.
func redisCPU(b *testing.B, c *redis.Client) (ns int64) {
	info, err := c.Info(context.Background(), "cpu").Result()
	require.NoError(b, err)
	for line := range strings.Lines(info) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), ":")
		if name == "used_cpu_sys" || name == "used_cpu_user" {
			seconds, err := strconv.ParseFloat(value, 64)
			require.NoError(b, err)
			ns += int64(seconds * 1e9)
		}
	}
	return ns
}

// emptyRedis drops what the cell before has left, in the file too, so that all
// cells begin alike.
func emptyRedis(b *testing.B, c *redis.Client) {
	ctx := context.Background()
	require.NoError(b, c.FlushAll(ctx).Err())
	require.NoError(b, c.BgRewriteAOF(ctx).Err())
	require.Eventually(b, func() bool {
		info, err := c.Info(ctx, "persistence").Result()
		return err == nil && strings.Contains(info, "aof_rewrite_in_progress:0") && strings.Contains(info, "aof_rewrite_scheduled:0")
	}, 30*time.Second, 5*time.Millisecond)
}

// startRedis starts a Redis that flushes every change before it answers. It does
// not rewrite its file by itself, which would fall on one system and not on
// another.
func startRedis(b *testing.B) (url string) {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		b.Skip("no redis-server; install it with: sudo apt-get install -y redis-server")
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	port := l.Addr().(*net.TCPAddr).Port
	l.Close()
	cmd := exec.Command(path, "--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", b.TempDir(), "--save", "",
		"--appendonly", "yes", "--appendfsync", "always", "--auto-aof-rewrite-percentage", "0")
	if err := cmd.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	c := redis.NewClient(&redis.Options{Addr: fmt.Sprint("127.0.0.1:", port)})
	defer c.Close()
	for range 200 {
		if c.Ping(context.Background()).Err() == nil {
			return fmt.Sprintf("redis://127.0.0.1:%d/0", port)
		}
		time.Sleep(10 * time.Millisecond)
	}
	b.Fatal("redis-server does not come up")
	return ""
}
