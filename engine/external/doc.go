// Package external is those beyond the rules of documents that are asked about a
// call: backends, which judge by policies in other languages, and guardrails, which
// may also rewrite arguments. It asks them, bounds how long that takes and what
// they may say, and takes a panic for an error.
//
// When they are asked, and what becomes of an answer, is up to package engine.
package external
