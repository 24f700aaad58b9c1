// Package redact replaces what must not be logged, recorded or returned: personal
// data and credentials, by their shapes and by the names of the fields they stand
// in.
//
// It is not a scanner for policies to decide by; those have patterns. A text in
// which nothing can be found costs one look at each byte.
package redact
