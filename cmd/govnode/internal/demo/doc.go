// Package demo shows a fleet being governed while nodes and workers are killed, and
// checks the ledgers of the workers against what the service has counted. In between
// it plays scenes with gates, which are judged by what their callers saw. The cluster
// under it is that of dev.
package demo
