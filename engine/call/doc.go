// Package call is what is judged: a call with its arguments and context, and the
// facts that the service itself holds about the session that makes it.
//
// These are values. How fields of a call are looked up is told in package
// matching.
package call
