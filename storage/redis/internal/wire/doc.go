// Package wire is what stands in Redis and what Redis is told: keys, values, and
// the scripts with their arguments and answers.
//
// It decides nothing. It knows no node, no clock and no connection, and not what
// follows from an answer: that is for package redis.
package wire
