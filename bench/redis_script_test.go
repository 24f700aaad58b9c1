package bench

import (
	"context"
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"
)

// The semaphore as it is written by hand: a script per begin and per end. It
// keeps leases with deadlines, tokens, the counts of the session and, where one
// is asked for, a queue: an end hands its slot to the first who waits and wakes
// it through a list of its own, on which it blocks. It knows neither repeated
// requests nor places that are given up.
//
// KEYS: pool, session, tokens, queue. Who waits is "PLACE OF THE LIST", which is
// its id behind a prefix.
var (
	semaphoreBegin = redis.NewScript(`
local attempts = tonumber(redis.call('HGET', KEYS[2], 'attempts') or '0')
if attempts >= tonumber(ARGV[5]) then return -1 end
redis.call('HINCRBY', KEYS[2], 'attempts', 1)
local now = redis.call('TIME')
local ms = now[1] * 1000 + math.floor(now[2] / 1000)
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', ms)
if redis.call('ZCARD', KEYS[1]) >= tonumber(ARGV[2]) then
  if ARGV[6] == '' then return 0 end
  redis.call('RPUSH', KEYS[4], ARGV[1])
  redis.call('HINCRBY', KEYS[2], 'calls', 1)
  redis.call('HINCRBY', KEYS[2], 'tool:' .. ARGV[4], 1)
  return -2
end
local token = redis.call('INCR', KEYS[3])
redis.call('ZADD', KEYS[1], ms + ARGV[3], ARGV[1])
redis.call('HINCRBY', KEYS[2], 'calls', 1)
redis.call('HINCRBY', KEYS[2], 'tool:' .. ARGV[4], 1)
return token`)
	semaphoreEnd = redis.NewScript(`
if redis.call('ZREM', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[2], 'executions', 1)
if ARGV[2] == '' then return 1 end
local next = redis.call('LPOP', KEYS[4])
if next then
  local now = redis.call('TIME')
  redis.call('ZADD', KEYS[1], now[1] * 1000 + math.floor(now[2] / 1000) + ARGV[3], next)
  redis.call('RPUSH', ARGV[2] .. next, redis.call('INCR', KEYS[3]))
end
return 1`)
)

// scripts is the semaphore as a system. Callers have a connection each.
type scripts struct {
	hotPool
	client *redis.Client
	tag    string
	wake   string // prefix of the lists on which those who wait block; empty: there is no queue
}

func newScripts(b *testing.B, url string, h hotPool, queue bool) hotSystem {
	o, err := redis.ParseURL(url)
	require.NoError(b, err)
	o.PoolSize, o.MaxRetries, o.ReadTimeout = h.callers, -1, hotPatience
	s := &scripts{hotPool: h, client: redis.NewClient(o), tag: "{script}"}
	if queue {
		s.tag = "{queue}"
		s.wake = s.tag + ":wake:"
	}
	return s
}

func (s *scripts) call(caller, n int) (int, error) {
	ctx := context.Background()
	id := fmt.Sprint(caller, "-", n)
	keys := []string{s.tag + ":pool", fmt.Sprint(s.tag, ":session:", caller), s.tag + ":token", s.tag + ":queue"}
	begin := func() (int, error) {
		return semaphoreBegin.Run(ctx, s.client, keys, id, s.slots, 30_000, "ls", 1<<30, s.wake).Int()
	}
	token, err := begin()
	for token == 0 && err == nil && s.queue { // asking again is all it can do
		token, err = begin()
	}
	switch {
	case err != nil:
		return 0, err
	case token == 0:
		return 1, nil
	case token == -1:
		return 0, fmt.Errorf("%s was answered that the session has no attempts left", id)
	case token == -2:
		if err := s.client.BLPop(ctx, hotPatience, s.wake+id).Err(); err != nil {
			return 0, fmt.Errorf("waiting for a turn: %w", err)
		}
	}
	ended, err := semaphoreEnd.Run(ctx, s.client, keys, id, s.wake, 30_000).Int()
	if err == nil && ended != 1 {
		err = fmt.Errorf("the end of %s was answered %d", id, ended)
	}
	return 2, err
}

func (s *scripts) lost() (uint64, uint64) { return 0, 0 }

func (s *scripts) close() { _ = s.client.Close() }
