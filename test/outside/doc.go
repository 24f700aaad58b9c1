// Package outside checks the promises of govnode from outside: against the
// built program, `govnode dev --nodes 3`, with real processes that are really
// killed, and with plain HTTP and JSON alone, as somebody with curl would.
//
// Its tests take about two minutes and are no part of the others: they stand
// behind the build tag outside and are run by `make outside`. It has no code of
// its own and must not import any of the product.
package outside
