// Package input is what a request may say: how large, how long and how many in one
// table (caps.go), checks of fields that name the one that is wrong, requests in
// JSON, and the namespace that a request is in.
//
// It finds nothing out: what needs the state, such as whether a session is there,
// is checked where that is read.
package input
