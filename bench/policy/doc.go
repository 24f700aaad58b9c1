// Package policy measures the evaluator beside cedar-go and OPA, on the same
// decisions, in one run.
package policy
