// Package outside checks the promises of govnode from outside: against the
// built program, `govnode dev --nodes 3` or three `govnode serve`, on Raft, on a
// Redis and on a Redis Cluster, with real processes that are really killed, and
// with plain HTTP and JSON alone, as somebody with curl would.
//
// Its tests take about three minutes and are no part of the others: they stand
// behind the build tag outside and are run by `make outside`. Those on Redis need
// a redis-server and are skipped without one, or fail if GOVNODE_REQUIRE_REDIS is
// set. The package has no code of its own and must not import any of the product.
package outside
