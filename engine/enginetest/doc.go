// Package enginetest has what tests of policies share: values from JSON, and
// guardrails and backends that answer by a script. It imports testing and is for
// tests alone.
package enginetest
