package redis

import (
	"testing"
	"time"

	"example.com/govnode/storage"
)

// What the tests outside the package need of it.

// StartForTest starts a Redis and returns the URL of a user that may do no
// more than is documented.
func StartForTest(t testing.TB) string { return startRedis(t).restrict(false) }

// TimedConfig returns a configuration under which log time is what now
// returns, nil meaning the real one.
func TimedConfig(url, prefix string, now func() time.Duration) Config {
	return Config{URL: url, Prefix: prefix, Node: prefix, Logger: testLog(), logTime: now}
}

// SoundForTest looks whether all that the store keeps in Redis agrees.
func SoundForTest(t testing.TB, s storage.Store) { soundOf(t, s.(*Store)) }

// StartClusterForTest starts a Redis Cluster and returns addresses of it, and
// the URL of a user that may do no more than is documented.
func StartClusterForTest(t *testing.T) (addresses []string, url string) {
	for _, s := range startCluster(t) {
		addresses, url = append(addresses, s.addr()), s.restrict(true)
	}
	return addresses, url
}
