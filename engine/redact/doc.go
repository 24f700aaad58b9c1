// Package redact replaces what must not be logged, recorded or returned: personal
// data and credentials, by their shapes and by the names of the fields they stand
// in.
//
// It decides nothing: what is found is for scans of policies to judge. A text in
// which nothing can be found costs one look at each byte.
package redact
