package storage

import (
	"testing"
	"time"
)

// What the tests outside the package need of it.

// StartRedisForTest starts a Redis and returns its URL.
func StartRedisForTest(t testing.TB) string { return startRedis(t).url() }

// TimedRedisConfig returns a configuration under which log time is what now
// returns, nil meaning the real one.
func TimedRedisConfig(url, prefix string, now func() time.Duration) RedisConfig {
	return RedisConfig{URL: url, Prefix: prefix, Node: prefix, Logger: testLog(), logTime: now}
}

// StartClusterForTest starts a Redis Cluster and returns addresses of it.
func StartClusterForTest(t *testing.T) (addresses []string) {
	for _, s := range startCluster(t) {
		addresses = append(addresses, s.addr())
	}
	return addresses
}
