// Package matching tests rules: which of a list is the first that a call matches.
//
// An [Evaluation] looks up fields of the call, each once, in the order of trust:
// what the service knows, what the request says itself, what its context claims.
// A [List] finds the first rule by an index over fields; where a rule looked at a
// fact, the range in which its truth stands is kept as a premise.
//
// It knows no document beside a rule, no default and no policy.
package matching
