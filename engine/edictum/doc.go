// Package edictum judges calls by rulesets of Edictum (seed: Edictum architecture):
// documents are read and composed, compiled once, and then judge calls before they
// run and outputs behind them, at once and without waiting.
//
// It counts nothing. What a ruleset limits is told by [Ruleset.Limits], for the one
// who reserves calls in an ordered log; the order of the pipeline is kept by asking
// in that order. It keeps no workflow, speaks no protocol and opens no file.
//
// Both vocabularies of rulesets are read, and one is used: that of kind Ruleset.
package edictum
