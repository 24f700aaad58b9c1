// Package values is how the storage protocol is answered: values, counters and lists
// under keys that callers choose.
//
// It knows nothing of sessions, calls and limits, nor do they of it.
package values
