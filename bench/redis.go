package bench

import (
	"context"
	"fmt"
	"strconv"
	"time"

	"github.com/redis/go-redis/v9"
)

// Redis as a Target, for comparison: its scripts, and the callers that run
// them.

// The scripts do for Redis what one BeginCall and one EndCall do: one trip each,
// the id is looked up first and remembered, leases that have run out go, both
// pools are checked, then taken, each with a fencing token, and the session's
// counts move. They know no queue, no policy and no order of log time, all of
// which is in favour of Redis.
//
// KEYS: session, ids, pool 1, pool 2, tokens of pool 1, tokens of pool 2.
var (
	redisBegin = redis.NewScript(`
local known = redis.call('ZSCORE', KEYS[2], ARGV[1])
if known then return 2 end
local attempts = redis.call('HINCRBY', KEYS[1], 'attempts', 1)
redis.call('ZADD', KEYS[2], attempts, ARGV[1])
if attempts > tonumber(ARGV[6]) then
  redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -(attempts - tonumber(ARGV[6])) - 1)
end
if attempts > tonumber(ARGV[5]) then return 0 end
local t = redis.call('TIME')
local now = t[1] * 1000 + math.floor(t[2] / 1000)
for i = 3, 4 do
  redis.call('ZREMRANGEBYSCORE', KEYS[i], '-inf', now)
  if redis.call('ZCARD', KEYS[i]) >= tonumber(ARGV[2]) then return 0 end
end
for i = 3, 4 do
  redis.call('INCR', KEYS[i + 2])
  redis.call('ZADD', KEYS[i], now + ARGV[3], ARGV[1])
end
redis.call('HINCRBY', KEYS[1], 'calls', 1)
redis.call('HINCRBY', KEYS[1], 'tool:' .. ARGV[4], 1)
return 1`)
	redisEnd = redis.NewScript(`
if not redis.call('ZSCORE', KEYS[2], ARGV[1]) then return 0 end
if redis.call('ZREM', KEYS[3], ARGV[1]) == 0 then return 2 end
redis.call('ZREM', KEYS[4], ARGV[1])
redis.call('HINCRBY', KEYS[1], 'executions', 1)
return 1`)
)

// A redisPeer is Redis as a Target. Callers share a pool of connections as large
// as their number, so that nobody waits for one.
type redisPeer struct {
	plan    Plan
	client  *redis.Client
	callers []redisCaller
}

type redisCaller struct {
	keys []string
	book Ledger
	next int64
	open string
}

// NewRedis returns the Redis at an address as a Target, for the scenarios Apart
// and HotPool.
func NewRedis(ctx context.Context, address string, plan Plan) (Target, error) {
	if err := plan.CheckPeer(); err != nil {
		return nil, err
	}
	r := &redisPeer{plan: plan, callers: make([]redisCaller, plan.Callers)}
	r.client = redis.NewClient(&redis.Options{Addr: address, PoolSize: plan.Callers + 2, MinIdleConns: plan.Callers, ReadTimeout: 10 * time.Second, MaxRetries: -1})
	for _, script := range []*redis.Script{redisBegin, redisEnd} {
		if err := script.Load(ctx, r.client).Err(); err != nil {
			_ = r.client.Close()
			return nil, fmt.Errorf("redis at %s: %w", address, err)
		}
	}
	for i := range r.callers {
		k := plan.PeerKeys(i)
		r.callers[i].keys = []string{
			"s:" + k.Session, "i:" + k.Session, "p:" + k.Pools[0], "p:" + k.Pools[1], "t:" + k.Pools[0], "t:" + k.Pools[1],
		}
	}
	return r, nil
}

func (r *redisPeer) Step(ctx context.Context, caller int) error {
	c := &r.callers[caller]
	if c.open != "" {
		return r.end(ctx, c)
	}
	c.next++
	id := CallID(caller, c.next)
	code, err := redisBegin.EvalSha(ctx, r.client, c.keys, id, r.plan.Slots, int64(30*time.Second/time.Millisecond), tool, int64(1)<<40, RememberedIDs).Int()
	switch {
	case err != nil:
		c.book.Unknown++
		return err
	case code != 1:
		c.book.Attempts++
		return fmt.Errorf("redis: begin of %s was answered %d", id, code)
	}
	c.open = id
	c.book.Attempts++
	c.book.Calls++
	return nil
}

func (r *redisPeer) end(ctx context.Context, c *redisCaller) error {
	id := c.open
	c.open = ""
	code, err := redisEnd.EvalSha(ctx, r.client, c.keys, id).Int()
	switch {
	case err != nil:
		c.book.Unknown++
		return err
	case code != 1:
		return fmt.Errorf("redis: end of %s was answered %d", id, code)
	}
	c.book.Executions++
	return nil
}

func (r *redisPeer) Verify(ctx context.Context) (Audit, error) {
	var books []Ledger
	var system []Counted
	for i := range r.callers {
		c := &r.callers[i]
		if c.open != "" {
			if err := r.end(ctx, c); err != nil {
				return Audit{}, err
			}
		}
		fields, err := r.client.HGetAll(ctx, c.keys[0]).Result()
		if err != nil {
			return Audit{}, err
		}
		var n [3]int64
		for k, name := range []string{"attempts", "calls", "executions"} {
			if fields[name] == "" {
				continue // a caller that had no turn
			}
			if n[k], err = strconv.ParseInt(fields[name], 10, 64); err != nil {
				return Audit{}, fmt.Errorf("redis: %s of %s: %w", name, c.keys[0], err)
			}
		}
		books, system = append(books, c.book), append(system, Counted{n[0], n[1], n[2]})
	}
	return CompareLedgers(books, system)
}

func (r *redisPeer) Close() error { return r.client.Close() }
