package bench

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"example.com/govnode/session"
	"example.com/govnode/storage"
)

// BenchmarkRedisPool measures begin and end of calls on one hot pool of a Redis
// that flushes every change: by a script per call, written by hand for this one
// purpose, and by rounds, from one node and from three. One operation is a begin
// or an end; every caller has a session of its own. The script keeps leases with
// deadlines, tokens and the counts of the session; it knows neither repeated
// requests nor queues.
//
//	go test ./bench -run '^$' -bench RedisPool -benchtime 3s -count 3
func BenchmarkRedisPool(b *testing.B) {
	url := startRedis(b)
	for _, callers := range []int{64, 256} {
		for _, slots := range []int{10, 64, 512} {
			name := fmt.Sprintf("callers=%d/slots=%d", callers, slots)
			b.Run("script/"+name, func(b *testing.B) { byScript(b, url, callers, slots) })
			for _, nodes := range []int{1, 3} {
				b.Run(fmt.Sprintf("nodes=%d/%s", nodes, name), func(b *testing.B) { byRounds(b, url, nodes, callers, slots) })
			}
		}
	}
}

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
		"--appendonly", "yes", "--appendfsync", "always")
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

var (
	beginScript = redis.NewScript(`
local attempts = tonumber(redis.call('HGET', KEYS[2], 'attempts') or '0')
if attempts >= tonumber(ARGV[5]) then return -1 end
redis.call('HINCRBY', KEYS[2], 'attempts', 1)
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then return 0 end
local token = redis.call('INCR', KEYS[3])
redis.call('ZADD', KEYS[1], ms + ARGV[3], ARGV[1])
redis.call('HINCRBY', KEYS[2], 'calls', 1)
redis.call('HINCRBY', KEYS[2], 'tool:' .. ARGV[4], 1)
return token`)
	endScript = redis.NewScript(`
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[2], 'executions', 1)
return 1`)
)

func byScript(b *testing.B, url string, callers, slots int) {
	o, err := redis.ParseURL(url)
	if err != nil {
		b.Fatal(err)
	}
	o.PoolSize = callers
	c := redis.NewClient(o)
	defer c.Close()
	ctx := context.Background()
	tag := fmt.Sprintf("{script%d-%d}", callers, b.N)
	measure(b, callers, func(caller, n int) error {
		id := fmt.Sprint(caller, "-", n)
		keys := []string{tag + ":pool", fmt.Sprint(tag, ":session:", caller), tag + ":token"}
		token, err := beginScript.Run(ctx, c, keys, id, slots, 30_000, "ls", 1<<30).Int()
		if err == nil && token > 0 {
			err = endScript.Run(ctx, c, keys, id).Err()
			return err
		}
		return orRefused(err)
	})
}

// errRefused says that a begin was refused, so that there was one operation.
var errRefused = fmt.Errorf("refused")

func orRefused(err error) error {
	if err == nil {
		return errRefused
	}
	return err
}

func byRounds(b *testing.B, url string, nodes, callers, slots int) {
	ctx := context.Background()
	stores := make([]*storage.Redis, nodes)
	for i := range stores {
		r, err := storage.OpenRedis(ctx, storage.RedisConfig{URL: url, Prefix: fmt.Sprintf("n%dc%db%d", nodes, callers, b.N), Node: fmt.Sprint(i)})
		if err != nil {
			b.Fatal(err)
		}
		defer r.Close()
		stores[i] = r
	}
	d := session.Digest{1}
	must := func(c session.Command) {
		if _, _, err := storage.One(ctx, stores[0], c); err != nil {
			b.Fatal(err)
		}
	}
	must(&session.PutPolicy{NS: "default", By: session.Maker{Client: "bench", Request: "put"}, Name: "p", Digest: d, Tree: []byte("tree"),
		Limits: session.Limits{MaxTokens: 1 << 40, MaxToolCalls: 1 << 30, MaxAttempts: 1 << 30, Timeout: 24 * time.Hour, MaxConcurrent: int32(slots)}})
	for i := range callers {
		must(&session.Open{NS: "default", Session: fmt.Sprint("s", i), Agent: "a", Policy: "p", Digest: d, IdleTTL: time.Hour})
	}
	b.ResetTimer()
	measure(b, callers, func(caller, n int) error {
		s, id := fmt.Sprint("s", caller), fmt.Sprint("c", n)
		store := stores[caller%nodes]
		r, _, err := storage.One(ctx, store, &session.Begin{NS: "default", Session: s, Call: id, Tool: "ls", Digest: d,
			Verdict: session.Verdict{Allow: true}, Pools: []session.Want{{Pool: session.PolicyPool("p"), Weight: 1}}, TTL: 30 * time.Second})
		if err != nil {
			return err
		}
		if r.Code != session.Admitted {
			return errRefused
		}
		r, _, err = storage.One(ctx, store, &session.End{NS: "default", Session: s, Call: id, Pools: []string{session.PolicyPool("p")}, Status: session.Succeeded})
		if err == nil && r.Code != session.Ended {
			err = fmt.Errorf("end: %v", r.Code)
		}
		return err
	})
	var rounds, lost uint64
	for _, r := range stores {
		s := r.Stats()
		rounds, lost = rounds+s.Rounds, lost+s.Lost
	}
	b.ReportMetric(float64(rounds), "rounds")
	b.ReportMetric(float64(lost), "lost")
}

// measure runs b.N operations from so many callers at once.
func measure(b *testing.B, callers int, call func(caller, n int) error) {
	var left, done atomic.Int64
	left.Store(int64(b.N))
	var wg sync.WaitGroup
	start := time.Now()
	for caller := range callers {
		wg.Go(func() {
			for n := 0; left.Load() > 0; n++ {
				ops := int64(2)
				if err := call(caller, n); err == errRefused {
					ops = 1
				} else if err != nil {
					b.Error(err)
					return
				}
				left.Add(-ops)
				done.Add(ops)
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(done.Load())/time.Since(start).Seconds(), "ops/s")
}
