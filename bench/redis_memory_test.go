package bench

import (
	"context"
	"fmt"
	"regexp"
	"strconv"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// BenchmarkMillionRedisMemory is what Redis needs for the sessions of
// BenchmarkMillionMemory, kept as the scripts of the peer keep them: a hash for
// the session, a sorted set for its ids, and the open lease in the pool.
//
//	GOVNODE_SESSIONS=100000 go test ./bench -run '^$' -bench MillionRedis -benchtime 1x
func BenchmarkMillionRedisMemory(b *testing.B) {
	n := sessionCount(b)
	o, err := redis.ParseURL(startRedis(b))
	require.NoError(b, err)
	o.ReadTimeout = time.Minute
	c := redis.NewClient(o)
	defer func() { _ = c.Close() }()
	ctx := context.Background()
	require.NoError(b, redisBegin.Load(ctx, c).Err())
	require.NoError(b, redisEnd.Load(ctx, c).Err())
	before := usedMemory(b, c)
	const atOnce = 100
	for from := 0; from < n; from += atOnce {
		p := c.Pipeline()
		for i := from; i < min(from+atOnce, n); i++ {
			fillRedis(ctx, p, i)
		}
		_, err := p.Exec(ctx)
		require.NoError(b, err)
	}
	b.ReportMetric(float64(usedMemory(b, c)-before)/float64(n), "B/session")
	b.ReportMetric(0, "ns/op")
}

// fillRedis makes a session with 8 finished calls of 4 tools, and an open one.
func fillRedis(ctx context.Context, p redis.Pipeliner, i int) {
	s, pool := id('S', i), policyName(i)
	keys := []string{"s:" + s, "i:" + s, "p:" + pool, "q:" + pool, "t:" + pool, "u:" + pool}
	p.HSet(ctx, keys[0], "agent", "agent-"+strconv.Itoa(i%1000), "policy", pool, "opened", time.Now().UnixMilli())
	for k := range 9 {
		// One pool of a session, as in the state that it is compared with; the
		// second one is emptied again below.
		redisBegin.EvalSha(ctx, p, keys, id('C', k)+s[20:], 4096, time.Hour.Milliseconds(), tools[k%4], 1<<30, RememberedIDs)
		if k < 8 {
			redisEnd.EvalSha(ctx, p, keys, id('C', k)+s[20:])
		}
	}
	p.ZRem(ctx, keys[3], id('C', 8)+s[20:])
}

var usedMemoryLine = regexp.MustCompile(`(?m)^used_memory:(\d+)`)

func usedMemory(b *testing.B, c *redis.Client) int64 {
	info, err := c.Info(context.Background(), "memory").Result()
	require.NoError(b, err)
	m := usedMemoryLine.FindStringSubmatch(info)
	require.NotNil(b, m, fmt.Sprint("no used_memory in ", info))
	n, err := strconv.ParseInt(m[1], 10, 64)
	require.NoError(b, err)
	return n
}
