// Package vectors attacks running nodes: three of them, with TLS, tokens and chains, on
// Raft or over a Redis. Its tests have the tag attack; `make attack` runs them.
package vectors
